"""The Tables port on PyIceberg."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.catalog import (
    load_table,
    load_table_or_none,
    missing_table_error,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.manifests.column_spans import BOUND_BYTES, ColumnSpans
from lakehouse_backfill.adapters.iceberg.manifests.key_values import choose_bounds
from lakehouse_backfill.adapters.iceberg.manifests.partition_labels import (
    PartitionLabels,
    describe_spec,
)
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import (
    ScopeFiles,
    describe_live_file,
    is_live_entry,
    without_void_partition,
)
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import (
    ScopedReader,
    list_manifests,
    planned_entries,
)
from lakehouse_backfill.adapters.iceberg.metadata import known_entries, view_of
from lakehouse_backfill.adapters.iceberg.schema import create_table
from lakehouse_backfill.adapters.iceberg.scope_field import finest_scope_field
from lakehouse_backfill.adapters.pyiceberg_manifests import read_manifest_entries
from lakehouse_backfill.adapters.pyiceberg_rows import row_range_filter
from lakehouse_backfill.core.guards.streams import is_position_key
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.identity.statement import BOUND_PROPERTY
from lakehouse_backfill.domain.labels.key_ranges import KeyBounds, KeyRanges
from lakehouse_backfill.domain.labels.names import table_parts, table_text
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.tables.files import (
    ColumnSpan,
    LiveFile,
    ScanEstimate,
    ScopedFiles,
    SpecPartitions,
)
from lakehouse_backfill.domain.tables.table import (
    CatalogMovements,
    Snapshot,
    TableInfo,
    TableMovement,
    TableRef,
)
from lakehouse_backfill.errors import BackfillError, NotFound, Unsupported
from lakehouse_backfill.ports.tables import Tables

_MAX_SUGGESTIONS = 3


class IcebergTables(Tables):
    """Tables of one catalog; each call loads the table again, unless a view of it is open."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def describe(self, table: str) -> TableInfo | None:
        """Return the table's current state, or None when it does not exist."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return None
        view = view_of(self._catalog)
        if view is None:
            return meta.describe_table(table, loaded)
        state = ("info", table, loaded.metadata_location)
        return view.facts.get(state, lambda: meta.describe_table(table, loaded))

    def committed_at(self, table: str) -> datetime | None:
        """Return when a table was last committed to; None when there is no such table."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return None
        return datetime.fromtimestamp(loaded.metadata.last_updated_ms / 1000, timezone.utc)

    def positions(self, table: str) -> dict[str, str]:
        """Return the positions that writers left in the summaries of main; may be {}."""
        try:
            metadata = load_table(self._catalog, table).metadata
        except NotFound:
            return {}
        positions: dict[str, str] = {}
        for snapshot in meta.snapshot_ancestors(metadata, metadata.current_snapshot_id):
            for key, text in meta.snapshot_summary(snapshot).items():
                if is_position_key(key):
                    positions.setdefault(key, text)
        return positions

    def marks(self, table: str) -> frozenset[str]:
        """Return the marks of signed commits in all snapshots of a table; may be empty."""
        loaded = load_table_or_none(self._catalog, table)
        summaries = map(meta.snapshot_summary, loaded.metadata.snapshots if loaded else ())
        return frozenset(one[BOUND_PROPERTY] for one in summaries if BOUND_PROPERTY in one)

    def resolve(self, ref: TableRef) -> Snapshot:
        """Return the snapshot of `ref`: an id, else an instant, else a tag or branch."""
        loaded = load_table_or_none(self._catalog, ref.table)
        if loaded is None:
            raise missing_table_error(self._catalog, ref.table)
        view = view_of(self._catalog)
        if view is None:
            return _resolve_in(loaded, ref)
        name = ("snapshot", ref, loaded.metadata_location)
        return view.facts.get(name, lambda: _resolve_in(loaded, ref))

    def files(
        self,
        table: str,
        snapshot_id: int | None,
        field: ScopeField,
        counting: Collection[str] = (),
    ) -> list[LiveFile]:
        """List the live data files of a snapshot; None: the state without files."""
        loaded = load_table(self._catalog, table)
        if snapshot_id is None:
            return []
        labels = PartitionLabels(loaded.metadata, field)
        with translate_errors():
            snapshot = meta.find_snapshot(loaded.metadata, snapshot_id, table)
            columns = {
                each.name: each.field_id
                for each in meta.schema_of_snapshot(loaded.metadata, snapshot).fields
                if each.name in counting
            }
            return _live_files(loaded, list_manifests(loaded, snapshot), labels, columns)

    def column_spans(
        self,
        table: str,
        snapshot_id: int | None,
        column: str,
        appended_since: int | None = None,
    ) -> tuple[ColumnSpan, ...]:
        """Return which values of a time column each live data file holds, by its statistics.

        A file without statistics of the column has those of its partition. Appended files are those
        of PyIceberg's incremental append scan.
        """
        if snapshot_id is None:
            return ()
        loaded = load_table(self._catalog, table)
        with translate_errors():
            snapshot = meta.find_snapshot(loaded.metadata, snapshot_id, table)
            schema = meta.schema_of_snapshot(loaded.metadata, snapshot)
            found = next((each for each in schema.fields if each.name == column), None)
            if found is None or str(found.field_type) not in BOUND_BYTES:
                kind = f"is {found.field_type}" if found else "does not exist"
                raise Unsupported(f"{table} cannot be cut by {column}, which {kind}")
            if appended_since is None:
                content = _read_content(loaded, list_manifests(loaded, snapshot))
                files = [
                    (
                        listing.entry.data_file,
                        listing.entry.snapshot_id,
                        _hidden_rows(content, listing.deletes),
                    )
                    for listing in content.listings
                ]
            else:
                appended = _appended_files(loaded, appended_since, snapshot_id)
                files = [(each, None, {}) for each in appended]
            spans = ColumnSpans(loaded, found)
            return tuple(spans.span(file, added, **hidden) for file, added, hidden in files)

    def key_bounds(self, table: str, snapshot_id: int, wanted: KeyRanges) -> KeyBounds:
        """Return bounds between ranges of a column, by statistics of files, else by reading it."""
        loaded = load_table(self._catalog, table)
        with translate_errors():
            snapshot = meta.find_snapshot(loaded.metadata, snapshot_id, table)
            content = _read_content(loaded, list_manifests(loaded, snapshot))
            return choose_bounds(loaded, snapshot, content, wanted)

    def scoped(self, table: str, snapshot_id: int | None, scope: Scope) -> ScopedFiles:
        """Return the live data files of a scope, and the partition tuples that hold them.

        Raises Unsupported when a file has rows both inside and outside the scope.
        """
        if snapshot_id is None:
            return ScopedFiles()
        loaded = load_table(self._catalog, table)
        with translate_errors():
            reader = ScopedReader(loaded, scope)
            content = reader.scope_files(meta.find_snapshot(loaded.metadata, snapshot_id, table))
            return ScopedFiles(
                tuple(_describe_files(content, reader.labels, {})),
                _spec_partitions(loaded, reader.labels, content),
            )

    def estimate(
        self, table: str, snapshot_id: int | None, ranges: tuple[RowRange, ...]
    ) -> ScanEstimate:
        """Return what a scan pruned to `ranges` would read; no ranges: everything."""
        loaded = load_table(self._catalog, table)
        if snapshot_id is None:
            return ScanEstimate(files=0, rows=0, size_bytes=0)
        meta.find_snapshot(loaded.metadata, snapshot_id, table)
        view, read = view_of(self._catalog), partial(_scan_estimate, loaded, snapshot_id, ranges)
        if view is None:
            return read()
        # Several products of a cascade read the same rows.
        return view.facts.get(("estimate", table, snapshot_id, ranges), read)

    def scope_field(self, info: TableInfo, column: str) -> ScopeField:
        """Return the partition field of `column`; raises Unsupported without a usable field."""
        return finest_scope_field(info, column)

    def movements(
        self, since: datetime, first: Collection[str], skip: Collection[str], limit: int
    ) -> CatalogMovements:
        """List the commits since the instant; loads up to `limit` tables, several at once.

        Of each table only its movements are kept: the metadata of a hundred would be hundreds of
        megabytes.
        """
        names, is_whole = list(first), False
        # An account that may read its tables is not always allowed to list all others.
        with suppress(BackfillError), translate_errors():
            names = list(islice(_table_names(self._catalog, first, skip), limit + 1))
            is_whole = len(names) <= limit
        looked_at = names[:limit]

        def look(name: str) -> tuple[TableMovement, ...] | BackfillError | None:
            try:
                table = load_table_or_none(self._catalog, name)
            except BackfillError as error:
                return error
            return None if table is None else tuple(_table_movements(name, table, since))

        # Behind SQL there is little to wait for, and each thread would keep memory of its own.
        at_once = 1 if type(self._catalog).__name__ == "SqlCatalog" else _LOADED_AT_ONCE
        with ThreadPoolExecutor(at_once, thread_name_prefix="tables") as pool:
            found = dict(zip(looked_at, pool.map(look, looked_at), strict=True))
        moved = [one for one in found.values() if isinstance(one, tuple)]
        return CatalogMovements(
            looked_at=len(moved),
            unreadable=tuple(n for n, one in found.items() if isinstance(one, BackfillError)),
            is_whole=is_whole,
            moved=tuple(movement for some in moved for movement in some),
        )

    def create(self, contract: Contract) -> TableInfo:
        """Create the product's empty table (format v2) from its contract, unless it exists."""
        existing = self.describe(contract.table)
        if existing is not None:
            return existing
        create_table(self._catalog, contract)
        return meta.describe_table(contract.table, load_table(self._catalog, contract.table))


def _resolve_in(loaded: Table, ref: TableRef) -> Snapshot:
    metadata = loaded.metadata
    if ref.at is None:
        if metadata.current_snapshot_id is None:
            raise NotFound(f"{ref.table} has no snapshot yet", fix="write to it first")
        snapshot_id = metadata.current_snapshot_id
    elif ref.at.isdigit():
        snapshot_id = int(ref.at)
    elif (instant := _parse_instant(ref.at)) is not None:
        snapshot_id = _snapshot_id_at(loaded, ref, instant)
    else:
        snapshot_id = _snapshot_id_of_ref(loaded, ref)
    snapshot = meta.find_snapshot(metadata, snapshot_id, ref.table)
    return meta.describe_snapshot(metadata, snapshot)


def _scan_estimate(table: Table, snapshot_id: int, ranges: tuple[RowRange, ...]) -> ScanEstimate:
    row_filter = row_range_filter(ranges) if ranges else AlwaysTrue()
    with translate_errors():
        try:
            scan = table.scan(row_filter=row_filter, snapshot_id=snapshot_id)
            # `plan_files` fails where there are equality deletes, which are not counted here.
            entries = [entry for some in planned_entries(table, scan) for entry in some]
        except ValueError as error:
            name = table_text(table.name())
            raise Unsupported(f"{name} cannot be scanned by {row_filter}: {error}") from error
    files = [e.data_file for e in entries if e.data_file.content == DataFileContent.DATA]
    return ScanEstimate(
        files=len(files),
        rows=sum(file.record_count for file in files),
        size_bytes=sum(file.file_size_in_bytes for file in files),
    )


_LOADED_AT_ONCE = 8
_SET_BACK = "set back"


def _table_names(catalog: Catalog, first: Collection[str], skip: Collection[str]) -> Iterator[str]:
    """Yield the tables of the catalog: `first`, their namespaces, then all others."""
    yield from first
    known = [table_parts(name)[:-1] for name in first]
    namespaces = deque(dict.fromkeys([*known, *sorted(catalog.list_namespaces())]))
    seen = {*namespaces}
    while namespaces:
        namespace = namespaces.popleft()
        if table_text(namespace) in skip or not catalog.namespace_exists(namespace):
            continue
        names = (table_text(name) for name in sorted(catalog.list_tables(namespace)))
        yield from (name for name in names if name not in first)
        below = [one for one in sorted(catalog.list_namespaces(namespace)) if one not in seen]
        namespaces.extend(below)
        seen.update(below)


def _table_movements(name: str, table: Table, since: datetime) -> Iterator[TableMovement]:
    """Yield what each writer committed to the table since the instant, on any branch."""
    since_ms = since.timestamp() * 1000
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    by_writer = defaultdict[tuple[str, str, str], list[IcebergSnapshot]](list)
    for snapshot in sorted(snapshots.values(), key=lambda one: one.timestamp_ms):
        if snapshot.timestamp_ms >= since_ms:
            summary = meta.snapshot_summary(snapshot)
            token = summary.get(meta.PUBLICATION_PROPERTY, "")
            made_for = summary.get(meta.RUN_ID_PROPERTY) or token
            writer = meta.describe_writer(snapshot), meta.writing_application(snapshot), made_for
            by_writer[writer].append(snapshot)
    for (name_of_writer, application, made_for), commits in by_writer.items():
        operations = tuple(sorted(set(map(meta.snapshot_operation, commits))))
        yield TableMovement(
            table=name, writer=name_of_writer, application=application, made_for=made_for,
            commits=len(commits), operations=operations,
            last_snapshot_id=commits[-1].snapshot_id,
        )  # fmt: skip
    for entry in reversed(table.metadata.snapshot_log):
        target = snapshots.get(entry.snapshot_id)
        if entry.timestamp_ms < since_ms:
            return
        if target is not None and target.timestamp_ms < since_ms:
            yield TableMovement(
                table=name, writer="an unnamed writer", application="", made_for="", commits=1,
                operations=(_SET_BACK,), last_snapshot_id=entry.snapshot_id,
            )  # fmt: skip


def _live_files(
    table: Table, manifests: list[ManifestFile], labels: PartitionLabels, columns: dict[str, int]
) -> list[LiveFile]:
    """Label each listing of a live data file, with the delete files that apply to it."""
    content = _read_content(table, manifests, labels)
    return _describe_files(content, labels, columns)


def _describe_files(
    content: ScopeFiles, labels: PartitionLabels, columns: dict[str, int]
) -> list[LiveFile]:
    return [
        describe_live_file(
            labels,
            listing,
            spans=labels.coarse_labels(listing.entry.data_file),
            values=_non_null_counts(listing.entry.data_file, columns),
            **_hidden_rows(content, listing.deletes),
        )
        for listing in content.listings
    ]


def _read_content(
    table: Table, manifests: list[ManifestFile], labels: PartitionLabels | None = None
) -> ScopeFiles:
    """Read the live files; with `labels` raise Unsupported for a spec that cannot be labelled."""
    content = ScopeFiles()
    for manifest in filter(meta.has_live_files, manifests):
        read = partial(read_manifest_entries, table.io, manifest)
        entries = [e for e in known_entries(table, manifest, read) if is_live_entry(e)]
        if manifest.content == ManifestContent.DELETES:
            content.add_deletes(without_void_partition(e, table.specs()) for e in entries)
            continue
        if entries and labels is not None:
            labels.require_source(manifest.partition_spec_id, len(entries))
        content.add_data(entries)
    return content


def _hidden_rows(content: ScopeFiles, deletes: Collection[str]) -> dict[str, Any]:
    """Count what the delete files of a data file name, as fields of `LiveFile`."""
    if not deletes:
        return {}
    files = {name: content.deletes[name].data_file for name in deletes}
    vectors = [f.record_count for f in files.values() if f.file_format == FileFormat.PUFFIN]
    return {
        "deletes": tuple(sorted(deletes)),
        "hidden": {
            name: file.record_count
            for name, file in files.items()
            if file.content == DataFileContent.POSITION_DELETES
        },
        "vector_rows": vectors[0] if len(vectors) == 1 else None,
    }


def _appended_files(table: Table, since_id: int, until_id: int) -> list[DataFile]:
    """Return the data files that appends added after a snapshot, up to another."""
    scan = table.incremental_append_scan(
        from_snapshot_id_exclusive=since_id, to_snapshot_id_inclusive=until_id
    )
    try:
        return [task.file for task in scan.plan_files()]
    except ValueError as error:
        raise Unsupported(
            f"what was appended to {table.name()[-1]} is not known: {error}"
        ) from error


def _non_null_counts(file: DataFile, columns: dict[str, int]) -> dict[str, int]:
    """Count the non-null values of the columns whose null count is in the file's metadata."""
    if not columns:
        return {}
    nulls = file.null_value_counts or {}
    return {
        name: file.record_count - nulls[field_id]
        for name, field_id in columns.items()
        if nulls.get(field_id) is not None
    }


def _spec_partitions(
    table: Table, labels: PartitionLabels, content: ScopeFiles
) -> tuple[SpecPartitions, ...]:
    schema, specs = table.schema(), table.specs()
    spans_by_spec = defaultdict[int, dict[str, tuple[str, ...]]](dict)
    for file in (entry.data_file for entry in content.data.values()):
        partition_path = specs[file.spec_id].partition_to_path(file.partition, schema)
        spans_by_spec[file.spec_id][partition_path] = labels.coarse_labels(file)
    return tuple(
        SpecPartitions(
            spec_id=spec_id,
            spec=describe_spec(specs[spec_id]),
            partitions=tuple(sorted(spans)),
            spans=tuple(spans[path] for path in sorted(spans) if spans[path]),
        )
        for spec_id, spans in sorted(spans_by_spec.items())
    )


def _parse_instant(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _snapshot_id_at(table: Table, ref: TableRef, instant: datetime) -> int:
    """Return main's head at the instant, by the log: it includes rolled-back snapshots."""
    millis = int(instant.timestamp() * 1000)
    snapshot_ids = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    log = [entry for entry in table.metadata.snapshot_log if entry.snapshot_id in snapshot_ids]
    before = [entry.snapshot_id for entry in log if entry.timestamp_ms <= millis]
    if before:
        return before[-1]
    fix = "write to the table first: it has no snapshot"
    if log:
        oldest = datetime.fromtimestamp(log[0].timestamp_ms / 1000, timezone.utc)
        fix = f"write {oldest.isoformat()} or later: that is its oldest snapshot"
    raise NotFound(f"{ref.table} has no snapshot at or before {ref.at}", fix=fix)


def _snapshot_id_of_ref(table: Table, ref: TableRef) -> int:
    refs, name = table.metadata.refs, ref.at or ""
    if name in refs:
        return refs[name].snapshot_id
    # Tags of our own are named after runs, and users do not refer to them.
    user_refs = sorted(ref for ref in refs if not ref.startswith(meta.TAG_PREFIX))
    near = get_close_matches(name, user_refs, n=_MAX_SUGGESTIONS) or user_refs[:_MAX_SUGGESTIONS]
    raise NotFound(
        f"{ref.table} has no tag or branch {name!r}",
        fix=f"write one of {', '.join(near)}" if near else "name a snapshot id: it has no tag",
    )
