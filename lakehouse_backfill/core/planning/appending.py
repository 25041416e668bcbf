"""Append-only history (U3): only where nothing is."""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.table import LiveFile
from lakehouse_backfill.domain.unbuilt import NOTHING_PLANNED
from lakehouse_backfill.errors import Conflict


def require_empty_partitions(resolved: ResolvedManifest, files: Iterable[LiveFile]) -> None:
    """Raise Conflict, naming the partitions, when a run that only appends would find rows there."""
    if resolved.manifest.target.publish_mode != "append":
        return
    scope = resolved.scope
    held: dict[str, int] = {}
    for file in files:
        if file.partition in scope.partitions:
            held[file.partition] = held.get(file.partition, 0) + file.rows
    if not held:
        return
    labels = tuple(label for label in scope.partitions if label in held)
    raise Conflict(
        f"publish mode append adds to empty partitions only, but {partitions.describe_labels(labels)} of "
        f"{resolved.target.table} hold {sum(held.values())} rows in snapshot "
        f"{resolved.target.snapshot_id}",
        state=NOTHING_PLANNED,
        fix="leave them out with target.partitions.except, or write target.publish_mode: "
        "replace_partitions to replace their rows",
        field="target.partitions",
    )
