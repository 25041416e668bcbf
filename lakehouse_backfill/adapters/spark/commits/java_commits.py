"""Commits through Iceberg's Java API: the way for tables that PyIceberg cannot write.

Each is one conditional commit on the state that was inspected: `TableOperations.commit` takes the
metadata it was made from, and fails when the table is any other by now. Iceberg's own retry would
come between the inspection and the commit, so it is not used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi, java_errors
from lakehouse_backfill.adapters.spark.commits.java_swap import JavaSwap
from lakehouse_backfill.core.planning.cloning import clone_metadata
from lakehouse_backfill.domain.table_commit import (
    CloneCommit,
    InspectedState,
    NewSchema,
    SwapCommit,
)
from lakehouse_backfill.errors import TooBusy
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.table_commits import TableCommitter


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
        if self._swap is None or not self._swap.is_for(order):
            self._swap = JavaSwap(self._api, order)
        with java_errors(f"preparing a commit on {order.base.table}"):
            self._swap.refresh()
            _require_as_inspected(self._swap.operations.current(), order.base)
            snapshot = self._swap.snapshot(order)
            base = self._swap.operations.current()
            _require_as_inspected(base, order.base)
            return PreparedCommit(
                table=order.base.table,
                operations=self._swap.operations,
                base=base,
                metadata=self._metadata(base, snapshot, order),
            )

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        """Set the tag, or drop it (None)."""

        def change(builder: Any) -> Any:
            if snapshot_id is None:
                return builder.removeRef(name)
            return builder.setRef(name, self._tag(snapshot_id, max_age_ms))

        self._commit(table, "Pins.tag", change, None)

    def take_out(
        self, table: str, refs: dict[str, int], tags: tuple[str, ...], snapshots: tuple[int, ...]
    ) -> None:
        """Drop tags and snapshots, while the table has exactly the references `refs`."""

        def change(builder: Any) -> Any:
            for name in tags:
                builder = builder.removeRef(name)
            ids = self._api.java.java.util.HashSet()
            for snapshot_id in snapshots:
                ids.add(self._api.java.java.lang.Long.valueOf(snapshot_id))
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
            io = self._api.load(order.table).io()
            text = parser.toJson(parser.read(io, order.metadata_location))
            metadata = parser.fromJson(json.dumps(clone_metadata(json.loads(text), order)))
            with commit_window("Shadows.metadata_file"):
                parser.write(metadata, io.newOutputFile(order.file))

    def fence(self, table: str, found_uuid: str, uuid: str, properties: dict[str, str]) -> None:
        """Give the table another UUID and set properties, unless its UUID is not `found_uuid`."""

        def change(builder: Any) -> Any:
            return builder.assignUUID(uuid).setProperties(self._api.text_map(properties))

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
        operations = self._api.load(table).operations()
        with java_errors(f"committing to {table}"):
            base = operations.current()
            if uuid is not None and str(base.uuid()) != uuid:
                raise TooBusy(f"{table} has another UUID by now", fix="try again")
            require(base)
            metadata = change(self._api.iceberg.TableMetadata.buildFrom(base)).build()
            with commit_window(point):
                operations.commit(base, metadata)

    def _metadata(self, base: Any, snapshot: Any, order: SwapCommit) -> Any:
        builder = self._api.iceberg.TableMetadata.buildFrom(base)
        if order.columns is not None:
            builder = self._with_columns(builder, order.columns)
        builder = builder.setBranchSnapshot(snapshot, "main")
        tags = dict(order.tags)
        if order.after is not None:
            tags[order.after] = int(snapshot.snapshotId())
        for name, snapshot_id in tags.items():
            builder = builder.setRef(name, self._tag(snapshot_id, order.tag_age_ms))
        found = builder.setProperties(self._api.text_map(order.properties)).build()
        if order.columns and int(found.currentSchemaId()) != order.columns.schema_id:
            raise TooBusy(f"{order.base.table} has other schemas by now", fix="try again")
        return found

    def _with_columns(self, builder: Any, columns: NewSchema) -> Any:
        """A schema that the table had before is used again, under its old number."""
        schema = self._api.iceberg.SchemaParser.fromJson(columns.schema)
        return builder.setCurrentSchema(schema, columns.last_column_id)

    def _tag(self, snapshot_id: int, max_age_ms: int) -> Any:
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
