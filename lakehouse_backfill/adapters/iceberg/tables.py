"""Reading table metadata, and creating a product's table."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timezone
from difflib import get_close_matches

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.catalog import load, load_or_none, translated
from lakehouse_backfill.adapters.iceberg.content import Content, is_live_entry
from lakehouse_backfill.adapters.iceberg.create import create_table
from lakehouse_backfill.adapters.iceberg.deletion_vectors import name_of, read_entries
from lakehouse_backfill.adapters.iceberg.filters import row_filter
from lakehouse_backfill.adapters.iceberg.labels import Labels
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import (
    ancestors,
    columns_of,
    info_of,
    is_live,
    schema_of,
    snapshot_in,
    snapshot_of,
    summary_of,
)
from lakehouse_backfill.adapters.iceberg.scoping import choose_field
from lakehouse_backfill.core.planning.consumers import is_position
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.scope import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.table import (
    LiveFile,
    Place,
    ScanEstimate,
    Snapshot,
    TableInfo,
    TableRef,
)
from lakehouse_backfill.errors import NotFound, Unsupported
from lakehouse_backfill.ports.lake import Tables

_NEAR = 3
_OWN = "lhb-"


class IcebergTables(Tables):
    """Tables of one catalog; each call loads the table afresh."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def describe(self, table: str) -> TableInfo | None:
        """Give the table's current state, or None when it does not exist."""
        found = load_or_none(self._catalog, table)
        return None if found is None else info_of(table, found)

    def positions(self, table: str) -> dict[str, str]:
        """Give what writers left in the summaries of main to find where they stopped; may be {}."""
        try:
            metadata = load(self._catalog, table).metadata
        except NotFound:
            return {}
        found: dict[str, str] = {}
        for snapshot in ancestors(metadata, metadata.current_snapshot_id):
            for key, text in summary_of(snapshot).items():
                if is_position(key):
                    found.setdefault(key, text)
        return found

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
        schema = schema_of(metadata, snapshot)
        return snapshot_of(snapshot).model_copy(
            update={"schema_id": schema.schema_id, "columns": columns_of(schema)}
        )

    def files(
        self,
        table: str,
        snapshot_id: int | None,
        field: ScopeField,
        counting: Collection[str] = (),
    ) -> list[LiveFile]:
        """List the live data files of a snapshot; None: the state without files."""
        loaded = load(self._catalog, table)
        if snapshot_id is None:
            return []
        labels = Labels(loaded.metadata, field)
        with translated():
            snapshot = snapshot_in(loaded.metadata, snapshot_id, table)
            columns = {
                each.name: each.field_id
                for each in schema_of(loaded.metadata, snapshot).fields
                if each.name in counting
            }
            return _live_files(loaded, snapshot.manifests(loaded.io), labels, columns)

    def places(self, table: str, snapshot_id: int | None, scope: Scope) -> tuple[Place, ...]:
        """Resolve the labels of a scope to the partition tuples that hold its files, by spec.

        Raises Unsupported when a file lies in the scope and beside it.
        """
        if snapshot_id is None:
            return ()
        loaded = load(self._catalog, table)
        with translated():
            reader = ScopedReader(loaded, scope, ManifestCache())
            content = reader.in_scope(snapshot_in(loaded.metadata, snapshot_id, table))
            return _places(loaded, reader.labels, content)

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
                scan = loaded.scan(row_filter=rows, snapshot_id=snapshot_id)
                # Not `plan_files`: it fails where there are equality deletes, which count for none.
                planned = [entry for some in scan._plan_manifest_entries() for entry in some]
            except ValueError as error:
                raise Unsupported(f"{table} cannot be scanned by {rows}: {error}") from error
        files = [e.data_file for e in planned if e.data_file.content == DataFileContent.DATA]
        return ScanEstimate(
            files=len(files),
            rows=sum(file.record_count for file in files),
            size_bytes=sum(file.file_size_in_bytes for file in files),
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


def _live_files(
    table: Table, manifests: list[ManifestFile], labels: Labels, columns: dict[str, int]
) -> list[LiveFile]:
    """Label each listing of a live data file, and name the delete files that apply to it."""
    content = Content()
    for manifest in filter(is_live, manifests):
        entries = [e for e in read_entries(table.io, manifest) if is_live_entry(e)]
        is_data = manifest.content == ManifestContent.DATA
        if is_data and entries and not labels.knows(manifest.partition_spec_id):
            raise labels.uncovered(manifest.partition_spec_id, len(entries))
        if is_data:
            content.add_data(entries)
        else:
            content.deletes.update((name_of(entry.data_file), entry) for entry in entries)
    return [
        LiveFile(
            path=path,
            spec_id=entry.data_file.spec_id,
            partition=labels.of(entry.data_file),
            rows=entry.data_file.record_count,
            size_bytes=entry.data_file.file_size_in_bytes,
            deletes=tuple(sorted(deletes)),
            spans=labels.spans(entry.data_file),
            values=_values(entry.data_file, columns) if columns else {},
        )
        for path, entry, deletes in content.listings
    ]


def _values(file: DataFile, columns: dict[str, int]) -> dict[str, int]:
    """Count the values that are not null, of the columns of which the file's metadata says it."""
    nulls = file.null_value_counts or {}
    return {
        name: file.record_count - nulls[field_id]
        for name, field_id in columns.items()
        if nulls.get(field_id) is not None
    }


def _places(table: Table, labels: Labels, content: Content) -> tuple[Place, ...]:
    schema, found = table.schema(), dict[int, dict[str, tuple[str, ...]]]()
    for entry in content.data.values():
        file = entry.data_file
        text = table.specs()[file.spec_id].partition_to_path(file.partition, schema)
        found.setdefault(file.spec_id, {})[text] = labels.spans(file)
    return tuple(
        Place(
            spec_id=spec_id,
            spec=", ".join(f"{field.transform} as {field.name}" for field in spec.fields),
            partitions=tuple(sorted(tuples)),
            spans=tuple(tuples[text] for text in sorted(tuples) if tuples[text]),
        )
        for spec_id, tuples in sorted(found.items())
        for spec in (table.specs()[spec_id],)
    )


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
