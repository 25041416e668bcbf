"""Runs whose shadow another engine writes: what is asked of them, and who may stage them."""

from __future__ import annotations

from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import Blocked, ConfigError


def is_externally_written(plan: Plan) -> bool:
    """Tell whether another engine writes the shadow."""
    return plan.resolved.manifest.transform.writer == "external"


def require_external_writer(plan: Plan) -> None:
    """Raise Blocked for a run whose shadow its job writes."""
    if not is_externally_written(plan):
        raise Blocked(
            f"the job of {plan.run_id} writes its shadow, nobody else",
            fix=f"lakehouse-backfill stage {plan.run_id}; for another engine, write "
            "transform.writer: external and plan again",
        )


def require_job_writer(plan: Plan) -> None:
    """Raise Blocked for a run that has no job which could be run."""
    if is_externally_written(plan):
        raise Blocked(
            f"another engine writes the shadow of {plan.run_id}: there is no job to run",
            fix=f"lakehouse-backfill shadow open {plan.run_id}, write it, then shadow close",
        )


def expected_lineage(plan: Plan) -> dict[str, str | int | None]:
    """Say what each written row's lineage columns must hold; nothing where the product has none.

    `produced_at` is not in it: the engine sets the time at which it writes.
    """
    if not plan.resolved.contract.lineage_columns:
        return {}
    manifest = plan.resolved.manifest
    return {
        "produced_by_run_id": plan.run_id,
        "produced_by_transform": manifest.transform.name,
        "transform_version": manifest.transform.version,
        "input_snapshot_id": plan.resolved.sources[0].snapshot_id,
        "processing_mode": manifest.run.mode,
        "restatement_reason": manifest.run.reason,
    }


def require_no_edge_check(manifest: RunManifest) -> None:
    """Raise ConfigError when edges are to be computed, but nobody here can compute.

    So that a run without the edge check says so in its manifest, which is approved.
    """
    if manifest.transform.writer == "external" and manifest.validation.edge_partitions:
        raise ConfigError(
            "the edges of a shadow that another engine writes cannot be computed",
            fix="write validation.edge_partitions: 0, and see to it that no row moves between "
            "partitions at the edges of the range",
            field="validation.edge_partitions",
        )
