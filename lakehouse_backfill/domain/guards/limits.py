"""When chunks may start under the limits of a run, and so when the last one ends."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from lakehouse_backfill.domain.guards.safety import PaceLimits, next_opening

#: Limits hold over any span of this length.
WINDOW = timedelta(minutes=5)
WINDOW_MINUTES = 5
_WINDOWS_PER_HOUR = 12
#: A moment after the end of a span.
TICK = timedelta(milliseconds=1)


def commit_allowance(per_hour: int) -> tuple[int, timedelta]:
    """Return how many commits may lie in any span of which length, so that an hour has its most."""
    if per_hour >= _WINDOWS_PER_HOUR:
        return per_hour // _WINDOWS_PER_HOUR, WINDOW
    return 1, timedelta(hours=1) / per_hour


class _Span:
    """What may lie in any span: the amounts that are in it, and the most that fits."""

    def __init__(self, most: int, length: timedelta) -> None:
        self._most, self._length = most, length
        self._used = 0
        #: A heap: what ended first leaves the span first.
        self._ends: list[tuple[datetime, int]] = []

    def fits_at(self, at: datetime, amount: int) -> datetime:
        """Return when an amount fits, not before `at`; one that is too large, when it is alone."""
        while self._ends:
            end, size = self._ends[0]
            is_over = at - end > self._length
            if not is_over and self._used + amount <= self._most:
                break
            heapq.heappop(self._ends)
            self._used -= size
            if not is_over:
                at = end + self._length + TICK
        return at

    def add(self, end: datetime, amount: int) -> None:
        heapq.heappush(self._ends, (end, amount))
        self._used += amount


class ChunkAmounts(NamedTuple):
    """The rows and bytes that count of a chunk, and the seconds that it takes."""

    rows: int
    size_bytes: int
    seconds: float


def _spans_of(limits: PaceLimits) -> list[tuple[_Span, int | None]]:
    """Return what is limited, each with its place in a chunk's amounts; None counts chunks."""
    spans: list[tuple[_Span, int | None]] = []
    for place, a_minute in enumerate((limits.rows_per_minute, limits.bytes_per_minute)):
        if a_minute is not None:
            spans.append((_Span(a_minute * WINDOW_MINUTES, WINDOW), place))
    if limits.commits_per_hour is not None:
        spans.append((_Span(*commit_allowance(limits.commits_per_hour)), None))
    return spans


def when_amounts_fit(
    limits: PaceLimits,
    landed: Iterable[tuple[datetime, ChunkAmounts]],
    amounts: ChunkAmounts,
    now: datetime,
) -> datetime:
    """Return when so many rows and bytes may be read beside what landed; at least `now`.

    What is more than a limit lets through at all may be read when nothing else counts.
    """
    at, known = now, sorted(landed)
    for span, place in _spans_of(limits):
        if place is None:
            continue
        for end, one in known:
            span.add(min(end, now), one[:2][place])
        at = span.fits_at(at, amounts[:2][place])
    return at


def earliest_end(limits: PaceLimits, chunks: Iterable[ChunkAmounts], begin: datetime) -> datetime:
    """Return when the last chunk ends under the limits if nothing fails; at least `begin`.

    Chunks start in order, as the pacer of a staging starts them. The end never lies beyond a
    century.
    """
    spans = _spans_of(limits)
    pause = timedelta(seconds=limits.pause_seconds)
    free = [begin - pause] * limits.parallel
    at = last = begin
    for chunk in chunks:
        at = max(at, heapq.heappop(free) + pause)
        amounts = (chunk.rows, chunk.size_bytes)
        for span, place in spans:
            at = span.fits_at(at, 1 if place is None else amounts[place])
        if limits.hours is not None:
            at = next_opening(limits.hours, at) or at
        if at - begin > _CENTURY:
            return begin + _CENTURY
        end = at + timedelta(seconds=min(chunk.seconds, _CENTURY.total_seconds()))
        for span, place in spans:
            span.add(end, 1 if place is None else amounts[place])
        heapq.heappush(free, end)
        last = max(last, end)
    return min(last, begin + _CENTURY)


_CENTURY = timedelta(days=36_525)
