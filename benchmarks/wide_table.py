"""Tables with up to a million data files, made from metadata; only files that are swapped exist."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.transforms import HourTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, TimestamptzType

from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    SnapshotChange,
    SwapProducer,
    snapshot_change,
)
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import CHUNK_ID_PROPERTY
from lakehouse_backfill.domain.partitions import Scope, ScopeField

#: 2020-01-01T00, as hours since 1970.
FIRST_HOUR = 438_288
FIELD = ScopeField(column="at", transform="hour", type="timestamptz")
_SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()))
_SPEC = PartitionSpec(PartitionField(2, 1000, HourTransform(), "at_hour"))


def fill(catalog: Catalog, name: str, files: int, per_partition: int, per_manifest: int) -> None:
    """Make a table of `files` data files, its manifests clustered by partition, as one snapshot.

    The files of the first 10 partitions exist; of the others only the metadata does.
    """
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    table = catalog.create_table(name, _SCHEMA, partition_spec=_SPEC)
    snapshot_id = table.metadata.new_snapshot_id()
    made = _files(table, files, per_partition)
    manifests = []
    while batch := [file for _, file in zip(range(per_manifest), made, strict=False)]:
        manifests.append(_manifest(table, snapshot_id, batch))
    _commit(table, snapshot_id, manifests, files)


def stage(catalog: Catalog, shadow: str, labels: tuple[str, ...]) -> None:
    """Write a chunk into the shadow: a copy of each file of the partitions in place of it."""
    table = catalog.load_table(shadow)
    head = table.current_snapshot()
    assert head is not None
    cache = ManifestCache()
    old = ScopedReader(table, Scope(field=FIELD, partitions=labels), cache).scope_files(head).data
    new = {}
    for entry in old.values():
        file = _real_file(table, entry.data_file.partition)
        new[file.file_path] = _entry(file, None)
    change = SnapshotChange(head, tuple(head.manifests(table.io)), old, new)
    snapshot = SwapProducer(cache).write_snapshot(table, change, {CHUNK_ID_PROPERTY: "c1"}, 1)
    snapshot_change(table, snapshot, {}, "chunk").land()


def _files(table: Table, files: int, per_partition: int) -> Iterator[DataFile]:
    location = table.location()
    for number in range(files):
        partition = Record(FIRST_HOUR + number // per_partition)
        if number < 10 * per_partition:
            yield _real_file(table, partition)
            continue
        file = DataFile.from_args(
            file_path=f"{location}/data/{number:08d}.parquet",
            file_format="PARQUET",
            partition=partition,
            record_count=1000,
            file_size_in_bytes=100_000,
            value_counts={1: 1000, 2: 1000},
            null_value_counts={1: 0, 2: 0},
            lower_bounds={1: b"\0" * 8, 2: b"\0" * 8},
            upper_bounds={1: b"\1" * 8, 2: b"\1" * 8},
        )
        file.spec_id = 0
        yield file


def _real_file(table: Table, partition: Record) -> DataFile:
    micros = partition[0] * 3_600_000_000
    rows = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "at": pa.array([micros], pa.timestamp("us", tz="UTC")),
        }
    )
    [file] = _dataframe_to_data_files(table.metadata, rows, table.io, uuid.uuid4())
    file.spec_id = 0
    return file


def _manifest(table: Table, snapshot_id: int, files: list[DataFile]) -> ManifestFile:
    output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro")
    with write_manifest(2, _SPEC, _SCHEMA, output, snapshot_id, "deflate") as writer:
        for file in files:
            writer.add_entry(_entry(file, snapshot_id))
    return writer.to_manifest_file()


def _entry(file: DataFile, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file
    )


def _commit(table: Table, snapshot_id: int, manifests: list[ManifestFile], files: int) -> None:
    path = f"{table.location()}/metadata/snap-{snapshot_id}.avro"
    sequence = table.metadata.next_sequence_number()
    output = table.io.new_output(path)
    with write_manifest_list(2, output, snapshot_id, None, sequence, "deflate") as writer:
        writer.add_manifests(manifests)
    totals = {"added-data-files": str(files), "total-data-files": str(files)}
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=None,
        sequence_number=sequence,
        manifest_list=path,
        summary=Summary(Operation.APPEND, **totals),
        schema_id=table.metadata.current_schema_id,
    )
    snapshot_change(table, snapshot, {}, "fill").land()
