"""The stages of a run, in the order in which they happen: derived from the plan alone.

Two visitors walk the same list. `plan` and `show` explain it; `run`, staging, validation and
publication ask it what comes next and what there is to do. So a plan lists what its run does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from lakehouse_backfill.core.planning.scope import key_chunks, resolve
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.planning.target.catch_up import excluded_rows
from lakehouse_backfill.core.versions import steps
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import EdgeSide
from lakehouse_backfill.domain.contract import PIN_DAYS
from lakehouse_backfill.domain.guards.outside import HookMoment
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.serialization import Value, added_later
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow

Phase = Literal[
    "plan", "approval", "staging", "validation", "acceptance", "publication", "upkeep"
]  # fmt: skip
StageKind = Literal[
    "pin",
    "approve",
    "judge_input",
    "create_target",
    "open_shadow",
    "carry_chunk",
    "stage_chunk",
    "write_shadow",
    "measure_chunk",
    "compute_edges",
    "judge_result",
    "dual_read",
    "accept",
    "order_publication",
    "hooks_before",
    "expose",
    "move_pointer",
    "check_step",
    "label_rows",
    "refresh_view",
    "check_published",
    "hooks_after",
    "retire",
]
#: Kinds of stages that commit chunks to the shadow, or measure what was committed.
CHUNK_KINDS: tuple[StageKind, ...] = ("carry_chunk", "stage_chunk", "measure_chunk")
_STAGING_STATES = (
    RunState.APPROVED, RunState.STAGING, RunState.FAILED, RunState.PAUSED, RunState.HALTED,
)  # fmt: skip
#: The phase that a run in this state comes to; in the others people decide, or nothing is left.
_NEXT_PHASE: dict[RunState, Phase] = {
    RunState.PLANNED: "approval",
    **dict.fromkeys(_STAGING_STATES, "staging"),
    RunState.STAGED: "validation",
    RunState.VALIDATED: "acceptance",
    RunState.ACCEPTED: "publication",
    RunState.PUBLISHING: "publication",
    RunState.PUBLISHED: "upkeep",
}


class Stage(Value):
    """One thing that a run does, or waits for.

    `by` is who does it: this toolkit, a person, or the other engine that writes the shadow.
    `partitions` are those that it is about, where they are not all of the run's.
    """

    kind: StageKind
    phase: Phase
    by: Literal["toolkit", "person", "engine"] = "toolkit"
    text: str
    partitions: tuple[str, ...] = ()
    chunk_id: str = ""
    keys: Scope | None = added_later(None, "Of a chunk, the buckets or ranges of a key column.")

    @property
    def chunk(self) -> Chunk:
        """The chunk of a stage of `CHUNK_KINDS`."""
        return Chunk(chunk_id=self.chunk_id, partitions=self.partitions, keys=self.keys)


def plan_stages(plan: Plan) -> tuple[Stage, ...]:
    """Return all stages of a run that nothing stops, in order."""
    staging = tuple(_staging(plan))
    computes_edges = any(stage.kind == "compute_edges" for stage in staging)
    return (
        *_before_staging(plan),
        *staging,
        *_validation(plan, with_edges=not computes_edges),
        *_acceptance(plan),
        *_publication(plan),
        Stage(
            kind="retire", phase="upkeep",
            text=f"`maintain` removes shadow and pins, from {PIN_DAYS} days after the acceptance on"
            if not publish_modes.is_never_published(plan)
            else "`maintain` removes shadow and pins once the run is closed",
        ),
    )  # fmt: skip


def has_stage(plan: Plan, kind: StageKind) -> bool:
    """Return whether a stage of this kind is among those of the plan."""
    return any(stage.kind == kind for stage in plan_stages(plan))


def chunk_stages(plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of the chunks, in the order in which they are committed."""
    return tuple(stage for stage in _staging(plan) if stage.kind in CHUNK_KINDS)


def next_stage(plan: Plan, state: RunState) -> Stage | None:
    """Return the first stage of the phase that a run in `state` comes to.

    None where no stage follows by itself: the run is closed, rejected, or was taken back. A
    publication that was begun waits for nobody.
    """
    phase = _NEXT_PHASE.get(state)
    is_begun = state is RunState.PUBLISHING
    for stage in plan_stages(plan):
        if stage.phase == phase and not (is_begun and stage.by == "person"):
            return stage
    return None


def next_phase(plan: Plan, state: RunState) -> Phase | None:
    """Return the phase of the next stage; None where no stage follows by itself."""
    stage = next_stage(plan, state)
    return stage.phase if stage else None


def _before_staging(plan: Plan) -> Iterator[Stage]:
    resolved = plan.resolved
    target, roles = resolved.target, resolved.contract.roles
    pinned = [f"{pin.table} at {pin.snapshot_id}" for pin in resolved.sources if pin.mode == "tag"]
    leased = [f"{pin.table} at {pin.snapshot_id}" for pin in resolved.sources if pin.mode != "tag"]
    if target.snapshot_id is not None:
        pinned.append(f"{target.table} at {target.snapshot_id}")
    texts = [f"tags {', '.join(pinned)}" if pinned else "tags nothing"]
    if leased:
        texts.append(f"records {', '.join(leased)}, which it may not tag")
    yield Stage(kind="pin", phase="plan", text="; ".join(texts))
    yield Stage(
        kind="approve", phase="approval", by="person",
        text=f"approves the intent: {_who(roles.approve)}",
    )  # fmt: skip


def _who(names: tuple[str, ...]) -> str:
    return " or ".join(names) or "anybody"


def _staging(plan: Plan) -> Iterator[Stage]:
    resolved, is_external = plan.resolved, publish_modes.is_externally_written(plan)
    target = resolved.target
    assumed = len(resolved.contract.assumptions)
    yield Stage(
        kind="judge_input", phase="staging",
        text="checks that the pinned input is complete and passes its suites"
        + (f", and {assumed} declared assumptions" if assumed else ""),
    )  # fmt: skip
    if target.uuid is None:
        yield Stage(kind="create_target", phase="staging", text=f"creates {target.table}, empty")
    base = "which is empty" if target.snapshot_id is None else f"at {target.snapshot_id}"
    branch = parse_branch_shadow(plan.shadow_table)
    made = f"branches {branch.branch_pattern} off" if branch else "clones"
    made = f"{made} {target.table} {base}" + ("" if branch else f" as {plan.shadow_table}")
    yield Stage(
        kind="open_shadow", phase="staging", text=f"{made}; no data file is copied",
    )  # fmt: skip
    if is_external:
        yield Stage(
            kind="write_shadow", phase="staging", by="engine",
            text=f"writes {branch.branch_pattern if branch else plan.shadow_table}, then "
            "`shadow close` shuts it out",
        )  # fmt: skip
    catch_up = resolved.catch_up
    beyond = resolve.all_labels(edges_while_staging(plan))
    for chunk in resolved.chunks:
        labels = key_chunks.describe_chunk(chunk)
        carried = catch_up.carried_chunk(chunk.chunk_id) if catch_up else None
        kind: StageKind = "stage_chunk"
        text = f"computes {labels} into the shadow by one commit, and checks it"
        if carried is not None:
            kind, text = "carry_chunk", f"takes {labels} over from {carried.run_id}, not computed"
        elif is_external:
            kind, text = "measure_chunk", f"measures and checks {labels}, as it was written"
        elif beyond:
            yield _edges_stage(plan, beyond, "staging", "beside the chunks, ")
            beyond = ()
        yield Stage(
            kind=kind, phase="staging", text=text, partitions=chunk.partitions,
            chunk_id=chunk.chunk_id, keys=chunk.keys,
        )  # fmt: skip


def _validation(plan: Plan, *, with_edges: bool) -> Iterator[Stage]:
    resolved = plan.resolved
    edges = resolve.edge_labels(resolved.scope, resolve.computed_edges(resolved.manifest))
    beyond = resolve.all_labels(edges)
    # Without accepted rows there is nothing to compare with; `validate` says so.
    if with_edges and beyond and resolved.target.snapshot_id is not None:
        yield _edges_stage(plan, beyond, "validation")
    suites = len(resolved.contract.suites + resolved.manifest.validation.suites)
    yield Stage(
        kind="judge_result", phase="validation",
        text=f"checks the result: counts, checksums, diff, edges, totals, {suites} suites; nothing "
        "outside the partitions may differ",
    )  # fmt: skip


#: Partitions beyond the edges that the run's log keeps, with their checksums.
_MAX_KEPT_EDGES = 64
_MAX_NAMED_EDGES = 4


def edges_while_staging(plan: Plan) -> dict[EdgeSide, tuple[str, ...]]:
    """Return the partitions beyond the edges that are computed while chunks are, if any.

    Their checksums decide only where the run computes all rows, under the current columns. The
    others are left to validation, as are those of a run that may read only so much a minute: its
    chunks may use all of that.
    """
    target, scope, limits = plan.resolved.target, plan.resolved.scope, plan.resolved.manifest.limits
    if target.snapshot_id is None or limits.hold_for_reads or not computes_all_rows(plan):
        return {}
    around = resolve.edge_labels(scope, resolve.computed_edges(plan.resolved.manifest))
    return around if len(resolve.all_labels(around)) <= _MAX_KEPT_EDGES else {}


def computes_all_rows(plan: Plan) -> bool:
    """Return whether the run computes all rows of its partitions, with all of their columns."""
    return (
        not plan.resolved.manifest.target.row_predicate
        and not publish_modes.restates_columns(plan)
        and not declared_schema_change(plan)
        and excluded_rows(plan.resolved).is_empty
    )


def _edges_stage(plan: Plan, labels: tuple[str, ...], phase: Phase, when: str = "") -> Stage:
    in_order = sorted(labels, key=partitions.label_sort_key(plan.resolved.scope.field))
    named = ", ".join(in_order) if len(labels) <= _MAX_NAMED_EDGES else f"{len(labels)} partitions"
    return Stage(
        kind="compute_edges", phase=phase, partitions=labels,
        text=f"{when}computes {named} beyond the range, to compare them with what is accepted "
        "there; they are not written",
    )  # fmt: skip


def _acceptance(plan: Plan) -> Iterator[Stage]:
    if publish_modes.is_never_published(plan):
        return
    declared, roles = plan.resolved.manifest.target.dual_read, plan.resolved.contract.roles
    if declared is not None:
        yield Stage(
            kind="dual_read", phase="acceptance", by="person",
            text=f"compare old and new by their own queries: {', '.join(declared.readers)}",
        )  # fmt: skip
    yield Stage(
        kind="accept", phase="acceptance", by="person",
        text=f"accepts exactly this result: {_who(roles.accept)}",
    )  # fmt: skip


def _publication(plan: Plan) -> Iterator[Stage]:
    if publish_modes.is_never_published(plan):
        return
    manifest, contract = plan.resolved.manifest, plan.resolved.contract
    # The runs of a cascade become visible together, or in its order.
    if manifest.safety.manual_publish or plan.cascade is not None:
        window = manifest.safety.publish_window
        hours = f", between {window.from_} and {window.to} UTC" if window else ""
        yield Stage(
            kind="order_publication", phase="publication", by="person",
            text=f"gives `publish`: {_who(contract.roles.publish)}{hours}",
        )  # fmt: skip
    for step in steps.publish_steps(plan):
        yield from _publish_step(plan, step)
    if contract.versions_table:
        yield Stage(
            kind="label_rows",
            phase="publication",
            text=f"relabels rows of {contract.versions_table} by one commit: its accepted rows are "
            "then those of this version",
        )
    if contract.view:
        yield Stage(
            kind="refresh_view", phase="publication", text=f"lets the view {contract.view} follow"
        )
    after = contract.after_publish
    if after is not None and manifest.target.publish_mode != "correction_events":
        failed = "rolls back" if after.on_failed == "rollback" else "reports"
        yield Stage(
            kind="check_published", phase="publication",
            text=f"checks what readers see, with {len(after.suites)} suites; {failed} on failure",
        )  # fmt: skip
    yield from _hooks(plan, "after_publish", "hooks_after")


def _publish_step(plan: Plan, step: steps.PublishStep) -> Iterator[Stage]:
    """Yield the stages of one publication; a run that is published in steps has several."""
    labels = step.scope.partitions if steps.is_stepwise(plan) else ()
    yield from _hooks(plan, "before_publish", "hooks_before")
    number = f"step {step.number} of {step.count}: " if labels else ""
    yield Stage(
        kind="expose", phase="publication", partitions=labels, text=number + _exposure(plan)
    )
    yield Stage(
        kind="move_pointer", phase="publication", partitions=labels,
        text="makes it the accepted version, which `rollback` takes back by one commit",
    )  # fmt: skip
    if labels:
        yield Stage(
            kind="check_step", phase="publication", partitions=labels,
            text="compares what readers see with the candidate, before the next step",
        )  # fmt: skip


def _exposure(plan: Plan) -> str:
    """Describe what precedes the move of the pointer, by publish mode and write path."""
    mode, table = plan.resolved.manifest.target.publish_mode, plan.resolved.contract.table
    if mode == "pointer_swap":
        return f"keeps {plan.shadow_table} for readers; nothing is committed on any other table"
    if mode == "versioned":
        return f"gives the new table a name of its own, beside {table}"
    if mode == "correction_events":
        return "writes one event for each differing key by one append; the table stays as it is"
    way = plan.way.way if plan.way else "pyiceberg"
    if way == "rewrite":
        return f"rewrites the rows of the partitions in {table} by one commit"
    verb = "adds the shadow's files to" if mode == "append" else "swaps the shadow's files into"
    return f"{verb} {table} by one metadata commit ({way})"


def _hooks(plan: Plan, moment: HookMoment, kind: StageKind) -> Iterator[Stage]:
    names = [hook.name for hook in plan.resolved.contract.hooks if hook.on == moment]
    if names:
        yield Stage(kind=kind, phase="publication", text=f"calls {', '.join(names)}")
