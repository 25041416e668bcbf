"""Commits through the Java API: swaps by Iceberg's snapshot producer, clones, tags.

Finding files in a table's snapshots as objects of Iceberg's own library.

One swap of files by Iceberg's own snapshot producer, over as many attempts as it takes.

Commits through Iceberg's Java API: the way for tables that PyIceberg cannot write.

Each is one conditional commit on the state that was inspected: `TableOperations.commit` takes the
metadata it was made from, and fails when the table is any other by now. Iceberg's own retry would
come between the inspection and the commit, so it is not used.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lakehouse_backfill.adapters.spark.commits.java_api import (
    JavaApi,
    closing_iterable,
    java_errors,
)
from lakehouse_backfill.core.planning.write_path import clone_metadata
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.publication import CloneCommit, InspectedState, NewSchema, SwapCommit
from lakehouse_backfill.errors import Conflict, NotFound, TooBusy
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.table_writer import TableCommitter


class JavaFileLookup:
    """Looks files up by path, delete files by path and offset."""

    def __init__(self, api: JavaApi) -> None:
        self._api = api

    def data_files(
        self, table: Any, snapshot_id: int, paths: Iterable[str], ranges: Sequence[RowRange]
    ) -> dict[str, Any]:
        """Give those of the data files that the snapshot lists, with all their statistics.

        Manifests are pruned by the rows first; a file without rows shows only without pruning.
        """
        wanted = set(paths)
        found: dict[str, Any] = {}
        for rows in (ranges, ()):
            if wanted - found.keys():
                found.update(self._scan_data_files(table, snapshot_id, wanted, rows))
        return found

    def delete_files(self, table: Any, snapshot_id: int, names: Iterable[str]) -> dict[str, Any]:
        """Give those of the delete files that the snapshot lists."""
        wanted = set(names)
        found: dict[str, Any] = {}
        if not wanted:
            return found
        with java_errors(f"reading the delete files of {table.name()}"):
            manifests = table.snapshot(snapshot_id).deleteManifests(table.io())
            for manifest in manifests:
                reader = self._api.iceberg.ManifestFiles.readDeleteManifest(
                    manifest, table.io(), table.specs()
                )
                with closing_iterable(reader) as files:
                    found.update({n: f for f in files if (n := delete_file_name(f)) in wanted})
        return found

    def _scan_data_files(
        self, table: Any, snapshot_id: int, wanted: set[str], ranges: Sequence[RowRange]
    ) -> dict[str, Any]:
        with java_errors(f"reading the files of {table.name()}"):
            scan = table.newScan().useSnapshot(snapshot_id).includeColumnStats()
            tasks = scan.filter(self._api.any_range_expression(ranges)).planFiles()
            with closing_iterable(tasks) as each:
                files = (task.file() for task in each)
                return {path: file for file in files if (path := str(file.location())) in wanted}


def delete_file_name(file: Any) -> str:
    """Name a delete file: many deletion vectors lie in one Puffin file, each at its offset."""
    offset = file.contentOffset()
    return str(file.location()) if offset is None else f"{file.location()}#{offset}"


def require_all_listed(found: dict[str, Any], wanted: Iterable[str], table: str) -> None:
    """Raise NotFound for files that nobody lists."""
    missing = [path for path in wanted if path not in found]
    if missing:
        raise NotFound(
            f"{len(missing)} files to swap on {table} are listed nowhere, the first is "
            f"{missing[0]}",
            fix="repeat the same command: it looks at the table first",
        )


class JavaSwap:
    """The producer of one set of files out and in: it keeps the manifests that it rewrote.

    Deletion vectors of removed data files go with them, as the format asks (Iceberg spec, deletion
    vectors). Files that come in with a sequence number keep it: deletes that came before apply to
    them as they did.
    """

    def __init__(self, api: JavaApi, order: SwapCommit) -> None:
        self._api = api
        self._order = order
        self._file_lookup = JavaFileLookup(api)
        self._table = api.load_table(order.base.table)
        self._manifests_written = 0

    @property
    def operations(self) -> Any:
        """The table's operations: what it was at the last refresh."""
        return self._table.operations()

    def is_same_swap(self, order: SwapCommit) -> bool:
        """Tell whether the order swaps the same files of the same table for the same act."""
        return _swap_identity(order) == _swap_identity(self._order)

    def refresh(self) -> None:
        """Load the table's newest metadata."""
        self._table.refresh()

    def write_snapshot(self, order: SwapCommit) -> Any:
        """Write manifests and manifest list on the head as it is now; nobody sees them yet."""
        for key, value in order.summary.items():
            self._producer.set(key, value)
        # Readers and writers judge a snapshot by its operation. One that only adds would be an
        # append, one that puts files back a delete; whoever moved partitions overwrote them.
        text = json.loads(self._api.iceberg.SnapshotParser.toJson(self._producer.apply()))
        text["summary"]["operation"] = order.operation
        if order.columns is not None:
            text["schema-id"] = order.columns.schema_id
        self._require_file_counts(text["summary"])
        return self._api.iceberg.SnapshotParser.fromJson(json.dumps(text))

    @cached_property
    def _producer(self) -> Any:
        order, overwrite = self._order, self._table.newOverwrite()
        self._remove_files(overwrite)
        found = self._find_added_files()
        for file in order.added:
            if file.sequence_number is None:
                overwrite.addFile(found[file.path])
        self._readd_files(overwrite, found)
        return overwrite

    def _remove_files(self, overwrite: Any) -> None:
        order, table = self._order, self._order.base.table
        if order.base.head_id is None:
            return
        gone = self._file_lookup.data_files(
            self._table, order.base.head_id, order.removed, order.ranges
        )
        require_all_listed(gone, order.removed, table)
        names = order.removed_deletes
        hidden = self._file_lookup.delete_files(self._table, order.base.head_id, names)
        require_all_listed(hidden, names, table)
        sets = self._api.iceberg.util
        data, deletes = sets.DataFileSet.create(), sets.DeleteFileSet.create()
        for file in gone.values():
            data.add(file)
        for file in hidden.values():
            deletes.add(file)
        overwrite.deleteFiles(data, deletes)

    def _readd_files(self, overwrite: Any, found: dict[str, Any]) -> None:
        """Add files with their old sequence numbers, in a manifest of each spec."""
        by_spec: dict[int, list[tuple[Any, int]]] = {}
        for file in self._order.added:
            if file.sequence_number is not None:
                one = found[file.path]
                by_spec.setdefault(int(one.specId()), []).append((one, file.sequence_number))
        for spec_id, files in by_spec.items():
            manifest = self._write_manifest(spec_id, files)
            self._api.call_protected(overwrite, "add", ("ManifestFile", manifest))

    def _write_manifest(self, spec_id: int, files: list[tuple[Any, int]]) -> Any:
        self._manifests_written += 1
        name = f"{uuid.uuid4()}-r{self._manifests_written}.avro"
        output = self._table.io().newOutputFile(self.operations.metadataFileLocation(name))
        version = self.operations.current().formatVersion()
        writer = self._api.iceberg.ManifestFiles.write(
            version, self._table.specs().get(spec_id), output, None
        )
        try:
            for file, number in files:
                writer.add(file, number)
        finally:
            writer.close()
        return writer.toManifestFile()

    def _find_added_files(self) -> dict[str, Any]:
        """Find the files that come in, each in the first source that lists it."""
        wanted = [file.path for file in self._order.added]
        found: dict[str, Any] = {}
        for name, snapshot_id in self._order.sources:
            missing = [path for path in wanted if path not in found]
            if not missing:
                break
            table = self._api.load_table(name)
            found.update(
                self._file_lookup.data_files(table, snapshot_id, missing, self._order.ranges)
            )
        require_all_listed(found, wanted, self._order.base.table)
        return found

    def _require_file_counts(self, summary: dict[str, str]) -> None:
        """Compare what Iceberg counted with what was ordered, before anything is committed."""
        counted = [int(summary.get(f"{word}-data-files", "0")) for word in ("added", "deleted")]
        ordered = [len(self._order.added), len(self._order.removed)]
        if counted != ordered:
            raise Conflict(
                f"{self._order.base.table}: Iceberg would add and remove {counted} data files, "
                f"{ordered} were asked for",
                fix="repeat the same command: it looks at the table first",
            )


def _swap_identity(order: SwapCommit) -> tuple[object, ...]:
    return (
        order.base.table,
        order.base.uuid,
        order.token,
        order.removed,
        order.removed_deletes,
        order.added,
    )


@dataclass(frozen=True)
class PreparedCommit:
    """Metadata that was worked out from `base`, not committed yet."""

    table: str
    operations: Any
    base: Any
    metadata: Any

    def commit(self) -> None:
        """Commit once, whatever the user's table says about retries."""
        with java_errors(f"committing to {self.table}"), commit_window("Publisher.swap"):
            self.operations.commit(self.base, self.metadata)


class JavaCommits(TableCommitter):
    """Single commits on the tables of one catalog."""

    writes_rows = False

    def __init__(self, api: JavaApi) -> None:
        self._api = api
        self._swap: JavaSwap | None = None

    def prepare(self, order: SwapCommit) -> PreparedCommit:
        """Write the manifests of a swap; those of an earlier attempt at the same are used again."""
        if self._swap is None or not self._swap.is_same_swap(order):
            self._swap = JavaSwap(self._api, order)
        with java_errors(f"preparing a commit on {order.base.table}"):
            self._swap.refresh()
            _require_as_inspected(self._swap.operations.current(), order.base)
            snapshot = self._swap.write_snapshot(order)
            base = self._swap.operations.current()
            _require_as_inspected(base, order.base)
            return PreparedCommit(
                table=order.base.table,
                operations=self._swap.operations,
                base=base,
                metadata=self._swap_metadata(base, snapshot, order),
            )

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        """Set the tag, or drop it (None)."""

        def change(builder: Any) -> Any:
            if snapshot_id is None:
                return builder.removeRef(name)
            return builder.setRef(name, self._tag_reference(snapshot_id, max_age_ms))

        self._commit(table, "Pins.tag", change, None)

    def take_out(
        self, table: str, refs: dict[str, int], tags: tuple[str, ...], snapshots: tuple[int, ...]
    ) -> None:
        """Drop tags and snapshots, while the table has exactly the references `refs`."""

        def change(builder: Any) -> Any:
            for name in tags:
                builder = builder.removeRef(name)
            ids = self._api.jvm.java.util.HashSet()
            for snapshot_id in snapshots:
                ids.add(self._api.jvm.java.lang.Long.valueOf(snapshot_id))
            return builder.removeSnapshots(ids)

        def require_same(base: Any) -> None:
            held = {str(name): int(ref.snapshotId()) for name, ref in base.refs().items()}
            if held != refs:
                raise TooBusy(f"{table}: its tags and branches changed", fix="try again")

        self._commit(table, "Upkeep.let_go", change, None, require_same)

    def write_clone(self, order: CloneCommit) -> None:
        """Write the metadata file of a clone, checked by Iceberg's own reader before."""
        parser = self._api.iceberg.TableMetadataParser
        with java_errors(f"writing the clone of {order.table}"):
            io = self._api.load_table(order.table).io()
            text = parser.toJson(parser.read(io, order.metadata_location))
            metadata = parser.fromJson(json.dumps(clone_metadata(json.loads(text), order)))
            with commit_window("Shadows.metadata_file"):
                parser.write(metadata, io.newOutputFile(order.file))

    def fence(self, table: str, found_uuid: str, uuid: str, properties: dict[str, str]) -> None:
        """Give the table another UUID and set properties, unless its UUID is not `found_uuid`."""

        def change(builder: Any) -> Any:
            return builder.assignUUID(uuid).setProperties(self._api.string_map(properties))

        self._commit(table, "Shadows.fence", change, found_uuid)

    def set_columns(self, table: str, found_uuid: str, columns: NewSchema) -> None:
        """Give the table other columns, unless its UUID is not `found_uuid`."""
        self._commit(table, "Shadows.evolve", lambda b: self._with_columns(b, columns), found_uuid)

    def _commit(
        self,
        table: str,
        point: str,
        change: Callable[[Any], Any],
        uuid: str | None,
        require: Callable[[Any], None] = lambda base: None,  # noqa: ARG005 (as every condition)
    ) -> None:
        operations = self._api.load_table(table).operations()
        with java_errors(f"committing to {table}"):
            base = operations.current()
            if uuid is not None and str(base.uuid()) != uuid:
                raise TooBusy(f"{table} has another UUID by now", fix="try again")
            require(base)
            metadata = change(self._api.iceberg.TableMetadata.buildFrom(base)).build()
            with commit_window(point):
                operations.commit(base, metadata)

    def _swap_metadata(self, base: Any, snapshot: Any, order: SwapCommit) -> Any:
        builder = self._api.iceberg.TableMetadata.buildFrom(base)
        if order.columns is not None:
            builder = self._with_columns(builder, order.columns)
        builder = builder.setBranchSnapshot(snapshot, "main")
        tags = dict(order.tags)
        if order.after is not None:
            tags[order.after] = int(snapshot.snapshotId())
        for name, snapshot_id in tags.items():
            builder = builder.setRef(name, self._tag_reference(snapshot_id, order.tag_age_ms))
        found = builder.setProperties(self._api.string_map(order.properties)).build()
        if order.columns and int(found.currentSchemaId()) != order.columns.schema_id:
            raise TooBusy(f"{order.base.table} has other schemas by now", fix="try again")
        return found

    def _with_columns(self, builder: Any, columns: NewSchema) -> Any:
        """A schema that the table had before is used again, under its old number."""
        schema = self._api.iceberg.SchemaParser.fromJson(columns.schema)
        return builder.setCurrentSchema(schema, columns.last_column_id)

    def _tag_reference(self, snapshot_id: int, max_age_ms: int) -> Any:
        ref = self._api.iceberg.SnapshotRef
        return ref.tagBuilder(snapshot_id).maxRefAgeMs(max_age_ms).build()


def _require_as_inspected(metadata: Any, wanted: InspectedState) -> None:
    head = metadata.currentSnapshot()
    found = InspectedState(
        table=wanted.table,
        uuid=str(metadata.uuid()),
        head_id=None if head is None else int(head.snapshotId()),
        schema_id=int(metadata.currentSchemaId()),
        spec_id=int(metadata.defaultSpecId()),
        last_column_id=int(metadata.lastColumnId()),
    )
    if found != wanted:
        raise TooBusy(f"{wanted.table} moved since it was inspected", fix="try again")
