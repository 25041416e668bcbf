"""Others that write to the target beside the product: live jobs, compaction, expiry."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, EqualTo
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table

from lakehouse_backfill.domain.partitions import Scope, ScopeField
from tests.chaos.lab import SOURCE, TARGET, _arrow
from tests.model.world import Days, Row
from tests.support.lakes.tables import Kit

FIELD = ScopeField(column="d", transform="identity", type="date")


class Outside:
    """Writers with a catalog of their own, which know nothing of runs."""

    def __init__(self, folder: Path) -> None:
        lake = folder / "lake"
        self.catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse"
        )

    def close(self) -> None:
        self.catalog.engine.dispose()

    def append(self, rows: list[tuple[str, Row]], table: str = TARGET) -> None:
        made = [(datetime.fromisoformat(day).date(), *row) for day, row in rows]
        self.catalog.load_table(table).append(_arrow(made))

    def land(self, day: str, row: Row) -> None:
        self.append([(day, row)], SOURCE)

    def delete(self, day: str, key: int) -> None:
        """Delete one row by copy-on-write."""
        where = And(EqualTo("d", day), EqualTo("k", key))
        self.catalog.load_table(TARGET).delete(where)

    def compact(self, days: Days) -> None:
        """Rewrite the days' files into one each."""
        Compacting(self.catalog).compact(Scope(field=FIELD, partitions=days), TARGET)

    def expire(self, way: str) -> None:
        """Expire all snapshots that no tag holds, and clean up as Iceberg for Java does."""
        before = self.catalog.load_table(TARGET)
        # Expiry is by age, in milliseconds.
        time.sleep(0.002)
        now = datetime.now(timezone.utc)
        before.maintenance.expire_snapshots().older_than(now).commit()
        after = self.catalog.load_table(TARGET)
        if way == "files":
            clean_up(before, after)


class Compacting(Kit):
    """The kit's compaction, on another catalog."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.live = catalog


def clean_up(before: Table, after: Table) -> None:
    """Delete the files of expired snapshots, as `ExpireSnapshots` of Iceberg 1.10 for Java does.

    While all that is left is one line of ancestors it goes by what expired commits removed
    (IncrementalFileCleanup), else by what can still be reached (ReachableFileCleanup).
    """
    left = {snapshot.snapshot_id for snapshot in after.snapshots()}
    if left == {s.snapshot_id for s in before.snapshots()}:
        return
    was_line = _is_line(before)
    gone = _removed(before, left) if was_line and _is_line(after) else _unreached(before, after)
    for path in gone:
        Path(path.removeprefix("file://")).unlink(missing_ok=True)


def _is_line(table: Table) -> bool:
    """Tell whether every snapshot is an ancestor of the head."""
    return _line(table) == {snapshot.snapshot_id for snapshot in table.snapshots()}


def _line(table: Table) -> set[int]:
    found: set[int] = set()
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found.add(snapshot.snapshot_id)
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return found


def _entries(table: Table, skip: set[int] | None = None) -> dict[str, list[ManifestEntry]]:
    """All entries of a table's manifests, by manifest; of its snapshots but those in `skip`."""
    found: dict[str, list[ManifestEntry]] = {}
    for snapshot in table.snapshots():
        if snapshot.snapshot_id in (skip or ()):
            continue
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found[manifest.manifest_path] = manifest.fetch_manifest_entry(
                    table.io, discard_deleted=False
                )
    return found


def _removed(before: Table, left: set[int]) -> set[str]:
    """Data files that expired commits removed, even if one that is left added them again."""
    return {
        entry.data_file.file_path
        for entries in _entries(before).values()
        for entry in entries
        if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id not in left
    }


def _unreached(before: Table, after: Table) -> set[str]:
    def live(table: Table) -> set[str]:
        return {
            entry.data_file.file_path
            for entries in _entries(table).values()
            for entry in entries
            if entry.status != ManifestEntryStatus.DELETED
        }

    return live(before) - live(after)
