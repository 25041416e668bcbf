"""A corruption window: event times whose rows were wrong, and what follows for a restatement (P6).

Of the window are found: the commits of the sources that carried rows of it, the partitions of the
target that were computed from such rows, the last good version before it, and how far a replay must
go until nothing that it computes depends on the window any more. Only metadata is read, and of raw
tables of topics where in the topic the events of the window are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from itertools import islice
from typing import NamedTuple

from lakehouse_backfill.core.planning.inputs import topics
from lakehouse_backfill.core.planning.inputs.read_windows import needed_window
from lakehouse_backfill.core.planning.scope.whole_grain import widening_note
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.labels.grains import whole_grains_of
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import (
    CorruptionWindow,
    LastGoodState,
    Plan,
    SourcePin,
    WindowCommit,
    WindowSource,
)
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.tables.files import ColumnSpan
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import ConfigError, NotFound, TargetChanged, Unsupported

_FIX = "write --window T1..T2, e.g. 2026-01-03..2026-01-05, or instants such as 2026-01-03T06:00Z"


class EventSpan(NamedTuple):
    """The half-open instants of a window: the last day, or the last instant, belongs to it."""

    first: datetime
    stop: datetime


def parse_window(text: str) -> EventSpan:
    """Return the instants of `T1..T2`, days or instants, both included; instants are UTC.

    Raises ConfigError.
    """
    first, dots, last = text.partition("..")
    try:
        start, end = (_parse_bound(each) for each in (first, last))
    except ValueError as error:
        raise ConfigError(f"{text} is no window of time", fix=_FIX) from error
    # A day is included as a whole; an instant by the smallest step of a timestamp.
    step = timedelta(microseconds=1) if isinstance(end, datetime) else timedelta(days=1)
    try:
        span = EventSpan(as_instant(start), as_instant(end) + step)
    except OverflowError as error:
        raise ConfigError(f"{text} ends after the calendar", fix=_FIX) from error
    if not dots or span.first >= span.stop:
        raise ConfigError(f"{text} is no window of time: T2 lies before T1", fix=_FIX)
    return span


def _parse_bound(text: str) -> date | datetime:
    bare = text.strip()
    if len(bare) == len("2026-01-03"):
        return date.fromisoformat(bare)
    moment = datetime.fromisoformat(bare.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def dependent_span(pin: SourcePin, span: EventSpan) -> EventSpan:
    """Return the event times of the target whose computation reads rows of the window.

    A partition reads `warm_up_days` before it and `cool_down_days` after it: so a row reaches that
    many days into the future, or the past.
    """
    try:
        return EventSpan(
            span.first - timedelta(days=pin.cool_down_days),
            span.stop + timedelta(days=pin.warm_up_days),
        )
    except OverflowError as error:
        raise ConfigError("the window, with warm-up, leaves the calendar", fix=_FIX) from error


def labels_of_span(field: ScopeField, span: EventSpan) -> tuple[str, ...]:
    """Return the partitions that hold event times of the span, in order.

    Raises Unsupported for partitions that are no spans of time, ConfigError for more of them than a
    run may have.
    """
    if not field.is_timed:
        raise Unsupported(
            f"partitions by {field} are no spans of time, so a window of event time names "
            "none of them",
            state=NOTHING_PLANNED,
            fix="leave --window out, and name the partitions in target.partitions.values",
            field="target.partitions.column",
        )
    labels = tuple(islice(_labels(field, span), partitions.MAX_PARTITIONS + 1))
    if len(labels) > partitions.MAX_PARTITIONS:
        raise ConfigError(
            f"the window reaches more than {partitions.MAX_PARTITIONS:,} partitions of "
            f"{field.column}",
            state=NOTHING_PLANNED,
            fix="name a shorter window",
        )
    return labels


def _labels(field: ScopeField, span: EventSpan) -> Iterator[str]:
    label: str | None = partitions.partition_label(field, span.first)
    while label is not None:
        lower = partitions.partition_row_range(field, label).lower
        if not isinstance(lower, date) or as_instant(lower) >= span.stop:
            return
        yield label
        label = partitions.shift_label(field, label, 1)


def planned_window(context: Context, text: str | None, revise: str | None) -> EventSpan | None:
    """Return the window to plan: the named one, else that of the run that is revised, or None.

    Raises what `parse_window` does.
    """
    if text is not None:
        return parse_window(text)
    known = context.runs.plan(revise).window if revise is not None else None
    return EventSpan(known.first, known.stop) if known is not None else None


def examine_window(context: Context, plan: Plan, span: EventSpan) -> Plan:
    """Return the plan with what follows from the window; nothing is changed.

    Raises ConfigError when the run restates less than what depends on the window, Unsupported when
    the partitions are no spans of time.
    """
    scope = plan.resolved.scope
    timed = [pin for pin in plan.resolved.sources if pin.range is not None]
    reached = [dependent_span(pin, span) for pin in timed]
    whole = EventSpan(min(one.first for one in reached), max(one.stop for one in reached))
    is_endless = states.has_endless_state(plan.resolved)
    if is_endless and (end := _end_of(scope.field, scope.partitions[-1])):
        # The state carries rows of the window on, to all that the run restates and further.
        whole = whole._replace(stop=max(whole.stop, end))
    reached_first = labels_of_span(scope.field, whole)
    affected = whole_grains_of(plan.resolved.contract, scope.field, reached_first)
    widened = widening_note(plan.resolved.contract, scope.field, reached_first, affected)
    _require_all_restated(plan, span, affected)
    read = Scope(field=scope.field, partitions=affected)
    sources = tuple(_with_topic(context, pin, span, read) for pin in timed)
    first_commit = min((one.at for source in sources for one in source.commits), default=None)
    # Rows of the window cannot be older than their first event, as far as clocks are right.
    until = first_commit if first_commit is not None else span.first
    closes_with = affected[-1]
    # The partition of null has no time, so it reads the whole range: rows of the window too.
    affected += tuple(label for label in scope.partitions if label == partitions.NULL_LABEL)
    reached_labels = frozenset(affected)
    closes_at = _end_of(scope.field, closes_with)
    window = CorruptionWindow(
        first=span.first,
        stop=span.stop,
        partitions=affected,
        beyond=tuple(label for label in scope.partitions if label not in reached_labels),
        sources=sources,
        last_good=_last_good(context, plan, until),
        replay_to=whole.stop,
        closes_with=closes_with,
        is_closed=closes_at is not None
        and not is_endless
        and closes_at <= context.clock.now()
        and not any(_is_open(source) for source in sources),
    )
    notes = window_notes(window, is_endless=is_endless) + (
        (f"window: {widened}",) if widened else ()
    )
    return plan.model_copy(update={"window": window, "notes": (*notes, *plan.notes)})


def _with_topic(context: Context, pin: SourcePin, span: EventSpan, read: Scope) -> WindowSource:
    """Return a source with its commits and, for a topic, the offsets of the window.

    `read`: the partitions of the target that depend on the window.
    """
    needed = needed_window(pin, read)
    until = max(span.stop, needed[1]) if needed else span.stop
    found = topics.window_of_topic(context, pin, topics.Span(*span), until)
    return _source_of_window(context, pin, span).model_copy(update={"topic": found})


def _is_open(source: WindowSource) -> bool:
    """Return whether events that the replay reads may be in a topic and not in the snapshot."""
    return source.topic is not None and not source.topic.is_closed


def _end_of(field: ScopeField, label: str) -> datetime | None:
    upper = partitions.partition_row_range(field, label).upper
    return as_instant(upper) if isinstance(upper, date) else None


def _require_all_restated(plan: Plan, span: EventSpan, affected: tuple[str, ...]) -> None:
    """Raise ConfigError when a partition that depends on the window is not restated."""
    scope = plan.resolved.scope
    restated = frozenset(scope.partitions)
    missing = tuple(label for label in affected if label not in restated)
    if not missing:
        return
    stop = partitions.shift_label(scope.field, affected[-1], 1) or affected[-1]
    raise ConfigError(
        f"the run leaves out {partitions.describe_labels(missing)}, computed from rows of "
        f"{describe_span(span)}, warm-up and cool-down of its sources included",
        state=NOTHING_PLANNED,
        fix=f"write target.partitions from: {affected[0]}, to: {stop}, and widen the ranges of the "
        "sources; or name a shorter window",
        field="target.partitions",
    )


def _source_of_window(context: Context, pin: SourcePin, span: EventSpan) -> WindowSource:
    """Return the commits of a source that carried rows of the window, as far as is known."""
    column = pin.range.column if pin.range else ""
    fields = {"name": pin.name, "table": pin.table}
    try:
        field = _partition_field(context, pin.table, column)
        labels = labels_of_span(field, span)
    except (NotFound, Unsupported):
        return _source_by_files(context, pin, span)
    try:
        scope = Scope(field=field, partitions=labels)
        drifts = _drifts(context, pin, scope)
    except (TargetChanged, Unsupported) as error:
        return WindowSource(**fields, partitions=labels, unknown=error.problem)
    commits = tuple(_commit(drift) for drift in drifts if not drift.only_deletes)
    good = _state_before(context, pin.table, commits)
    return WindowSource(**fields, partitions=labels, commits=commits, last_good_snapshot_id=good)


def _commit(drift: Drift) -> WindowCommit:
    return WindowCommit(
        snapshot_id=drift.snapshot_id,
        at=drift.at,
        operation=drift.operation,
        writer=drift.writer,
        partitions=drift.partitions,
    )


def _source_by_files(context: Context, pin: SourcePin, span: EventSpan) -> WindowSource:
    """Return which commits added live files whose statistics reach into the window.

    Raw tables that a source was landed in often have no partitions of the column.
    """
    column = pin.range.column if pin.range else ""
    fields = {"name": pin.name, "table": pin.table}
    try:
        ends = _ends(context, pin)
        spans = {end: context.tables.column_spans(pin.table, end, column) for end in ends}
        drifts = {
            drift.snapshot_id: drift
            for end in ends
            for drift in context.publisher.drifts(pin.table, None, None, end)
        }
    except (NotFound, TargetChanged, Unsupported) as error:
        unknown = f"{error.problem}; any of its commits may have carried rows of the window"
        return WindowSource(**fields, unknown=unknown)
    read = [one.last for one in spans.get(pin.snapshot_id, ()) if one.last is not None]
    reaches = max(read, key=as_instant, default=None)
    added = {one.added_by for found in spans.values() for one in found if _reaches(one, span)}
    lost = len([one for one in added if one not in drifts])
    if lost:
        unknown = f"{pin.table} was compacted, or its history has expired: {lost} of the commits"
        return WindowSource(
            **fields, unknown=f"{unknown} with files of the window name no writer",
            reaches_to=reaches,
        )  # fmt: skip
    commits = tuple(_commit(drift) for name, drift in drifts.items() if name in added)
    commits = tuple(sorted(commits, key=lambda one: (one.at, one.snapshot_id)))
    good = _state_before(context, pin.table, commits)
    return WindowSource(**fields, commits=commits, last_good_snapshot_id=good, reaches_to=reaches)


def _reaches(file: ColumnSpan, span: EventSpan) -> bool:
    """Return whether a file may hold rows of the window; without statistics it may."""
    if file.first is None or file.last is None:
        return file.most_rows > 0
    return as_instant(file.first) < span.stop and not _ends_before(file.last, span.first)


def _ends_before(last: datetime | date, moment: datetime) -> bool:
    """Return whether a last value, or the whole of a last day, lies before a moment."""
    behind = moment - as_instant(last)
    return behind > timedelta(0) if isinstance(last, datetime) else behind >= timedelta(days=1)


def _state_before(context: Context, table: str, commits: Sequence[WindowCommit]) -> int | None:
    """Return the snapshot that the first of the commits was made on, if it is still there."""
    if not commits:
        return None
    try:
        first = context.tables.resolve(TableRef(table=table, at=str(commits[0].snapshot_id)))
        if first.parent_id is None:
            return None
        return context.tables.resolve(TableRef(table=table, at=str(first.parent_id))).snapshot_id
    except NotFound:
        return None


def _drifts(context: Context, pin: SourcePin, scope: Scope) -> tuple[Drift, ...]:
    """List the commits that changed the scope, oldest first: on main, and up to the pinned state.

    What a run reads may lie on a branch; and what was wrong may be newer than what it reads.
    """
    found = {
        drift.snapshot_id: drift
        for end in _ends(context, pin)
        for drift in context.publisher.drifts(pin.table, scope, None, end)
    }
    return tuple(sorted(found.values(), key=lambda drift: (drift.at, drift.snapshot_id)))


def _ends(context: Context, pin: SourcePin) -> tuple[int, ...]:
    info = context.tables.describe(pin.table)
    ends = (info.snapshot_id if info else None, pin.snapshot_id)
    return tuple(dict.fromkeys(end for end in ends if end is not None))


def _partition_field(context: Context, table: str, column: str) -> ScopeField:
    """Return the field by which a source is partitioned; raise NotFound, Unsupported."""
    info = context.tables.describe(table)
    if info is None:
        raise NotFound(f"{table} does not exist")
    return context.tables.scope_field(info, column)


def newest_before(history: Iterable[Publication], moment: datetime) -> Publication | None:
    """Return the newest accepted version that was made before a moment; the history's newest first.

    Of a version whose time does not tell (0 stands for what the first run found) nothing is said.
    """
    rows = (row for row in pointer.accepted_rows(history) if row.action != "baseline")
    return next((row for row in rows if row.at < moment and row.snapshot_id is not None), None)


def _last_good(context: Context, plan: Plan, until: datetime) -> LastGoodState | None:
    """Return the last state of the product from before a moment; None: a cold start."""
    row = newest_before(context.versions.history(plan.product), until)
    if row is not None and row.snapshot_id is not None:
        return LastGoodState(
            table=row.table, snapshot_id=row.snapshot_id, at=row.at, version=row.version
        )
    target = plan.resolved.target
    if target.snapshot_id is None:
        return None
    before = (until - timedelta(milliseconds=1)).isoformat()
    try:
        found = context.tables.resolve(TableRef(table=target.table, at=before))
    except NotFound:
        return None
    at = datetime.fromtimestamp(found.committed_at_ms / 1000, timezone.utc)
    return LastGoodState(table=target.table, snapshot_id=found.snapshot_id, at=at, version=None)


def describe_span(span: EventSpan | CorruptionWindow) -> str:
    """Return the instants of a window as people write them: days where they are whole days."""
    first, stop = span.first, span.stop
    if first.time() == stop.time() == datetime.min.time():
        last = stop - timedelta(days=1)
        return f"{first:%Y-%m-%d} to {last:%Y-%m-%d} (UTC days, both included)"
    return f"{first:%Y-%m-%d %H:%M:%S} to {stop:%Y-%m-%d %H:%M:%S} UTC"


def window_notes(window: CorruptionWindow, *, is_endless: bool = False) -> tuple[str, ...]:
    """Return what follows from a window, as sentences of the plan."""
    notes = [
        f"window of wrong rows: {describe_span(window)}; "
        f"{partitions.describe_labels(window.partitions)} were computed from them"
    ]
    notes += [_source_note(source) for source in window.sources]
    notes += [
        note
        for source in window.sources
        if source.topic is not None
        for note in topics.topic_notes(source.name, source.topic)
    ]
    notes += [note for source in window.sources for note in _source_states(source, window)]
    good = window.last_good
    if good is None:
        notes.append("no state of the product is known from before the window: a cold start, in "
                     "which warm-up alone builds what a chunk needs")  # fmt: skip
    else:
        name = f"version {good.version}" if good.version is not None else "no accepted version"
        notes.append(
            f"last good state before the window: {name}, {good.table}@{good.snapshot_id} of "
            f"{good.at:%Y-%m-%d %H:%M} UTC"
        )
    end = f"the replay is through with {window.closes_with}: what is computed from "
    end += f"{window.replay_to:%Y-%m-%d %H:%M} UTC on reads no row of the window"
    if is_endless:
        end = (
            f"the replay ends with {window.closes_with}, and the state carries rows of the window "
        )
        end += "on: partitions after it stay wrong until they are restated too"
    elif not window.is_closed and not any(map(_is_open, window.sources)):
        end += "; that is not over yet: the live job still reads rows of the window"
    notes.append(end)
    if window.beyond:
        notes.append(
            f"{partitions.describe_labels(window.beyond)} are restated too, and depend on no row "
            "of the window"
        )
    return tuple(notes)


#: Commits of a source that a sentence names.
_MAX_NAMED = 3


def _source_note(source: WindowSource) -> str:
    if source.unknown:
        return f"{source.name}: which commits carried rows of it is not known: {source.unknown}"
    commits: Sequence[WindowCommit] = source.commits
    named = ", ".join(f"{one.snapshot_id} ({one.operation} by {one.writer})" for one in
                      commits[:_MAX_NAMED])  # fmt: skip
    more = f" and {len(commits) - _MAX_NAMED:,} more" if len(commits) > _MAX_NAMED else ""
    labels = partitions.describe_labels(source.partitions)
    if not commits:
        what = f"rows of {labels}" if source.partitions else "rows of the window"
        return f"{source.name}: no commit of {source.table} carried {what}"
    if not source.partitions:
        return f"{source.name}: rows of {source.table} may come from snapshots {named}{more}"
    return f"{source.name}: {labels} of {source.table}, by snapshots {named}{more}"


def _source_states(source: WindowSource, window: CorruptionWindow) -> Iterator[str]:
    """Yield what the source was before the window, and whether it reaches behind it."""
    if source.last_good_snapshot_id is not None:
        yield (
            f"{source.name}: {source.table} before the first of these commits is snapshot "
            f"{source.last_good_snapshot_id}"
        )
    reached = source.reaches_to
    if reached is None:
        return
    text = f"{source.name}: the state that is read has rows up to {reached:%Y-%m-%d %H:%M}"
    # The last instants before an end need no rows of their own.
    if _ends_before(reached, window.stop - timedelta(days=1)):
        text += "; the window goes on behind them: land what is missing first"
    elif _ends_before(reached, window.replay_to - timedelta(days=1)):
        text += (
            f"; the replay reads up to {window.replay_to:%Y-%m-%d %H:%M} UTC: land what came since "
            "first"
        )
    yield text
