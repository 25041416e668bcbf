"""Scope and chunks of a run, and the rows of each input that they need.

Completeness: whether the pinned input has rows in every hour, day or month that a run reads (Q0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from itertools import chain, product

from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult, EdgeSide
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import PartitionRange, RunManifest, Source, unplannable
from lakehouse_backfill.domain.partitions import Chunk, RowRange, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.run import Period
from lakehouse_backfill.domain.serialization import PartitionValue
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import ConfigError, NotFound, attach_error_field

_MIDNIGHT = time(0, tzinfo=timezone.utc)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)


def to_utc_instant(value: date | datetime) -> datetime:
    """Return the instant, in UTC, of a day's start or of a moment (naive moments are UTC).

    Its day and its clock are those of UTC, whatever the offset that somebody wrote.
    """
    if not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        return _FIRST if value.year == _FIRST.year else _LAST


def needed_window(pin: SourcePin, scope: Scope) -> tuple[datetime, datetime] | None:
    """Return the half-open instants that `scope` needs of a source, warm-up and cool-down included.

    None when the scope has no time order (then the whole declared range is read).
    """
    rows = [partitions.partition_row_range(scope.field, label) for label in scope.partitions]
    if not all(isinstance(row.lower, date) and row.upper is not None for row in rows):
        return None
    lowest = min(_bound_instant(row, "lower") for row in rows)
    highest = max(_bound_instant(row, "upper") for row in rows)
    before, after = timedelta(days=pin.warm_up_days), timedelta(days=pin.cool_down_days)
    return _shift_clamped(lowest, -before), _shift_clamped(highest, after)


def _shift_clamped(moment: datetime, by: timedelta) -> datetime:
    """Add a time span; the calendar ends with the years 1 and 9999, and so does what is read."""
    try:
        return moment + by
    except OverflowError:
        return _FIRST if by < timedelta() else _LAST


def range_covers_scope(pin: SourcePin, scope: Scope) -> bool:
    """Return whether the declared range of a source holds all that `scope` needs of it."""
    return _range_covers(pin, needed_window(pin, scope))


def _range_covers(pin: SourcePin, window: tuple[datetime, datetime] | None) -> bool:
    if pin.range is None or window is None:
        return True
    first, last = to_utc_instant(pin.range.from_), to_utc_instant(pin.range.to)
    return first <= window[0] and window[1] <= last


def window_to_read(pin: SourcePin, scope: Scope) -> tuple[datetime, datetime]:
    """Return the instants to read of a source for `scope`, clipped to the declared range."""
    if pin.range is None:
        raise ValueError(f"reference {pin.name} is read whole")
    first, last = to_utc_instant(pin.range.from_), to_utc_instant(pin.range.to)
    window = needed_window(pin, scope)
    if window is None:
        return first, last
    return max(first, window[0]), min(last, window[1])


def _bound_instant(row: RowRange, side: str) -> datetime:
    value = row.lower if side == "lower" else row.upper
    if not isinstance(value, date):
        raise TypeError(f"{value!r} is no time")
    return to_utc_instant(value)


#: Iceberg types of columns by which an input can be cut
TIME_TYPES = ("date", "timestamp", "timestamptz")


def input_row_ranges(pin: SourcePin) -> tuple[RowRange, ...]:
    """Return the rows of an input that a run may read; of reference data all."""
    kinds = {column.name: column.type for column in pin.columns}
    if pin.range is None or pin.range.column not in kinds:
        return (RowRange("", is_everything=True),)
    first, last = to_utc_instant(pin.range.from_), to_utc_instant(pin.range.to)
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


TimeSpan = tuple[datetime, datetime]
#: The first missing periods are named, up to this many.
MAX_NAMED_PERIODS = 5


def completeness_notes(
    manifest: RunManifest, contract: Contract, pins: tuple[SourcePin, ...]
) -> tuple[str, ...]:
    """Describe what the plan assumes of the input, which is proven before staging.

    Raises ConfigError when it cannot be proven: hours of dates, or an input that the run lacks.
    """
    columns = {pin.name: {column.name: column.type for column in pin.columns} for pin in pins}
    for name, source in manifest.sources.items():
        if source.complete == "hour" and columns[name].get(source.range.column) == "date":
            raise ConfigError(
                f"sources.{name}.complete is hour, but {source.range.column} holds dates",
                fix="write day or month",
                field=f"sources.{name}.complete",
            )
    for assumption in contract.assumptions:
        if assumption.on not in columns:
            raise ConfigError(
                f"{contract.product} assumes of {assumption.on}: {assumption.text} But the run has "
                f"no input {assumption.on}",
                fix=f"name one of {', '.join(columns)} in assumptions of the contract, or add the "
                "input to the run manifest",
            )
    notes = [
        f"{name} must have rows in every {source.complete} that is read"
        for name, source in manifest.sources.items()
        if source.complete != "none"
    ]
    return (*notes, *(f"assumed of {one.on}: {one.text}" for one in contract.assumptions))


def named_instants(context: Context, pins: tuple[SourcePin, ...]) -> dict[str, datetime]:
    """Return when the states were committed that a manifest names for its inputs with `at`.

    What came later is not in them. An input that is read as it is now is left out.
    """
    found: dict[str, datetime] = {}
    for pin in pins:
        ref = TableRef.parse(pin.requested) if "@" in pin.requested else None
        with suppress(NotFound):
            committed_ms = context.tables.resolve(ref).committed_at_ms if ref else 0
            if committed_ms:
                found[pin.name] = datetime.fromtimestamp(committed_ms / 1000, timezone.utc)
    return found


def incomplete_partitions(
    manifest: RunManifest,
    scope: Scope,
    pins: tuple[SourcePin, ...],
    now: datetime,
    named: Mapping[str, datetime],
) -> dict[str, tuple[str, datetime]]:
    """Return the partitions whose input is not complete yet: the input, and when it will be.

    An instant's rows are there once `complete_after_hours` have passed. A partition that is no time
    reads the whole declared range, and so does that of null. `named` is as of `named_instants`.
    """
    found: dict[str, tuple[str, datetime]] = {}
    for pin in pins:
        if pin.range is None:
            continue
        freshness = timedelta(hours=manifest.sources[pin.name].complete_after_hours)
        known_until = min(now, named.get(pin.name, now))
        whole = needed_window(pin, scope)
        if whole is not None and _shift_clamped(whole[1], freshness) <= known_until:
            continue
        for label in scope.partitions:
            window = needed_window(pin, Scope(field=scope.field, partitions=(label,)))
            end = window[1] if window else to_utc_instant(pin.range.to)
            complete_at = _shift_clamped(end, freshness)
            if complete_at > max(known_until, found.get(label, ("", _FIRST))[1]):
                found[label] = pin.name, complete_at
    return found


def check_complete_input(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Return, as a note, what a person allowed of partitions whose input is not complete yet.

    Raises Unsupported when nobody did, NotAllowed when that person may not.
    """
    manifest, scope, now = resolved.manifest, resolved.scope, context.clock.now()
    named = named_instants(context, resolved.sources)
    found = incomplete_partitions(manifest, scope, resolved.sources, now, named)
    if not found:
        return ()
    labels = tuple(label for label in scope.partitions if label in found)
    name, complete_at = found[labels[0]]
    state, fix = "", f"end target.partitions before {labels[0]}, or plan again then"
    if all(needed_window(pin, scope) is None for pin in resolved.sources if pin.name == name):
        fix = f"end sources.{name}.range before {now:%Y-%m-%d %H:%M} UTC, or plan again then"
    if named.get(name, now) < min(now, complete_at):
        state = f"; {name} is read as it was at {named[name]:%Y-%m-%d %H:%M} UTC"
        fix = f"end target.partitions before {labels[0]}, or name a later state: sources.{name}.at"
    text = (
        f"{partitions.describe_labels(labels)}: its input is not complete yet (that of {labels[0]} "
        f"in {name} is complete from {complete_at:%Y-%m-%d %H:%M} UTC on{state})"
    )
    exception = manifest.safety.incomplete_input
    if exception is None:
        raise unplannable(
            text,
            fix=f"{fix}; or write safety.incomplete_input (by, reason) in the run manifest, which "
            "whoever approves the run sees",
            field=_PARTITIONS,
        )
    roles.require_role(resolved.contract, "waive", exception.by, resolved.environment)
    return (f"{text}: written in the manifest, in {exception.by}'s name: {exception.reason}",)


_SPOKEN = {
    "hour": "the hour from %H:%M UTC of %A %d %B %Y",
    "month": "%B %Y",
    "year": "the year %Y",
}


def describe_in_words(scope: Scope) -> str:
    """Return the last partition in words, its days in UTC; a label that is no time as it is."""
    label = scope.partitions[-1]
    rows = partitions.partition_row_range(scope.field, label)
    if not isinstance(rows.lower, date):
        whole = scope.field.is_whole_table
        return str(scope.field) if whole else f"{label} of {scope.field.column}"
    spoken = _SPOKEN.get(scope.field.transform, "the whole of %A %d %B %Y (UTC)")
    return f"{label}, {to_utc_instant(rows.lower).strftime(spoken)}"


def completeness_period(source: Source) -> Period:
    """Return the period to look at: the declared one, else days, which are only reported."""
    return "day" if source.complete == "none" else source.complete


def expected_periods(pin: SourcePin, scope: Scope, unit: Period) -> tuple[str, ...]:
    """Label the periods that the run reads of a source, warm-up and cool-down included.

    What lies between two partitions that the run does not restate is left out.
    """
    field = ScopeField(column="period", transform=unit, type="timestamptz")
    labels = [label for span in _spans_to_read(pin, scope) for label in _periods(field, span)]
    return tuple(dict.fromkeys(labels))


def check_completeness(
    name: str, source: Source, wanted: tuple[str, ...], found: tuple[str, ...]
) -> CheckResult:
    """Return the gate of one source: blocking when the run manifest declares it complete."""
    unit, seen = completeness_period(source), set(found)
    missing = [label for label in wanted if label not in seen]
    detail = f"rows in all {len(wanted):,} {unit}s that the run reads"
    if missing:
        more = len(missing) - MAX_NAMED_PERIODS
        detail = (
            f"no row on {len(missing):,} of {len(wanted):,} {unit}s: "
            f"{', '.join(missing[:MAX_NAMED_PERIODS])}" + (f" and {more} more" if more > 0 else "")
        )
    return CheckResult(
        name=f"{name} has rows in every {unit}",
        group="input",
        passed=not missing,
        detail=detail,
        observed=len(missing),
        limit=0,
        blocking=source.complete != "none",
    )


def _spans_to_read(pin: SourcePin, scope: Scope) -> list[TimeSpan]:
    """Return the instants that the scope's partitions need, as few spans in order."""
    found: list[TimeSpan] = []
    for label in scope.partitions:
        one = window_to_read(pin, Scope(field=scope.field, partitions=(label,)))
        if one[0] < one[1]:
            found.append(one)
    merged: list[TimeSpan] = []
    for first, stop in sorted(found):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return merged


def _periods(field: ScopeField, span: TimeSpan) -> Iterator[str]:
    label: str | None = partitions.partition_label(field, span[0])
    last = partitions.partition_label(field, span[1] - timedelta.resolution)
    while label is not None:
        yield label
        label = partitions.shift_label(field, label, 1) if label != last else None


_PARTITIONS = "target.partitions"


def resolve_scope(field: ScopeField, wanted: PartitionRange) -> Scope:
    """Return the explicit partitions of a range or list, minus exceptions, in order.

    Raises ConfigError when a bound splits a partition, or nothing is left.
    """
    if wanted.whole_table:
        labels = {partitions.WHOLE_TABLE_LABEL}
    elif wanted.values:
        labels = _labels(field, wanted.values, "values")
    elif wanted.from_ is not None and wanted.to is not None:
        with attach_error_field(_PARTITIONS):
            labels = set(partitions.labels_between(field, wanted.from_, wanted.to))
    else:
        raise ConfigError(
            "target.partitions is unbounded",
            fix="give from and to, or values: a restatement changes declared partitions only",
            field=_PARTITIONS,
        )
    left = labels - _labels(field, wanted.except_, "except")
    if not left:
        raise ConfigError(
            "target.partitions holds no partition",
            fix="widen the range, or take a partition out of except",
            field=_PARTITIONS,
        )
    return Scope(field=field, partitions=tuple(sorted(left, key=partitions.label_sort_key(field))))


def scope_note(scope: Scope) -> str:
    """Return the partitions of a scope as a sentence; it tells the text null from no value."""
    note = f"{partitions.describe_labels(scope.partitions)} of {scope.field.column}, as declared"
    if partitions.NULL_TEXT_LABEL not in scope.partitions:
        return note
    return (
        f"{note}; {partitions.NULL_TEXT_LABEL} holds the rows whose value is the text null: those "
        "without a value are named by null, without quotes"
    )


def skipped_labels(field: ScopeField, wanted: PartitionRange) -> tuple[str, ...]:
    """Return the partitions of a range or list that it takes out again, in order."""
    skipped = _labels(field, wanted.except_, "except")
    if not skipped:
        return ()
    every = resolve_scope(field, wanted.model_copy(update={"except_": ()})).partitions
    return tuple(label for label in every if label in skipped)


def _labels(field: ScopeField, values: tuple[PartitionValue, ...], name: str) -> set[str]:
    """Return the labels of listed values; raises ConfigError, with the place of the wrong one."""
    found = set()
    for number, value in enumerate(values):
        with attach_error_field(f"{_PARTITIONS}.{name}[{number}]"):
            found.add(partitions.whole_partition_label(field, value))
    return found


def cut_chunks(scope: Scope, partitions_per_chunk: int) -> tuple[Chunk, ...]:
    """Cut the scope into chunks of neighbouring partitions; ids sort in scope order.

    Chunks never split a partition, so a chunk can be overwritten on its own.
    """
    groups = group_labels(scope.partitions, partitions_per_chunk)
    return tuple(make_chunk(number, group) for number, group in enumerate(groups, start=1))


def group_labels(labels: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    """Cut labels into groups of at most `size`."""
    return [labels[start : start + size] for start in range(0, len(labels), size)]


def make_chunk(number: int, labels: tuple[str, ...]) -> Chunk:
    """Return a chunk; its id is its number with its first partition."""
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in labels[0])
    return Chunk(chunk_id=f"c{number:04d}-{safe[:40]}", partitions=labels)


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


def computed_edges(manifest: RunManifest) -> int:
    """Return how many partitions beyond each edge are computed: none from changes or states."""
    is_merge = manifest.target.publish_mode == "merge"
    return 0 if is_merge or manifest.stateful else manifest.validation.edge_partitions


def edge_labels(scope: Scope, count: int) -> dict[EdgeSide, tuple[str, ...]]:
    """Return `count` partitions beyond each edge, and at most as many at each side of every gap.

    Those before and after the scope are nearest to it first.
    """
    ordered = [label for label in scope.partitions if label != "null"]
    if not ordered or count == 0:
        return {}
    before = walk_labels(scope, ordered[0], -1, count)
    after = walk_labels(scope, ordered[-1], 1, count)
    own = frozenset(scope.partitions)
    chosen = {*own, *before, *after}
    inside: list[str] = []
    for label, step in product(ordered, (-1, 1)):
        for near in walk_labels(scope, label, step, count):
            if near in own:
                break
            if near not in chosen:
                chosen.add(near)
                inside.append(near)
    key = partitions.label_sort_key(scope.field)
    return {"inside": tuple(sorted(inside, key=key)), "before": before, "after": after}


def all_labels(around: Mapping[EdgeSide, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the partitions of all sides, in the order of the sides."""
    return tuple(chain.from_iterable(around.values()))


def walk_labels(scope: Scope, label: str, step: int, count: int) -> tuple[str, ...]:
    """List up to `count` partitions that follow a label, or with step -1 precede it."""
    found: list[str] = []
    current: str | None = label
    for _ in range(count):
        current = partitions.shift_label(scope.field, current, step) if current else None
        if current is None:
            break
        found.append(current)
    return tuple(found)


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
