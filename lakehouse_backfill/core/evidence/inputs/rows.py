"""Rows of inputs: which partitions of a product they belong to, by metadata alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from typing import Generic, NamedTuple, TypeVar

from lakehouse_backfill.core.planning.inputs.read_windows import TIME_TYPES
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.partitions import RowRange, ScopeField
from lakehouse_backfill.domain.tables.files import ColumnSpan, LiveFile, visible_rows

Item = TypeVar("Item")


def rows_overlap(rows: RowRange, window: tuple[datetime, datetime]) -> bool:
    """Return whether a range of rows has instants in the half-open window; null rows have none."""
    if rows.is_null:
        return False
    if rows.equals is not None:
        is_time = isinstance(rows.equals, date)
        return not is_time or window[0] <= as_instant(rows.equals) < window[1]
    is_before = rows.upper is not None and as_instant(rows.upper) <= window[0]
    is_after = rows.lower is not None and as_instant(rows.lower) >= window[1]
    return not is_before and not is_after


class RowSpans(Generic[Item]):
    """Finds the row ranges that have instants in a window, without looking at each of them."""

    def __init__(self, ranges: Iterable[tuple[RowRange | None, Item]]) -> None:
        """Take ranges with what they stand for; None: rows that are not known."""
        self._bounded: list[tuple[datetime, RowRange, Item]] = []
        self._others: list[tuple[RowRange | None, Item]] = []
        longest = timedelta()
        for rows, item in ranges:
            span = time_span(rows) if rows else None
            if rows is None or span is None:
                self._others.append((rows, item))
            else:
                self._bounded.append((span[0], rows, item))
                longest = max(longest, span[1] - span[0])
        self._bounded.sort(key=lambda one: one[0])
        self._starts = [one[0] for one in self._bounded]
        self._longest = longest

    def within(self, window: tuple[datetime, datetime]) -> Iterator[Item]:
        """Yield what has rows in the half-open window, or may have: by its start, others last."""
        try:
            first = bisect_left(self._starts, window[0] - self._longest)
        except OverflowError:
            first = 0
        for _, rows, item in self._bounded[first : bisect_left(self._starts, window[1])]:
            if rows_overlap(rows, window):
                yield item
        for unbounded, item in self._others:
            if unbounded is None or rows_overlap(unbounded, window):
                yield item


def time_span(rows: RowRange) -> tuple[datetime, datetime] | None:
    """Return the half-open instants of a range; None where it is open, or no time."""
    if not isinstance(rows.lower, date) or rows.upper is None:
        return None
    return as_instant(rows.lower), as_instant(rows.upper)


def labels_with_rows(files: Iterable[LiveFile]) -> frozenset[str]:
    """Return the partitions that hold rows, or may: delete files may hide all of them."""
    return frozenset(
        label for label, held in _files_by_label(files).items() if visible_rows(held)[1]
    )


def doubtful_labels(files: Iterable[LiveFile]) -> frozenset[str]:
    """Return the partitions of whose rows delete files may hide all, as far as metadata tells."""
    return frozenset(
        label
        for label, held in _files_by_label(files).items()
        if (rows := visible_rows(held))[1] and not rows[0]
    )


def _files_by_label(files: Iterable[LiveFile]) -> dict[str, list[LiveFile]]:
    found: defaultdict[str, list[LiveFile]] = defaultdict(list)
    for file in files:
        for label in file.spans or (str(file.partition),):
            found[label].append(file)
    return found


class ExpectedPartitions(NamedTuple):
    """The partitions of a product that an input has rows for: surely, and possibly.

    `unknown` says why more may be expected; empty: no more are.
    """

    surely: frozenset[str] = frozenset()
    possibly: frozenset[str] = frozenset()
    unknown: str = ""


def expected_labels(
    target: ScopeField, source: ScopeField, labels: Iterable[str]
) -> frozenset[str]:
    """Return the partitions of a product whose own span has rows in an input's partitions.

    Empty where one of the two is not ordered by time.
    """
    found: set[str] = set()
    is_timed = target.type in TIME_TYPES and not target.has_no_order
    for label in labels if is_timed else ():
        span = time_span(partitions.partition_row_range(source, label))
        current = partitions.partition_label(target, span[0]) if span else None
        while span and current is not None:
            own = time_span(partitions.partition_row_range(target, current))
            if own is None or own[0] >= span[1]:
                break
            found.add(current)
            current = partitions.shift_label(target, current, 1)
    return frozenset(found)


def expected_by_spans(target: ScopeField, spans: Iterable[ColumnSpan]) -> ExpectedPartitions:
    """Return the partitions of a product, of time, that files with these values have rows for.

    A file with values of one partition has rows of it. Of one with values of several, the first and
    the last hold rows where its statistics are exact; whether those in between do is not known.
    """
    surely, possibly, intervals = set[str](), set[str](), list[tuple[str, str]]()
    unknown = ""
    for span in spans:
        if not span.most_rows:
            continue
        if span.first is None or span.last is None:
            unknown = "its files have no statistics of it, and it is not partitioned by it"
            continue
        first, last = (partitions.partition_label(target, x) for x in span_instants(span))
        is_day_of_hours = target.transform == "hour" and not isinstance(span.first, datetime)
        if first == last:
            (surely if span.least_rows else possibly).add(first)
            continue
        if span.is_exact and span.least_rows and not is_day_of_hours:
            surely |= {first, last}
        intervals.append((first, last))
    possibly.update(_labels_of_intervals(target, intervals))
    return ExpectedPartitions(frozenset(surely), frozenset(possibly - surely), unknown)


def span_instants(span: ColumnSpan) -> tuple[datetime, datetime]:
    """Return the first and the last instant that a file may hold; a day is all of its instants."""
    first, last = span.first or date.min, span.last or date.min
    end = as_instant(last)
    if not isinstance(last, datetime):
        end = datetime.combine(last, time.max, timezone.utc)
    return as_instant(first), end


def _labels_of_intervals(target: ScopeField, intervals: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each label of closed intervals once, however many of them there are."""
    reached = ""
    for first, last in sorted(intervals):
        current: str | None = max(first, reached)
        while current is not None and current <= last:
            yield current
            current = partitions.shift_label(target, current, 1)
        reached = max(reached, last)


def expected_by_files(
    target: ScopeField, source: ScopeField, files: list[LiveFile]
) -> ExpectedPartitions | None:
    """Return the partitions of a product that files have rows for; None where they are coarser."""
    own = {
        label: expected_labels(target, source, (label,))
        for label in labels_with_rows(files) - {partitions.NULL_LABEL}
    }
    if any(file.spans for file in files) or any(len(labels) != 1 for labels in own.values()):
        return None
    doubtful = doubtful_labels(files)
    surely = frozenset[str]().union(*(own[label] for label in own.keys() - doubtful))
    possibly = frozenset[str]().union(*(own[label] for label in own.keys() & doubtful))
    return ExpectedPartitions(surely, possibly - surely)
