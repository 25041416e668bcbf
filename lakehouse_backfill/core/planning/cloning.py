"""The metadata of a clone as text: whatever the format holds, also what no reader of ours knows."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain.table_commit import CloneCommit

#: A clone's log of earlier metadata files would be the target's, which its commits would delete.
_NOT_CLONED = ("metadata-log", "snapshot-log", "statistics", "partition-statistics")


def clone_metadata(metadata: dict[str, Any], order: CloneCommit) -> dict[str, Any]:
    """Give the metadata of a table that shares one snapshot's files and nothing else."""
    snapshots = [s for s in metadata.get("snapshots", ()) if s["snapshot-id"] == order.snapshot_id]
    main = {"main": {"snapshot-id": order.snapshot_id, "type": "branch"}}
    return {
        **{key: value for key, value in metadata.items() if key not in _NOT_CLONED},
        "table-uuid": order.uuid,
        "location": order.location,
        "properties": order.properties,
        "snapshots": snapshots,
        "current-snapshot-id": order.snapshot_id if snapshots else -1,
        "refs": main if snapshots else {},
        "snapshot-log": [],
        "metadata-log": [],
    }
