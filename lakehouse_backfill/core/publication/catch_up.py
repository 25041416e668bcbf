"""Publication while live data moves: revisions that recompute only the changed partitions.

A publication that meets a conflict is released first. Then a revision is planned on the target's
new head. Each step is a verb that may be repeated: after a crash the same command on either run
continues.

What plans, stages and validates is loaded when a revision needs it: a preview loads none of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval import acceptance
from lakehouse_backfill.core.approval.decisions import logged_validation, trusted_events
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.planning import stages
from lakehouse_backfill.core.planning.inputs.pins import head_snapshot_id
from lakehouse_backfill.core.planning.other_runs import supersede_revised_run
from lakehouse_backfill.core.planning.target.catch_up import (
    accepted_rows_and_checksum,
    next_catch_up_attempt,
    reasons_for_review,
    recut_chunks,
    require_same_intent,
)
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import deletions
from lakehouse_backfill.domain.catch_up import CarriedChunk, CatchUp
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.labels.grains import whole_grains_of
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import (
    ApprovalMissing,
    ChecksFailed,
    NotFound,
    TargetChanged,
    Unsupported,
)

if TYPE_CHECKING:
    from lakehouse_backfill.core.planning.plan import DeclaredRun
    from lakehouse_backfill.core.staging.candidates import FindReused

CLOSED_STATES = {RunState.CANCELLED, RunState.SUPERSEDED}


def newest_revision(context: Context, run_id: str) -> str:
    """Return the newest revision that caught up for a run; the run itself if there is none."""
    while context.runs.status(run_id).state is RunState.SUPERSEDED:
        events = [event for event in context.runs.events(run_id) if event.verb == "supersede"]
        by_run = str(events[-1].detail["by_run"])
        catch_up = context.runs.plan(by_run).resolved.catch_up
        if catch_up is None or catch_up.of != run_id:
            break
        run_id = by_run
    return run_id


def carry_over_approval(context: Context, plan: Plan, by: str) -> RunStatus:
    """Approve a revision in the name of those who approved the run that it catches up for.

    Their approval covers catch-up. Raises ApprovalMissing unless manifest, contract, scope, job
    code, files and configuration are the same.
    """
    status, catch_up = context.runs.status(plan.run_id), plan.resolved.catch_up
    if catch_up is None or status.state is not RunState.PLANNED:
        return status
    first = context.runs.plan(catch_up.of)
    events = trusted_events(context, context.runs.status(catch_up.of))
    roles.require_approval(events, first)
    require_same_intent(first, plan)
    return context.move(
        status, plan, "carry approval", by,
        bound_to=plan.manifest_hash,
        decided_by=list(roles.decision_makers(events, "approve", first.manifest_hash)),
        carried_from=first.run_id,
        reason=f"carried over: what was approved of {first.run_id} lets it follow live data",
    )  # fmt: skip


def carry_over_acceptance(context: Context, plan: Plan, by: str) -> RunStatus:
    """Accept a revision in the name of those who accepted the run before it.

    Raises ApprovalMissing when a person must review the result, with the reasons of
    `reasons_for_review`.
    """
    status, catch_up = context.runs.status(plan.run_id), plan.resolved.catch_up
    if catch_up is None or status.state is not RunState.VALIDATED:
        return status
    before = context.runs.status(catch_up.of)
    events, new_events = trusted_events(context, before), trusted_events(context, status)
    old, new = (
        logged_validation(context, events, catch_up.of),
        logged_validation(context, new_events, plan.run_id),
    )
    reasons: tuple[str, ...] = ("its validation is gone",)
    if old is not None and new is not None and old[0] == catch_up.accepted_digest:
        inexact = deletions.inexact_partitions(context, plan, new[1])
        reasons = reasons_for_review(old[1], new[1], catch_up, inexact)
    decided_by = roles.decision_makers(events, "accept", catch_up.accepted_digest)
    if reasons or not decided_by or new is None:
        raise ApprovalMissing(
            f"{plan.run_id} caught up with live commits for {catch_up.of}, and a person must look "
            f"at its result: {'; '.join(reasons) or 'nobody accepted the one before'}",
            state="nothing was published; readers see what they saw before",
            fix=f"lakehouse-backfill accept {plan.run_id}, then "
            + command_line("publish", plan.run_id),
            data={"run_id": plan.run_id, "because": list(reasons)},
        )
    return context.move(
        status, plan, "carry acceptance", by,
        bound_to=new[0],
        decided_by=list(decided_by),
        carried_from=catch_up.of,
        archive=acceptance.archive_acceptance(context, plan, status, new, tuple(decided_by)),
        reason=f"carried over from {catch_up.of}: all gates are open, and only partitions that "
        "live commits changed differ",
    )  # fmt: skip


def stage_and_validate(
    context: Context,
    status: RunStatus,
    by: str,
    replayer: str | None = None,
    find_reused: FindReused | None = None,
) -> tuple[RunStatus, dict[str, Any]]:
    """Stage and validate a run from where it stopped; return its status, and what was done.

    The stages of its plan say which of the two comes next. Finished work is not repeated. Starts
    Spark if it has to compute. `replayer`, by default who acts, needs the permission to replay the
    input. `find_reused` is handed to staging.
    """
    from lakehouse_backfill.core.staging.stage import stage
    from lakehouse_backfill.core.validation.validate import validate

    run_id, progress = status.run_id, dict[str, Any]()
    plan = context.runs.plan(run_id)
    if stages.next_phase(plan, status.state) == "staging":
        _, progress = stage(context, run_id, by, replayer, find_reused)
        # No process holds the lease between two steps: another one may have moved the run.
        status = context.runs.status(run_id)
    if stages.next_phase(plan, status.state) == "validation":
        status, result, _ = validate(context, run_id, by, replayer)
        progress |= {"checks": result.checks, "totals": result.totals}
        progress["changes"] = result.diff.summary
    return status, progress


def bring_to_accepted(context: Context, plan: Plan, by: str) -> None:
    """Bring a revision to accepted, from any state. Starts Spark if it has to compute.

    Who publishes finishes the replay of who planned it, whose permission is asked again.
    """
    approved = carry_over_approval(context, plan, by)
    status, _ = stage_and_validate(context, approved, by, plan.created_by)
    if status.state is RunState.REJECTED:
        raise ChecksFailed(
            f"{plan.run_id} caught up with live commits, but its result did not pass",
            state="nothing was published; readers see what they saw before",
            fix=f"lakehouse-backfill status {plan.run_id}",
        )
    carry_over_acceptance(context, plan, by)


def plan_catch_up(context: Context, plan: Plan, error: TargetChanged, by: str) -> Plan:
    """Plan the revision that follows the live commits; raise `error` where none may."""
    from lakehouse_backfill.core.planning.plan import make_plan, register_plan

    revision = _find_planned_revision(context, plan)
    if revision is None:
        attempt = _next_attempt(context, plan, error)
        amend = partial(_amend_for_catch_up, context, plan, error, attempt)
        try:
            revision = make_plan(
                context, _declaration_of(plan), plan.created_by, plan.run_id, amend
            )
        except Unsupported as unplannable:
            # No revision can follow: what stopped the publication is what a person has to know.
            raise error from unplannable
        _require_same_table(plan, revision, error)
        # Raises before anything is written: without Java the revision cannot be staged.
        context.compute()
        revision, _ = register_plan(context, revision, by)
    # A process that crashed between the two calls left both runs open.
    supersede_revised_run(context, revision, by)
    context.journal.bind(**revision.labels).log(
        "catching up", revises=plan.run_id, problem=str(error)
    )
    return revision


def require_followable(context: Context, plan: Plan, error: TargetChanged) -> None:
    """Raise what `plan_catch_up` raises before it plans a revision; nothing is changed."""
    if _find_planned_revision(context, plan) is None:
        _next_attempt(context, plan, error)
        head = head_snapshot_id(context, plan.resolved.target.table)
        deletions.live_changes(context, plan, head, error)


def _next_attempt(context: Context, plan: Plan, error: TargetChanged) -> int:
    """Return the number of the revision; raises `error` where none may follow, TooBusy."""
    resolved = plan.resolved
    follows = resolved.manifest.safety.on_conflict == "catch_up"
    may_catch_up = follows or resolved.contract.deletions == "reapply"
    if may_catch_up and not context.profile.is_on("catch_up", plan.product):
        switched_off = roles.describe_switched_off(context.profile, plan.product)
        context.journal.bind(**plan.labels).log(switched_off["catch_up"])
        raise error
    if may_catch_up and effect_log.has_sent(context, plan):
        # Carried chunks are not computed again: what they sent would be undone, and be lost.
        context.journal.bind(**plan.labels).log("no catch-up: what the run sent is undone")
        raise error
    return next_catch_up_attempt(plan) if may_catch_up else 0


def _find_planned_revision(context: Context, plan: Plan) -> Plan | None:
    """Return the revision that a crashed process planned; None if there is none."""
    for status in context.runs.list(open_only=True):
        if status.product == plan.product and status.run_id != plan.run_id:
            candidate = context.runs.plan(status.run_id)
            if candidate.resolved.catch_up and candidate.resolved.catch_up.of == plan.run_id:
                return candidate
    return None


def _declaration_of(plan: Plan) -> DeclaredRun:
    from lakehouse_backfill.core.planning.plan import DeclaredRun

    resolved = plan.resolved
    references = resolved.manifest.reference_data
    return DeclaredRun(
        manifest=resolved.manifest,
        contract=resolved.contract,
        manifest_file=plan.manifest_file,
        code_hash=resolved.code_hash,
        git_commit=resolved.git_commit,
        lock_hash=resolved.lock_hash,
        files=resolved.files,
        previous_code=resolved.previous_code,
        input_privacy={pin.name: pin.privacy for pin in resolved.sources},
        reference_pins={
            pin.name: pin
            for pin in resolved.sources
            if pin.name in references and references[pin.name].semantics != "corrected_truth"
        },
    )


def _require_same_table(old: Plan, new: Plan, error: TargetChanged) -> None:
    """Raise `error` when schema, spec or scope changed.

    They are frozen while a run is open: a changed table needs a new approval.
    """

    def shape(plan: Plan) -> tuple[object, ...]:
        target = plan.resolved.target
        return target.uuid, target.schema_id, target.spec_id, target.format_version

    if shape(old) != shape(new) or old.resolved.scope != new.resolved.scope:
        raise error


def _amend_for_catch_up(
    context: Context, old: Plan, error: TargetChanged, attempt: int, resolved: ResolvedManifest
) -> ResolvedManifest:
    """Recut the chunks: unchanged partitions are carried over, the others are recomputed."""
    change = deletions.live_changes(context, old, resolved.target.snapshot_id, error)
    logged = logged_validation(
        context, trusted_events(context, context.runs.status(old.run_id)), old.run_id
    )
    if logged is None:
        raise NotFound(f"the validation of {old.run_id} is gone", fix="plan --revise it") from error
    digest, validation = logged
    size = resolved.manifest.limits.partitions_per_chunk
    scope, contract = resolved.scope, resolved.contract
    # Partitions of one grain are computed from the same input, which may be a newer one by now.
    recomputed = whole_grains_of(contract, scope.field, change.recomputed)
    erased = tuple(label for label in change.erased if label not in recomputed)
    chunks, origins = recut_chunks(old.resolved.chunks, erased, recomputed, size)
    reused = [
        _carried_chunk(old, chunk, origins[chunk.chunk_id], validation)
        for chunk in chunks
        if chunk.chunk_id in origins
    ]
    erased_ids = {c.chunk_id for c in chunks if set(c.partitions) <= set(erased)}
    earlier = old.resolved.catch_up.erasures if old.resolved.catch_up else ()
    catch_up = CatchUp(
        of=old.run_id,
        attempt=attempt,
        drifts=change.drifts,
        drifted=(*erased, *recomputed),
        accepted_digest=digest,
        carried=tuple(item for item in reused if item.chunk_id not in erased_ids),
        erased=tuple(item for item in reused if item.chunk_id in erased_ids),
        erasures=(*earlier, *change.erasures),
    )
    return resolved.model_copy(update={"chunks": chunks, "catch_up": catch_up})


def _carried_chunk(
    old: Plan, chunk: Chunk, part_of: str, validation: ValidationResult
) -> CarriedChunk:
    """Describe a carried chunk: the run that computed it, and its accepted rows and checksum."""
    rows, checksum = accepted_rows_and_checksum(validation, chunk.partitions)
    earlier = old.resolved.catch_up and old.resolved.catch_up.origin(part_of)
    own_inputs = {pin.name: pin.snapshot_id for pin in old.resolved.sources}
    return CarriedChunk(
        chunk_id=chunk.chunk_id,
        run_id=earlier.run_id if earlier else old.run_id,
        shadow_table=old.shadow_table,
        shadow_snapshot_id=validation.shadow_snapshot_id or 0,
        rows=rows,
        checksum=checksum,
        inputs=earlier.inputs if earlier else own_inputs,
    )
