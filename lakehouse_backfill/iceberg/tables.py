"""Reading table metadata, and creating a product's table."""

from __future__ import annotations

from datetime import datetime, timezone
from difflib import get_close_matches

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table

from lakehouse_backfill.errors import NotFound, Unsupported
from lakehouse_backfill.iceberg.catalog import load, translated
from lakehouse_backfill.iceberg.create import create_table
from lakehouse_backfill.iceberg.filters import row_filter
from lakehouse_backfill.iceberg.labels import Labels
from lakehouse_backfill.iceberg.metadata import (
    columns_of,
    info_of,
    is_live,
    refuse_deletes,
    refuse_format,
    snapshot_in,
    snapshot_of,
)
from lakehouse_backfill.iceberg.scoping import choose_field
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.scope import RowRange, ScopeField
from lakehouse_backfill.model.table import LiveFile, ScanEstimate, Snapshot, TableInfo, TableRef
from lakehouse_backfill.ports.lake import Tables

_NEAR = 3
_OWN = "lhb-"


class IcebergTables(Tables):
    """Tables of one catalog; each call loads the table afresh."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def describe(self, table: str) -> TableInfo | None:
        """Give the table's current state, or None when it does not exist."""
        try:
            return info_of(table, load(self._catalog, table))
        except NotFound as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            return None

    def resolve(self, ref: TableRef) -> Snapshot:
        """Give the snapshot that `ref` names: an id, else an instant, else a tag or branch."""
        loaded = load(self._catalog, ref.table)
        metadata = loaded.metadata
        if ref.at is None:
            if metadata.current_snapshot_id is None:
                raise NotFound(f"{ref.table} has no snapshot yet", fix="write to it first")
            found = metadata.current_snapshot_id
        elif ref.at.isdigit():
            found = int(ref.at)
        elif (instant := _instant(ref.at)) is not None:
            found = _at(loaded, ref, instant)
        else:
            found = _named(loaded, ref)
        snapshot = snapshot_in(metadata, found, ref.table)
        # Without an id, as v1 writers leave it, readers take the table's current schema.
        schema_id = snapshot.schema_id
        schema = next((s for s in metadata.schemas if s.schema_id == schema_id), metadata.schema())
        return snapshot_of(snapshot).model_copy(
            update={"schema_id": schema.schema_id, "columns": columns_of(schema)}
        )

    def files(self, table: str, snapshot_id: int | None, field: ScopeField) -> list[LiveFile]:
        """List the live data files of a snapshot; None: the state without files."""
        loaded = load(self._catalog, table)
        if snapshot_id is None:
            return []
        refuse_format(table, loaded.metadata)
        labels = Labels(loaded.metadata, field)
        with translated():
            manifests = snapshot_in(loaded.metadata, snapshot_id, table).manifests(loaded.io)
            refuse_deletes(table, manifests)
            found: list[LiveFile] = []
            for manifest in filter(is_live, manifests):
                entries = manifest.fetch_manifest_entry(loaded.io, discard_deleted=True)
                if entries and not labels.covers(manifest.partition_spec_id):
                    raise labels.uncovered(manifest.partition_spec_id, len(entries))
                found += [
                    LiveFile(
                        path=entry.data_file.file_path,
                        spec_id=entry.data_file.spec_id,
                        partition=labels.of(entry.data_file),
                        rows=entry.data_file.record_count,
                        size_bytes=entry.data_file.file_size_in_bytes,
                    )
                    for entry in entries
                ]
        return found

    def estimate(
        self, table: str, snapshot_id: int | None, ranges: tuple[RowRange, ...]
    ) -> ScanEstimate:
        """Tell what a scan pruned to `ranges` would read; no ranges: everything."""
        loaded = load(self._catalog, table)
        if snapshot_id is None:
            return ScanEstimate(files=0, rows=0, size_bytes=0)
        snapshot_in(loaded.metadata, snapshot_id, table)
        rows = row_filter(ranges) if ranges else AlwaysTrue()
        with translated():
            try:
                tasks = list(loaded.scan(row_filter=rows, snapshot_id=snapshot_id).plan_files())
            except ValueError as error:
                raise Unsupported(f"{table} cannot be scanned by {rows}: {error}") from error
        return ScanEstimate(
            files=len(tasks),
            rows=sum(task.file.record_count for task in tasks),
            size_bytes=sum(task.file.file_size_in_bytes for task in tasks),
        )

    def scope_field(self, info: TableInfo, column: str) -> ScopeField:
        """Give the partition field of `column`; raises Unsupported when none can be scoped."""
        return choose_field(info, column)

    def create(self, contract: Contract) -> TableInfo:
        """Create the product's empty table (format v2) from its contract, unless it exists."""
        existing = self.describe(contract.table)
        if existing is None:
            create_table(self._catalog, contract)
            existing = info_of(contract.table, load(self._catalog, contract.table))
        return existing


def _instant(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _at(table: Table, ref: TableRef, instant: datetime) -> int:
    """Find what main was at the instant, by the log: it also knows what was rolled back."""
    millis = int(instant.timestamp() * 1000)
    known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    log = [entry for entry in table.metadata.snapshot_log if entry.snapshot_id in known]
    before = [entry.snapshot_id for entry in log if entry.timestamp_ms <= millis]
    if before:
        return before[-1]
    oldest = datetime.fromtimestamp(log[0].timestamp_ms / 1000, timezone.utc) if log else None
    raise NotFound(
        f"{ref.table} has no snapshot at or before {ref.at}",
        fix=f"write {oldest.isoformat()} or later: that is its oldest snapshot"
        if oldest
        else "write to the table first: it has no snapshot",
    )


def _named(table: Table, ref: TableRef) -> int:
    refs = table.metadata.refs
    name = ref.at or ""
    if name in refs:
        return refs[name].snapshot_id
    # Our own pins are named after runs: nobody means them.
    known = sorted(ref for ref in refs if not ref.startswith(_OWN))
    near = get_close_matches(name, known, n=_NEAR) or known[:_NEAR]
    raise NotFound(
        f"{ref.table} has no tag or branch {name!r}",
        fix=f"write one of {', '.join(near)}" if near else "name a snapshot id: it has no tag",
    )
