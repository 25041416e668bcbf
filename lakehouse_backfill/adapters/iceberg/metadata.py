"""A table's state and history from its metadata, and the names of our properties and tags.

One view of a catalog for a command that only reads: each table is loaded once.

A view is open while a plan is worked out. Conditional commits never decide by it: they load the
head that they replace, and what the view holds of that table is dropped.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import ValidationError as PydanticError
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.types import NestedField, PrimitiveType, StructType

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.tables.commits import ChunkCommit
from lakehouse_backfill.domain.tables.table import Column, PartitionField, Snapshot, TableInfo
from lakehouse_backfill.errors import NotFound, Unsupported

PROPERTY_PREFIX = "lakehouse-backfill."
#: Prefix of the names of our tags.
TAG_PREFIX = "lhb-"
#: The publication token: in the snapshot's summary and in the table's properties.
PUBLICATION_PROPERTY = PROPERTY_PREFIX + "publication"
RUN_ID_PROPERTY = PROPERTY_PREFIX + "run-id"
LANDING_PROPERTY = PROPERTY_PREFIX + "landing-id"
#: On a raw table: the state of its newest landing.
LANDING_STATE_PROPERTY = PROPERTY_PREFIX + "landing"
LANDING_SOURCE_PROPERTY = PROPERTY_PREFIX + "landing-source"
LANDING_POSITION_PROPERTY = PROPERTY_PREFIX + "landing-position"
CHUNK_ID_PROPERTY = PROPERTY_PREFIX + "chunk-id"
#: The number of attempts of a swap, in its summary.
ATTEMPTS_PROPERTY = PROPERTY_PREFIX + "attempts"
#: On a shadow: the table and snapshot that it was cloned from.
BASE_SNAPSHOT_PROPERTY = PROPERTY_PREFIX + "base-snapshot-id"
TARGET_PROPERTY = PROPERTY_PREFIX + "target"
TARGET_UUID_PROPERTY = PROPERTY_PREFIX + "target-uuid"
#: On a built shadow: why it was not registered, and a mark while it does not hold the base yet.
BUILT_BECAUSE_PROPERTY = PROPERTY_PREFIX + "built-because"
BEING_BUILT_PROPERTY = PROPERTY_PREFIX + "being-built"
#: On a built shadow: whether a drop deletes files in this catalog, and a mark once it is retired.
DROP_DELETES_PROPERTY = PROPERTY_PREFIX + "built-drop-deletes"
RETIRED_PROPERTY = PROPERTY_PREFIX + "retired"
#: On a shadow: the epoch of the lease that may write, and the UUID that the fence assigned.
EPOCH_PROPERTY = PROPERTY_PREFIX + "epoch"
FENCE_UUID_PROPERTY = PROPERTY_PREFIX + "fence-uuid"

#: On the namespace of shadows: what `doctor` found of the catalog.
CAPABILITIES_PROPERTY = PROPERTY_PREFIX + "capabilities"

#: A tag without an age expires by `history.expire.max-ref-age-ms`, counted from its snapshot's
#: timestamp. So only an explicit age that never passes makes a pin.
NEVER_EXPIRES_MS = 2**63 - 1


#: Field id -> (name, type, required): how data files are read.
ColumnIds = dict[int, tuple[str, str, bool]]


#: The newest table format that is read and written: the one place that refuses others.
NEWEST_FORMAT = 3
_UNKNOWN_TYPE = re.compile(r"Unsupported field type: '([^']*)'")


def require_known_format(error: Exception, table: str = "the table") -> None:
    """Raise Unsupported when table metadata is of a format, or has a type, that no reader knows.

    `error` is what PyIceberg raised on the metadata: of a file, or in the answer of a REST server.
    """
    parsing = error if isinstance(error, PydanticError) else error.__cause__
    if not isinstance(parsing, PydanticError):
        return
    for fault in parsing.errors(include_url=False, include_input=False):
        if fault["type"] == "union_tag_invalid" and "format" in str(fault.get("ctx")):
            raise unknown_format_error(table, fault["ctx"]["tag"]) from error
        if unknown := _UNKNOWN_TYPE.search(fault["msg"]):
            raise Unsupported(
                f"{table} has a column of type {unknown[1]}, which PyIceberg does not read",
                fix="keep such columns in a table of their own",
            ) from error


def unknown_format_error(table: str, version: Any) -> Unsupported:
    """Build the error for a table of a newer format than is understood."""
    return Unsupported(
        f"{table} is of format version {version}: relative paths and other parts of formats after "
        f"{NEWEST_FORMAT} are not understood",
        fix=f"keep the table in format {NEWEST_FORMAT} or older",
    )


def describe_table(name: str, table: Table) -> TableInfo:
    """Return the current state of the table from its metadata."""
    metadata, schema, spec = table.metadata, table.schema(), table.spec()
    return TableInfo(
        table=name,
        uuid=str(metadata.table_uuid),
        location=metadata.location,
        format_version=metadata.format_version,
        snapshot_id=metadata.current_snapshot_id,
        schema_id=metadata.current_schema_id,
        spec_id=metadata.default_spec_id,
        columns=describe_columns(schema),
        partitioning=tuple(_describe_field(schema, field) for field in spec.fields),
        spec_count=len(metadata.partition_specs),
        properties=dict(metadata.properties),
        refs={ref: value.snapshot_id for ref, value in metadata.refs.items()},
    )


def _describe_field(schema: Schema, field: IcebergField) -> PartitionField:
    path = _path_to(schema.fields, field.source_id)
    more = {}
    if len(path) > 1:
        kind = schema.find_field(field.source_id).field_type
        more = {"path": path, "type": str(kind)}
    return PartitionField(
        name=field.name,
        column=schema.find_column_name(field.source_id) or f"#{field.source_id}",
        transform=str(field.transform),
        **more,
    )


def _path_to(fields: Iterable[NestedField], field_id: int) -> tuple[str, ...]:
    """Return the names that lead to a field through structs; empty for one of a list or map."""
    for field in fields:
        if field.field_id == field_id:
            return (field.name,)
        inner = field.field_type
        if isinstance(inner, StructType) and (rest := _path_to(inner.fields, field_id)):
            return (field.name, *rest)
    return ()


def describe_columns(schema: Schema) -> tuple[Column, ...]:
    """Return the domain values of a schema's top-level columns."""
    return tuple(
        Column(
            field_id=field.field_id,
            name=field.name,
            type=str(field.field_type),
            required=field.required,
            doc=field.doc,
        )
        for field in schema.fields
    )


def describe_snapshot(metadata: TableMetadata, snapshot: IcebergSnapshot) -> Snapshot:
    """Return the domain value of a snapshot."""
    schema = schema_of_snapshot(metadata, snapshot)
    return Snapshot(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        committed_at_ms=snapshot.timestamp_ms,
        operation=snapshot_operation(snapshot),
        summary=snapshot_summary(snapshot),
        schema_id=schema.schema_id,
        columns=describe_columns(schema),
    )


def snapshot_operation(snapshot: IcebergSnapshot) -> str:
    """Return the snapshot's operation; `unknown` for snapshots of v1 writers without one."""
    return snapshot.summary.operation.value if snapshot.summary else "unknown"


def snapshot_summary(snapshot: IcebergSnapshot) -> dict[str, str]:
    """Return the snapshot's summary without the operation."""
    if snapshot.summary is None:
        return {}
    return {key: str(text) for key, text in snapshot.summary.additional_properties.items()}


def is_publication(snapshot: IcebergSnapshot) -> bool:
    """Return whether a publication or a rollback of ours made the commit."""
    return PUBLICATION_PROPERTY in snapshot_summary(snapshot)


def describe_writer(snapshot: IcebergSnapshot) -> str:
    """Return the name of the run or the engine that made the commit."""
    summary = snapshot_summary(snapshot)
    if RUN_ID_PROPERTY in summary:
        return f"run {summary[RUN_ID_PROPERTY]}"
    if PUBLICATION_PROPERTY in summary:
        return "a rollback of this toolkit"
    if LANDING_PROPERTY in summary:
        return f"landing {summary[LANDING_PROPERTY]}"
    application = writing_application(snapshot)
    engine = summary.get("engine-name") or ("spark" if "spark.app.id" in summary else "")
    return " ".join(part for part in (engine, application) if part) or "an unnamed writer"


def writing_application(snapshot: IcebergSnapshot) -> str:
    """Return the id of the engine's application that made the commit; empty if it names none."""
    summary = snapshot_summary(snapshot)
    return summary.get("app-id") or summary.get("spark.app.id") or ""


def snapshot_ancestors(
    metadata: TableMetadata, snapshot_id: int | None
) -> Iterator[IcebergSnapshot]:
    """Yield the snapshot and its known ancestors, newest first."""
    # snapshot_by_id searches a list, which is quadratic over a long history.
    snapshots_by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while snapshot_id is not None and snapshot_id in snapshots_by_id:
        snapshot = snapshots_by_id[snapshot_id]
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def fenced_epoch(name: str, metadata: TableMetadata, epoch: int, fix: str = "") -> int:
    """Return the epoch that a shadow is fenced with.

    Raises RunMoved when it is later than `epoch`, Unsupported when the table is no shadow.
    """
    properties = metadata.properties
    if BASE_SNAPSHOT_PROPERTY not in properties:
        raise Unsupported(f"{name} is not a shadow of ours", fix=fix)
    current = int(properties.get(EPOCH_PROPERTY, "0"))
    if current > epoch:
        raise event_log.overtaken_error(properties.get(RUN_ID_PROPERTY, name), epoch, current)
    return current


def chunk_commits(metadata: TableMetadata) -> Iterator[ChunkCommit]:
    """Yield the chunks committed to a shadow since its base, newest first."""
    base = metadata.properties.get(BASE_SNAPSHOT_PROPERTY)
    for snapshot in snapshot_ancestors(metadata, metadata.current_snapshot_id):
        if str(snapshot.snapshot_id) == base:
            return
        summary = snapshot_summary(snapshot)
        if CHUNK_ID_PROPERTY in summary:
            yield ChunkCommit(
                chunk_id=summary[CHUNK_ID_PROPERTY],
                snapshot_id=snapshot.snapshot_id,
                added_rows=int(summary.get("added-records", "0")),
                properties={k: v for k, v in summary.items() if k.startswith(PROPERTY_PREFIX)},
            )


def may_drop_delete_files(properties: Mapping[str, str]) -> bool:
    """Return whether a drop of the shadow may delete files.

    It may where a probe recorded it, and where a built shadow has no record of a probe.
    """
    recorded = properties.get(DROP_DELETES_PROPERTY)
    return recorded == "yes" or (BUILT_BECAUSE_PROPERTY in properties and recorded != "no")


def chunk_bytes_written(metadata: TableMetadata) -> int:
    """Return how many bytes the chunks committed to a shadow have added."""
    summaries = map(snapshot_summary, metadata.snapshots)
    return sum(int(s.get("added-files-size", "0")) for s in summaries if CHUNK_ID_PROPERTY in s)


def find_snapshot(metadata: TableMetadata, snapshot_id: int, name: str) -> IcebergSnapshot:
    """Return the snapshot; raises NotFound when the table does not have that id."""
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise NotFound(
            f"{name} has no snapshot {snapshot_id}: it never had, or it has expired",
            fix="name one that exists; lakehouse-backfill versions PRODUCT lists the accepted ones",
        )
    return snapshot


def schema_of_snapshot(metadata: TableMetadata, snapshot: IcebergSnapshot) -> Schema:
    """Return the columns that a snapshot is read with."""
    # v1 writers leave the id out; readers then use the table's current schema.
    schema_id = snapshot.schema_id
    return next((s for s in metadata.schemas if s.schema_id == schema_id), metadata.schema())


def find_publication_snapshot(metadata: TableMetadata, token: str) -> IcebergSnapshot | None:
    """Return the snapshot that publication `token` committed, unless main no longer contains it.

    The publication's tag keeps a snapshot even after main was set back to before it.
    """
    for snapshot in reversed(metadata.snapshots):
        if snapshot_summary(snapshot).get(PUBLICATION_PROPERTY) == token:
            return snapshot if _is_on_main(metadata, snapshot) else None
    return None


def _is_on_main(metadata: TableMetadata, wanted: IcebergSnapshot) -> bool:
    """Return whether main leads to the snapshot, also where history in between has expired.

    After an expiry some engines leave a parent id without a snapshot; PyIceberg removes it. A tag
    of ours is then the proof: the commit that put the snapshot on main set the tag.
    """
    if metadata.current_snapshot_id is None:
        return False
    for snapshot in snapshot_ancestors(metadata, metadata.current_snapshot_id):
        if snapshot.snapshot_id == wanted.snapshot_id:
            return True
        if (snapshot.sequence_number or 0) < (wanted.sequence_number or 0):
            return False
    return is_tagged(metadata, wanted.snapshot_id) and not _was_rolled_back(metadata, wanted)


def tagged_snapshots(metadata: TableMetadata, prefix: str = "") -> dict[str, int]:
    """Return the snapshot ids of the tags whose names begin with the prefix."""
    return {
        name: ref.snapshot_id
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type == SnapshotRefType.TAG and name.startswith(prefix)
    }


def is_tagged(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Return whether a tag of ours holds the snapshot."""
    return snapshot_id in tagged_snapshots(metadata, TAG_PREFIX).values()


def _was_rolled_back(metadata: TableMetadata, wanted: IcebergSnapshot) -> bool:
    """Return whether main was set back to before the snapshot, according to its log."""
    log = [entry.snapshot_id for entry in metadata.snapshot_log]
    if wanted.snapshot_id not in log:
        return False
    last = len(log) - 1 - log[::-1].index(wanted.snapshot_id)
    return not set(log[:last]).isdisjoint(log[last + 1 :])


def column_ids(schema: Schema) -> ColumnIds:
    """Return how data files are read: ids, names, types; nested fields included."""
    fields: ColumnIds = {}
    for field_id in sorted(schema.field_ids):
        field = schema.find_field(field_id)
        # A nested type's text contains the docs of its fields, which do not affect reading.
        kind = field.field_type
        text = str(kind) if isinstance(kind, PrimitiveType) else type(kind).__name__
        fields[field_id] = (schema.find_column_name(field_id) or field.name, text, field.required)
    return fields


def has_live_files(manifest: ManifestFile) -> bool:
    """Return whether the manifest lists at least one live file."""
    return manifest.has_added_files() or manifest.has_existing_files()


def refuse_unwritable_format(name: str, metadata: TableMetadata) -> None:
    """Raise Unsupported for table formats that cannot be written safely."""
    if metadata.format_version > 2:
        raise Unsupported(
            f"{name} has table format v{metadata.format_version}: its deletion vectors and row "
            "lineage cannot be written by this build",
            fix="use a table of format v1 or v2",
        )


T = TypeVar("T")
#: The metadata of a table with a long history takes tens of megabytes.
_MAX_TABLES, _MAX_MANIFESTS, _MAX_FACTS = 32, 256, 256
#: Entries of larger manifests are read again: a few of them would fill the memory.
_MAX_ENTRIES = 200


class _Kept:
    """The newest things that were loaded, by name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loaded: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, name: Hashable, load: Callable[[], T]) -> T:
        """Return what was loaded under this name before, else load it; errors are not kept."""
        if name in self._loaded:
            self._loaded.move_to_end(name)
            known: T = self._loaded[name]
            return known
        return self.keep(name, load())

    def find(self, name: Hashable) -> Any:
        """Return what is kept under this name, else None."""
        return self.get(name, lambda: None) if name in self._loaded else None

    def keep(self, name: Hashable, found: T) -> T:
        """Keep what was loaded, and return it."""
        self._loaded[name] = found
        while len(self._loaded) > self._limit:
            self._loaded.popitem(last=False)
        return found

    def __contains__(self, name: Hashable) -> bool:
        return name in self._loaded

    def drop(self, name: Hashable) -> None:
        """Forget what was loaded under this name."""
        self._loaded.pop(name, None)


class ReadView:
    """What was loaded since the view was opened; the least recently used goes first."""

    def __init__(self) -> None:
        self.tables = _Kept(_MAX_TABLES)
        self.control_tables = _Kept(_MAX_TABLES)
        #: Manifest lists and manifests never change.
        self.manifests = _Kept(_MAX_MANIFESTS)
        #: Whether a manifest may list files of a scope: by table state, scope and spec.
        self.evaluators = _Kept(_MAX_TABLES)
        #: Small values that follow from the metadata of one state of a table.
        self.facts = _Kept(_MAX_FACTS)


_OPEN: WeakKeyDictionary[Catalog, ReadView] = WeakKeyDictionary()


@contextmanager
def one_view(catalog: Catalog) -> Iterator[None]:
    """Load each table once until the block ends; inside another view nothing changes.

    For code that commits to no table but control tables: other commits of the same command are not
    seen in it.
    """
    if catalog in _OPEN:
        yield
        return
    _OPEN[catalog] = ReadView()
    try:
        yield
    finally:
        del _OPEN[catalog]


def view_of(catalog: Catalog) -> ReadView | None:
    """Return the open view of the catalog, or None."""
    return _OPEN.get(catalog) if _OPEN else None


def known_entries(
    table: Table, manifest: ManifestFile, read: Callable[[], list[ManifestEntry]]
) -> list[ManifestEntry]:
    """Return the entries of a manifest; those of a small one are read once in a view."""
    view = view_of(table.catalog)
    counts = (manifest.added_files_count, manifest.existing_files_count)
    if view is None or None in counts or sum(filter(None, counts)) > _MAX_ENTRIES:
        return read()
    return view.manifests.get(manifest.manifest_path, read)


def has_known_entries(table: Table, manifest: ManifestFile) -> bool:
    """Return whether the entries of a manifest are in the open view of the catalog."""
    view = view_of(table.catalog)
    return view is not None and manifest.manifest_path in view.manifests
