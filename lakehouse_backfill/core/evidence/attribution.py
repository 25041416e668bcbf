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
from dataclasses import dataclass, field, replace

from lakehouse_backfill import errors
from lakehouse_backfill.core.comparison.diff import (
    DiffOptions,
    EngineDiff,
    compare_states,
    request_for_run,
)
from lakehouse_backfill.core.evidence.origins import (
    RowOrigin,
    find_origin,
    has_other_inputs,
    is_same_origin,
)
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.guards.privacy import rules
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.publication.dual_read import staged_candidate
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.catch_up import TableState
from lakehouse_backfill.domain.comparison.attribution import (
    Attribution,
    CauseClass,
    ComparedState,
    ExplainedRows,
    Factor,
    PartitionCauses,
)
from lakehouse_backfill.domain.comparison.diff import Diff, redact_sample
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.plan import Plan
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


def is_same_code(old: Plan, new: Plan) -> bool:
    """Return whether two runs compute the same from equal inputs, judged by files and intent."""
    return _code(old) == _code(new)


def _code(plan: Plan) -> tuple[object, ...]:
    resolved, manifest = plan.resolved, plan.resolved.manifest
    target = manifest.target
    reads = sorted(
        (pin.name, pin.range, pin.warm_up_days, pin.cool_down_days, pin.partition_column)
        for pin in resolved.sources
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
    origins = {label: find_origin(context, plan, label) for label in chosen}
    if warning := _unknown_code_warning(tuple(origins.values())):
        context.progress.say(warning)
    context.progress.start("attributing", len(chosen), "partitions")
    found: dict[str, PartitionCauses] = {}
    for labels in _group_partitions(plan, origins):
        sampled = _Sampled({label: changed[label] for label in labels}, origins[labels[0]])
        found |= _attribute_partitions(context, plan, sampled, diff, asked)
        for label in labels:
            # Of a group, commits of live writers differ by partition.
            live = origins[label].live_commits
            found[label] = found[label].model_copy(update={"live": live})
            context.progress.advance(rows=changed[label])
    context.progress.finish()
    causes = [found[label] for label in chosen]
    attribution = Attribution(
        run_id=run_id, product=plan.product, old=diff.old, new=diff.new,
        changed_rows=sum(changed.values()), changed_partitions=len(changed),
        sampled_rows=sum(changed[label] for label in chosen), partitions=tuple(causes),
        at=context.clock.now(), seconds=round(time.monotonic() - started, 3),
    )  # fmt: skip
    context.evidence.record(run_id, ATTRIBUTION, attribution.data(), status.seq)
    return result, attribution


def _unknown_code_warning(origins: Sequence[RowOrigin]) -> str:
    """Describe, before anything is computed, for how many partitions no code is known."""
    unknown = sum(origin.is_code_unknown for origin in origins)
    text = f"no run made the old rows of {unknown} of {len(origins)} sampled partitions, and the "
    text += "manifest names no previous_code: a change of code stays unexplained there"
    return text if unknown else ""


@dataclass(frozen=True)
class _Sampled:
    """Partitions with their changed rows, that are computed together, and what made them."""

    rows: Mapping[str, int]
    past: RowOrigin


def _group_partitions(plan: Plan, origins: Mapping[str, RowOrigin]) -> list[tuple[str, ...]]:
    """Group partitions of a chunk that the same run made, of the same inputs but reference data.

    Of other inputs, the rows that changed are counted for each partition by itself.
    """
    chunk_of = {
        label: chunk.chunk_id for chunk in plan.resolved.chunks for label in chunk.partitions
    }
    groups: list[list[str]] = []
    for label, past in origins.items():
        is_alone = past.basis != "run" or has_other_inputs(plan, past)
        same = (
            group
            for group in groups
            if not is_alone
            and chunk_of.get(group[0]) == chunk_of.get(label)
            and is_same_origin(origins[group[0]], past)
        )
        group = next(same, None)
        if group is None:
            groups.append([label])
        else:
            group.append(label)
    return [tuple(group) for group in groups]


def _attribute_partitions(
    context: Context, plan: Plan, sampled: _Sampled, diff: Diff, asked: AttributionOptions
) -> dict[str, PartitionCauses]:
    """Attribute the rows of partitions together; one by one where that leaves a doubt.

    A job may compute several partitions otherwise than each of them.
    """
    labels, past = tuple(sampled.rows), sampled.past
    if past.basis == "none":
        return {
            label: _unexplained_partition(label, rows, diff, past)
            for label, rows in sampled.rows.items()
        }
    try:
        found = _swap_inputs(context, plan, sampled, asked)
    except (errors.EnvironmentDown, errors.LostFile):
        raise
    except errors.BackfillError as error:
        # The old code is not kept or no longer runs: the other partitions are still explained.
        found = {
            label: _unexplained_partition(label, rows, diff, past, error.problem)
            for label, rows in sampled.rows.items()
        }
    is_doubtful = any(
        one.notes != ((past.reason,) if past.reason else ())
        or one.changed_rows != sampled.rows[label]
        or any(group.cause == "unexplained" for group in one.groups)
        for label, one in found.items()
    )
    if len(labels) > 1 and is_doubtful:
        for label in labels:
            alone = _Sampled({label: sampled.rows[label]}, past)
            found |= _attribute_partitions(context, plan, alone, diff, asked)
    return found


def _swap_inputs(
    context: Context, plan: Plan, sampled: _Sampled, asked: AttributionOptions
) -> dict[str, PartitionCauses]:
    past, target = sampled.past, plan.resolved.target
    request = InputSwapRequest(
        partitions=tuple(sampled.rows),
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
    with effect_log.record_attempts_of_check(context, plan.run_id, "attribution", seq):
        swapped = context.compute().attributing.swap(request)
    redaction = context.redaction(plan.resolved.contract)
    return {
        label: _partition_causes(label, past, _of_partition(swapped, label), asked, redaction)
        for label in sampled.rows
    }


def _of_partition(swapped: InputSwapResult, label: str) -> InputSwapResult:
    patterns = tuple(one for one in swapped.patterns if one.partition == label)
    return replace(swapped, patterns=patterns)


def _partition_causes(
    label: str,
    past: RowOrigin,
    swapped: InputSwapResult,
    asked: AttributionOptions,
    redaction: Redaction,
) -> PartitionCauses:
    groups = _group_patterns(swapped, asked.samples, redaction)
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
    label: str, rows: int, diff: Diff, past: RowOrigin, why: str | None = None
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
