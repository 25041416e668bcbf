"""Pairs of snapshots whose files are listed oddly: twice, or elsewhere, as other engines may."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from lakehouse_backfill.domain.partitions import NULL_LABEL, Scope
from tests.contract.differ_cases import (
    BY_DAY,
    DAY,
    SIMPLE,
    Built,
    Cases,
    Maker,
    append,
    day,
    day_label,
    iso,
    simple,
)
from tests.support.oracles.diff import Row

_EPOCH = date(1970, 1, 1)
FILE_CASES = Cases()


def bare_file(table: Table, rows: Sequence[Row]) -> tuple[str, int, int]:
    """Write rows of `k` and `v` only, as a migration from Hive finds them: path, rows, bytes."""
    ids = {field.name: field.field_id for field in table.schema().fields}
    schema = pa.schema(
        [
            pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": str(ids[name]).encode()})
            for name in ("k", "v")
        ]
    )
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    with table.io.new_output(path).create() as stream:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), stream)
    return path, len(rows), len(table.io.new_input(path))


def in_day(table: Table, file: tuple[str, int, int], when: date) -> DataFile:
    """List a file under a day."""
    path, rows, size = file
    listed = DataFile.from_args(
        content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET,
        partition=Record((when - _EPOCH).days), record_count=rows, file_size_in_bytes=size,
        column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={},
        lower_bounds={}, upper_bounds={},
    )  # fmt: skip
    listed.spec_id = table.spec().spec_id
    return listed


@FILE_CASES.add("a file listed twice", by_day=False)
@FILE_CASES.add("a file of a day listed twice", by_day=True)
@FILE_CASES.add("a file listed twice, with a condition", by_day=True, where="k > 0")
def _listed_twice(make: Maker, *, by_day: bool, where: str | None = None) -> Built:
    """One side lists a file once, the other twice: its rows are there twice."""
    table = make.table(SIMPLE, BY_DAY if by_day else [])
    old = simple()
    before = append(table, old)
    day_one = EqualTo("d", iso(1)) if by_day else AlwaysTrue()
    (file,) = {task.file.file_path: task.file for task in table.scan(day_one).plan_files()}.values()
    with table.transaction() as change, change.update_snapshot().fast_append() as more:
        more.append_data_file(file)
    new = [*old, *(row for row in old if not by_day or row["d"] == day(1))]
    return make.pair(
        table, (before, table.metadata.current_snapshot_id), (old, new), where=where,
        files=(3, 1, 2) if by_day else (0, 1, 2),
        label=day_label if by_day else (lambda _: None),
        keeps=lambda row: where is None or row["k"] > 0,
    )  # fmt: skip


@FILE_CASES.add("a file listed twice, in a scope")
def _listed_twice_in_scope(make: Maker) -> Built:
    built = _listed_twice(make, by_day=True)
    scope = Scope(field=DAY, partitions=(iso(1), NULL_LABEL))
    built.question.keeps = lambda row: row["d"] == day(1)
    return replace(built, request=replace(built.request, scope=scope), files=(0, 1, 2))


@FILE_CASES.add("a file moved to another day", beside=[])
@FILE_CASES.add("a file moved to another day, beside others", beside=simple(3))
def _moved_to_another_day(make: Maker, beside: list[Row]) -> Built:
    """A file without the partition's column is listed under another day: its rows move there."""
    table = make.table(SIMPLE, BY_DAY)
    if beside:
        append(table, beside)
    rows: list[Row] = [{"k": 100 + k, "v": k} for k in range(3)]
    file = bare_file(table, rows)
    with table.transaction() as change, change.update_snapshot().fast_append() as add:
        add.append_data_file(in_day(table, file, day(1)))
    before = table.metadata.current_snapshot_id
    with table.transaction() as change, change.update_snapshot().overwrite() as swap:
        swap.delete_data_file(in_day(table, file, day(1)))
        swap.append_data_file(in_day(table, file, day(2)))
    after = table.metadata.current_snapshot_id
    old, new = ([*beside, *({"d": day(number), **row} for row in rows)] for number in (1, 2))
    files = (len(beside) // 3, 1, 1)
    return make.pair(table, (before, after), (old, new), ("k",), label=day_label, files=files)
