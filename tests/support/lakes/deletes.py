"""Live writers that delete merge-on-read, as Spark and Flink do: PyIceberg only deletes by copying.

Position delete files are real: every reader applies them. Equality delete files are real too, but
PyIceberg cannot plan a scan with them.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.typedef import Record

from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    DeleteManifestWriter,
    snapshot_change,
)
from lakehouse_backfill.domain.tables.commits import RevertRequest, RewrittenShadow
from tests.support.lakes.tables import TARGET, Kit, Row

Granularity = Literal["file", "partition"]
_PATH, _POSITION = 2147483546, 2147483545


def hide(kit: Kit, *ids: int, by: Granularity = "file", name: str = TARGET) -> int:
    """Delete the rows with these ids by position delete files; give the snapshot."""
    return hide_rows(kit.live.load_table(name), "id", set(ids), by)


def hide_rows(table: Table, column: str, values: set[Any], by: Granularity = "file") -> int:
    """Delete the rows with these values of a column by position delete files."""
    groups: dict[Any, list[tuple[str, int]]] = {}
    files: dict[Any, DataFile] = {}
    for task in table.scan().plan_files():
        found = _positions(table, task.file, column, values)
        key = task.file.file_path if by == "file" else (task.file.spec_id, task.file.partition)
        if found:
            groups.setdefault(key, []).extend((task.file.file_path, at) for at in found)
            files[key] = task.file
    deletes = [_position_file(table, files[key], rows) for key, rows in groups.items()]
    return _commit(table, deletes)


def hide_equal(kit: Kit, *ids: int, partition: tuple[Any, ...], spec_id: int) -> int:
    """Delete the rows with these ids by one equality delete file; no partition: everywhere."""
    return hide_equal_rows(kit.live.load_table(TARGET), *ids, partition=partition, spec_id=spec_id)


def hide_equal_rows(table: Table, *ids: int, partition: tuple[Any, ...], spec_id: int) -> int:
    """Delete the rows with these values of the first column, which is `id`."""
    rows = pa.table({"id": pa.array(ids, pa.int64())}, schema=_schema(("id", pa.int64(), 1)))
    file = _file(table, rows, DataFileContent.EQUALITY_DELETES, Record(*partition), spec_id)
    return _commit(table, [file])


def rewritten(
    kit: Kit, request: RevertRequest, rows: dict[str, list[Row]], shadow: str = ""
) -> RevertRequest:
    """Do what `core/publication/rollback_content.py` does, with rows that the test knows."""
    base = kit.head()
    assert base is not None
    shadow = shadow or kit.shadow_of("rollback")
    kit.shadows.open(TARGET, base, shadow, {})
    for number, (day, held) in enumerate(rows.items()):
        kit.write_chunk(shadow, request.scope.field, day, held, f"restore-{number}")
    written = kit.shadows.chunks(shadow)
    done = RewrittenShadow(
        shadow=shadow,
        base_snapshot_id=base,
        shadow_snapshot_id=kit.head(shadow) or 0,
        # PyIceberg commits nothing when an empty chunk finds nothing to remove.
        chunk_ids=tuple(chunk.chunk_id for chunk in written),
        partitions=tuple(rows),
    )
    return request.model_copy(update={"rewritten": done})


def _positions(table: Table, file: DataFile, column: str, values: set[Any]) -> list[int]:
    with table.io.new_input(file.file_path).open() as stream:
        held = pq.ParquetFile(stream).read([column]).column(column).to_pylist()
    return [at for at, value in enumerate(held) if value in values]


def _position_file(table: Table, like: DataFile, rows: list[tuple[str, int]]) -> DataFile:
    rows = sorted(rows)
    schema = _schema(("file_path", pa.string(), _PATH), ("pos", pa.int64(), _POSITION))
    data = pa.table([[path for path, _ in rows], [at for _, at in rows]], schema=schema)
    bounds = {_PATH: rows[0][0].encode()}, {_PATH: rows[-1][0].encode()}
    return _file(
        table, data, DataFileContent.POSITION_DELETES, like.partition, like.spec_id, *bounds
    )


def _schema(*columns: tuple[str, Any, int]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
            for name, kind, number in columns
        ]
    )


def _file(
    table: Table,
    rows: pa.Table,
    content: DataFileContent,
    partition: Record,
    spec_id: int,
    lower: dict[int, bytes] | None = None,
    upper: dict[int, bytes] | None = None,
) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream)
    file = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET, partition=partition,
        record_count=rows.num_rows, file_size_in_bytes=len(output.to_input_file()),
        lower_bounds=lower, upper_bounds=upper,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )  # fmt: skip
    file.spec_id = spec_id
    return file


def _manifest(table: Table, snapshot_id: int, spec_id: int, files: list[DataFile]) -> ManifestFile:
    output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro")
    spec = table.specs()[spec_id]
    with DeleteManifestWriter(spec, table.schema(), output, snapshot_id, "deflate") as writer:
        for file in files:
            added = ManifestEntryStatus.ADDED
            entry = ManifestEntry.from_args(status=added, snapshot_id=snapshot_id, data_file=file)
            writer.add_entry(entry)
    return writer.to_manifest_file()


def _commit(table: Table, files: list[DataFile]) -> int:
    """Commit delete files as Spark does: one snapshot, summary and totals right."""
    head = table.current_snapshot()
    assert head is not None
    assert files
    snapshot_id = table.metadata.new_snapshot_id()
    specs = sorted({file.spec_id for file in files})
    manifests = [
        _manifest(table, snapshot_id, spec, [f for f in files if f.spec_id == spec])
        for spec in specs
    ]
    path = f"{table.location()}/metadata/snap-{uuid.uuid4()}.avro"
    number = table.metadata.next_sequence_number()
    with write_manifest_list(
        2, table.io.new_output(path), snapshot_id, head.snapshot_id, number, "deflate"
    ) as writer:
        writer.add_manifests([*head.manifests(table.io), *manifests])
    snapshot = Snapshot(
        snapshot_id=snapshot_id, parent_snapshot_id=head.snapshot_id, sequence_number=number,
        manifest_list=path, summary=_summary(head, files),
        schema_id=table.metadata.current_schema_id,
    )  # fmt: skip
    snapshot_change(table, snapshot, {}, "merge-on-read").land()
    return snapshot_id


def _summary(head: Snapshot, files: list[DataFile]) -> Summary:
    is_position = files[0].content == DataFileContent.POSITION_DELETES
    kind = "position" if is_position else "equality"
    rows = str(sum(file.record_count for file in files))
    said = {
        "engine-name": "spark",
        "app-id": "app-7",
        "added-delete-files": str(len(files)),
        f"added-{kind}-deletes": rows,
    }
    before = dict(head.summary.additional_properties) if head.summary else {}
    return update_snapshot_summaries(
        Summary(Operation.DELETE, **said), {**before, "operation": "overwrite"}
    )
