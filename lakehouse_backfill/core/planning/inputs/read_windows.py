"""The rows of each input that a scope needs: windows of instants, with warm-up and cool-down."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone

from lakehouse_backfill.core.planning.scope.resolve import all_labels, computed_edges, edge_labels
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.labels.instants import as_instant, shift_instant
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.partitions import RowRange, Scope
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.errors import ConfigError

_MIDNIGHT = time(0, tzinfo=timezone.utc)


def needed_window(pin: SourcePin, scope: Scope) -> tuple[datetime, datetime] | None:
    """Return the half-open instants that `scope` needs of a source, warm-up and cool-down included.

    None when the scope has no time order (then the whole declared range is read). Ranges of a key
    have none, whatever its type: nothing relates them to the time by which a source is cut.
    """
    if scope.field.has_no_order:
        return None
    rows = [partitions.partition_row_range(scope.field, label) for label in scope.partitions]
    if not all(isinstance(row.lower, date) and row.upper is not None for row in rows):
        return None
    lowest = min(_bound_instant(row, "lower") for row in rows)
    highest = max(_bound_instant(row, "upper") for row in rows)
    before, after = timedelta(days=pin.warm_up_days), timedelta(days=pin.cool_down_days)
    return shift_instant(lowest, -before), shift_instant(highest, after)


def range_covers_scope(pin: SourcePin, scope: Scope) -> bool:
    """Return whether the declared range of a source holds all that `scope` needs of it."""
    return _range_covers(pin, needed_window(pin, scope))


def _range_covers(pin: SourcePin, window: tuple[datetime, datetime] | None) -> bool:
    if pin.range is None or window is None:
        return True
    first, last = as_instant(pin.range.from_), as_instant(pin.range.to)
    return first <= window[0] and window[1] <= last


def window_to_read(pin: SourcePin, scope: Scope) -> tuple[datetime, datetime]:
    """Return the instants to read of a source for `scope`, clipped to the declared range."""
    if pin.range is None:
        raise ValueError(f"reference {pin.name} is read whole")
    first, last = as_instant(pin.range.from_), as_instant(pin.range.to)
    window = needed_window(pin, scope)
    if window is None:
        return first, last
    return max(first, window[0]), min(last, window[1])


def _bound_instant(row: RowRange, side: str) -> datetime:
    value = row.lower if side == "lower" else row.upper
    if not isinstance(value, date):
        raise TypeError(f"{value!r} is no time")
    return as_instant(value)


#: Iceberg types of columns by which an input can be cut
TIME_TYPES = ("date", "timestamp", "timestamptz")


def input_row_ranges(pin: SourcePin) -> tuple[RowRange, ...]:
    """Return the rows of an input that a run may read; of reference data all."""
    kinds = {column.name: column.type for column in pin.columns}
    if pin.range is None or pin.range.column not in kinds:
        return (RowRange("", is_everything=True),)
    first, last = as_instant(pin.range.from_), as_instant(pin.range.to)
    return window_row_ranges(kinds[pin.range.column], pin.range.column, first, last)


def window_row_ranges(
    column_type: str, column: str, first: datetime, last: datetime
) -> tuple[RowRange, ...]:
    """Return the half-open instants as values of the column's type."""
    if column_type == "date":
        # No day comes after the last one: the range stays open, so that its rows are read.
        is_last_day = last.date() == date.max and last.timetz() != _MIDNIGHT
        stop = None if is_last_day else stop_date(last)
        return (RowRange(column, lower=first.date(), upper=stop),)
    if column_type == "timestamp":
        return (RowRange(column, first.replace(tzinfo=None), last.replace(tzinfo=None)),)
    return (RowRange(column, first, last),)


def stop_date(moment: datetime) -> date:
    """Return the first day of which no part lies before the moment."""
    if moment.timetz() == _MIDNIGHT or moment.date() == date.max:
        return moment.date()
    return moment.date() + timedelta(days=1)


def check_input_ranges(
    manifest: RunManifest, scope: Scope, sources: tuple[SourcePin, ...]
) -> tuple[str, ...]:
    """Explain the input range of each source; raises ConfigError when one is too short."""
    edges = computed_edges(manifest)
    labels = all_labels(edge_labels(scope, edges))
    wanted = Scope(field=scope.field, partitions=scope.partitions + labels)
    notes = []
    for pin in sources:
        if pin.range is None:
            continue
        window = needed_window(pin, wanted)
        if window is not None and not _range_covers(pin, window):
            raise ConfigError(
                f"sources.{pin.name}.range is shorter than what the partitions need",
                fix=(
                    f"write from: {window[0].date()}, to: {stop_date(window[1])} "
                    f"({pin.warm_up_days} days of warm-up, {pin.cool_down_days} of cool-down, "
                    f"{edges} edge partitions on each side)"
                ),
                field=f"sources.{pin.name}.range",
            )
        notes.append(
            f"{pin.name}: each chunk also reads {pin.warm_up_days} days before and "
            f"{pin.cool_down_days} days after its partitions; those rows are never published"
        )
    return tuple(notes)


def window_of_run(
    resolved: ResolvedManifest, pin: SourcePin, scope: Scope
) -> tuple[datetime, datetime]:
    """Return the instants that a run reads of a source; of a stateful one those after its state."""
    wanted, has_warm_up = states.labels_to_read(resolved, scope)
    return window_to_read(states.read_pin(pin, has_warm_up=has_warm_up), wanted)


def input_window(plan: Plan, scope: Scope) -> tuple[datetime, datetime] | None:
    """Return the widest half-open window of instants that the scope reads of any source."""
    resolved = plan.resolved
    timed = [pin for pin in resolved.sources if pin.range is not None]
    windows = [window_of_run(resolved, pin, scope) for pin in timed]
    if not windows:
        return None
    return min(first for first, _ in windows), max(last for _, last in windows)
