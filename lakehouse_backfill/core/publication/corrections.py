"""Publishing correction events: the product's table stays as it is (U9)."""

from __future__ import annotations

from lakehouse_backfill.core.comparison import diffing
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import corrections
from lakehouse_backfill.core.versions.publications import RollbackTarget
from lakehouse_backfill.core.versions.reserving import publication_tags
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import CommitResult, Publication
from lakehouse_backfill.domain.rollout import CompensationRequest, CorrectionEventsRequest
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.diffing import DiffRequest

CORRECTION_EVENTS_MODE = "correction_events"


def write_correction_events(
    bench: Context, plan: Plan, reserved: Publication, shadow_snapshot_id: int | None
) -> CommitResult:
    """Write one event for each key that differs between what was accepted and the candidate.

    Refused when the product's table changed in the partitions since the run was planned: the events
    would correct rows that readers do not see any more.
    """
    resolved = plan.resolved
    corrections.require_unchanged_target(
        plan, _target_changes(bench, plan), bench.versions.history(plan.product)
    )
    request = DiffRequest(
        old_table=resolved.target.table,
        old_snapshot_id=resolved.target.snapshot_id,
        new_table=plan.shadow_table,
        new_snapshot_id=shadow_snapshot_id,
        key=resolved.contract.key,
        scope=resolved.scope,
        ignore=LINEAGE_NAMES,
    )
    return bench.corrections.write(
        CorrectionEventsRequest(
            sink=corrections.correction_sink(resolved.manifest, resolved.contract),
            product=plan.product,
            run_id=plan.run_id,
            version=reserved.version,
            reason_code=resolved.manifest.run.reason_code,
            token=reserved.token,
            tag=publication_tags(reserved)["after"],
            produced_at=reserved.at,
            evidence_digest=reserved.evidence_digest or "",
        ),
        bench.differ(diffing.engine_for(bench, request)).differing(request),
    )


def require_no_published_corrections(bench: Context, plan: Plan) -> None:
    """Raise Unsupported when events stand for rows of the partitions that a run would replace.

    Consumers apply them on top of the table: they would correct rows that it does not hold any
    more.
    """
    if plan.resolved.manifest.target.publish_mode == CORRECTION_EVENTS_MODE:
        return
    for row, label in corrections.published_corrections(plan, bench.versions.history(plan.product)):
        made = bench.runs.plan(str(row.run_id)).resolved.manifest.target.publish_mode
        if made == CORRECTION_EVENTS_MODE:
            raise corrections.published_corrections_error(plan, row, label)


def _target_changes(bench: Context, plan: Plan) -> str | None:
    target = plan.resolved.target
    if target.snapshot_id is None:
        info = bench.tables.describe(target.table)
        return f"{target.table} is not empty any more" if info and info.snapshot_id else None
    return bench.publisher.changes(target.table, plan.resolved.scope, target.snapshot_id)


def is_rollback_of_events(way: RollbackTarget, table: str) -> bool:
    """Tell whether a rollback undoes correction events; raises Unsupported when only in part."""
    kinds = {row.table != table for row in corrections.effective_publications(way.undone)}
    if len(kinds) == 2:
        raise Unsupported(
            f"{way.undone[0].product}: since version {way.version} both the table and its "
            "correction events changed; one rollback undoes one of them",
            state="nothing was rolled back",
            fix="roll back to the versions in between, one after the other: lakehouse-backfill "
            f"versions {way.undone[0].product}",
        )
    return kinds == {True}


def write_compensating_events(
    bench: Context, way: RollbackTarget, row: Publication
) -> CommitResult:
    """Take the undone events back by their reverse, in one append."""
    undone = corrections.effective_publications(way.undone)
    tables = sorted({one.table for one in undone})
    if len(tables) > 1:
        raise Unsupported(
            f"{row.product}: events went to {' and to '.join(tables)}; one rollback undoes one",
            state="nothing was rolled back",
            fix=f"choose a later version: lakehouse-backfill versions {row.product}",
        )
    return bench.corrections.compensate(
        CompensationRequest(
            table=tables[0],
            product=row.product,
            tokens=tuple(one.token for one in undone),
            partitions=way.scope.partitions if way.is_partial else None,
            by_run=", ".join(way.leaving) or "rollback",
            token=row.token,
            tag=publication_tags(row)["after"],
            produced_at=row.at,
        )
    )
