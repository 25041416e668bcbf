"""A dark candidate: what a run would publish, for validators only (U7)."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.publication.stages_dual_read import staged_candidate
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.errors import NotFound


@dataclass(frozen=True)
class CandidateSnapshot:
    """The table and snapshot that hold a run's candidate."""

    table: str
    snapshot_id: int


def candidate(bench: Context, run_id: str, by: str | None) -> CandidateSnapshot:
    """Resolve a run's candidate for somebody who may see it; raises NotFound, NotAllowed."""
    require_candidate_access(bench, run_id, by)
    found = staged_candidate(bench, bench.runs.plan(run_id))
    if found.snapshot_id is None:
        raise NotFound(
            f"the candidate of {run_id} holds nothing yet",
            fix=f"lakehouse-backfill run {run_id}",
        )
    return CandidateSnapshot(found.table, found.snapshot_id)


def require_candidate_access(bench: Context, run_id: str, by: str | None) -> None:
    """Raise NotAllowed unless the contract lets them read candidates; none named: everybody may."""
    roles.require_validator(bench.runs.plan(run_id).resolved.contract, by)
