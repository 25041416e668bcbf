"""Writing earlier content of partitions into a rollback's shadow; the oracle is Spark's reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.adapters.spark.staging.compose import PartitionRestorer
from lakehouse_backfill.domain.catch_up import RestoreChunk
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.errors import NotFound
from tests.support.spark.lake import Lake

DAY = ScopeField(column="d", transform="identity", type="date")
SECOND, THIRD = "2024-01-02", "2024-01-03"


@pytest.fixture
def then(lake: Lake) -> int:
    """A table with merge-on-read deletes, changed by everybody since; give the earlier snapshot."""
    lake.sql(
        "CREATE TABLE {ns}.out (d date, k int, v bigint) PARTITIONED BY (d) TBLPROPERTIES ("
        "'format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    lake.sql(
        "INSERT INTO {ns}.out SELECT CASE WHEN id % 4 = 0 THEN NULL "
        "ELSE date_add(date'2024-01-01', CAST(id % 4 AS int) - 1) END, CAST(id AS int), id * 10 "
        "FROM range(20)"
    )
    lake.sql("DELETE FROM {ns}.out WHERE k IN (2, 4)")  # of the 2nd, and of no day
    then = lake.head("out")
    lake.sql("INSERT INTO {ns}.out VALUES (date'2024-01-02', 77, 1), (NULL, 78, 1)")
    lake.sql("ALTER TABLE {ns}.out RENAME COLUMN v TO amount")
    lake.sql("ALTER TABLE {ns}.out ALTER COLUMN k TYPE bigint")
    lake.sql("ALTER TABLE {ns}.out ADD COLUMN note string")
    lake.sql("INSERT INTO {ns}.out VALUES (date'2024-01-03', 79, 1, 'n')")
    assert then is not None
    return then


def chunk(lake: Lake, then: int | None, *labels: str) -> RestoreChunk:
    shadow = f"{lake.namespace}.back"
    IcebergShadows(lake.catalog, lake.namespace).open(
        lake.table("out"), lake.head("out"), shadow, {}
    )
    return RestoreChunk(
        chunk_id="restore-1", table=lake.table("out"), snapshot_id=then, shadow=shadow,
        scope=Scope(field=DAY, partitions=labels),
        columns=(("d", "d"), ("k", "k"), ("amount", "v")),
        properties={"lakehouse-backfill.rollback": "token"},
    )  # fmt: skip


def restore(lake: Lake, wanted: RestoreChunk) -> int:
    return PartitionRestorer(lake.tables).restore(wanted)


def held(rows: list[tuple[Any, ...]], *labels: str) -> list[tuple[Any, ...]]:
    return [row for row in rows if str(row[0]).replace("None", "null") in labels]


@pytest.mark.req("U12", "E3")
def test_partitions_hold_what_their_readers_saw_then_and_others_what_they_hold_now(
    lake: Lake, then: int
) -> None:
    old, now = lake.rows("out", then), lake.rows("out")
    labels = (SECOND, "null")

    restore(lake, chunk(lake, then, *labels))

    found = lake.rows("back")
    assert held(found, *labels) == [(d, k, v, None) for d, k, v in held(old, *labels)]
    others = ("2024-01-01", THIRD)
    assert held(found, *others) == held(now, *others)
    assert not {2, 4, 77, 78} & {row[1] for row in found}
    hiding = lake.sql("SELECT * FROM {ns}.back.delete_files").count()
    assert hiding == 0
    assert lake.snapshots("back")[-1]["lakehouse-backfill.chunk-id"] == "restore-1"


@pytest.mark.req("U12")
def test_a_partition_that_was_empty_becomes_empty(lake: Lake, then: int) -> None:
    restore(lake, chunk(lake, None, SECOND))

    assert held(lake.rows("back"), SECOND) == []
    assert held(lake.rows("back"), THIRD) == held(lake.rows("out"), THIRD)
    assert then


@pytest.mark.req("U12")
def test_a_file_that_is_gone_from_storage_is_named_as_what_it_is(lake: Lake, then: int) -> None:
    wanted = chunk(lake, then, SECOND)
    table = lake.catalog.load_table(lake.table("out"))
    for task in table.scan(f"d = '{SECOND}'", snapshot_id=then).plan_files():
        Path(task.file.file_path.removeprefix("file:").replace("//", "/", 1)).unlink()
    before = lake.snapshots("back")

    with pytest.raises(NotFound, match=f"@{then} is gone from storage: what {SECOND} held"):
        restore(lake, wanted)

    assert lake.snapshots("back") == before
