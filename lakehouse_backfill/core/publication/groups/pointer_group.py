"""Several pinned products move by one commit of the pointer table (U2).

A group reserves no version: that commit is its only side effect that readers see. After a crash the
runs stay in state publishing. A retry publishes all of them, or finds that all are visible.
"""

from __future__ import annotations

from lakehouse_backfill import errors
from lakehouse_backfill.core.planning.inputs.pins import head_snapshot_id
from lakehouse_backfill.core.publication.expose import expose_result
from lakehouse_backfill.core.publication.publication import AcceptedRun
from lakehouse_backfill.core.runs import hooks
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer, reserve
from lakehouse_backfill.domain.publication import Pointer, Publication


def move_pointers(context: Context, runs: list[AcceptedRun]) -> list[Publication]:
    """Call the hooks, keep the shadows' snapshots, and move all pointers in one commit."""
    for run in runs:
        act_id = hooks.group_act_id(context, run.plan)
        hooks.require_hooks(context, run.plan, "before_publish", act_id, run.status.epoch)
    rows = [_pointer_row(run) for run in runs]
    heads = {
        run.plan.product: head_snapshot_id(context, run.plan.resolved.contract.table)
        for run in runs
    }

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        new_rows: list[Publication] = []
        for run, row in zip(runs, rows, strict=True):
            current, target = pointers[row.product], run.plan.resolved.target
            accepted = current.accepted
            if accepted is not None and accepted.token == row.token:
                continue
            head, own = heads[row.product], row.model_copy(update={"table": target.table})
            pointer.require_pinned_base(current, own, head, (target.table, target.snapshot_id))
            if accepted is None:
                new_rows.append(pointer.baseline_publication(own, head, row.scope, row.at))
            if current.last_version + 1 != row.version:
                # The tags and tables that were kept for the version carry its number.
                raise errors.PointerMoved(
                    f"{row.product}: version {row.version} was taken meanwhile",
                    state="nothing was published",
                    fix="repeat the same command",
                )
            superseded = accepted.version if accepted else 0
            signed = reserve.sign_row(context, row.model_copy(update={"supersedes": superseded}))
            new_rows.append(signed)
        return tuple(new_rows)

    moved = reserve.when_pointers_are_free(context, tuple(heads), decide)
    return [moved[row.product].accepted or row for row in rows]


def _pointer_row(run: AcceptedRun) -> Publication:
    version = run.context.versions.pointer(run.plan.product).last_version + 1
    row = run.draft().model_copy(update={"version": version})
    swap = expose_result(run.context, run.plan, row, run.accepted)
    return reserve.with_swap(row, swap, "publish")
