"""run: stage, validate and, unless that is manual, publish; from wherever the run stopped."""

from __future__ import annotations

from lakehouse_backfill.core.approval.decide import trusted_events
from lakehouse_backfill.core.publication import catching_up
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.staging import stage as staging
from lakehouse_backfill.core.validation import validate as validating
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ApprovalMissing

CLOSED_STATES = {RunState.CANCELLED, RunState.SUPERSEDED}
STAGEABLE_STATES = {
    RunState.APPROVED,
    RunState.STAGING,
    RunState.FAILED,
    RunState.PAUSED,
    RunState.HALTED,
}


def run_until_decision(bench: Context, run_id: str, by: str) -> dict[str, object]:
    """Do the next steps that need nobody's decision; done work is not done again.

    A run that waits for a person after that (validated, rejected, accepted with manual publish) is
    left as it is. Raises ApprovalMissing before the intent is approved and after a person rejected
    it, IllegalMove when the run is closed, and what the steps raise.
    """
    done: dict[str, object] = {"chunks_done": 0, "chunks_redone": 0, "rows": 0}
    run_id = catching_up.newest_revision(bench, run_id)
    status = catching_up.carry_over_approval(bench, bench.runs.plan(run_id), by)
    if status.state is RunState.PLANNED:
        raise ApprovalMissing(
            f"{run_id} is not approved, so nothing was computed",
            state="nothing was changed",
            fix=f"lakehouse-backfill approve {run_id} --by WHO",
        )
    if status.state is RunState.REJECTED:
        # By gates; after a person said no, nothing but a revision goes on.
        roles.require_approval(trusted_events(bench, status), bench.runs.plan(run_id))
    if status.state in CLOSED_STATES:
        lifecycle.require_legal_move(status, "begin staging")
    if status.state in STAGEABLE_STATES:
        _, numbers = staging.stage(bench, run_id, by)
        done |= numbers
        # Between two steps nobody holds the lease: another process may have gone on.
        status = bench.runs.status(run_id)
    if status.state is RunState.STAGED:
        status, result, _ = validating.validate(bench, run_id, by)
        done["checks"] = [check.model_dump(mode="json") for check in result.checks]
    plan = bench.runs.plan(run_id)
    status = catching_up.carry_over_acceptance(bench, plan, by)
    manual = plan.resolved.manifest.safety.manual_publish
    if status.state is RunState.PUBLISHING or (status.state is RunState.ACCEPTED and not manual):
        run_id = str(catching_up.publish_with_catch_up(bench, run_id, by).publication.run_id)
        status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    done |= {"product": plan.product, "manifest_file": plan.manifest_file}
    return {"run_id": run_id, "state": status.state.value, **done}
