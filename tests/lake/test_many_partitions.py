"""A run of a few of 10,000 partitions: all other files stay, and are put back as they were.

PyIceberg lists all files and reads some of them; Spark reads all rows.
"""

from __future__ import annotations

import os
from collections import Counter
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
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.lake]

PARTITIONS = 10_000
IN_A_COMMIT = 500


def add_partitions(made: TupleLake, folder: Path) -> None:
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
    table = made.catalog.load_table(TARGET)
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


def seen_by_spark(lake: Lake, made: TupleLake) -> list[Counter[tuple[str, int | None, int]]]:
    """Give all rows before the publication, after it, and after the rollback."""
    table = made.catalog.load_table(TARGET)
    lake.catalog.register_table(lake.table("many"), table.metadata_location)
    latest = [entry.snapshot_id for entry in table.history()][-3:]
    # Spark counts each file as 4 MB, and would make a task of every few.
    reader = lake.spark.read.option("file-open-cost", "1024")
    found = []
    for snapshot_id in latest:
        named = reader.option("versionAsOf", str(snapshot_id)).table(f"lake.{lake.table('many')}")
        rows = named.select("d", "k", "v").collect()
        found.append(Counter((str(row["d"]), row["k"], row["v"]) for row in rows))
    return found


@pytest.mark.req("U16", "U1", "U12")
def test_a_few_of_many_partitions_are_swapped_and_all_other_files_stay(
    lake: Lake, tmp_path: Path
) -> None:
    made, folder = TupleLake(tmp_path / "tuples"), tmp_path / "added"
    folder.mkdir()
    before = made.held()
    add_partitions(made, folder)
    files = made.places()
    assert len(files) == PARTITIONS + len(before)
    run = made.decided("{k: [1, 500, null]}")
    made.project.publish(run, WHO)
    now = made.places()
    own = {(day, k) for day in DAYS[1:3] for k in (1, None)}
    assert {place for place in files if files[place] != now.get(place)} == {*own, (DAYS[1], 500)}
    found = made.catalog.load_table(TARGET).scan(In("k", {1, 2, 3, 500})).to_arrow().to_pylist()
    assert {(str(one["d"]), one["k"]): [one["v"]] for one in found} == {
        place: values for place, values in restated(before, 1).items() if place[1] is not None
    }
    assert made.faults(run) == []
    made.project.rollback(TARGET, reason="wrong", by=WHO)
    assert made.places() == files
    added = {(DAYS[1], number): [7] for number in range(10, 10 + PARTITIONS)}
    old, new = before | added, restated(before, 1, None) | added
    del new[DAYS[1], 500]
    assert seen_by_spark(lake, made) == [
        Counter((*place, value) for place, values in held.items() for value in values)
        for held in (old, new, old)
    ]
