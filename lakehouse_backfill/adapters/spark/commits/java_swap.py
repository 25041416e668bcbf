"""One swap of files by Iceberg's own snapshot producer, over as many attempts as it takes."""

from __future__ import annotations

import json
import uuid
from functools import cached_property
from typing import Any

from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
from lakehouse_backfill.adapters.spark.commits.java_files import JavaFileLookup, require_all_listed
from lakehouse_backfill.domain.table_commit import SwapCommit
from lakehouse_backfill.errors import Conflict


class JavaSwap:
    """The producer of one set of files out and in: it keeps the manifests that it rewrote.

    Deletion vectors of removed data files go with them, as the format asks (Iceberg spec, deletion
    vectors). Files that come in with a sequence number keep it: deletes that came before apply to
    them as they did.
    """

    def __init__(self, api: JavaApi, order: SwapCommit) -> None:
        self._api = api
        self._order = order
        self._files = JavaFileLookup(api)
        self._table = api.load(order.base.table)
        self._written = 0

    @property
    def operations(self) -> Any:
        """The table's operations: what it was at the last refresh."""
        return self._table.operations()

    def is_for(self, order: SwapCommit) -> bool:
        """Tell whether the order swaps the same files of the same table for the same act."""
        return _swap_identity(order) == _swap_identity(self._order)

    def refresh(self) -> None:
        """Load the table's newest metadata."""
        self._table.refresh()

    def snapshot(self, order: SwapCommit) -> Any:
        """Write manifests and manifest list on the head as it is now; nobody sees them yet."""
        for key, value in order.summary.items():
            self._producer.set(key, value)
        # Readers and writers judge a snapshot by its operation. One that only adds would be an
        # append, one that puts files back a delete; whoever moved partitions overwrote them.
        text = json.loads(self._api.iceberg.SnapshotParser.toJson(self._producer.apply()))
        text["summary"]["operation"] = order.operation
        if order.columns is not None:
            text["schema-id"] = order.columns.schema_id
        self._require_whole(text["summary"])
        return self._api.iceberg.SnapshotParser.fromJson(json.dumps(text))

    @cached_property
    def _producer(self) -> Any:
        order, overwrite = self._order, self._table.newOverwrite()
        self._remove(overwrite)
        found = self._entering()
        for file in order.added:
            if file.sequence_number is None:
                overwrite.addFile(found[file.path])
        self._restore(overwrite, found)
        return overwrite

    def _remove(self, overwrite: Any) -> None:
        order, table = self._order, self._order.base.table
        if order.base.head_id is None:
            return
        gone = self._files.data(self._table, order.base.head_id, order.removed, order.ranges)
        require_all_listed(gone, order.removed, table)
        names = order.removed_deletes
        hidden = self._files.deletes(self._table, order.base.head_id, names)
        require_all_listed(hidden, names, table)
        sets = self._api.iceberg.util
        data, deletes = sets.DataFileSet.create(), sets.DeleteFileSet.create()
        for file in gone.values():
            data.add(file)
        for file in hidden.values():
            deletes.add(file)
        overwrite.deleteFiles(data, deletes)

    def _restore(self, overwrite: Any, found: dict[str, Any]) -> None:
        """Add files with their old sequence numbers, in a manifest of each spec."""
        by_spec: dict[int, list[tuple[Any, int]]] = {}
        for file in self._order.added:
            if file.sequence_number is not None:
                one = found[file.path]
                by_spec.setdefault(int(one.specId()), []).append((one, file.sequence_number))
        for spec_id, files in by_spec.items():
            manifest = self._manifest(spec_id, files)
            self._api.call_protected(overwrite, "add", ("ManifestFile", manifest))

    def _manifest(self, spec_id: int, files: list[tuple[Any, int]]) -> Any:
        self._written += 1
        name = f"{uuid.uuid4()}-r{self._written}.avro"
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

    def _entering(self) -> dict[str, Any]:
        """Find the files that come in, each in the first source that lists it."""
        wanted = [file.path for file in self._order.added]
        found: dict[str, Any] = {}
        for name, snapshot_id in self._order.sources:
            missing = [path for path in wanted if path not in found]
            if not missing:
                break
            table = self._api.load(name)
            found.update(self._files.data(table, snapshot_id, missing, self._order.ranges))
        require_all_listed(found, wanted, self._order.base.table)
        return found

    def _require_whole(self, summary: dict[str, str]) -> None:
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
