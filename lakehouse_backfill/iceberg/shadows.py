"""Zero-copy clones that runs write into."""

from __future__ import annotations

import uuid

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.errors import Conflict, NotFound, Unsupported
from lakehouse_backfill.fault_points import around
from lakehouse_backfill.iceberg.catalog import load, translated
from lakehouse_backfill.iceberg.metadata import (
    ancestors,
    info_of,
    refuse_deletes,
    refuse_format,
    snapshot_in,
    summary_of,
)
from lakehouse_backfill.iceberg.names import (
    BASE_SNAPSHOT_ID,
    CHUNK_ID,
    EPOCH,
    PREFIX,
    PUBLICATION,
    TARGET,
    TARGET_UUID,
)
from lakehouse_backfill.iceberg.patience import until_committed
from lakehouse_backfill.iceberg.shadow_fence import set_fence
from lakehouse_backfill.model.publication import ChunkCommit
from lakehouse_backfill.model.table import TableInfo
from lakehouse_backfill.ports.lake import Shadows

_CLONE = {
    # Expiry or a purge of the shadow would delete files that the target lists.
    "gc.enabled": "false",
    # With the default of 4, parallel chunks lose commits.
    "commit.retry.num-retries": "30",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}
#: They would put the shadow's files into the target's folders.
_PLACES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


class IcebergShadows(Shadows):
    """Clones in one namespace of the target's catalog."""

    def __init__(self, catalog: Catalog, shadow_namespace: str) -> None:
        self._catalog = catalog
        self._namespace = shadow_namespace

    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone `target` at the snapshot as table `shadow` by one metadata file, and verify it.

        A crash before the registration leaves a stray metadata file and nothing else. Raises
        Unsupported when the table or the catalog cannot be cloned, Conflict when another run's
        table has the name.
        """
        self._refuse_name(shadow)
        source = load(self._catalog, target)
        marks = {
            **properties,
            BASE_SNAPSHOT_ID: "none" if snapshot_id is None else str(snapshot_id),
            TARGET: target,
            TARGET_UUID: str(source.metadata.table_uuid),
        }
        existing = self._existing(shadow, marks)
        if existing is None:
            existing = self._clone(source, snapshot_id, shadow, marks)
        return info_of(shadow, existing)

    def fence(self, shadow: str, epoch: int) -> None:
        """Let only writers of `epoch` and later commit to the shadow from now on; one commit.

        The table gets a new UUID, and every commit states the UUID that its writer loaded. The
        same epoch again does nothing. Raises RunMoved when a later epoch has fenced the shadow,
        Unsupported when the catalog does not change the UUID.
        """
        self._refuse_name(shadow)
        until_committed(lambda: set_fence(self._catalog, shadow, epoch), f"fence of {shadow}")

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the shadow, oldest first, from its snapshot log."""
        metadata = load(self._catalog, shadow).metadata
        base = metadata.properties.get(BASE_SNAPSHOT_ID)
        found = []
        for snapshot in ancestors(metadata, metadata.current_snapshot_id):
            if str(snapshot.snapshot_id) == base:
                break
            summary = summary_of(snapshot)
            if CHUNK_ID in summary:
                found.append(
                    ChunkCommit(
                        chunk_id=summary[CHUNK_ID],
                        snapshot_id=snapshot.snapshot_id,
                        added_rows=int(summary.get("added-records", "0")),
                        properties={k: v for k, v in summary.items() if k.startswith(PREFIX)},
                    )
                )
        return tuple(reversed(found))

    def retire(self, shadow: str) -> None:
        """Drop the shadow from the catalog; its files stay, as the target may list them."""
        self._refuse_name(shadow)
        try:
            properties = load(self._catalog, shadow).metadata.properties
        except NotFound:
            return
        if BASE_SNAPSHOT_ID not in properties:
            raise Unsupported(f"{shadow} is not a shadow of ours", fix="drop it yourself")
        try:
            with translated(), around("Shadows.drop"):
                self._catalog.drop_table(shadow)
        except NotFound:
            return

    def _refuse_name(self, shadow: str) -> None:
        if shadow.rpartition(".")[0] != self._namespace:
            raise Unsupported(
                f"{shadow} lies outside the namespace of shadows",
                fix=f"use {self._namespace}.NAME",
            )

    def _existing(self, shadow: str, marks: dict[str, str]) -> Table | None:
        try:
            found = load(self._catalog, shadow)
        except NotFound as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            return None
        held = found.metadata.properties
        other = {key: held.get(key) for key in marks if held.get(key) != marks[key]}
        if other:
            raise Conflict(
                f"{shadow} is already there, for something else: "
                + ", ".join(f"{key} is {text}" for key, text in sorted(other.items())),
                fix=f"retire it first, or use another name than {shadow}",
            )
        return found

    def _clone(
        self, source: Table, snapshot_id: int | None, shadow: str, marks: dict[str, str]
    ) -> Table:
        refuse_format(marks[TARGET], source.metadata)
        with translated():
            if snapshot_id is not None:
                base = snapshot_in(source.metadata, snapshot_id, marks[TARGET])
                refuse_deletes(marks[TARGET], base.manifests(source.io))
            with around("Catalog.create_namespace"):
                self._catalog.create_namespace_if_not_exists(self._namespace)
            location = self._location(source, shadow)
            wanted = clone_metadata(source.metadata, snapshot_id, location, marks)
            provider = load_location_provider(location, wanted.properties)
            file = provider.new_table_metadata_file_location()
            with around("Shadows.metadata_file"):
                ToOutputFile.table_metadata(wanted, source.io.new_output(file))
            try:
                with around("Shadows.register"):
                    self._catalog.register_table(shadow, file)
            except TableAlreadyExistsError:
                return self._existing(shadow, marks) or load(self._catalog, shadow)
            return self._verified(shadow, wanted)

    def _verified(self, shadow: str, wanted: TableMetadata) -> Table:
        """Compare what the catalog kept with what was registered.

        SeaweedFS's REST catalog answers 200 and gives an empty table: an adopt from that would
        delete the target's partitions.
        """
        kept = self._catalog.load_table(shadow)
        if EPOCH in kept.metadata.properties:
            # Another process found it, and drives the run by now: it is not ours to drop.
            return kept
        differing = [
            part
            for part, value in _identity(wanted).items()
            if _identity(kept.metadata)[part] != value
        ]
        if differing:
            with around("Shadows.drop"):
                self._catalog.drop_table(shadow)
            raise Unsupported(
                f"the catalog did not keep {shadow} as registered: {', '.join(differing)} differ",
                fix="use a catalog whose register_table keeps the metadata",
            )
        return kept

    def _location(self, source: Table, shadow: str) -> str:
        namespace, _, name = shadow.rpartition(".")
        given = self._catalog.load_namespace_properties(namespace).get("location")
        warehouse = self._catalog.properties.get("warehouse", "")
        target = source.location().rstrip("/")
        if given:
            location = f"{given.rstrip('/')}/{name}"
        elif "://" in warehouse or warehouse.startswith(("/", "file:")):
            location = f"{warehouse.rstrip('/')}/{namespace}/{name}"
        else:
            location = f"{target.rpartition('/')[0]}/{namespace}/{name}"
        if f"{location}/".startswith(f"{target}/"):
            raise Unsupported(
                f"the shadow at {location} would lie inside its target at {target}, where "
                "orphan clean-up eats it",
                fix="give the shadow namespace a location of its own",
            )
        return location


def probe_shadow(catalog: Catalog, shadow_namespace: str) -> str:
    """Prove on a throw-away table that the catalog keeps a clone; nothing is left behind."""
    with translated():
        catalog.create_namespace_if_not_exists(shadow_namespace)
        name = f"{shadow_namespace}.probe_{uuid.uuid4().hex}"
        probe = catalog.create_table(name, Schema(NestedField(1, "id", LongType())))
        files = [probe.metadata_location]
        shadows = IcebergShadows(catalog, shadow_namespace)
        try:
            shadows.open(name, None, f"{name}_shadow", {})
            files.append(catalog.load_table(f"{name}_shadow").metadata_location)
            shadows.fence(f"{name}_shadow", 1)
            files.append(catalog.load_table(f"{name}_shadow").metadata_location)
        finally:
            shadows.retire(f"{name}_shadow")
            catalog.drop_table(name)
            for file in files:
                probe.io.delete(file)
    return "a table registered from metadata comes back as it was written, and takes a new UUID"


def clone_metadata(
    metadata: TableMetadata, snapshot_id: int | None, location: str, marks: dict[str, str]
) -> TableMetadata:
    """Give the metadata of a table that shares the snapshot's files and nothing else.

    Field ids, specs, sort orders and sequence numbers stay the target's own, so that files move
    between the two by metadata alone.
    """
    snapshots = [s for s in metadata.snapshots if s.snapshot_id == snapshot_id]
    dropped = {*_PLACES, PUBLICATION}
    inherited = {k: v for k, v in metadata.properties.items() if k not in dropped}
    return metadata.model_copy(
        update={
            "table_uuid": uuid.uuid4(),
            "location": location,
            "snapshots": snapshots,
            "snapshot_log": [],
            "metadata_log": [],
            "refs": _refs(snapshots),
            "current_snapshot_id": snapshot_id,
            "statistics": [],
            "partition_statistics": [],
            "properties": {**inherited, **_CLONE, **marks},
        }
    )


def _refs(snapshots: list[Snapshot]) -> dict[str, SnapshotRef]:
    if not snapshots:
        return {}
    main = {"snapshot-id": snapshots[0].snapshot_id, "type": SnapshotRefType.BRANCH.value}
    return {MAIN_BRANCH: SnapshotRef.model_validate(main)}


def _identity(metadata: TableMetadata) -> dict[str, object]:
    return {
        "uuid": metadata.table_uuid,
        "location": metadata.location.rstrip("/"),
        "format version": metadata.format_version,
        "schemas": (metadata.schemas, metadata.current_schema_id, metadata.last_column_id),
        "specs": (metadata.partition_specs, metadata.default_spec_id),
        "sort orders": (metadata.sort_orders, metadata.default_sort_order_id),
        "snapshot": (metadata.current_snapshot_id, [s.manifest_list for s in metadata.snapshots]),
        "sequence number": getattr(metadata, "last_sequence_number", 0),
        "properties": metadata.properties,
    }
