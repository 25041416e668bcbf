"""When the next chunk may start: pure decisions over what landed, what is in work, and limits.

A limit a minute is kept over any 5 minutes: a chunk starts only when the chunks that landed in the
last 5 minutes, those in work and itself fit together. Whatever lands later than that start was in
work then, so it was counted. Sizes are estimates until a chunk has landed; the invariant holds for
chunks that are not larger than estimated.

The number of chunks side by side grows by one after as many good chunks, and is halved when a chunk
fails or is slow (additive increase, multiplicative decrease).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from lakehouse_backfill.domain.guards.limits import TICK, WINDOW, WINDOW_MINUTES, commit_allowance
from lakehouse_backfill.domain.guards.safety import PaceLimits, next_opening

_LONGEST_BACKOFF_S = 300
#: A chunk is slow when it takes so many times what chunks of its size took, and some seconds.
_SLOW_FACTOR, _SLOW_S = 3.0, 5.0
_REMEMBERED = 20


class Size(NamedTuple):
    """The rows and the bytes that count of a chunk."""

    rows: int
    size_bytes: int


class Landed(NamedTuple):
    """A chunk that was committed."""

    at: datetime
    size: Size


@dataclass(frozen=True)
class Go:
    """The chunk may start now."""


@dataclass(frozen=True)
class Wait:
    """The chunk may not start before `until`; None: not before a chunk in work has ended."""

    until: datetime | None
    reason: str


@dataclass(frozen=True)
class Break:
    """No chunk may start any more: the circuit is broken."""

    reason: str


Decision = Go | Wait | Break


@dataclass(frozen=True)
class Pace:
    """The state of a pacer."""

    #: Chunks that may be side by side now.
    window: int = 1
    good: int = 0
    failures: int = 0
    problem: str = ""
    #: No chunk starts before: a pause, or the backoff after a failure.
    not_before: datetime | None = None
    landed: tuple[Landed, ...] = ()
    in_work: tuple[tuple[str, Size], ...] = ()
    #: Rows and seconds of the newest good chunks.
    speeds: tuple[tuple[int, float], ...] = ()


def decide(limits: PaceLimits, pace: Pace, size: Size, now: datetime) -> Decision:
    """Decide whether a chunk of this size starts now."""
    if stop := broken(limits, pace):
        return stop
    if len(pace.in_work) >= pace.window:
        return Wait(None, f"{len(pace.in_work)} of at most {pace.window} chunks are in work")
    waits = [
        *_waits_for_hours(limits, now),
        *([Wait(pace.not_before, "")] if pace.not_before and now < pace.not_before else []),
        *_waits_for_commits(limits, pace, now),
        *_waits_for_amount("rows", limits.rows_per_minute, pace, size, now),
        *_waits_for_amount("bytes", limits.bytes_per_minute, pace, size, now),
    ]
    if not waits:
        return Go()
    # The longest decides; one that ends with a chunk in work is looked at again then.
    found = max(waits, key=lambda wait: (wait.until is None, wait.until or now))
    if found.until == pace.not_before and not found.reason:
        backoff = f"after a failure: {pace.problem}" if pace.failures else ""
        pause = f"a pause of {limits.pause_seconds:g} s between chunks"
        return replace(found, reason=backoff or pause)
    return found


def decide_found(limits: PaceLimits, pace: Pace, now: datetime) -> Decision:
    """Decide whether a chunk that is there already is looked at now: no limit but that of failures.

    Without it a chunk that cannot be looked at would be looked at again and again.
    """
    if found := broken(limits, pace):
        return found
    if pace.failures and pace.not_before and now < pace.not_before:
        return Wait(pace.not_before, f"after a failure: {pace.problem}")
    return Go()


def broken(limits: PaceLimits, pace: Pace) -> Break | None:
    """Return why no chunk may start any more, if so many failed in a row."""
    if pace.failures < limits.failures_in_a_row:
        return None
    return Break(
        f"{pace.failures} chunks in a row failed (limits.failures_in_a_row); the last: "
        f"{pace.problem}"
    )


def _waits_for_hours(limits: PaceLimits, now: datetime) -> list[Wait]:
    hours = limits.hours
    opening = next_opening(hours, now) if hours else None
    if hours is None or opening is None:
        return []
    return [Wait(opening, f"limits.hours: {hours.from_} to {hours.to} UTC")]


def _waits_for_commits(limits: PaceLimits, pace: Pace, now: datetime) -> list[Wait]:
    if limits.commits_per_hour is None:
        return []
    most, span = commit_allowance(limits.commits_per_hour)
    recent = sorted(one.at for one in pace.landed if now - one.at <= span)
    reason = f"{limits.commits_per_hour:,} commits an hour"
    excess = len(recent) + len(pace.in_work) + 1 - most
    if excess <= 0:
        return []
    if excess > len(recent):
        return [Wait(None, reason)]
    return [Wait(recent[excess - 1] + span + TICK, reason)]


def _waits_for_amount(
    unit: str, limit: int | None, pace: Pace, size: Size, now: datetime
) -> list[Wait]:
    if limit is None:
        return []
    position = 0 if unit == "rows" else 1
    recent = sorted(one for one in pace.landed if now - one.at <= WINDOW)
    in_work = sum(each[position] for _, each in pace.in_work)
    excess = sum(one.size[position] for one in recent) + in_work + size[position]
    excess -= limit * WINDOW_MINUTES
    reason = f"{limit:,} {unit} a minute"
    if excess <= 0:
        return []
    for one in recent:
        excess -= one.size[position]
        # A chunk that is larger than the limit alone starts when nothing else counts.
        if excess <= 0 or (one is recent[-1] and not pace.in_work):
            return [Wait(one.at + WINDOW + TICK, reason)]
    return [Wait(None, reason)] if pace.in_work else []


def start(pace: Pace, chunk_id: str, size: Size) -> Pace:
    """Return the state once a chunk has started."""
    return replace(pace, in_work=(*pace.in_work, (chunk_id, size)))


def land(
    limits: PaceLimits, pace: Pace, chunk_id: str, landed: Landed, seconds: float | None
) -> tuple[Pace, str]:
    """Return the state once a chunk has landed in `seconds`, and what changed, if it did.

    None: it was not computed, so that it says nothing of others: neither by its time, nor that
    there is room for one more.
    """
    changed = replace(
        pace,
        in_work=_without(pace, chunk_id),
        landed=(*_recent(limits, pace, landed.at), landed),
        failures=0,
        problem="",
        not_before=_pause_end(limits, landed.at),
    )
    if seconds is None:
        return changed, ""
    expected = expected_seconds(pace.speeds, landed.size.rows)
    if expected and seconds > max(_SLOW_S, _SLOW_FACTOR * expected):
        return _halve(changed, f"chunk {chunk_id} took {seconds:,.1f} s, not {expected:,.1f}")
    speeds = (*pace.speeds, (landed.size.rows, seconds))[-_REMEMBERED:]
    changed = replace(changed, speeds=speeds, good=pace.good + 1)
    if changed.window < limits.parallel and changed.good >= changed.window:
        text = f"window {changed.window} to {changed.window + 1}: {changed.good} good chunks"
        return replace(changed, window=changed.window + 1, good=0), text
    return changed, ""


def find(pace: Pace) -> Pace:
    """Return the state once a chunk was found: what failed before it works again."""
    return replace(pace, failures=0, problem="", not_before=None) if pace.failures else pace


def fail(
    limits: PaceLimits, pace: Pace, chunk_id: str, problem: str, now: datetime
) -> tuple[Pace, str]:
    """Return the state once a chunk has failed, and what changed; nothing of it counts."""
    failures = pace.failures + 1
    again_at = now + timedelta(seconds=backoff_s(failures))
    # Of chunks side by side: the pause after one that landed is not over yet.
    again_at = max(again_at, pace.not_before or again_at)
    changed = replace(
        pace,
        in_work=_without(pace, chunk_id),
        failures=failures,
        problem=problem,
        not_before=again_at,
    )
    changed, text = _halve(changed, f"chunk {chunk_id} failed: {problem}")
    if failures < limits.failures_in_a_row:
        text += f"; tried again after {(again_at - now).total_seconds():,.0f} s"
    return changed, text


def backoff_s(failures: int) -> int:
    """Return the seconds from the last of so many failures in a row to the next attempt."""
    return min(_LONGEST_BACKOFF_S, 1 << failures)


def expected_seconds(speeds: Iterable[tuple[int, float]], rows: int) -> float | None:
    """Return what a chunk of so many rows takes, by the newest ones; None before there are three.

    More rows than usual take longer in proportion; fewer take as long as usual.
    """
    known = list(speeds)
    if len(known) < 3:
        return None
    usual_rows = median(rows for rows, _ in known)
    return median(seconds for _, seconds in known) * max(1.0, rows / max(1.0, usual_rows))


def resume(limits: PaceLimits, landed: Iterable[Landed], now: datetime) -> Pace:
    """Return the state of a driver that goes on: what landed before it counts for it, too.

    What another clock puts into the future landed by now: a wait never grows by the clocks' skew.
    """
    known = tuple(sorted(Landed(min(one.at, now), one.size) for one in landed))
    if not known:
        return Pace()
    pace = Pace(landed=known, not_before=_pause_end(limits, known[-1].at))
    return replace(pace, landed=_recent(limits, pace, now))


def _halve(pace: Pace, why: str) -> tuple[Pace, str]:
    window = max(1, pace.window // 2)
    text = f"window {pace.window} to {window}: {why}" if window != pace.window else why
    return replace(pace, window=window, good=0), text


def _pause_end(limits: PaceLimits, at: datetime) -> datetime | None:
    return at + timedelta(seconds=limits.pause_seconds) if limits.pause_seconds else None


def _without(pace: Pace, chunk_id: str) -> tuple[tuple[str, Size], ...]:
    return tuple(one for one in pace.in_work if one[0] != chunk_id)


def _recent(limits: PaceLimits, pace: Pace, now: datetime) -> tuple[Landed, ...]:
    """Return what may still count: the state does not grow with the number of chunks."""
    spans = []
    if limits.rows_per_minute is not None or limits.bytes_per_minute is not None:
        spans.append(WINDOW)
    if limits.commits_per_hour is not None:
        spans.append(commit_allowance(limits.commits_per_hour)[1])
    longest = max(spans, default=timedelta())
    return tuple(one for one in pace.landed if now - one.at <= longest)
