"""From which state a stateful run starts, and what such a run may not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from functools import lru_cache

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest
from lakehouse_backfill.domain.partitions import Scope, partition_row_range
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.stateful.declaration import (
    StateSnapshot,
    StateStart,
    declaration_faults,
)
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported

#: States that readers got, or that were judged to be right.
_GOOD = frozenset({RunState.VALIDATED, RunState.ACCEPTED, RunState.PUBLISHED})
#: Runs whose chunks are looked through for a state, newest first.
_NEWEST_RUNS = 200


def check_declaration(manifest: RunManifest, scope: Scope) -> None:
    """Raise Unsupported for what a stateful run cannot do, ConfigError for a wrong declaration."""
    declared = manifest.stateful
    if declared is None:
        return
    days = {name: source.warm_up_days for name, source in manifest.sources.items()}
    faults = list(declaration_faults(declared, days, manifest.limits.parallel))
    if faults:
        texts = "; ".join(f"{one.field} is {one.problem}" for one in faults)
        raise ConfigError(
            texts,
            state=NOTHING_PLANNED,
            fix="; ".join(f"{one.field}: {one.fix}" for one in faults),
            field=faults[0].field,
        )
    for is_asked, field, problem, fix in _unsupported(manifest, scope):
        if is_asked:
            raise Unsupported(
                f"a stateful run {problem}", state=NOTHING_PLANNED, fix=fix, field=field
            )


def _unsupported(manifest: RunManifest, scope: Scope) -> Iterator[tuple[bool, str, str, str]]:
    by = scope.field
    yield (
        not by.is_timed or partitions.NULL_LABEL in scope.partitions,
        "target.partitions",
        "goes from one partition of time to the next, which the scope does not name",
        "name partitions of a date or timestamp, and no partition of null",
    )
    yield (
        manifest.target.publish_mode == "merge",
        "target.publish_mode",
        "computes whole partitions, which merge does not",
        "write replace_partitions",
    )
    yield (
        manifest.safety.on_conflict == "catch_up",
        "safety.on_conflict",
        "takes no chunk over from another run: its state was made of other rows",
        "write fail, and plan again after a conflict",
    )
    yield (
        manifest.target.row_predicate is not None,
        "target.row_predicate",
        "keeps a state of all rows, which a job that gives some of them does not make",
        "remove it, and restate whole partitions",
    )
    later = next((name for name, one in manifest.sources.items() if one.cool_down_days), "")
    yield (
        bool(later),
        f"sources.{later}.cool_down_days",
        "reads no rows after its partitions: the next chunk reads them, and they would count twice",
        "write 0, or leave it out",
    )
    yield (
        manifest.transform.writer == "external",
        "transform.writer",
        "is computed by a job of the project, which gets the state",
        "write job",
    )
    yield (
        not manifest.transform.file.endswith(".py"),
        "transform.file",
        "has a transform in Python: a query returns no state beside its rows",
        "write the transform in Python, with state=...",
    )


def with_start(context: Context, resolved: ResolvedManifest) -> ResolvedManifest:
    """Return what is resolved with the state that a stateful run starts from.

    Raises Unsupported where a state would keep values that leave nothing behind.
    """
    if resolved.manifest.stateful is None:
        return resolved
    _require_whole_days(resolved)
    pins = [pin.privacy for pin in resolved.sources if pin.privacy is not None]
    is_restricted = resolved.contract.restricted_columns or any(one.is_restricted for one in pins)
    if is_restricted or resolved.tombstones:
        what = "restricted columns" if is_restricted else "rows that tombstones erase"
        raise Unsupported(
            f"a stateful run would keep values of {what} in its states",
            state=NOTHING_PLANNED,
            fix="compute the product without a state, from a warm-up",
            field="stateful",
        )
    return resolved.model_copy(update={"state_start": find_start(context, resolved)})


def _require_whole_days(resolved: ResolvedManifest) -> None:
    """Raise Unsupported for hours that are computed from a source of days.

    Each of them reads the whole day, so that the state would count its rows once for each hour.
    """
    for pin in resolved.sources:
        kinds = {column.name: column.type for column in pin.columns}
        is_day = pin.range is not None and kinds.get(pin.range.column) == "date"
        if is_day and resolved.scope.field.transform == "hour":
            raise Unsupported(
                f"a stateful run computes hours, and {pin.name} is cut by days: each hour would "
                "read the rows of its whole day",
                state=NOTHING_PLANNED,
                fix="cut the source by a timestamp column",
                field=f"sources.{pin.name}.range.column",
            )


def find_start(context: Context, resolved: ResolvedManifest) -> StateStart:
    """Return what a run starts from, as its declaration says; `why` is a sentence for the plan.

    A kept state counts when a good run with the same code and configuration kept it, its inputs
    have the same files before its end, and the declared ranges hold all rows after it. One whose
    rows reach further back goes before a nearer one.
    """
    declared = resolved.manifest.stateful
    if declared is None:
        raise ValueError("the run is not stateful")
    first = resolved.scope.partitions[0]
    if declared.start_boundary == "empty":
        why = f"{first} starts from an empty state, as declared"
        return StateStart(why=why, cold_since=first)
    days, warms = declared.warm_up_days, bool(declared.warm_up_days)
    made = f"its state is made of {days} days of warm-up" if warms else "it is a cold start"
    if declared.start_boundary == "warm_up":
        return StateStart(warm_up=True, why=f"{first} starts without a state: {made}, as declared")
    refused: list[str] = []
    changes = _InputChanges(context)
    for plan, kept in _earlier_states(context, resolved):
        because = _unusable(context, resolved, plan, kept, changes)
        if not because:
            return _restored(first, plan, kept)
        refused.append(f"{kept.boundary} of {plan.run_id}: {because}")
    shown = "; ".join(refused[:3]) or "no good run of this code kept one"
    return StateStart(
        warm_up=warms, why=f"no state from before {first} can be restored ({shown}): {made}",
        cold_since="" if warms else first,
    )  # fmt: skip


def _restored(first: str, plan: Plan, kept: StateSnapshot) -> StateStart:
    why = f"{first} starts from the state at the end of {kept.boundary} ({plan.run_id})"
    if since := _cold_since(plan):
        why = f"{why}, which holds no row from before {since}"
    return StateStart(kept=kept, run_id=plan.run_id, why=why, cold_since=since)


def _cold_since(plan: Plan) -> str:
    """Return the first partition whose rows are in the states of a run; empty: they are whole."""
    return plan.resolved.state_start.cold_since if plan.resolved.state_start else ""


def start_notes(resolved: ResolvedManifest) -> tuple[str, ...]:
    """Return what a plan says of a stateful run."""
    declared, start = resolved.manifest.stateful, resolved.state_start
    if declared is None or start is None:
        return ()
    count = declared.snapshot.every_partitions
    return (
        f"state: {start.why}",
        f"state: kept after each {count} partitions; a chunk starts from the state before it, so "
        "chunks are computed one after the other, and no partition beyond the edges is compared",
        f"late rows ({declared.watermark.policy}): {declared.late}",
        f"state: partitions after {resolved.scope.partitions[-1]} that are not restated keep what "
        "was computed from the state of before",
    )


def start_warnings(resolved: ResolvedManifest) -> tuple[str, ...]:
    """Return what speaks against a run that was to restore a state, and starts with none."""
    declared, start = resolved.manifest.stateful, resolved.state_start
    if declared is None or start is None or declared.start_boundary != "restored":
        return ()
    if start.kept is not None or start.warm_up:
        return ()
    return (f"cold start: {start.why}, so rows from before are in no value",)


def _earlier_states(
    context: Context, resolved: ResolvedManifest
) -> Iterator[tuple[Plan, StateSnapshot]]:
    """Yield the states from before the scope that good runs of the same code kept.

    Whole ones first, then those whose rows reach back furthest; of these the nearest one first; of
    equally near ones, that of the newest run.
    """
    field, first = resolved.scope.field, resolved.scope.partitions[0]
    order: Callable[[str], tuple[object, ...]] = partitions.label_sort_key(field)
    found: list[tuple[Plan, StateSnapshot]] = []
    for status in _good_runs(context, resolved.manifest.product):
        plan = context.runs.plan(status)
        if not _is_same_code(plan.resolved, resolved):
            continue
        texts = (one.state for one in context.runs.chunks(plan.run_id) if one.status == "done")
        found += [(plan, StateSnapshot.parse(text)) for text in texts if text]
    before = [one for one in found if order(one[1].boundary) < order(first)]
    nearest = sorted(before, key=lambda one: order(one[1].boundary), reverse=True)
    declared = resolved.manifest.stateful
    if declared is not None and not declared.warm_up_days:
        nearest.sort(key=lambda one: _reach(one[0], order))
    yield from nearest


def _reach(plan: Plan, order: Callable[[str], tuple[object, ...]]) -> tuple[object, ...]:
    """Return a key by which runs are sorted whose states reach back further."""
    since = _cold_since(plan)
    return (1, order(since)) if since else (0, ())


def _good_runs(context: Context, product: str) -> list[str]:
    """Return the runs of a product that were found good, the newest first."""
    runs = [
        one
        for one in context.runs.list(open_only=False)
        if one.product == product and one.state in _GOOD
    ]
    newest = sorted(runs, key=lambda one: one.at, reverse=True)
    return [one.run_id for one in newest[:_NEWEST_RUNS]]


def _is_same_code(made: ResolvedManifest, now: ResolvedManifest) -> bool:
    """Return whether two runs make the same states of the same rows."""
    before, after = made.manifest, now.manifest
    return (
        made.code_hash == now.code_hash
        and before.run.mode != "dry_run"
        and before.stateful is not None
        and after.stateful is not None
        and (before.transform.name, before.transform.version, before.transform.config)
        == (after.transform.name, after.transform.version, after.transform.config)
        and _rules(before) == _rules(after)
        and made.scope.field == now.scope.field
    )


def _rules(manifest: RunManifest) -> Mapping[str, object]:
    """Return what a declaration says of the state itself, not of where a run starts."""
    declared = manifest.stateful
    names = {"state", "warm_up_days", "timers", "late", "watermark"}
    return declared.model_dump(mode="json", include=names) if declared else {}


def _unusable(
    context: Context,
    resolved: ResolvedManifest,
    made: Plan,
    kept: StateSnapshot,
    changes: _InputChanges,
) -> str:
    """Return why a state cannot be started from; empty when it can."""
    info = context.tables.describe(kept.table)
    if info is None or info.snapshot_id != kept.snapshot_id:
        return "it is not kept any more"
    end = partition_row_range(resolved.scope.field, kept.boundary).upper
    if not isinstance(end, date):
        return "its partition has no end"
    if because := _too_short(resolved, made, as_instant(end)):
        return because
    before = {pin.name: pin for pin in made.resolved.sources}
    for pin in resolved.sources:
        old = before.get(pin.name)
        if old is None:
            return f"it was made without {pin.name}"
        if because := _other_input(old, pin) or changes.since(as_instant(end), old, pin):
            return because
    return "" if len(before) == len(resolved.sources) else "it was made of more inputs"


def _other_input(old: SourcePin, new: SourcePin) -> str:
    """Return why a state was made of another input; empty when it is the same table."""
    if new.candidate is not None:
        return f"{new.name} is yet to be staged"
    if old.product_table != new.table:
        return f"it was made without {new.name}"
    if old.candidate is not None:
        return f"it was made of what {old.candidate.run_id} staged of {new.name}"
    is_cut_alike = (old.range and old.range.column) == (new.range and new.range.column)
    return "" if is_cut_alike else f"{new.name} was cut by another column"


def _too_short(resolved: ResolvedManifest, made: Plan, end: datetime) -> str:
    """Return why a state holds less than the days that make it whole; empty when it does not."""
    declared, since = resolved.manifest.stateful, _cold_since(made)
    start = partition_row_range(resolved.scope.field, since).lower if since else None
    if declared is None or not declared.warm_up_days or not isinstance(start, date):
        return ""
    is_whole = end - as_instant(start) >= timedelta(days=declared.warm_up_days)
    return "" if is_whole else f"it holds no row from before {since}"


class _InputChanges:
    """Looks what has changed of inputs; the files of a snapshot are read once for many states."""

    def __init__(self, context: Context) -> None:
        self._spans = lru_cache(maxsize=8)(context.tables.column_spans)

    def since(self, end: datetime, old: SourcePin, new: SourcePin) -> str:
        """Return what has changed of an input before the end of a state; empty: nothing has."""
        if new.range is not None and as_instant(new.range.from_) > end:
            return f"the range of {new.name} begins after it"
        if old.snapshot_id == new.snapshot_id:
            return ""
        if new.range is None:
            return f"{new.name} has other rows now"
        try:
            files = [self._files_before(end, pin, new.range.column) for pin in (old, new)]
        except (NotFound, Unsupported) as error:
            return f"whether {new.name} changed before it is not known: {error.problem}"
        return "" if files[0] == files[1] else f"{new.name} has changed before its end"

    def _files_before(self, end: datetime, pin: SourcePin, column: str) -> set[tuple[object, ...]]:
        return {
            (one.path, one.least_rows, one.most_rows, one.deletes)
            for one in self._spans(pin.table, pin.snapshot_id, column)
            if one.first is None or as_instant(one.first) < end
        }
