"""shadow open, shadow close: any engine writes the shadow; the same gates judge what it wrote."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import (
    bind_approved_candidates,
    open_shadow,
    stage_run,
    staging_session,
)
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.domain.tables.commits import ChunkCommit
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import Blocked, Unsupported, WriteForbidden

PAUSED_FOR_EXTERNAL_WRITER = "another engine writes the shadow"


def shadow_open(context: Context, run_id: str, by: str) -> tuple[RunStatus, TableInfo]:
    """Judge the pinned input, make the shadow, and wait for another engine to write it.

    The run is paused until `shadow_close`. Opened again, the shadow is the same, with what was
    written to it; whoever wrote before has to load the table again. Raises ApprovalMissing,
    ChecksFailed (the input), Blocked (a job writes it), RunMoved.
    """
    plan = context.runs.plan(run_id)
    publish_modes.require_external_writer(plan)
    plan = bind_approved_candidates(context, plan, by)
    with staging_session(context, plan, by) as session:
        open_shadow(context, plan, session.lease.epoch)
    info = _require_shadow(context, plan)
    status = context.move(
        session.status,
        plan,
        "pause",
        by,
        reason=PAUSED_FOR_EXTERNAL_WRITER,
        table=plan.shadow_table,
    )
    return status, info


def shadow_close(context: Context, run_id: str, by: str) -> tuple[RunStatus, dict[str, Any]]:
    """Shut the other engine out, prove that it changed the scope only, fingerprint what it wrote.

    Each chunk of the plan is counted, hashed and judged as if a job had staged it; then the run is
    staged. Raises Blocked (nothing was opened or written), WriteForbidden (rows outside the scope
    changed), Unsupported (delete files), ChecksFailed, ApprovalMissing, RunMoved.
    """
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    publish_modes.require_external_writer(plan)
    lifecycle.require_legal_move(status, "begin staging")
    if status.state is RunState.APPROVED or context.tables.describe(plan.shadow_table) is None:
        raise Blocked(
            f"{plan.shadow_table} was not opened yet",
            fix=f"lakehouse-backfill shadow open {run_id}",
        )
    return stage_run(context, plan, by, lambda: _written_chunks(context, plan))


def _written_chunks(context: Context, plan: Plan) -> tuple[ChunkCommit, ...]:
    """Return every chunk of the plan as committed by the shadow's head, once that is proven."""
    head = _require_shadow(context, plan).snapshot_id
    if head is None or head == plan.resolved.target.snapshot_id:
        raise Blocked(
            f"nothing was written to {plan.shadow_table} since it was opened",
            state="the run is as it was",
            fix=f"write the table, then: lakehouse-backfill shadow close {plan.run_id}",
        )
    try:
        context.publisher.prove(
            publish_modes.adopt_request(plan, head, token="", tags={}, properties={})
        )
    except (WriteForbidden, Unsupported) as error:
        raise type(error)(
            error.problem, state=error.state, fix=_write_again_advice(plan)
        ) from error
    return tuple(
        ChunkCommit(chunk_id=chunk.chunk_id, snapshot_id=head, added_rows=0, properties={})
        for chunk in plan.resolved.chunks
    )


def _write_again_advice(plan: Plan) -> str:
    base = plan.resolved.target.snapshot_id
    if base is None:
        return plan_command(plan.manifest_file, plan.run_id)
    return (
        f"let that engine roll {plan.shadow_table} back to snapshot {base} and write the run's "
        "partitions only, by copy-on-write; then: "
        f"{command_line('shadow', 'close', plan.run_id)}"
    )


def _require_shadow(context: Context, plan: Plan) -> TableInfo:
    info = context.tables.describe(plan.shadow_table)
    if info is None:
        raise Blocked(
            f"{plan.shadow_table} is gone", fix=f"lakehouse-backfill shadow open {plan.run_id}"
        )
    return info
