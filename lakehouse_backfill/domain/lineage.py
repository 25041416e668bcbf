"""The columns that say which run made a row (requirement D3)."""

from __future__ import annotations

#: Name and Iceberg type. Left out of content hashes and diffs, checked on their own.
LINEAGE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("produced_by_run_id", "string"),
    ("produced_by_transform", "string"),
    ("transform_version", "string"),
    ("input_snapshot_id", "long"),
    ("input_range_start", "timestamptz"),
    ("input_range_end", "timestamptz"),
    ("processing_mode", "string"),
    ("reference_data_version", "string"),
    ("restatement_reason", "string"),
    ("produced_at", "timestamptz"),
)

LINEAGE_NAMES: tuple[str, ...] = tuple(name for name, _ in LINEAGE_COLUMNS)
