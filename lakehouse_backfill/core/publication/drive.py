"""run: stage, validate and, unless that is manual, publish; from wherever the run stopped."""

from __future__ import annotations

from lakehouse_backfill.core.approval.decide import trusted_events
from lakehouse_backfill.core.publication import catching_up
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.staging import stage as staging
from lakehouse_backfill.core.validation import validate as validating
from lakehouse_backfill.domain.run import State
from lakehouse_backfill.errors import ApprovalMissing

CLOSED = {State.CANCELLED, State.SUPERSEDED}
TO_STAGE = {State.APPROVED, State.STAGING, State.FAILED, State.PAUSED, State.HALTED}


def drive(bench: Workbench, run_id: str, by: str) -> dict[str, object]:
    """Do the next steps that need nobody's decision; done work is not done again.

    A run that waits for a person after that (validated, rejected, accepted with manual publish) is
    left as it is. Raises ApprovalMissing before the intent is approved and after a person rejected
    it, IllegalMove when the run is closed, and what the steps raise.
    """
    done: dict[str, object] = {"chunks_done": 0, "chunks_redone": 0, "rows": 0}
    run_id = catching_up.newest(bench, run_id)
    status = catching_up.carry_approval(bench, bench.runs.plan(run_id), by)
    if status.state is State.PLANNED:
        raise ApprovalMissing(
            f"{run_id} is not approved, so nothing was computed",
            state="nothing was changed",
            fix=f"lakehouse-backfill approve {run_id} --by WHO",
        )
    if status.state is State.REJECTED:
        # By gates; after a person said no, nothing but a revision goes on.
        roles.require_approval(trusted_events(bench, status), bench.runs.plan(run_id))
    if status.state in CLOSED:
        lifecycle.require_legal(status, "begin staging")
    if status.state in TO_STAGE:
        _, numbers = staging.stage(bench, run_id, by)
        done |= numbers
        # Between two steps nobody holds the lease: another process may have gone on.
        status = bench.runs.status(run_id)
    if status.state is State.STAGED:
        status, result, _ = validating.validate(bench, run_id, by)
        done["checks"] = [check.model_dump(mode="json") for check in result.checks]
    plan = bench.runs.plan(run_id)
    status = catching_up.carry_acceptance(bench, plan, by)
    manual = plan.resolved.manifest.safety.manual_publish
    if status.state is State.PUBLISHING or (status.state is State.ACCEPTED and not manual):
        run_id = str(catching_up.publish(bench, run_id, by).publication.run_id)
        status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    done |= {"product": plan.product, "manifest_file": plan.manifest_file}
    return {"run_id": run_id, "state": status.state.value, **done}
