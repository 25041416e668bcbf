"""Attribution of changed rows to causes, on sampled partitions of a run (`diff --attribute`).

The cause of a row's change follows from the values of the row in states that differ by one factor
(one input, or the code). Each factor is tried in two ways: swapped alone on the old side, and all
others swapped on the new side. So the result does not depend on an order of swaps.

Nothing is computed for partitions that do not differ. Where the origin of a partition is unknown
and the past states of its inputs are gone, no engine is started: its rows are unexplained.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from lakehouse_backfill import errors
from lakehouse_backfill.core.comparison.diff import (
    DiffOptions,
    EngineDiff,
    compare_states,
    request_for_run,
)
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.guards.privacy import rules
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.planning.pins import expired_pins
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.publication.dual_read import staged_candidate
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.catch_up import Drift, TableState
from lakehouse_backfill.domain.checks import Diff, redact_sample
from lakehouse_backfill.domain.diff import (
    Attribution,
    AttributionBasis,
    CauseClass,
    ComparedState,
    ExplainedRows,
    Factor,
    PartitionCauses,
)
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.ports.compute import InputSwapRequest, InputSwapResult

#: The value of a state in which the row is absent.
ABSENT_ROW = -1
UNEXPLAINED_FACTOR = Factor(cause="unexplained")
LIVE_WRITE_FACTOR = Factor(cause="live_write")
#: Rows deleted on the target by a live commit, or excluded because tombstones name them.
DELETED_FACTOR = Factor(cause="deletion", input="target")
EXCLUDED_FACTOR = Factor(cause="deletion", input="tombstones")


def states_to_compute(count: int) -> tuple[ComparedState, ...]:
    """List the states to compute for `count` factors: all old, each alone, all but one, all new."""
    whole = frozenset(range(count))
    swaps = [frozenset[int](), *(frozenset({position}) for position in range(count))]
    swaps += [whole - {position} for position in range(count)] + [whole]
    return tuple(ComparedState("computed", swapped) for swapped in dict.fromkeys(swaps))


def find_factors(
    states: Sequence[ComparedState], values: Sequence[int], factors: Sequence[Factor]
) -> tuple[Factor, ...]:
    """List the factors that changed a row between the first and the last state.

    With several factors, each took part. `UNEXPLAINED_FACTOR` stands for a difference between the
    stored result of a run and what its own code computes from its own inputs.
    """
    value_of = dict(zip(states, values, strict=True))
    replaced, candidate = value_of[ComparedState("replaced")], value_of[ComparedState("candidate")]
    whole = ComparedState("computed", frozenset(range(len(factors))))
    start, final = value_of[ComparedState("computed")], value_of[whole]
    published = value_of.get(ComparedState("published"), replaced)
    was_kept = value_of.get(ComparedState("was_kept"), start)
    kept = value_of.get(ComparedState("kept"), final)
    factors_found: list[Factor] = []
    if replaced != published:
        factors_found.append(DELETED_FACTOR if replaced == ABSENT_ROW else LIVE_WRITE_FACTOR)
    if published != was_kept:
        factors_found.append(UNEXPLAINED_FACTOR)
    if was_kept != start:
        factors_found.append(EXCLUDED_FACTOR)
    # The computed value of an excluded row has no effect.
    if start != final and not (kept == ABSENT_ROW != final):
        tried = {
            state.swapped: value for state, value in value_of.items() if state.kind == "computed"
        }
        decisive = [factors[place] for place in _decisive_factors(tried, len(factors))]
        factors_found += decisive or [UNEXPLAINED_FACTOR]
    if kept != final:
        factors_found.append(EXCLUDED_FACTOR)
    if candidate != kept:
        factors_found.append(UNEXPLAINED_FACTOR)
    return tuple(dict.fromkeys(factors_found))


def _decisive_factors(tried: Mapping[frozenset[int], int], count: int) -> list[int]:
    """List the factors that the final value needs, or that produce it alone.

    A state that could not be computed is no evidence. All factors are listed when any two produce
    the final value but none alone. When exactly one factor is needed but does not suffice, the
    factors that move the row alone are listed with it. The list is empty when the evidence is not
    certain.
    """
    places, whole = range(count), frozenset(range(count))
    start, final = tried[frozenset()], tried[whole]
    alone = {place: tried.get(frozenset({place})) for place in places}
    without = {place: tried.get(whole - {place}) for place in places}
    sufficient = {place for place in places if alone[place] == final}
    needed = {place for place in places if without[place] not in (None, final)}
    needed_suffice = all(alone[place] in (None, final) for place in needed)
    # When two or more are needed, no state shows whether they suffice without the others.
    if sufficient or len(needed) > 1 or (needed and needed_suffice):
        return sorted(needed | sufficient)
    moved = {place for place in places if alone[place] not in (None, start)}
    is_certain = None not in (*alone.values(), *without.values())
    if moved - needed:
        return sorted(needed | moved)
    return list(places) if is_certain else []


def classify_factors(factors: Iterable[Factor]) -> CauseClass:
    """Return the class under which a row is counted; a partly unexplained row is unexplained."""
    causes = {factor.cause for factor in factors}
    if "unexplained" in causes or not causes:
        return "unexplained"
    return causes.pop() if len(causes) == 1 else "several"


def sample_partitions(changed: Mapping[str, int], most: int, seed: str) -> tuple[str, ...]:
    """Choose partitions: half of them the most changed, the others drawn by the seed.

    The same seed gives the same choice. Up to `most` changed partitions are all chosen.
    """
    ordered = sorted(changed, key=lambda label: (-changed[label], label))
    first = ordered[: math.ceil(most / 2)]
    others = sorted(ordered[len(first) :])
    drawn = random.Random(seed).sample(  # noqa: S311 (a sample, no secret)
        others, min(most - len(first), len(others))
    )
    chosen = {*first, *drawn}
    return tuple(label for label in changed if label in chosen)


def publication_of_partition(
    history: Sequence[Publication], plan: Plan, label: str
) -> Publication | None:
    """Return the publication whose rows readers saw in a partition when the run was planned.

    None: no run computed them, or the publication was rolled back since.
    """
    earlier = tuple(
        row for row in history if row.at <= plan.created_at and row.run_id != plan.run_id
    )
    accepted = pointer.accepted_rows(earlier)
    if not accepted:
        return None
    visible_runs = pointer.runs_by_version(earlier)[accepted[0].version]
    for row in earlier:
        if row.action != "publish" or row.run_id not in visible_runs or row.scope is None:
            continue
        if label in row.scope.partitions:
            _, rolled_back = pointer.rolled_back_since(earlier, str(row.run_id))
            if label not in rolled_back:
                return row
    return None


def is_same_code(old: Plan, new: Plan) -> bool:
    """Return whether two runs compute the same from equal inputs, judged by files and intent."""
    return _code(old) == _code(new)


def _code(plan: Plan) -> tuple[object, ...]:
    resolved, manifest = plan.resolved, plan.resolved.manifest
    target = manifest.target
    reads = sorted(
        (pin.name, pin.range, pin.warm_up_days, pin.cool_down_days) for pin in resolved.sources
    )
    return (
        job_code.code_files(resolved), manifest.transform, target.row_predicate, target.merge,
        target.publish_mode == "merge", target.columns, target.schema_change,
        [str(read) for read in reads],
    )  # fmt: skip


#: Evidence: the newest attribution of a run.
ATTRIBUTION = "attribution"
DEFAULT_PARTITIONS = 4


@dataclass(frozen=True)
class AttributionOptions:
    """How much is examined; `keys` are those of source tables that are products themselves."""

    partitions: int = DEFAULT_PARTITIONS
    engine: str = "auto"
    samples: int = 5
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _PartitionOrigin:
    """What is known of how a partition was computed; `reason` explains what is missing."""

    basis: AttributionBasis
    old_plan: Plan | None = None
    pins: tuple[SourcePin, ...] = ()
    published: TableState | None = None
    live_commits: tuple[str, ...] = ()
    reason: str = ""
    named_code: str | None = None
    is_code_unknown: bool = False

    @property
    def made_by(self) -> str | None:
        """The run that computed the partition; the plan with named code is no run."""
        return self.old_plan.run_id if self.old_plan and self.named_code is None else None


def attribute_changes(
    context: Context, run_id: str, asked: AttributionOptions, by: str
) -> tuple[EngineDiff, Attribution]:
    """Compare a run's candidate with what it replaces, and attribute sampled changed rows.

    The result is recorded as evidence of the run. Raises NotFound when nothing is staged,
    and what `require_permission_now` does when its input may not be replayed, or not by `by`.
    """
    started = time.monotonic()
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    rules.require_permission_now(context, plan, by)
    request = request_for_run(context, run_id, DiffOptions(samples=asked.samples))
    result = compare_states(context, request, asked.engine)
    diff = result.diff
    changed = {
        str(row.partition): row.added + row.removed + row.changed
        for row in diff.partitions
        if row.partition is not None and (row.added or row.removed or row.changed)
    }
    chosen = sample_partitions(changed, asked.partitions, plan.manifest_hash)
    origins = {label: _partition_origin(context, plan, label) for label in chosen}
    if warning := _unknown_code_warning(tuple(origins.values())):
        context.progress.say(warning)
    context.progress.start("attributing", len(chosen), "partitions")
    causes = []
    for label, past in origins.items():
        sampled = label, changed[label], past
        causes.append(_attribute_partition(context, plan, sampled, diff, asked))
        context.progress.advance(rows=changed[label])
    context.progress.finish()
    attribution = Attribution(
        run_id=run_id, product=plan.product, old=diff.old, new=diff.new,
        changed_rows=sum(changed.values()), changed_partitions=len(changed),
        sampled_rows=sum(changed[label] for label in chosen), partitions=tuple(causes),
        at=context.clock.now(), seconds=round(time.monotonic() - started, 3),
    )  # fmt: skip
    context.evidence.record(run_id, ATTRIBUTION, attribution.data(), status.seq)
    return result, attribution


def _unknown_code_warning(origins: Sequence[_PartitionOrigin]) -> str:
    """Describe, before anything is computed, for how many partitions no code is known."""
    unknown = sum(origin.is_code_unknown for origin in origins)
    text = f"no run made the old rows of {unknown} of {len(origins)} sampled partitions, and the "
    text += "manifest names no previous_code: a change of code stays unexplained there"
    return text if unknown else ""


def _attribute_partition(
    context: Context,
    plan: Plan,
    sampled: tuple[str, int, _PartitionOrigin],
    diff: Diff,
    asked: AttributionOptions,
) -> PartitionCauses:
    label, rows, past = sampled
    if past.basis == "none":
        return _unexplained_partition(label, rows, diff, past)
    target = plan.resolved.target
    request = InputSwapRequest(
        partition=label,
        new=plan,
        candidate=staged_candidate(context, plan),
        replaced=TableState(table=target.table, snapshot_id=target.snapshot_id),
        old_pins=past.pins,
        old=past.old_plan,
        published=past.published,
        keys={pin.name: asked.keys[pin.table] for pin in past.pins if pin.table in asked.keys},
        samples=asked.samples,
    )
    seq = context.runs.status(plan.run_id).seq
    try:
        with effect_log.record_attempts_of_check(context, plan.run_id, "attribution", seq):
            swapped = context.compute().attributing.swap(request)
    except (errors.EnvironmentDown, errors.LostFile):
        raise
    except errors.BackfillError as error:
        # The old code is not kept or no longer runs: the other partitions are still explained.
        return _unexplained_partition(label, rows, diff, past, error.problem)
    groups = _group_patterns(swapped, asked.samples, context.redaction(plan.resolved.contract))
    total = sum(group.rows for group in groups)
    notes = [past.reason] if past.reason else []
    not_reproduced = None
    if past.basis == "named":
        not_reproduced = _not_reproduced_rows(swapped)
        notes.append(
            f"that code does not give the old values of {not_reproduced:,} of {total:,} changed "
            "rows: they are unexplained"
            if not_reproduced
            else f"that code gives the old values of all {total:,} changed rows"
        )
    return PartitionCauses(
        partition=label, changed_rows=total, basis=past.basis, made_by=past.made_by, groups=groups,
        inputs=swapped.inputs, live=past.live_commits, notes=(*notes, *swapped.notes),
        named_code=past.named_code, not_reproduced=not_reproduced,
    )  # fmt: skip


def _not_reproduced_rows(swapped: InputSwapResult) -> int:
    """Count the changed rows whose stored old value is not what the old code computes."""
    replaced = swapped.states.index(ComparedState("replaced"))
    start = swapped.states.index(ComparedState("computed"))
    return sum(
        pattern.rows
        for pattern in swapped.patterns
        if pattern.values[replaced] != pattern.values[start]
    )


def _unexplained_partition(
    label: str, rows: int, diff: Diff, past: _PartitionOrigin, why: str | None = None
) -> PartitionCauses:
    """Build the result of a partition that cannot be explained, with the reasons."""
    notes = tuple(note for note in (past.reason, why) if note)
    columns = {cell.column: cell.changed for cell in diff.cells if cell.partition == label}
    group = ExplainedRows(
        cause="unexplained", factors=(UNEXPLAINED_FACTOR,), rows=rows, columns=columns
    )
    return PartitionCauses(
        partition=label, changed_rows=rows, basis="none", made_by=past.made_by,
        groups=(group,), live=past.live_commits, notes=notes, named_code=past.named_code,
    )  # fmt: skip


def _group_patterns(
    swapped: InputSwapResult, samples: int, redaction: Redaction
) -> tuple[ExplainedRows, ...]:
    """Sum up the patterns that have the same causes, the largest group first."""
    groups: dict[tuple[object, ...], ExplainedRows] = {}
    for pattern in swapped.patterns:
        factors = find_factors(swapped.states, pattern.values, swapped.factors)
        earlier = groups.get(factors)
        columns = dict(earlier.columns) if earlier else {}
        for name, count in pattern.columns.items():
            columns[name] = columns.get(name, 0) + count
        own = (redact_sample(each, redaction) for each in pattern.samples)
        shown_samples = (*(earlier.samples if earlier else ()), *own)
        groups[factors] = ExplainedRows(
            cause=classify_factors(factors), factors=factors,
            rows=pattern.rows + (earlier.rows if earlier else 0), columns=columns,
            samples=shown_samples[:samples],
        )  # fmt: skip
    return tuple(sorted(groups.values(), key=lambda group: (-group.rows, group.cause)))


def _partition_origin(context: Context, plan: Plan, label: str) -> _PartitionOrigin:
    """Find the run, or the inputs, that produced the rows which the candidate replaces."""
    if publish_modes.is_externally_written(plan):
        return _PartitionOrigin(
            "none", reason="another engine computed the candidate: it cannot be repeated"
        )
    row = publication_of_partition(context.versions.history(plan.product), plan, label)
    try:
        if row is None:
            return _unrecorded_origin(context, plan, label)
        return _known_origin(context, plan, label, row)
    except errors.BackfillError as error:
        return _PartitionOrigin("none", reason=f"what made it cannot be repeated: {error.problem}")


def _known_origin(context: Context, plan: Plan, label: str, row: Publication) -> _PartitionOrigin:
    """Return the pins and the code of the run that computed the partition."""
    old = computing_run(context, context.runs.plan(str(row.run_id)), label)
    if publish_modes.is_externally_written(old):
        return _PartitionOrigin("none", reason=f"{old.run_id} was computed by another engine")
    expired = [f"{pin.table}@{pin.snapshot_id}" for pin in expired_pins(context, old)]
    if expired:
        return _PartitionOrigin(
            "none", old, reason=f"what {old.run_id} read is gone: {', '.join(expired)}"
        )
    published: TableState | None = TableState(table=row.table, snapshot_id=row.snapshot_id)
    reason = ""
    try:
        context.tables.resolve(TableRef(table=row.table, at=str(row.snapshot_id)))
    except errors.NotFound:
        published = None
        reason = "the published snapshot is gone: live writes are among what is unexplained"
    is_on_target = row.table == plan.resolved.target.table
    commits = _live_commits(context, plan, label, row.snapshot_id) if is_on_target else ()
    commit_texts = tuple(str(drift) for drift in commits or ())
    return _PartitionOrigin("run", old, old.resolved.sources, published, commit_texts, reason)


def computing_run(context: Context, plan: Plan, label: str) -> Plan:
    """Return the run that computed a partition; a catch-up run carries some over from another."""
    catch_up = plan.resolved.catch_up
    chunk = next((one for one in plan.resolved.chunks if label in one.partitions), None)
    origin = catch_up.origin(chunk.chunk_id) if catch_up and chunk else None
    return context.runs.plan(origin.run_id) if origin else plan


def _unrecorded_origin(context: Context, plan: Plan, label: str) -> _PartitionOrigin:
    """Use the code that the manifest names, on the inputs at the time of the last write.

    Without named code, the candidate's is used: then only changes of the inputs are explained.
    """
    named, code = job_code.previous_plan(plan), plan.resolved.previous_code
    written = _live_commits(context, plan, label, None)
    if written is None and named is None:
        return _PartitionOrigin(
            "none", reason="no known run made it, and its commits are gone", is_code_unknown=True
        )
    if written is not None and not written:
        return _PartitionOrigin("none", reason="nothing was ever written there: all of it is new")
    newest = written[-1] if written else None
    commits = (str(newest),) if newest else ()
    if named is None and newest is not None:
        pins = tuple(_pin_at(context, pin, newest.at) for pin in plan.resolved.sources)
        reason = (
            "no known run made it: compared with what the candidate's code makes of the inputs as "
            f"they were at {newest.at.isoformat(timespec='seconds')}, when it was last written; "
            "what that does not give is unexplained: other code, or live writes"
        )
        return _PartitionOrigin(
            "assumed", pins=pins, live_commits=commits, reason=reason, is_code_unknown=True
        )
    pins, how = _named_code_pins(context, plan, newest)
    reason = f"no known run made it: computed again by {code}, named by the manifest, on {how}"
    return _PartitionOrigin(
        "named", named, pins, live_commits=commits, reason=reason, named_code=str(code)
    )


def _named_code_pins(
    context: Context, plan: Plan, newest: Drift | None
) -> tuple[tuple[SourcePin, ...], str]:
    """Return the inputs at the last write, and what they are; the run's own where those are gone.

    They may be gone because the input is younger than the rows, or because its history expired.
    """
    if newest is None:
        return plan.resolved.sources, "the inputs of this run: when it was written is not known"
    pins, gone = [], []
    for pin in plan.resolved.sources:
        try:
            pins.append(_pin_at(context, pin, newest.at))
        except errors.NotFound:
            pins.append(pin)
            gone.append(pin.name)
    how = f"the inputs as they were at {newest.at.isoformat(timespec='seconds')}, when it was "
    how += "last written"
    if gone:
        how += f" (as this run reads them: {', '.join(gone)}, whose state of then is gone)"
    return tuple(pins), how


def _pin_at(context: Context, pin: SourcePin, at: datetime) -> SourcePin:
    snapshot = context.tables.resolve(TableRef(table=pin.table, at=at.isoformat()))
    return pin.model_copy(update={"snapshot_id": snapshot.snapshot_id})


def _live_commits(
    context: Context, plan: Plan, label: str, since: int | None
) -> tuple[Drift, ...] | None:
    """List the commits on the target up to the run's base that changed the partition.

    None when the history is expired.
    """
    target = plan.resolved.target
    if target.snapshot_id is None:
        return ()
    base = context.tables.resolve(TableRef(table=target.table, at=str(target.snapshot_id)))
    scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
    try:
        drifts = context.publisher.drifts(target.table, scope, since)
    except (errors.TargetChanged, errors.NotFound):
        return None
    return tuple(
        drift for drift in drifts if drift.at.timestamp() * 1000 <= base.committed_at_ms + 0.5
    )
