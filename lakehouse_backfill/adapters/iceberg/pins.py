"""Tags that keep snapshots from expiring."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.metadata import find_snapshot, refuse_unwritable_format
from lakehouse_backfill.adapters.iceberg.names import NEVER_EXPIRES_MS
from lakehouse_backfill.adapters.iceberg.patience import commit_with_retry
from lakehouse_backfill.errors import Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.lake import Pins
from lakehouse_backfill.ports.table_commits import TagCommitter


class IcebergPins(Pins):
    """Tags with an explicit age that never passes."""

    def __init__(self, catalog: Catalog, commits: TagCommitter | None = None) -> None:
        """`commits` writes them where PyIceberg cannot."""
        self._catalog = catalog
        self._commits = commits

    def pin(self, table: str, snapshot_id: int, name: str) -> None:
        """Tag the snapshot and read the tag back; the same pin again does nothing.

        Raises NotFound when the snapshot is gone, Conflict when the name pins another one,
        Unsupported when the catalog does not keep the tag.
        """
        commit_with_retry(lambda: self._pin(table, snapshot_id, name), f"pin {name} on {table}")
        if not _is_pin(load_table(self._catalog, table), name, snapshot_id):
            raise Unsupported(
                f"the catalog did not keep tag {name} on {table} with its age",
                fix="use a catalog that keeps tags, or pin the source as lease_only",
            )

    def unpin(self, table: str, name: str) -> None:
        """Drop the tag if it is there."""
        commit_with_retry(lambda: self._unpin(table, name), f"unpin {name} on {table}")

    def pinned(self, table: str, name: str) -> int | None:
        """Give the snapshot id that the tag protects, or None."""
        ref = load_table(self._catalog, table).metadata.refs.get(name)
        if ref is None or ref.snapshot_ref_type != SnapshotRefType.TAG:
            return None
        return ref.snapshot_id

    def _pin(self, table: str, snapshot_id: int, name: str) -> None:
        loaded = load_table(self._catalog, table)
        if self._commits is None:
            refuse_unwritable_format(table, loaded.metadata)
        find_snapshot(loaded.metadata, snapshot_id, table)
        existing = loaded.metadata.refs.get(name)
        if existing is not None and existing.snapshot_id != snapshot_id:
            raise Conflict(
                f"{table}: {name} already names snapshot {existing.snapshot_id}, not {snapshot_id}",
                fix="use another name",
            )
        if _is_pin(loaded, name, snapshot_id):
            return
        if self._commits is not None:
            self._commits.set_tag(table, name, snapshot_id, NEVER_EXPIRES_MS)
            return
        with commit_window("Pins.tag"), loaded.manage_snapshots() as changes:
            changes.create_tag(snapshot_id, name, max_ref_age_ms=NEVER_EXPIRES_MS)

    def _unpin(self, table: str, name: str) -> None:
        loaded = load_table(self._catalog, table)
        ref = loaded.metadata.refs.get(name)
        if ref is None or ref.snapshot_ref_type != SnapshotRefType.TAG:
            return
        if self._commits is not None:
            self._commits.set_tag(table, name, None, NEVER_EXPIRES_MS)
            return
        with translate_errors(), commit_window("Pins.tag"), loaded.manage_snapshots() as changes:
            changes.remove_tag(name)


def _is_pin(table: Table, name: str, snapshot_id: int) -> bool:
    ref = table.metadata.refs.get(name)
    return (
        ref is not None
        and ref.snapshot_ref_type == SnapshotRefType.TAG
        and ref.snapshot_id == snapshot_id
        and ref.max_ref_age_ms == NEVER_EXPIRES_MS
    )
