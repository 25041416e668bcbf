"""The `data` objects of publications and rollbacks. Plain JSON types only."""

from __future__ import annotations

from lakehouse_backfill.core.publication.follow_up import PostPublishOutcome
from lakehouse_backfill.core.publication.landing import PublishResult
from lakehouse_backfill.core.publication.rollback import RollbackResult
from lakehouse_backfill.core.versions import rollout
from lakehouse_backfill.core.versions.publications import RollbackTarget
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import RunStatus
from lakehouse_backfill.report.data import Result, state


def publish_result(status: RunStatus, published: PublishResult) -> Result:
    """Say what became visible; `was_published`: it had been before, nothing was changed."""
    row, swap = published.publication, published.swap
    return state(status) | {
        "version": row.version,
        "table": row.table,
        "snapshot_id": row.snapshot_id,
        "files_added": swap.files_added if swap else 0,
        "files_removed": swap.files_removed if swap else 0,
        "rows_added": swap.rows_added if swap else 0,
        "rows_removed": swap.rows_removed if swap else 0,
        "seconds": round(swap.seconds, 3) if swap else 0.0,
        "attempts": swap.attempts if swap else 0,
        "was_published": published.was_published,
        "supersedes": row.supersedes,
    }


def followed(found: PostPublishOutcome) -> Result:
    """Say which checks and hooks followed a publication, and how they ended."""
    return {
        "checks_after": [check.model_dump(mode="json") for check in found.checks],
        "hooks": [call.model_dump(mode="json") for call in found.calls],
    }


def publish_preview(plan: Plan, pointer: Pointer) -> Result:
    """Say what `publish` would do."""
    return {
        "run_id": plan.run_id,
        "product": plan.product,
        "dry_run": True,
        "version": pointer.last_version + 1,
        "table": plan.resolved.target.table,
        "partitions": list(plan.resolved.scope.partitions),
        "publish_mode": plan.resolved.manifest.target.publish_mode,
        "steps": rollout.preview_steps(plan),
    }


def rollback_result(done: RollbackResult) -> Result:
    """Say where `rollback` led."""
    row, swap = done.publication, done.swap
    return {
        "product": row.product,
        "state": "rolled_back",
        "version": row.version,
        "table": row.table,
        "snapshot_id": swap.snapshot_id,
        "partitions": list(row.scope.partitions) if row.scope else [],
        "files_added": swap.files_added,
        "files_removed": swap.files_removed,
        "rows_added": swap.rows_added,
        "rows_removed": swap.rows_removed,
        "seconds": round(swap.seconds, 3),
        "reason": row.reason,
    }


def returned(row: Publication) -> Result:
    """Say where the pointer of a pinned product went back to; no table was changed."""
    return {
        "product": row.product,
        "state": "rolled_back",
        "version": row.version,
        "table": row.table,
        "snapshot_id": row.snapshot_id,
        "reason": row.reason,
    }


def rollback_preview(product: str, way: RollbackTarget, columns: tuple[str, ...] = ()) -> Result:
    """Say what `rollback` would do; `columns` are changes of the table's columns that stay."""
    return {
        "product": product,
        "dry_run": True,
        "version": way.version,
        "partitions": list(way.scope.partitions),
        "runs_undone": list(dict.fromkeys(row.run_id for row in way.undone if row.run_id)),
        "rewritten": [item.model_dump(mode="json") for item in way.rewrites],
        "columns_stay": list(columns),
    }
