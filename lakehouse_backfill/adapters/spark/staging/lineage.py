"""What an output says about its origin: in its rows (if the contract wants) and in its snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.core.planning import windows
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Chunk, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PROPERTY_PREFIX = "lakehouse-backfill."
CHUNK_ID_PROPERTY = f"{PROPERTY_PREFIX}chunk-id"
ATTEMPT_ID_PROPERTY = f"{PROPERTY_PREFIX}attempt-id"
OUTSIDE_ROWS = f"{PROPERTY_PREFIX}outside-rows"
EPOCH_PROPERTY = f"{PROPERTY_PREFIX}epoch"
FENCE_UUID_PROPERTY = f"{PROPERTY_PREFIX}fence-uuid"


def input_window(plan: Plan, scope: Scope) -> tuple[datetime, datetime] | None:
    """Give the widest half-open instants that the scope reads of any source."""
    read = [
        windows.window_to_read(pin, scope) for pin in plan.resolved.sources if pin.range is not None
    ]
    if not read:
        return None
    return min(first for first, _ in read), max(last for _, last in read)


def snapshot_properties(
    plan: Plan, chunk: Chunk, scope: Scope, attempt_id: str, epoch: int
) -> dict[str, str]:
    """Give the snapshot properties that a chunk's commit always carries (requirement D3)."""
    manifest = plan.resolved.manifest
    window = input_window(plan, scope)
    # Rows that an earlier revision computed are still those that it computed.
    origin = plan.resolved.catch_up and plan.resolved.catch_up.origin(chunk.chunk_id)
    inputs = origin.inputs if origin else {}
    said: dict[str, str | None] = {
        "chunk-id": chunk.chunk_id,
        "attempt-id": attempt_id,
        "epoch": str(epoch),
        "run-id": plan.run_id,
        "product": manifest.product,
        "manifest-hash": plan.manifest_hash,
        "transform": manifest.transform.name,
        "transform-version": manifest.transform.version,
        "input-snapshot-ids": _snapshot_ids_text(plan, "source", inputs),
        "carried-from": origin.run_id if origin else None,
        "input-range-start": window[0].isoformat() if window else None,
        "input-range-end": window[1].isoformat() if window else None,
        "processing-mode": manifest.run.mode,
        "reference-data-version": _snapshot_ids_text(plan, "reference", inputs),
        "restatement-reason": manifest.run.reason,
    }
    return {f"{PROPERTY_PREFIX}{name}": value for name, value in said.items() if value is not None}


def add_lineage_columns(
    frame: DataFrame, plan: Plan, scope: Scope, target: StructType
) -> DataFrame:
    """Add the lineage columns to the rows, in the target's own types."""
    from pyspark.sql import functions as F

    values = _lineage_values(plan, scope)
    types = {field.name: field.dataType for field in target.fields}
    return frame.withColumns(
        {
            name: F.lit(_literal_value(values[name])).cast(types.get(name, "string"))
            for name in LINEAGE_NAMES
        }
    )


def _lineage_values(plan: Plan, scope: Scope) -> dict[str, Any]:
    manifest = plan.resolved.manifest
    window = input_window(plan, scope)
    sources = [pin for pin in plan.resolved.sources if pin.role == "source"]
    return {
        "produced_by_run_id": plan.run_id,
        "produced_by_transform": manifest.transform.name,
        "transform_version": manifest.transform.version,
        "input_snapshot_id": sources[0].snapshot_id if sources else None,
        "input_range_start": window[0] if window else None,
        "input_range_end": window[1] if window else None,
        "processing_mode": manifest.run.mode,
        "reference_data_version": _snapshot_ids_text(plan, "reference"),
        "restatement_reason": manifest.run.reason,
        "produced_at": datetime.now(timezone.utc),
    }


def _literal_value(value: Any) -> str | int | None:
    """Instants as text with their offset: Spark reads those in no local time zone."""
    return value.isoformat(sep=" ") if isinstance(value, datetime) else value


def _snapshot_ids_text(
    plan: Plan, role: str, inputs: Mapping[str, int] | None = None
) -> str | None:
    """Name the inputs of a role with their snapshots; those in `inputs` were other ones."""
    pins = [pin for pin in plan.resolved.sources if pin.role == role]
    found = {pin.name: pin.snapshot_id for pin in pins} | {
        pin.name: inputs[pin.name] for pin in pins if inputs and pin.name in inputs
    }
    return ",".join(f"{name}={number}" for name, number in found.items()) or None
