"""shadow open, shadow close: any engine writes the shadow; the same gates judge what it wrote."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.core.planning import external
from lakehouse_backfill.core.publication.exposing import adopt_request
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.staging.stage import begin, open_shadow, staged
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import ChunkCommit
from lakehouse_backfill.domain.run import RunStatus, State
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.errors import Blocked, ChecksFailed, Unsupported, WriteForbidden

OPENED = "another engine writes the shadow"


def shadow_open(bench: Workbench, run_id: str, by: str) -> tuple[RunStatus, TableInfo]:
    """Judge the pinned input, make the shadow, and wait for another engine to write it.

    The run is paused until `shadow_close`. Opened again, the shadow is the same, with what was
    written to it; whoever wrote before has to load the table again. Raises ApprovalMissing,
    ChecksFailed (the input), Blocked (a job writes it), RunMoved.
    """
    plan = bench.runs.plan(run_id)
    external.require_external(plan)
    with begin(bench, plan, by) as begun:
        open_shadow(bench, plan, begun.lease.epoch)
    info = _described(bench, plan)
    status = bench.move(begun.status, plan, "pause", by, reason=OPENED, table=plan.shadow_table)
    return status, info


def shadow_close(bench: Workbench, run_id: str, by: str) -> tuple[RunStatus, dict[str, Any]]:
    """Shut the other engine out, prove that it changed the scope only, fingerprint what it wrote.

    Each chunk of the plan is counted, hashed and judged as if a job had staged it; then the run is
    staged. Raises Blocked (nothing was opened or written), WriteForbidden (rows outside the scope
    changed), Unsupported (delete files), ChecksFailed, ApprovalMissing, RunMoved.
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    external.require_external(plan)
    lifecycle.require_legal(status, "begin staging")
    if status.state is State.APPROVED or bench.tables.describe(plan.shadow_table) is None:
        raise Blocked(
            f"{plan.shadow_table} was not opened yet",
            fix=f"lakehouse-backfill shadow open {run_id}",
        )
    return staged(bench, plan, by, lambda: _written(bench, plan))


def require_closed(bench: Workbench, plan: Plan, shadow: TableInfo) -> None:
    """Raise ChecksFailed when the shadow is not what was fingerprinted when it was closed."""
    if not external.is_external(plan):
        return
    closed = {record.snapshot_id for record in bench.ledger.chunks(plan.run_id)}
    if closed != {shadow.snapshot_id}:
        raise ChecksFailed(
            f"{plan.shadow_table} was written after it was closed",
            state="nothing was validated; readers see what they saw before",
            fix=f"lakehouse-backfill shadow close {plan.run_id}",
        )


def _written(bench: Workbench, plan: Plan) -> tuple[ChunkCommit, ...]:
    """Give every chunk of the plan as committed by the shadow's head, once that is proven."""
    head = _described(bench, plan).snapshot_id
    if head is None or head == plan.resolved.target.snapshot_id:
        raise Blocked(
            f"nothing was written to {plan.shadow_table} since it was opened",
            state="the run is as it was",
            fix=f"write the table, then: lakehouse-backfill shadow close {plan.run_id}",
        )
    try:
        bench.publisher.prove(adopt_request(plan, head, token="", tags={}, properties={}))
    except (WriteForbidden, Unsupported) as error:
        raise type(error)(error.problem, state=error.state, fix=_write_again(plan)) from error
    return tuple(
        ChunkCommit(chunk_id=chunk.chunk_id, snapshot_id=head, added_rows=0, properties={})
        for chunk in plan.resolved.chunks
    )


def _write_again(plan: Plan) -> str:
    base = plan.resolved.target.snapshot_id
    if base is None:
        return commands.plan(plan.manifest_file, plan.run_id)
    return (
        f"let that engine roll {plan.shadow_table} back to snapshot {base} and write the run's "
        f"partitions only, by copy-on-write; then: {commands.typed('shadow', 'close', plan.run_id)}"
    )


def _described(bench: Workbench, plan: Plan) -> TableInfo:
    info = bench.tables.describe(plan.shadow_table)
    if info is None:
        raise Blocked(
            f"{plan.shadow_table} is gone", fix=f"lakehouse-backfill shadow open {plan.run_id}"
        )
    return info
