"""Making an accepted result what readers see, by the publish mode of its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakehouse_backfill.errors import Blocked
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.publication import AdoptRequest, Publication, Swap
from lakehouse_backfill.stages.reserving import tags
from lakehouse_backfill.stages.workbench import Workbench


@dataclass(frozen=True)
class Accepted:
    """The result that was accepted: its digest, and the shadow's snapshot that was judged."""

    digest: str
    shadow_snapshot_id: int | None


def expose(bench: Workbench, plan: Plan, reserved: Publication, accepted: Accepted) -> Swap:
    """Do what the run's publish mode does before the pointer moves; once per publication token.

    Of the snapshot that was judged: what was written to the shadow since is not accepted.
    """
    return _EXPOSE[plan.resolved.manifest.target.publish_mode](bench, plan, reserved, accepted)


def _adopt(bench: Workbench, plan: Plan, reserved: Publication, accepted: Accepted) -> Swap:
    """Swap the shadow's files into the target."""
    return bench.publisher.adopt(
        AdoptRequest(
            target=plan.resolved.target.table,
            base_snapshot_id=plan.resolved.target.snapshot_id,
            shadow=plan.shadow_table,
            shadow_snapshot_id=accepted.shadow_snapshot_id,
            chunk_ids=tuple(chunk.chunk_id for chunk in plan.resolved.chunks),
            scope=plan.resolved.scope,
            token=reserved.token,
            tags=tags(reserved),
            properties={
                "lakehouse-backfill.run-id": plan.run_id,
                "lakehouse-backfill.output-version": str(reserved.version),
                "lakehouse-backfill.manifest-hash": plan.manifest_hash,
                "lakehouse-backfill.result-digest": reserved.result_digest or "",
                "lakehouse-backfill.epoch": str(reserved.epoch),
                **lineage_properties(plan),
            },
        )
    )


def lineage_properties(plan: Plan) -> dict[str, str]:
    """The lineage that every output snapshot carries in its summary (D3)."""
    manifest = plan.resolved.manifest
    inputs = [f"{pin.name}={pin.snapshot_id}" for pin in plan.resolved.sources]
    return {
        "lakehouse-backfill.transform": manifest.transform.name,
        "lakehouse-backfill.transform-version": manifest.transform.version,
        "lakehouse-backfill.processing-mode": manifest.run.mode,
        "lakehouse-backfill.input-snapshot-ids": ",".join(inputs),
        "lakehouse-backfill.restatement-reason": manifest.run.reason_code,
    }


def _whole_table(bench: Workbench, plan: Plan, reserved: Publication, accepted: Accepted) -> Swap:
    """Keep the shadow's snapshot: readers resolve the pointer, so nothing has to be committed."""
    snapshot_id = accepted.shadow_snapshot_id
    if snapshot_id is None:
        raise Blocked(f"{plan.shadow_table} is empty; a pointer cannot lead to it")
    bench.pins.pin(plan.shadow_table, snapshot_id, tags(reserved)["after"])
    return Swap(
        table=plan.shadow_table,
        snapshot_id=snapshot_id,
        before_snapshot_id=plan.resolved.target.snapshot_id,
        files_added=0,
        files_removed=0,
        rows_added=0,
        rows_removed=0,
        attempts=1,
        seconds=0.0,
    )


_EXPOSE: dict[str, Callable[[Workbench, Plan, Publication, Accepted], Swap]] = {
    "replace_partitions": _adopt,
    "pointer_swap": _whole_table,
}
