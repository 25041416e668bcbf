"""Where a run's files lie: they stay there for ever, as publication does not copy them."""

from __future__ import annotations

from lakehouse_backfill.domain.table import TableInfo

DATA_PATH_PROPERTY = "write.data.path"
#: Stores in which who may read is often cut by the beginning of a path.
_OBJECT_STORES = ("s3", "s3a", "gs", "abfs", "abfss", "wasb", "wasbs", "oss")


def staging_folder(target: TableInfo, run_id: str) -> str:
    """Give the folder of the run's files among the target's own."""
    own = target.properties.get(DATA_PATH_PROPERTY) or f"{target.location.rstrip('/')}/data"
    return f"{own.rstrip('/')}/{run_id}"


def staging_location_notes(choice: str, target: TableInfo | None) -> tuple[str, ...]:
    """Say what the choice costs, where it costs something."""
    if target is None:
        return ()
    place = target.properties.get(DATA_PATH_PROPERTY) or target.location
    if choice == "under_target":
        return (
            f"staged files lie under {place}: remove_orphan_files on {target.table} deletes those "
            "older than its limit (3 days by default) until the run is published",
        )
    if place.partition("://")[0] in _OBJECT_STORES:
        return (
            f"staged files lie outside {place}: readers whose credentials end there cannot read "
            "them once published; compute.staging_location: under_target puts them inside",
        )
    return ()
