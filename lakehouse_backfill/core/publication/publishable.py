"""Whether an accepted result may become what readers see."""

from __future__ import annotations

from lakehouse_backfill.core.approval.decide import logged_validation, require_gates_open
from lakehouse_backfill.core.planning import modes
from lakehouse_backfill.core.publication import freezing
from lakehouse_backfill.core.publication.corrections import require_no_published_corrections
from lakehouse_backfill.core.publication.exposing import AcceptedResult
from lakehouse_backfill.core.publication.stages_dual_read import require_dual_reads
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.validation import stages_erasing
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import ApprovalMissing


def check_publishable(
    bench: Context, plan: Plan, events: tuple[Event, ...], by: str
) -> AcceptedResult:
    """Check roles and decisions, and that the shadow is what was accepted; give what that is.

    Raises NotAllowed, ApprovalMissing, Blocked, Unsupported.
    """
    contract = plan.resolved.contract
    modes.require_publishable_mode(plan)
    lifecycle.require_not_retired(events)
    roles.require_role(contract, "publish", by)
    roles.require_decision(events, "approve", plan.manifest_hash, plan.run_id)
    found = logged_validation(bench, events, plan.run_id)
    if found is None:
        raise ApprovalMissing(
            f"{plan.run_id} was never validated", fix=f"lakehouse-backfill validate {plan.run_id}"
        )
    digest, validation = found
    roles.require_decision(events, "accept", digest, plan.run_id)
    require_gates_open(events, plan.run_id, digest, validation)
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None or shadow.snapshot_id != validation.shadow_snapshot_id:
        raise ApprovalMissing(
            f"{plan.shadow_table} is not what was accepted: it changed after validation",
            state="nothing was published",
            fix=f"lakehouse-backfill validate {plan.run_id}, then accept it again",
        )
    require_dual_reads(plan, events, validation.shadow_snapshot_id)
    require_no_published_corrections(bench, plan)
    freezing.require_window_open(plan, bench.clock.now())
    stages_erasing.require_no_tombstoned_rows(bench, plan, validation.shadow_snapshot_id)
    stages_erasing.require_no_deleted_rows(bench, plan, validation.shadow_snapshot_id)
    return AcceptedResult(digest, validation.shadow_snapshot_id)
