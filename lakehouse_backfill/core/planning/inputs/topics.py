"""Raw tables of topics in a plan: offsets that a snapshot holds, and those of a window (M3, P6).

Event times and offsets have different orders. The offsets of a window are complete when its events
in the pinned rows are counted, and each offset that was not landed is known to hold none of them:
by what brokers said while the topic was landed, and by the declared disorder.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.landing.offsets import OffsetPosition, Spans
from lakehouse_backfill.core.landing.topic_facts import (
    END,
    NEW_PARTITIONS,
    STAMP_COLUMN,
    open_offsets,
)
from lakehouse_backfill.core.planning.inputs.read_windows import window_row_ranges
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.sources.topic_offsets import (
    LandedEvents,
    OffsetRange,
    TableLanding,
    TopicPin,
    TopicWindow,
    WindowOffsets,
)
from lakehouse_backfill.errors import Blocked, Tampered

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Ranges of offsets, or partitions, that a sentence names.
_MAX_NAMED = 3


class Span(NamedTuple):
    """Half-open instants, in UTC."""

    first: datetime
    stop: datetime


def pin_topic(context: Context, table: str, snapshot_id: int) -> TopicPin | None:
    """Return which offsets a snapshot holds the records of; None: it is no raw table of a topic."""
    found = _landed(context, table, snapshot_id)
    if found is None:
        return None
    landing, position = found
    return TopicPin(
        source=landing.source,
        landing_id=landing.landing_id,
        cluster_id=position.cluster_id,
        topic=position.topic,
        topic_id=position.topic_id,
        offsets=tuple(
            OffsetRange(partition=number, first=first, stop=stop)
            for number, spans in sorted(position.landed.items())
            for first, stop in spans
        ),
        records=None if position.held is None else sum(position.held.values()),
    )


def window_of_topic(
    context: Context, pin: SourcePin, span: Span, until: datetime
) -> TopicWindow | None:
    """Return the offsets of all events of a window; None for a source that is no topic.

    It is closed once all events up to `until`, which the replay reads, are in the snapshot. Raises
    Blocked when an event of the window may lie in offsets that were not landed, or landed
    rows are gone.
    """
    found = _landed(context, pin.table, pin.snapshot_id)
    if found is None or pin.range is None:
        return None
    landing, position = found
    _require_all_rows(pin, landing, position)
    wanted = _column_span(pin, span)
    column = pin.range.column
    _require_complete(pin, landing, position, wanted)
    events = _events(context, pin, wanted)
    read = _column_span(pin, Span(span.first, until))
    return _as_window(column, position, events, is_closed=not _open(position, column, read))


def require_topics_unchanged(context: Context, plan: Plan) -> None:
    """Raise Tampered unless the pinned snapshots still hold what was planned of their topics.

    The landed offsets are read again from metadata, as long as the landing's snapshot is there;
    those of a window from the rows.
    """
    sources = {one.name: one.topic for one in plan.window.sources} if plan.window else {}
    for pin in plan.resolved.sources:
        if pin.topic is None:
            continue
        is_same = pin_topic(context, pin.table, pin.snapshot_id) in (pin.topic, None)
        window = sources.get(pin.name)
        if is_same and window is not None and plan.window is not None:
            is_same = _has_events(context, pin, Span(plan.window.first, plan.window.stop), window)
        if not is_same:
            raise Tampered(
                f"snapshot {pin.snapshot_id} of {pin.table} does not hold the offsets of "
                f"{pin.topic.topic} that {plan.run_id} was planned with: its files or metadata "
                "were edited since",
                state="nothing was computed",
                fix=f"find out who did that, put {pin.table} back from a backup, or land the topic "
                "into another table; then plan again",
            )


def _has_events(context: Context, pin: SourcePin, span: Span, planned: TopicWindow) -> bool:
    """Return whether the pinned rows have the events of a window at the planned offsets."""
    found = _events(context, pin, _column_span(pin, span))
    wanted = {
        (one.partition, one.first, one.last, one.records) for one in planned.offsets if one.records
    }
    held = {tuple(one) for one in found.offsets}
    return held == wanted and found.without_time == planned.without_time


def describe_offsets(window: TopicWindow) -> str:
    """Return where the events of a window are, as a part of a sentence."""
    held = [one for one in window.offsets if one.records]
    if not held:
        return f"no offset of {window.topic} holds an event of it"
    named = ", ".join(
        f"{one.first} to {one.last} of partition {one.partition} ({one.records:,} records)"
        for one in held[:_MAX_NAMED]
    )
    more = f" and of {len(held) - _MAX_NAMED:,} more partitions" if len(held) > _MAX_NAMED else ""
    return f"its events are at offsets {named}{more} of {window.topic}"


def topic_notes(name: str, window: TopicWindow) -> Iterator[str]:
    """Yield what the offsets of a window are, and what their completeness rests on."""
    yield (
        f"{name}: {describe_offsets(window)}; no other offset can hold one, as far as events are "
        f"in the topic at most {window.disorder_s:,} s after their {window.column}, as declared"
    )
    if window.without_time:
        yield (
            f"{name}: {window.without_time:,} landed records have no {window.column}; whether they "
            "belong to the window is not known"
        )
    if not window.is_closed:
        yield (
            f"{name}: later events, which the replay reads as well, may be in {window.topic} and "
            "not in what is pinned: the window is not closed; land them, and plan again"
        )


def _landed(
    context: Context, table: str, snapshot_id: int
) -> tuple[TableLanding, OffsetPosition] | None:
    landing = context.topics.landing(table, snapshot_id)
    position = None if landing is None else OffsetPosition.read(landing.position)
    return None if landing is None or position is None else (landing, position)


def _as_window(
    column: str, position: OffsetPosition, events: LandedEvents, *, is_closed: bool
) -> TopicWindow:
    held = {one.partition: one for one in events.offsets}
    numbers = sorted({*position.partitions, *held})
    return TopicWindow(
        topic=position.topic,
        column=column,
        disorder_s=position.bounds_s[column],
        offsets=tuple(
            WindowOffsets(
                partition=number,
                first=held[number].first if number in held else None,
                last=held[number].last if number in held else None,
                records=held[number].records if number in held else 0,
            )
            for number in numbers
        ),
        without_time=events.without_time,
        is_closed=is_closed,
    )


def _events(context: Context, pin: SourcePin, span: Span) -> LandedEvents:
    column = pin.range.column if pin.range else ""
    (rows,) = window_row_ranges(_kind(pin) or "", column, *span)
    return context.topics.events(pin.table, pin.snapshot_id, rows)


def _column_span(pin: SourcePin, span: Span) -> Span:
    """Return a span as the column tells it: of dates whole days."""
    if _kind(pin) != "date":
        return span
    days = [moment.replace(hour=0, minute=0, second=0, microsecond=0) for moment in span]
    return Span(days[0], days[1] if days[1] == span.stop else _later(days[1], timedelta(days=1)))


def _later(moment: datetime, by: timedelta) -> datetime:
    """Return a later instant; the calendar ends with the year 9999."""
    try:
        return moment + by
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc)


def _kind(pin: SourcePin) -> str | None:
    return next(
        (one.type for one in pin.columns if pin.range and one.name == pin.range.column), None
    )


def _open(position: OffsetPosition, column: str, span: Span) -> Spans:
    first_us, stop_us = ((each - _EPOCH) // timedelta(microseconds=1) for each in span)
    evidence = position.partitions, position.landed, position.facts
    return open_offsets(column, (first_us, stop_us), position.bounds_s, evidence)


def _require_all_rows(pin: SourcePin, landing: TableLanding, position: OffsetPosition) -> None:
    """Raise Blocked when the snapshot has other rows than its landings brought in."""
    if position.held is None or landing.rows == sum(position.held.values()):
        return
    rows = "has delete files" if landing.rows is None else f"has {landing.rows:,} rows"
    raise Blocked(
        f"snapshot {pin.snapshot_id} of {pin.table} {rows}, and its landings brought "
        f"{sum(position.held.values()):,} records: rows were added or removed by others, so which "
        "offsets carry the window is not known",
        state=NOTHING_PLANNED,
        fix="name an earlier landing by `at`, or leave --window out and name the partitions in "
        "target.partitions",
    )


def _require_complete(
    pin: SourcePin, landing: TableLanding, position: OffsetPosition, span: Span
) -> None:
    """Raise Blocked when an event of the span may lie in an offset that was not landed."""
    column = pin.range.column if pin.range else ""
    bound_s, stamp_s = position.bounds_s.get(column), position.bounds_s.get(STAMP_COLUMN)
    file = f"catalog/sources/{landing.source}.yaml"
    if bound_s is None:
        name = "disorder_s" if column == STAMP_COLUMN else f"column_disorder_s.{column}"
        raise Blocked(
            f"which offsets of {position.topic} carry the window cannot be proven: nothing says "
            f"how long after its {column} an event is in the topic at the latest",
            state=NOTHING_PLANNED,
            fix=f"declare kafka.{name} in {file}, then {_landed_again(landing, span)}",
        )
    left = _open(position, column, span)
    if not left:
        return
    late = _later(span.stop, timedelta(seconds=bound_s))
    asked = span
    if column != STAMP_COLUMN:
        # A landing goes by the timestamps of the records, which tell less of another column.
        asked = Span(span.first - timedelta(seconds=stamp_s or 0), late)
    declared = f"declare kafka.disorder_s in {file}; " if stamp_s is None else ""
    raise Blocked(
        f"events of the window may be in {position.topic} and not in snapshot {pin.snapshot_id} of "
        f"{pin.table}: {_describe_spans(left)} were not landed, and may hold one by what is known "
        f"of them (an event is in the topic at most {bound_s:,} s after its {column})",
        state=NOTHING_PLANNED,
        fix=f"{declared}{_landed_again(landing, asked)}, not before {_instant(late)}; or name a "
        "shorter window",
    )


def _landed_again(landing: TableLanding, span: Span) -> str:
    range_ = "--from", _instant(span.first), "--to", _instant(span.stop)
    return (
        f"{command_line('land', landing.source, *range_)}; name that landing where the source "
        "has `at`, and plan again"
    )


def _describe_spans(spans: Spans) -> str:
    texts = [
        "partitions that came later"
        if number == NEW_PARTITIONS
        else f"offsets from {first} on of partition {number}"
        if stop == END
        else f"offsets {first} to {stop - 1} of partition {number}"
        for number, own in sorted(spans.items(), key=lambda item: (item[0] < 0, item[0]))
        for first, stop in own
    ]
    more = f" and {len(texts) - _MAX_NAMED:,} more ranges" if len(texts) > _MAX_NAMED else ""
    return ", ".join(texts[:_MAX_NAMED]) + more


def _instant(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
