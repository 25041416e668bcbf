"""A run of a few of 10,000 partitions: all other files stay, and are put back as they were."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import In
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from tests.chaos.lab import DAYS, TARGET
from tests.contract.test_partition_tuples import TupleLake, restated
from tests.support.lakes.retention import WHO

PARTITIONS = 10_000
IN_A_COMMIT = 500


def add_partitions(lake: TupleLake, folder: Path) -> None:
    """Let a live job add a file each of one day and as many numbers.

    All are one file under other names: it holds no number, which readers take from the partition.
    """
    columns = [("d", pa.date32(), 1), ("v", pa.int64(), 3)]
    schema = pa.schema(
        [pa.field(n, kind, metadata={"PARQUET:field_id": str(i)}) for n, kind, i in columns]
    )
    first = folder / "first.parquet"
    day = date.fromisoformat(DAYS[1])
    pq.write_table(pa.table({"d": [day], "v": [7]}, schema=schema), first)
    stored, size = (day - date(1970, 1, 1)).days, first.stat().st_size
    table = lake.catalog.load_table(TARGET)
    for start in range(10, 10 + PARTITIONS, IN_A_COMMIT):
        with table.transaction() as change, change.update_snapshot().fast_append() as append:
            for number in range(start, start + IN_A_COMMIT):
                path = folder / f"{number}.parquet"
                os.link(first, path)
                file = DataFile.from_args(
                    content=DataFileContent.DATA, file_path=f"file://{path}",
                    file_format=FileFormat.PARQUET, partition=Record(stored, number),
                    record_count=1, file_size_in_bytes=size, column_sizes={}, value_counts={},
                    null_value_counts={}, nan_value_counts={}, lower_bounds={}, upper_bounds={},
                    split_offsets=[4],
                )  # fmt: skip
                file.spec_id = table.spec().spec_id
                append.append_data_file(file)


@pytest.mark.req("U16", "U1", "U12")
def test_a_few_of_many_partitions_are_swapped_and_all_other_files_stay(tmp_path: Path) -> None:
    lake, folder = TupleLake(tmp_path), tmp_path / "added"
    folder.mkdir()
    before = lake.held()
    add_partitions(lake, folder)
    files = lake.places()
    assert len(files) == PARTITIONS + len(before)
    run = lake.decided("{k: [1, 500, null]}")
    lake.project.publish(run, WHO)
    now = lake.places()
    own = {(day, k) for day in DAYS[1:3] for k in (1, None)}
    assert {place for place in files if files[place] != now.get(place)} == {*own, (DAYS[1], 500)}
    found = lake.catalog.load_table(TARGET).scan(In("k", {1, 2, 3, 500})).to_arrow().to_pylist()
    assert {(str(one["d"]), one["k"]): [one["v"]] for one in found} == {
        place: values for place, values in restated(before, 1).items() if place[1] is not None
    }
    assert lake.faults(run) == []
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.places() == files
