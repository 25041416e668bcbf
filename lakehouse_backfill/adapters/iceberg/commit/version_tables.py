"""A table of versions: the files of all kept versions, each with version and status of its rows.

The two columns are identity partitions that no data file holds: readers take their values from the
metadata (Iceberg spec, column projection). So a publication or rollback relabels files by one
commit, and writes no row. The files are those of the versions: nothing is deleted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ResolveError, TableAlreadyExistsError
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, promote
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, PrimitiveType, StringType

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    SnapshotChange,
    SwapProducer,
    snapshot_change,
)
from lakehouse_backfill.adapters.iceberg.commit.token_commit import TokenCommit
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import is_live_entry
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache
from lakehouse_backfill.adapters.iceberg.rest.answers import is_unsupported_by_server
from lakehouse_backfill.adapters.iceberg.shadow.clone import CLONE_PROPERTIES, differing_parts
from lakehouse_backfill.adapters.iceberg.shadow.shadows import clone_location
from lakehouse_backfill.domain.labels.names import table_parts, table_text
from lakehouse_backfill.domain.publication import (
    MODE_PROPERTY,
    STATUS_COLUMN,
    VERSION_COLUMN,
    LabelledVersion,
    VersionLabels,
    VersionStatus,
)
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window

#: On the table: the product whose versions it holds.
_PRODUCT_PROPERTY: Final = f"{meta.PROPERTY_PREFIX}versions-of"
#: In the summary of each snapshot: how many acts of the product it shows.
_ACTS_PROPERTY: Final = f"{meta.PROPERTY_PREFIX}acts"
#: Ids far from those that engines give to new columns and partition fields.
_COLUMN_IDS: Final = {VERSION_COLUMN: 2_000_000_001, STATUS_COLUMN: 2_000_000_002}
_FIELD_IDS: Final = {VERSION_COLUMN: 900_001, STATUS_COLUMN: 900_002}
_FIELDS_OF_DATA_FILES, _PARTITION, _SORT_ORDER = 16, 3, 15
_TABLE_FORMAT: Final = 2
#: The parts of a table's identity that the commit of labels changes.
_LABELLED: Final = ("schemas", "snapshot", "sequence number", "properties")
_KEPT = "the table of versions is as it was"
Label = tuple[int, VersionStatus]


@dataclass(frozen=True)
class IcebergVersionTables:
    """`ports.tables.VersionTables` on PyIceberg."""

    catalog: Catalog
    budget_s: float = catalogs.COMMIT_BUDGET_S

    def require_fit(self, source: str, snapshot_id: int | None) -> None:
        """Raise Unsupported unless the files of a version can be listed with their labels."""
        table = catalogs.load_table(self.catalog, source)
        _wanted_metadata(table, "", source, "")
        if snapshot_id is not None:
            _version_files(source, table, snapshot_id, ManifestCache())

    def open(self, name: str, product: str, source: str) -> None:
        """Make the empty table unless it is there; raises Conflict where it is something else."""
        table = catalogs.load_table(self.catalog, source)
        held = catalogs.load_table_or_none(self.catalog, name)
        if held is None:
            held = self._create(name, product, table)
        _require_own(name, product, held)
        _schema_after(name, held, source, table)
        for spec in table.specs().values():
            _require_same_partitioning(name, held, source, spec)

    def show(self, labels: VersionLabels) -> None:
        """Make the rows say what `labels` says, by one commit; later acts are never taken back.

        Raises Conflict when somebody else wrote to the table, TooBusy, OutcomeUnknown.
        """
        cache = ManifestCache()
        producer = SwapProducer(cache)
        token = digest(labels)

        def prepare(table: Table, number: int) -> Callable[[], Snapshot]:
            with catalogs.translate_errors():
                head = self._head(table, labels)
                if head is not None and _acts(head) >= labels.acts:
                    return lambda: head
                change = self._change(table, head, labels, cache)
                marks = {
                    _ACTS_PROPERTY: str(labels.acts),
                    meta.PUBLICATION_PROPERTY: token,
                    f"{meta.PROPERTY_PREFIX}accepted-version": str(labels.accepted.version),
                    MODE_PROPERTY: labels.mode,
                }
                snapshot = producer.write_snapshot(table, change, marks, number)

            def land() -> Snapshot:
                snapshot_change(table, snapshot, {}, token, change.schema).land()
                return snapshot

            return land

        TokenCommit(
            self.catalog,
            labels.table,
            token,
            action="relabelling of",
            state=_KEPT,
            busy_fix="repeat the command",
            unknown_state=f"{labels.table} says either what it said or what it has to; no file was "
            "deleted",
        ).run(prepare, self.budget_s)

    def fault(self, labels: VersionLabels) -> str:
        """Return how the table differs from what it has to say; empty: it does not.

        Manifests are read, no row.
        """
        table = catalogs.load_table_or_none(self.catalog, labels.table)
        if table is None:
            return f"{labels.table} does not exist"
        with catalogs.translate_errors():
            cache = ManifestCache()
            try:
                head = self._head(table, labels)
            except Conflict as error:
                return error.problem
            held = {path: _label(one) for path, one in _held_files(table, head, cache).items()}
            wanted = self._labels(table, head, labels, cache)
        differing = sorted(
            path for path in held.keys() | wanted.keys() if held.get(path) != wanted.get(path)
        )
        if not differing:
            return ""
        first = differing[0]
        return (
            f"{len(differing)} files of {labels.table} are not labelled as the pointer says, e.g. "
            f"{first}: {held.get(first, 'not listed')}, not {wanted.get(first, 'listed')}"
        )

    @staticmethod
    def _head(table: Table, labels: VersionLabels) -> Snapshot | None:
        """Return the head; raises Conflict where it is none of ours."""
        _require_own(labels.table, labels.product, table)
        head = table.metadata.snapshot_by_name(MAIN_BRANCH)
        if head is not None and _ACTS_PROPERTY not in meta.snapshot_summary(head):
            raise Conflict(
                f"{labels.table} was written by somebody else: snapshot {head.snapshot_id} by "
                f"{meta.describe_writer(head)}",
                state=_KEPT,
                fix="set it back: CALL system.rollback_to_snapshot; then repeat the command",
            )
        return head

    def _change(
        self, table: Table, head: Snapshot | None, labels: VersionLabels, cache: ManifestCache
    ) -> SnapshotChange:
        wanted = self._labels(table, head, labels, cache)
        held = _held_files(table, head, cache)
        files = {
            path: file
            for one in labels.versions
            for path, file in self._files(one, cache).items()
            if path in wanted
        }
        added = {
            path: _labelled_entry(files[path], label)
            for path, label in wanted.items()
            if path not in held or _label(held[path]) != label
        }
        source = catalogs.load_table(self.catalog, labels.accepted.table)
        for spec_id in {entry.data_file.spec_id for entry in added.values()}:
            if spec_id not in table.specs():
                raise _partitioning_error(labels.table, labels.accepted.table)
        return SnapshotChange(
            head,
            tuple(cache.manifests(table.io, head)),
            {path: one for path, one in held.items() if path not in wanted or path in added},
            added,
            schema=_schema_after(labels.table, table, labels.accepted.table, source),
        )

    def _labels(
        self, table: Table, head: Snapshot | None, labels: VersionLabels, cache: ManifestCache
    ) -> dict[str, Label]:
        """Return the label of each file of the kept versions.

        A file that was labelled before its first version was let go keeps that number.
        """
        accepted = self._files(labels.accepted, cache).keys()
        before = {
            path: number
            for path, one in _held_files(table, head, cache).items()
            if (number := _label(one)[0]) in labels.let_go
        }
        found: dict[str, Label] = {}
        for one in labels.versions:
            for path in self._files(one, cache):
                if path not in found:
                    status: VersionStatus = "accepted" if path in accepted else one.status
                    found[path] = (before.get(path, one.version), status)
        return found

    def _files(self, one: LabelledVersion, cache: ManifestCache) -> dict[str, DataFile]:
        def read() -> dict[str, DataFile]:
            table = catalogs.load_table(self.catalog, one.table)
            return _version_files(one.table, table, one.snapshot_id, cache)

        return cache.derive(("version", one.table, one.snapshot_id), read)

    def _create(self, name: str, product: str, source: Table) -> Table:
        """Register an empty table with the columns and partitionings of a version."""
        with catalogs.translate_errors():
            with commit_window("Catalog.create_namespace"):
                self.catalog.create_namespace_if_not_exists(table_parts(name)[:-1])
            location = clone_location(self.catalog, source, name)
            wanted = _wanted_metadata(source, product, table_text(source.name()), location)
            provider = load_location_provider(location, wanted.properties)
            file = provider.new_table_metadata_file_location()
            with commit_window("Shadows.metadata_file"):
                ToOutputFile.table_metadata(wanted, source.io.new_output(file))
            try:
                with commit_window("Shadows.register"):
                    self.catalog.register_table(name, file)
            except TableAlreadyExistsError:
                return catalogs.load_table(self.catalog, name)
            except Exception as error:
                if not is_unsupported_by_server(error):
                    raise
                raise _unregistered_error(name, catalogs.first_error_line(error)) from error
            held = self.catalog.load_table(name)
            # Another process may have labelled it already: what its commit changed is no fault.
            is_labelled = held.metadata.current_snapshot_id is not None
            if faults := differing_parts(held.metadata, wanted, _LABELLED if is_labelled else ()):
                with commit_window("Shadows.drop"):
                    self.catalog.drop_table(name)
                raise _unregistered_error(name, f"it keeps other {', '.join(faults)}")
            return held


def _wanted_metadata(source: Table, product: str, of: str, location: str) -> TableMetadata:
    """Describe the empty table; raises Unsupported for columns that it cannot have."""
    specs = tuple(_with_labels(spec) for spec in source.specs().values())
    mapping = source.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
    return TableMetadataV2(
        location=location,
        table_uuid=uuid4(),
        last_updated_ms=int(time.time() * 1000),
        last_column_id=max(_COLUMN_IDS.values()),
        schemas=[_labelled_schema(of, source.schema())],
        current_schema_id=0,
        partition_specs=list(specs),
        default_spec_id=source.spec().spec_id,
        last_partition_id=max(_FIELD_IDS.values()),
        sort_orders=[UNSORTED_SORT_ORDER],
        default_sort_order_id=UNSORTED_SORT_ORDER.order_id,
        last_sequence_number=0,
        properties={
            **CLONE_PROPERTIES,
            _PRODUCT_PROPERTY: product,
            **({TableProperties.DEFAULT_NAME_MAPPING: mapping} if mapping else {}),
        },
    )


def _labelled_schema(name: str, schema: Schema) -> Schema:
    """Return the columns of a version with the two columns of labels; no key: versions share it."""
    taken = [field.name for field in schema.fields if field.name.lower() in _COLUMN_IDS]
    newer = [
        schema.find_column_name(field_id)
        for field_id in sorted(schema.field_ids)
        if _is_newer_kind(schema.find_field(field_id))
    ]
    if taken or newer:
        what = f"has a column {taken[0]} of its own" if taken else f"has {newer[0]} of format 3"
        raise Unsupported(
            f"{name} {what}, which a table of versions in format {_TABLE_FORMAT} cannot have",
            state="nothing was published",
            fix="remove versions_table from the contract; publish_mode versioned keeps each "
            "version in a table of its own",
        )
    own = (
        NestedField(
            _COLUMN_IDS[VERSION_COLUMN], VERSION_COLUMN, LongType(),
            doc="The version that made the row.",
        ),
        NestedField(
            _COLUMN_IDS[STATUS_COLUMN], STATUS_COLUMN, StringType(),
            doc="accepted, superseded or rolled_back.",
        ),
    )  # fmt: skip
    return Schema(*schema.fields, *own, schema_id=0)


def _is_newer_kind(field: NestedField) -> bool:
    kind = field.field_type
    least = kind.minimum_format_version() if isinstance(kind, PrimitiveType) else 1
    return least > _TABLE_FORMAT or field.initial_default is not None


def _with_labels(spec: PartitionSpec) -> PartitionSpec:
    own = (
        PartitionField(_COLUMN_IDS[name], _FIELD_IDS[name], IdentityTransform(), name)
        for name in (VERSION_COLUMN, STATUS_COLUMN)
    )
    return PartitionSpec(*spec.fields, *own, spec_id=spec.spec_id)


def _require_own(name: str, product: str, table: Table) -> None:
    found = table.properties.get(_PRODUCT_PROPERTY)
    if found != product:
        what = f"holds versions of {found}" if found else "is no table of versions"
        raise Conflict(
            f"{name} {what}, so those of {product} cannot be there",
            state="it was not changed",
            fix="name a table that does not exist in versions_table of the contract",
        )


def _require_same_partitioning(name: str, held: Table, of: str, spec: PartitionSpec) -> None:
    own = held.specs().get(spec.spec_id)
    if own is None or own.fields != _with_labels(spec).fields:
        raise _partitioning_error(name, of)


def _partitioning_error(name: str, of: str) -> Unsupported:
    return Unsupported(
        f"{of} has another partitioning than {name} was made for",
        state=_KEPT,
        fix="name another table in versions_table of the contract: it is made with all kept "
        "versions",
    )


def _schema_after(name: str, held: Table, of: str, source: Table) -> Schema | None:
    """Return the columns that the table gets; None: those that it has can read all versions."""
    wanted = _labelled_schema(of, source.schema())
    now = held.schema()
    if _reads(now, wanted):
        return None
    if _reads(wanted, now):
        return wanted
    raise Unsupported(
        f"{of} has other columns than {name} was made for",
        state=_KEPT,
        fix="name another table in versions_table of the contract",
    )


def _reads(wider: Schema, other: Schema) -> bool:
    """Return whether files of `other` are read by the columns of `wider`, all of them."""
    for field_id in other.field_ids:
        if field_id not in wider.field_ids:
            return False
        field, kind = wider.find_field(field_id), other.find_field(field_id).field_type
        is_simple = isinstance(field.field_type, PrimitiveType)
        if is_simple != isinstance(kind, PrimitiveType):
            return False
        if wider.find_column_name(field_id) != other.find_column_name(field_id):
            return False
        if is_simple and field.field_type != kind:
            try:
                promote(kind, field.field_type)
            except ResolveError:
                return False
    return True


def _version_files(
    name: str, table: Table, snapshot_id: int, cache: ManifestCache
) -> dict[str, DataFile]:
    """List the files of a version; raises Unsupported where delete files take rows from them."""
    snapshot = meta.find_snapshot(table.metadata, snapshot_id, name)
    found: dict[str, DataFile] = {}
    for manifest in filter(meta.has_live_files, cache.manifests(table.io, snapshot)):
        if manifest.content == ManifestContent.DELETES:
            raise Unsupported(
                f"{name} has delete files at snapshot {snapshot_id}; in a table of versions they "
                "would take rows of other versions away",
                state=_KEPT,
                fix=f"CALL system.rewrite_data_files(table => '{name}', options => "
                "map('delete-file-threshold', '1')), and plan again; or remove versions_table "
                "from the contract",
            )
        live = filter(is_live_entry, cache.entries(table.io, manifest))
        found.update((entry.data_file.file_path, entry.data_file) for entry in live)
    return found


def _held_files(
    table: Table, head: Snapshot | None, cache: ManifestCache
) -> dict[str, ManifestEntry]:
    return {
        entry.data_file.file_path: entry
        for manifest in filter(meta.has_live_files, cache.manifests(table.io, head))
        for entry in filter(is_live_entry, cache.entries(table.io, manifest))
    }


def _label(entry: ManifestEntry) -> Label:
    partition = entry.data_file.partition
    size = len(partition)
    return partition[size - 2], partition[size - 1]


def _labelled_entry(file: DataFile, label: Label) -> ManifestEntry:
    values: Iterable[Any] = (file.partition[at] for at in range(len(file.partition)))
    data = list(file._data[:_FIELDS_OF_DATA_FILES])
    data[_PARTITION] = Record(*values, *label)
    data[_SORT_ORDER] = None
    labelled = DataFile(*data)
    labelled.spec_id = file.spec_id
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=None, sequence_number=None,
        file_sequence_number=None, data_file=labelled,
    )  # fmt: skip


def _acts(snapshot: Snapshot) -> int:
    return int(meta.snapshot_summary(snapshot)[_ACTS_PROPERTY])


def _unregistered_error(name: str, why: str) -> Unsupported:
    return Unsupported(
        f"the catalog does not register {name}: {why}",
        state="nothing was published",
        fix="remove versions_table from the contract; publish_mode versioned keeps each version "
        "in a table of its own",
    )
