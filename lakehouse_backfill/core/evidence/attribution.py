"""Why rows differ, by cause.

Deciding why a row changed, from what it was in states that differ by one input.

Each factor is tried in two ways: alone on the old side, and all but it on the new side. So the
answer does not depend on an order in which inputs would be swapped.

diff --attribute: why rows of a candidate differ, on sampled partitions of the run.

Nothing is computed for what does not differ; a run whose maker is unknown, and whose inputs' past
is gone, needs no engine either: then nothing can be said, and that is what is said.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from lakehouse_backfill.core.comparison.diff import (
    DiffOptions,
    DiffResult,
    compare_states,
    request_for_run,
)
from lakehouse_backfill.core.planning import job_code, publish_modes
from lakehouse_backfill.core.planning.pins import is_pin_expired
from lakehouse_backfill.core.publication.dual_read import staged_candidate
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.catch_up import Drift, TableState
from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.diff import (
    Attribution,
    AttributionBasis,
    CauseClass,
    ComparedState,
    ExplainedRows,
    Factor,
    PartitionCauses,
)
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, NotFound, TargetChanged
from lakehouse_backfill.ports.compute import InputSwapRequest, InputSwapResult

#: The value of a state in which the row is absent.
ABSENT_ROW = -1
UNEXPLAINED_FACTOR = Factor(cause="unexplained")
LIVE_WRITE_FACTOR = Factor(cause="live_write")
#: Rows deleted on the target by a live commit, or left out because something names them.
DELETED_FACTOR = Factor(cause="deletion", input="target")
EXCLUDED_FACTOR = Factor(cause="deletion", input="tombstones")


def states_to_compute(count: int) -> tuple[ComparedState, ...]:
    """List the states to compute for so many factors: all old, each alone, all but one, all new."""
    whole = frozenset(range(count))
    wanted = [frozenset[int](), *(frozenset({place}) for place in range(count))]
    wanted += [whole - {place} for place in range(count)] + [whole]
    return tuple(ComparedState("computed", swapped) for swapped in dict.fromkeys(wanted))


def find_factors(
    states: Sequence[ComparedState], values: Sequence[int], factors: Sequence[Factor]
) -> tuple[Factor, ...]:
    """Name what changed a row that is not the same in the first and in the last state.

    More than one: each took part. `UNEXPLAINED` stands for a difference between what a run left
    and what its own code makes of its own inputs.
    """
    of = dict(zip(states, values, strict=True))
    replaced, candidate = of[ComparedState("replaced")], of[ComparedState("candidate")]
    whole = ComparedState("computed", frozenset(range(len(factors))))
    start, final = of[ComparedState("computed")], of[whole]
    published = of.get(ComparedState("published"), replaced)
    was_kept, kept = of.get(ComparedState("was_kept"), start), of.get(ComparedState("kept"), final)
    found: list[Factor] = []
    if replaced != published:
        found.append(DELETED_FACTOR if replaced == ABSENT_ROW else LIVE_WRITE_FACTOR)
    if published != was_kept:
        found.append(UNEXPLAINED_FACTOR)
    if was_kept != start:
        found.append(EXCLUDED_FACTOR)
    # Where the row is left out, it makes no difference what it would be.
    if start != final and not (kept == ABSENT_ROW != final):
        tried = {state.swapped: value for state, value in of.items() if state.kind == "computed"}
        named = [factors[place] for place in _decisive_factors(tried, len(factors))]
        found += named or [UNEXPLAINED_FACTOR]
    if kept != final:
        found.append(EXCLUDED_FACTOR)
    if candidate != kept:
        found.append(UNEXPLAINED_FACTOR)
    return tuple(dict.fromkeys(found))


def _decisive_factors(tried: Mapping[frozenset[int], int], count: int) -> list[int]:
    """Name the factors without which the row would not be what it is, or that alone make it so.

    A state that could not be computed says nothing. Factors of which any two do, but none alone,
    are all named; so are those beside the only one that is needed when it does not do alone. None
    are named when that is not certain.
    """
    places, whole = range(count), frozenset(range(count))
    start, final = tried[frozenset()], tried[whole]
    alone = {place: tried.get(frozenset({place})) for place in places}
    without = {place: tried.get(whole - {place}) for place in places}
    enough = {place for place in places if alone[place] == final}
    needed = {place for place in places if without[place] not in (None, final)}
    does_alone = all(alone[place] in (None, final) for place in needed)
    # Of two or more that are needed, no state tells whether they do without the others.
    if enough or len(needed) > 1 or (needed and does_alone):
        return sorted(needed | enough)
    moved = {place for place in places if alone[place] not in (None, start)}
    is_certain = None not in (*alone.values(), *without.values())
    if moved - needed:
        return sorted(needed | moved)
    return list(places) if is_certain else []


def classify_factors(factors: Iterable[Factor]) -> CauseClass:
    """Give the class under which a row is counted; what is partly unexplained is unexplained."""
    causes = {factor.cause for factor in factors}
    if "unexplained" in causes or not causes:
        return "unexplained"
    return causes.pop() if len(causes) == 1 else "several"


def sample_partitions(changed: Mapping[str, int], most: int, seed: str) -> tuple[str, ...]:
    """Choose partitions: half of them the most changed, the others drawn by the seed.

    The same seed chooses the same ones; up to `most` changed partitions are all taken.
    """
    ordered = sorted(changed, key=lambda label: (-changed[label], label))
    first = ordered[: math.ceil(most / 2)]
    others = sorted(ordered[len(first) :])
    drawn = random.Random(seed).sample(others, min(most - len(first), len(others)))  # noqa: S311 (a sample, no secret)
    chosen = {*first, *drawn}
    return tuple(label for label in changed if label in chosen)


def publication_of_partition(
    history: Sequence[Publication], plan: Plan, label: str
) -> Publication | None:
    """Give the publication whose rows readers had in a partition when the run was planned.

    None: no run made them, or what it made went back since.
    """
    known = tuple(row for row in history if row.at <= plan.created_at and row.run_id != plan.run_id)
    newest = next((row for row in known if row.action in pointer.ACCEPTED_ACTIONS), None)
    if newest is None:
        return None
    seen = pointer.runs_by_version(known)[newest.version]
    for row in known:
        if row.action != "publish" or row.run_id not in seen or row.scope is None:
            continue
        if label in row.scope.partitions:
            _, gone = pointer.rolled_back_since(known, str(row.run_id))
            if label not in gone:
                return row
    return None


def is_same_code(old: Plan, new: Plan) -> bool:
    """Tell whether two runs do the same with equal inputs, as far as files and intent say."""
    return _code(old) == _code(new)


def _code(plan: Plan) -> tuple[object, ...]:
    resolved, manifest = plan.resolved, plan.resolved.manifest
    target = manifest.target
    reads = sorted(
        (pin.name, pin.range, pin.warm_up_days, pin.cool_down_days) for pin in resolved.sources
    )
    return (
        job_code.code_files(resolved), manifest.transform, target.row_predicate, target.merge,
        target.publish_mode == "merge", target.schema_change, [str(read) for read in reads],
    )  # fmt: skip


def written_before(at: datetime, moments: Mapping[int, datetime]) -> int | None:
    """Give the newest of some commits that is not later than `at`; None: there is none."""
    known = [(moment, commit) for commit, moment in moments.items() if moment <= at]
    return max(known)[1] if known else None


#: Evidence: the newest attribution of a run.
ATTRIBUTION = "attribution"
DEFAULT_PARTITIONS = 4


@dataclass(frozen=True)
class AttributionOptions:
    """How much is looked at; `keys` are those of source tables that are products themselves."""

    partitions: int = DEFAULT_PARTITIONS
    engine: str = "auto"
    samples: int = 5
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _PartitionOrigin:
    """What is known of how a partition came to be; `why` says why nothing is."""

    basis: AttributionBasis
    old_plan: Plan | None = None
    pins: tuple[SourcePin, ...] = ()
    published: TableState | None = None
    live_commits: tuple[str, ...] = ()
    reason: str = ""


def attribute_changes(
    context: Context, run_id: str, asked: AttributionOptions
) -> tuple[DiffResult, Attribution]:
    """Compare a run's candidate with what it replaces, and say why sampled rows differ.

    The result is recorded as evidence of the run. Raises NotFound when nothing is staged.
    """
    started = time.monotonic()
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    wanted = request_for_run(context, run_id, DiffOptions(samples=asked.samples))
    compared = compare_states(context, wanted, asked.engine)
    diff = compared.diff
    changed = {
        str(row.partition): row.added + row.removed + row.changed
        for row in diff.partitions
        if row.partition is not None and (row.added or row.removed or row.changed)
    }
    chosen = sample_partitions(changed, asked.partitions, plan.manifest_hash)
    context.progress.start("attributing", len(chosen), "partitions")
    parts = []
    for label in chosen:
        parts.append(_attribute_partition(context, plan, label, changed[label], diff, asked))
        context.progress.advance(rows=changed[label])
    context.progress.finish()
    found = Attribution(
        run_id=run_id,
        product=plan.product,
        old=diff.old,
        new=diff.new,
        changed_rows=sum(changed.values()),
        changed_partitions=len(changed),
        sampled_rows=sum(changed[label] for label in chosen),
        partitions=tuple(parts),
        at=context.clock.now(),
        seconds=round(time.monotonic() - started, 3),
    )
    context.evidence.record(run_id, ATTRIBUTION, found.data(), status.seq)
    return compared, found


def _attribute_partition(
    context: Context, plan: Plan, label: str, rows: int, diff: Diff, asked: AttributionOptions
) -> PartitionCauses:
    past = _partition_origin(context, plan, label)
    if past.basis == "none":
        return _unexplained_partition(label, rows, diff, past)
    target = plan.resolved.target
    request = InputSwapRequest(
        partition=label,
        new=plan,
        candidate=TableState.model_validate(staged_candidate(context, plan).model_dump()),
        replaced=TableState(table=target.table, snapshot_id=target.snapshot_id),
        old_pins=past.pins,
        old=past.old_plan,
        published=past.published,
        keys={pin.name: asked.keys[pin.table] for pin in past.pins if pin.table in asked.keys},
        samples=asked.samples,
    )
    try:
        swapped = context.compute().attributing.swap(request)
    except EnvironmentDown:
        raise
    except BackfillError as error:
        # Its code is not kept, or does not run any more: also that is no reason to say nothing.
        return _unexplained_partition(label, rows, diff, past, error.problem)
    groups = _group_patterns(swapped, asked.samples)
    notes = (past.reason,) if past.reason else ()
    return PartitionCauses(
        partition=label, changed_rows=sum(group.rows for group in groups), basis=past.basis,
        made_by=past.old_plan.run_id if past.old_plan else None, groups=groups, inputs=swapped.inputs,
        live=past.live_commits, notes=(*notes, *swapped.notes),
    )  # fmt: skip


def _unexplained_partition(
    label: str, rows: int, diff: Diff, past: _PartitionOrigin, why: str | None = None
) -> PartitionCauses:
    """Say that nothing can be said, and why."""
    notes = tuple(note for note in (past.reason, why) if note)
    return PartitionCauses(
        partition=label, changed_rows=rows, basis="none",
        made_by=past.old_plan.run_id if past.old_plan else None,
        groups=(_unexplained_group(label, rows, diff),), live=past.live_commits, notes=notes,
    )  # fmt: skip


def _group_patterns(swapped: InputSwapResult, samples: int) -> tuple[ExplainedRows, ...]:
    """Sum up the patterns that have the same causes, the largest group first."""
    found: dict[tuple[object, ...], ExplainedRows] = {}
    for pattern in swapped.patterns:
        factors = find_factors(swapped.states, pattern.values, swapped.factors)
        known = found.get(factors)
        columns = dict(known.columns) if known else {}
        for name, count in pattern.columns.items():
            columns[name] = columns.get(name, 0) + count
        shown = (*(known.samples if known else ()), *pattern.samples)
        found[factors] = ExplainedRows(
            cause=classify_factors(factors), factors=factors,
            rows=pattern.rows + (known.rows if known else 0), columns=columns,
            samples=shown[:samples],
        )  # fmt: skip
    return tuple(sorted(found.values(), key=lambda group: (-group.rows, group.cause)))


def _unexplained_group(label: str, rows: int, diff: Diff) -> ExplainedRows:
    columns = {cell.column: cell.changed for cell in diff.cells if cell.partition == label}
    return ExplainedRows(
        cause="unexplained", factors=(UNEXPLAINED_FACTOR,), rows=rows, columns=columns
    )


def _partition_origin(context: Context, plan: Plan, label: str) -> _PartitionOrigin:
    """Find out which run, or which inputs, made what the candidate replaces."""
    if publish_modes.is_externally_written(plan):
        return _PartitionOrigin(
            "none", reason="another engine computed the candidate: it cannot be repeated"
        )
    row = publication_of_partition(context.versions.history(plan.product), plan, label)
    try:
        return (
            _known_origin(context, plan, label, row)
            if row
            else _assumed_origin(context, plan, label)
        )
    except BackfillError as error:
        return _PartitionOrigin("none", reason=f"what made it cannot be repeated: {error.problem}")


def _known_origin(context: Context, plan: Plan, label: str, row: Publication) -> _PartitionOrigin:
    """Take pins and code of the run that computed the partition."""
    old = _computing_run(context, context.runs.plan(str(row.run_id)), label)
    if publish_modes.is_externally_written(old):
        return _PartitionOrigin("none", reason=f"{old.run_id} was computed by another engine")
    gone = [
        f"{p.table}@{p.snapshot_id}" for p in old.resolved.sources if is_pin_expired(context, p)
    ]
    if gone:
        return _PartitionOrigin(
            "none", old, reason=f"what {old.run_id} read is gone: {', '.join(gone)}"
        )
    published: TableState | None = TableState(table=row.table, snapshot_id=row.snapshot_id)
    why = ""
    try:
        context.tables.resolve(TableRef(table=row.table, at=str(row.snapshot_id)))
    except NotFound:
        published = None
        why = "the published snapshot is gone: live writes are among what is unexplained"
    is_on_target = row.table == plan.resolved.target.table
    live = _live_commits(context, plan, label, row.snapshot_id) if is_on_target else ()
    words = tuple(str(drift) for drift in live or ())
    return _PartitionOrigin("run", old, old.resolved.sources, published, words, why)


def _computing_run(context: Context, plan: Plan, label: str) -> Plan:
    """Give the run that computed a partition: one that follows live data takes some over."""
    catch_up = plan.resolved.catch_up
    chunk = next((c for c in plan.resolved.chunks if label in c.partitions), None)
    origin = catch_up.origin(chunk.chunk_id) if catch_up and chunk else None
    return context.runs.plan(origin.run_id) if origin else plan


def _assumed_origin(context: Context, plan: Plan, label: str) -> _PartitionOrigin:
    """Take the inputs as they were when the partition was last written; its code is unknown."""
    written = _live_commits(context, plan, label, None)
    if written is None:
        return _PartitionOrigin(
            "none", reason="no known run made it, and the commits that did are gone"
        )
    if not written:
        return _PartitionOrigin("none", reason="nothing was ever written there: all of it is new")
    newest = written[-1]
    pins = []
    for pin in plan.resolved.sources:
        then = context.tables.resolve(TableRef(table=pin.table, at=newest.at.isoformat()))
        pins.append(pin.model_copy(update={"snapshot_id": then.snapshot_id}))
    why = (
        "no known run made it: compared with what the candidate's code makes of the inputs as "
        f"they were at {newest.at.isoformat(timespec='seconds')}, when it was last written; "
        "what that does not give is unexplained: other code, or live writes"
    )
    return _PartitionOrigin("assumed", pins=tuple(pins), live_commits=(str(newest),), reason=why)


def _live_commits(
    context: Context, plan: Plan, label: str, since: int | None
) -> tuple[Drift, ...] | None:
    """Name the commits on the target up to the run's base that changed the partition.

    None: history is gone, so nobody can say.
    """
    target = plan.resolved.target
    if target.snapshot_id is None:
        return ()
    base = context.tables.resolve(TableRef(table=target.table, at=str(target.snapshot_id)))
    scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
    try:
        found = context.publisher.drifts(target.table, scope, since)
    except (TargetChanged, NotFound):
        return None
    return tuple(d for d in found if d.at.timestamp() * 1000 <= base.committed_at_ms + 0.5)
