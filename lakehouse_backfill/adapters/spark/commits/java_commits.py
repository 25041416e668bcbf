"""Commits through Iceberg's Java API: swaps of files, clones, tags, fences and columns.

This write path serves tables that PyIceberg cannot write. Each operation is one conditional commit
on the inspected state: `TableOperations.commit` takes the metadata that the change was built from,
and fails when the table has changed since. Iceberg's own retry is not used: it would run between
the inspection and the commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from lakehouse_backfill.adapters.spark.commits.java_api import (
    JavaApi,
    closing_iterable,
    java_errors,
)
from lakehouse_backfill.core.planning.target.write_path import clone_metadata
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.tables.commits import (
    CloneCommit,
    InspectedState,
    NewSchema,
    SwapCommit,
)
from lakehouse_backfill.errors import Conflict, NotFound, TooBusy
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import TableCommitter


def delete_file_name(file: Any) -> str:
    """Return a unique name: one Puffin file has many deletion vectors, each at its offset."""
    offset = file.contentOffset()
    return str(file.location()) if offset is None else f"{file.location()}#{offset}"


def require_all_listed(found: dict[str, Any], wanted: Iterable[str], table: str) -> None:
    """Raise NotFound when a wanted file is not among the found files."""
    missing = [path for path in wanted if path not in found]
    if missing:
        raise NotFound(
            f"{len(missing)} files to swap on {table} are listed nowhere, the first is "
            f"{missing[0]}",
            fix="repeat the same command: it looks at the table first",
        )


class JavaSwap:
    """Iceberg's snapshot producer for one swap of files; attempts reuse rewritten manifests.

    Deletion vectors of removed data files are removed too, as the format requires (Iceberg spec,
    deletion vectors). Added files with a sequence number keep it, so earlier deletes still apply to
    them.
    """

    def __init__(self, api: JavaApi, order: SwapCommit) -> None:
        self._api = api
        self._order = order
        self._table = api.load_table(order.base.table)
        self._manifests_written = 0

    @property
    def operations(self) -> Any:
        """The table's operations, with its metadata at the last refresh."""
        return self._table.operations()

    def is_same_swap(self, order: SwapCommit) -> bool:
        """Return whether the order swaps the same files of the same table with the same token."""
        return _swap_identity(order) == _swap_identity(self._order)

    def refresh(self) -> None:
        """Load the newest metadata of the table."""
        self._table.refresh()

    def write_snapshot(self, order: SwapCommit) -> Any:
        """Write manifests and manifest list on the current head; they are not visible yet."""
        for key, value in order.summary.items():
            self._producer.set(key, value)
        # Readers and writers depend on a snapshot's operation. Iceberg would report an append for
        # files that are only added, and a delete for a revert; the order has the right operation.
        snapshot = json.loads(self._api.iceberg.SnapshotParser.toJson(self._producer.apply()))
        snapshot["summary"]["operation"] = order.operation
        if order.columns is not None:
            snapshot["schema-id"] = order.columns.schema_id
        self._require_file_counts(snapshot["summary"])
        return self._api.iceberg.SnapshotParser.fromJson(json.dumps(snapshot))

    @cached_property
    def _producer(self) -> Any:
        order, overwrite = self._order, self._table.newOverwrite()
        self._remove_files(overwrite)
        added_files = self._find_added_files()
        for file in order.added:
            if file.sequence_number is None:
                overwrite.addFile(added_files[file.path])
        self._readd_files(overwrite, added_files)
        return overwrite

    def _remove_files(self, overwrite: Any) -> None:
        order, table = self._order, self._order.base.table
        if order.base.head_id is None:
            return
        removed_files = self._data_files(
            self._table, order.base.head_id, order.removed, order.ranges
        )
        require_all_listed(removed_files, order.removed, table)
        names = order.removed_deletes
        removed_deletes = self._delete_files(self._table, order.base.head_id, names)
        require_all_listed(removed_deletes, names, table)
        sets = self._api.iceberg.util
        data, deletes = sets.DataFileSet.create(), sets.DeleteFileSet.create()
        for file in removed_files.values():
            data.add(file)
        for file in removed_deletes.values():
            deletes.add(file)
        overwrite.deleteFiles(data, deletes)

    def _readd_files(self, overwrite: Any, found: dict[str, Any]) -> None:
        """Add files with their old sequence numbers, in one manifest per partition spec."""
        by_spec: dict[int, list[tuple[Any, int]]] = {}
        for file in self._order.added:
            if file.sequence_number is not None:
                java_file = found[file.path]
                by_spec.setdefault(int(java_file.specId()), []).append(
                    (java_file, file.sequence_number)
                )
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
        """Find the files to add, each in the first source that lists it."""
        paths = [file.path for file in self._order.added]
        files_by_path: dict[str, Any] = {}
        for name, snapshot_id in self._order.sources:
            missing = [path for path in paths if path not in files_by_path]
            if not missing:
                break
            table = self._api.load_table(name)
            files_by_path.update(self._data_files(table, snapshot_id, missing, self._order.ranges))
        require_all_listed(files_by_path, paths, self._order.base.table)
        return files_by_path

    def _data_files(
        self, table: Any, snapshot_id: int, paths: Iterable[str], ranges: Sequence[RowRange]
    ) -> dict[str, Any]:
        """Return the data files that the snapshot lists, with all their statistics.

        The first scan prunes manifests by `ranges`. A second scan without pruning finds files
        without rows.
        """
        wanted = set(paths)
        found: dict[str, Any] = {}
        for rows in (ranges, ()):
            if wanted - found.keys():
                found.update(self._scan_data_files(table, snapshot_id, wanted, rows))
        return found

    def _delete_files(self, table: Any, snapshot_id: int, names: Iterable[str]) -> dict[str, Any]:
        """Return the delete files that the snapshot lists."""
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
                    found.update(
                        {name: file for file in files if (name := delete_file_name(file)) in wanted}
                    )
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

    def _require_file_counts(self, summary: dict[str, str]) -> None:
        """Raise Conflict, before the commit, when Iceberg's file counts differ from the order's."""
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


class JavaCommits(TableCommitter):
    """Single conditional commits, without retries, on the tables of one catalog."""

    writes_rows = False

    def __init__(self, api: JavaApi) -> None:
        self._api = api
        self._swap: JavaSwap | None = None

    def prepare(self, order: SwapCommit) -> Callable[[], None]:
        """Write the manifests of a swap; reuse those of an earlier attempt at the same swap.

        Its commit is made once; the table's retry properties do not apply.
        """
        if self._swap is None or not self._swap.is_same_swap(order):
            self._swap = JavaSwap(self._api, order)
        with java_errors(f"preparing a commit on {order.base.table}"):
            self._swap.refresh()
            _require_as_inspected(self._swap.operations.current(), order.base)
            snapshot = self._swap.write_snapshot(order)
            operations = self._swap.operations
            base = operations.current()
            _require_as_inspected(base, order.base)
            metadata = self._swap_metadata(base, snapshot, order)

        def commit() -> None:
            with java_errors(f"committing to {order.base.table}"), commit_window("Publisher.swap"):
                operations.commit(base, metadata)

        return commit

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        """Set the tag, or drop it (None)."""

        def change(builder: Any) -> Any:
            if snapshot_id is None:
                return builder.removeRef(name)
            return builder.setRef(name, self._tag_reference(snapshot_id, max_age_ms))

        self._commit(table, "Pins.tag", change, None)

    def expire(
        self, table: str, refs: dict[str, int], tags: tuple[str, ...], snapshots: tuple[int, ...]
    ) -> None:
        """Drop tags and snapshots; raise TooBusy unless the table's references equal `refs`."""

        def change(builder: Any) -> Any:
            for name in tags:
                builder = builder.removeRef(name)
            ids = self._api.jvm.java.util.HashSet()
            for snapshot_id in snapshots:
                ids.add(self._api.jvm.java.lang.Long.valueOf(snapshot_id))
            return builder.removeSnapshots(ids)

        def require_same(base: Any) -> None:
            current_refs = {str(name): int(ref.snapshotId()) for name, ref in base.refs().items()}
            if current_refs != refs:
                raise TooBusy(f"{table}: its tags and branches changed", fix="try again")

        self._commit(table, "Pins.expire", change, None, require_same)

    def write_clone(self, order: CloneCommit) -> None:
        """Write the metadata file of a clone, after Iceberg's own parser has checked it."""
        parser = self._api.iceberg.TableMetadataParser
        with java_errors(f"writing the clone of {order.table}"):
            io = self._api.load_table(order.table).io()
            text = parser.toJson(parser.read(io, order.metadata_location))
            metadata = parser.fromJson(json.dumps(clone_metadata(json.loads(text), order)))
            with commit_window("Shadows.metadata_file"):
                parser.write(metadata, io.newOutputFile(order.file))

    def fence(self, table: str, found_uuid: str, uuid: str, properties: dict[str, str]) -> None:
        """Assign a new UUID and properties; raise TooBusy unless the UUID is `found_uuid`."""

        def change(builder: Any) -> Any:
            return builder.assignUUID(uuid).setProperties(self._api.string_map(properties))

        self._commit(table, "Shadows.fence", change, found_uuid)

    def set_columns(self, table: str, found_uuid: str, columns: NewSchema) -> None:
        """Set the table's columns; raise TooBusy unless its UUID is `found_uuid`."""
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
        metadata = builder.setProperties(self._api.string_map(order.properties)).build()
        if order.columns and int(metadata.currentSchemaId()) != order.columns.schema_id:
            raise TooBusy(f"{order.base.table} has other schemas by now", fix="try again")
        return metadata

    def _with_columns(self, builder: Any, columns: NewSchema) -> Any:
        """Set the schema; one that the table had before is used again, with its old id."""
        schema = self._api.iceberg.SchemaParser.fromJson(columns.schema)
        return builder.setCurrentSchema(schema, columns.last_column_id)

    def _tag_reference(self, snapshot_id: int, max_age_ms: int) -> Any:
        ref = self._api.iceberg.SnapshotRef
        return ref.tagBuilder(snapshot_id).maxRefAgeMs(max_age_ms).build()


def _require_as_inspected(metadata: Any, wanted: InspectedState) -> None:
    head = metadata.currentSnapshot()
    current = InspectedState(
        table=wanted.table,
        uuid=str(metadata.uuid()),
        head_id=None if head is None else int(head.snapshotId()),
        schema_id=int(metadata.currentSchemaId()),
        spec_id=int(metadata.defaultSpecId()),
        last_column_id=int(metadata.lastColumnId()),
    )
    if current != wanted:
        raise TooBusy(f"{wanted.table} moved since it was inspected", fix="try again")
