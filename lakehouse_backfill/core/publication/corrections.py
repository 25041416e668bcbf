"""Publishing correction events: the product's table stays as it is (U9)."""

from __future__ import annotations

from lakehouse_backfill.core.comparison import diffing
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.versions import corrections
from lakehouse_backfill.core.versions.publications import Return
from lakehouse_backfill.core.versions.reserving import tags
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication, Swap
from lakehouse_backfill.domain.rollout import Compensation, EventsRequest
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.diffing import DiffRequest

MODE = "correction_events"


def write_events(
    bench: Workbench, plan: Plan, reserved: Publication, shadow_snapshot_id: int | None
) -> Swap:
    """Write one event for each key that differs between what was accepted and the candidate.

    Refused when the product's table changed in the partitions since the run was planned: the events
    would correct rows that readers do not see any more.
    """
    resolved = plan.resolved
    corrections.require_unchanged(plan, _drift(bench, plan), bench.versions.history(plan.product))
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
        EventsRequest(
            sink=corrections.sink(resolved.manifest, resolved.contract),
            product=plan.product,
            run_id=plan.run_id,
            version=reserved.version,
            reason_code=resolved.manifest.run.reason_code,
            token=reserved.token,
            tag=tags(reserved)["after"],
            produced_at=reserved.at,
            evidence_digest=reserved.evidence_digest or "",
        ),
        bench.differ(diffing.engine_for(bench, request)).differing(request),
    )


def require_none_standing(bench: Workbench, plan: Plan) -> None:
    """Raise Unsupported when events stand for rows of the partitions that a run would replace.

    Consumers apply them on top of the table: they would correct rows that it does not hold any
    more.
    """
    if plan.resolved.manifest.target.publish_mode == MODE:
        return
    for row, label in corrections.elsewhere(plan, bench.versions.history(plan.product)):
        made = bench.runs.plan(str(row.run_id)).resolved.manifest.target.publish_mode
        if made == MODE:
            raise corrections.standing(plan, row, label)


def _drift(bench: Workbench, plan: Plan) -> str | None:
    target = plan.resolved.target
    if target.snapshot_id is None:
        info = bench.tables.describe(target.table)
        return f"{target.table} is not empty any more" if info and info.snapshot_id else None
    return bench.publisher.changes(target.table, plan.resolved.scope, target.snapshot_id)


def is_undone_by_events(way: Return, table: str) -> bool:
    """Tell whether a rollback undoes correction events; raises Unsupported when only in part."""
    kinds = {row.table != table for row in corrections.effective(way.undone)}
    if len(kinds) == 2:
        raise Unsupported(
            f"{way.undone[0].product}: since version {way.version} both the table and its "
            "correction events changed; one rollback undoes one of them",
            state="nothing was rolled back",
            fix="roll back to the versions in between, one after the other: lakehouse-backfill "
            f"versions {way.undone[0].product}",
        )
    return kinds == {True}


def compensate(bench: Workbench, way: Return, row: Publication) -> Swap:
    """Take the undone events back by their reverse, in one append."""
    undone = corrections.effective(way.undone)
    tables = sorted({one.table for one in undone})
    if len(tables) > 1:
        raise Unsupported(
            f"{row.product}: events went to {' and to '.join(tables)}; one rollback undoes one",
            state="nothing was rolled back",
            fix=f"choose a later version: lakehouse-backfill versions {row.product}",
        )
    return bench.corrections.compensate(
        Compensation(
            table=tables[0],
            product=row.product,
            tokens=tuple(one.token for one in undone),
            partitions=way.scope.partitions if way.is_partial else None,
            by_run=", ".join(way.leaving) or "rollback",
            token=row.token,
            tag=tags(row)["after"],
            produced_at=row.at,
        )
    )
