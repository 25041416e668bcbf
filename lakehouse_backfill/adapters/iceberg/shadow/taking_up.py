"""A clone that is there already, of a process that was cut off: is it what it should be?

It is never dropped here: whoever registered it may be at work, and would drop what is made anew.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.adapters.iceberg.names import PROPERTY_PREFIX
from lakehouse_backfill.adapters.iceberg.shadow.clone import CLONE_PROPERTIES, snapshot_identities
from lakehouse_backfill.errors import Conflict


def require_marks(shadow: str, kept: TableMetadata) -> None:
    """Raise Conflict for a table that is empty and has no mark: a catalog may leave that."""
    if not kept.snapshots and not any(key.startswith(PROPERTY_PREFIX) for key in kept.properties):
        raise _leftover_conflict(shadow, "it is empty, and nothing in it says what for")


def require_clone(shadow: str, kept: TableMetadata, wanted: TableMetadata) -> None:
    """Raise Conflict when the catalog kept something else than a clone like `wanted`.

    What the target gained, or was set to, since the clone was made is missing in it, rightly.
    """
    held: tuple[tuple[str, list[Any], list[Any]], ...] = (
        ("schemas", kept.schemas, wanted.schemas),
        ("specs", kept.partition_specs, wanted.partition_specs),
        ("sort orders", kept.sort_orders, wanted.sort_orders),
        ("snapshot", snapshot_identities(wanted), snapshot_identities(kept)),
    )
    faults = [part for part, found, known in held if any(one not in known for one in found)]
    if any(kept.properties.get(key) != text for key, text in CLONE_PROPERTIES.items()):
        faults.append("properties")
    if faults:
        raise _leftover_conflict(shadow, f"other {', '.join(faults)} than what it was cloned from")


def _leftover_conflict(shadow: str, why: str) -> Conflict:
    return Conflict(
        f"{shadow} is already there, and is no clone: {why}. A command that was cut off leaves "
        "this on a catalog that does not keep what is registered",
        state="nothing was changed",
        fix="unless somebody else made it, and when no command of this run is at work: "
        f"DROP TABLE {shadow} (in Spark SQL, without PURGE), then repeat the same command",
    )
