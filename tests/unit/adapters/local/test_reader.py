"""The local reader: snapshots and golden files."""

from __future__ import annotations

import gc
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    TimestampType,
    UUIDType,
)

from lakehouse_backfill.adapters.local.parquet import stream_file_columns
from lakehouse_backfill.adapters.local.reader import (
    open_snapshot_duckdb,
    read_golden,
    read_snapshot_arrow,
    rows_by_key,
)
from lakehouse_backfill.adapters.local.scan import filter_of_ranges, plan_scan
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.errors import ConfigError, NotFound

SCHEMA = Schema(
    NestedField(1, "d", DateType(), required=False),
    NestedField(2, "k", LongType(), required=False),
    NestedField(3, "m", DecimalType(9, 2), required=False),
)
ROWS: list[dict[str, Any]] = [
    {"d": date(2024, 1, 1) if d < 3 else None, "k": d * 10 + k, "m": None}
    for d in range(4)
    for k in range(3)
]
DAY = RowRange("d", lower=date(2024, 1, 1), upper=date(2024, 1, 2))


@pytest.fixture
def table(tmp_path: Path) -> tuple[SqlCatalog, int, int]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "d"))
    made = catalog.create_table("n.t", SCHEMA, partition_spec=spec)
    schema = made.schema().as_arrow()
    made.append(pa.Table.from_pylist(ROWS, schema=schema))
    first = made.metadata.current_snapshot_id or 0
    made.append(pa.Table.from_pylist(ROWS[:1], schema=schema))
    with made.update_schema() as update:
        update.rename_column("k", "number")
    return catalog, first, made.metadata.current_snapshot_id or 0


def test_a_snapshot_is_read_with_its_own_names(table: tuple[SqlCatalog, int, int]) -> None:
    found = read_snapshot_arrow(table[0], "n.t", table[1])
    assert sorted(found.to_pylist(), key=lambda row: row["k"]) == ROWS


def test_a_range_limits_what_is_read(table: tuple[SqlCatalog, int, int]) -> None:
    null = RowRange("d", is_null=True)
    assert read_snapshot_arrow(table[0], "n.t", table[1], (DAY,)).num_rows == 9
    assert read_snapshot_arrow(table[0], "n.t", table[1], (null,)).num_rows == 3
    assert read_snapshot_arrow(table[0], "n.t", table[1], (DAY, null)).num_rows == 12


def test_a_duckdb_relation_answers_more_than_once(table: tuple[SqlCatalog, int, int]) -> None:
    relation = open_snapshot_duckdb(table[0], "n.t", table[2], (DAY, RowRange("d", is_null=True)))
    gc.collect()
    assert relation.aggregate("count(*)").fetchall() == [(13,)]
    assert relation.filter("d IS NULL").aggregate("sum(k)").fetchall() == [(93,)]


@pytest.mark.req("Q5")
def test_rows_are_found_by_keys_of_text(table: tuple[SqlCatalog, int, int]) -> None:
    keys = [{"d": "2024-01-01", "k": "11"}, {"d": None, "k": "31"}, {"d": "2024-01-01", "k": "31"}]
    rows, types = rows_by_key(table[0], "n.t", table[1], keys)
    assert sorted(rows, key=lambda row: row["k"]) == [ROWS[4], ROWS[10]]
    assert types == {"d": "date", "k": "long", "m": "decimal(9, 2)"}


@pytest.mark.req("Q5")
@pytest.mark.parametrize(
    "key",
    [
        {"a.b": "3"},
        {"u": str(UUID(int=3))},
        {"m": "3"},
        {"m": "3.0000"},
        {"x": "-0.0"},
        {"at": "2024-01-01T03:00:00"},
    ],
    ids=lambda key: str(next(iter(key))),
)
def test_rows_are_found_by_keys_of_any_name_and_type(tmp_path: Path, key: dict[str, str]) -> None:
    schema = Schema(
        NestedField(1, "a.b", LongType(), required=False),
        NestedField(2, "u", UUIDType(), required=False),
        NestedField(3, "m", DecimalType(9, 2), required=False),
        NestedField(4, "x", DoubleType(), required=False),
        NestedField(5, "at", TimestampType(), required=False),
    )
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    made = catalog.create_table("n.t", schema)
    rows = [
        {"a.b": n, "u": UUID(int=n).bytes, "m": Decimal(n), "x": n - 3.0,
         "at": datetime(2024, 1, 1, n)}  # noqa: DTZ001 (a timestamp without time zone)
        for n in range(5)
    ]  # fmt: skip
    made.append(pa.Table.from_pylist(rows, schema=schema.as_arrow()))
    found, _ = rows_by_key(catalog, "n.t", made.metadata.current_snapshot_id, [key])
    assert [row["a.b"] for row in found] == [3]


def test_rows_may_be_picked_by_columns_that_are_not_named(tmp_path: Path) -> None:
    schema = Schema(*(NestedField(n, c, LongType(), required=False) for n, c in enumerate("ab", 1)))
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    made = catalog.create_table("n.t", schema)
    rows = [{"a": n, "b": n % 3} for n in range(9)]
    made.append(pa.Table.from_pylist(rows, schema=schema.as_arrow()))
    side = plan_scan(catalog, "n.t", made.metadata.current_snapshot_id)
    where = filter_of_ranges([RowRange("b", equals=1)])
    parts = stream_file_columns(side, side.tasks[0], ["a"], where)
    assert [a for part in parts for a in part["a"].to_pylist()] == [1, 4, 7]


@pytest.mark.req("Q5")
@pytest.mark.parametrize("key", [{"nope": "1"}, {"k": "x"}, {"m": "NaN"}, {"m": "1E+90"}])
def test_a_key_that_does_not_fit_is_refused(table, key) -> None:
    with pytest.raises(ConfigError, match=r"does not fit n\.t"):
        rows_by_key(table[0], "n.t", table[1], [key])


def test_no_snapshot_has_no_rows(table: tuple[SqlCatalog, int, int]) -> None:
    assert rows_by_key(table[0], "n.t", None, [{"k": 1}]) == ([], {})


@pytest.mark.parametrize("name", ["n.nope", "no.t"])
def test_an_unknown_table_is_not_found(table: tuple[SqlCatalog, int, int], name: str) -> None:
    with pytest.raises(NotFound, match=name):
        read_snapshot_arrow(table[0], name, table[1])


@pytest.mark.req("Q5", "T7")
def test_cells_are_texts_and_empty_cells_null(tmp_path: Path) -> None:
    file = tmp_path / "golden.csv"
    file.write_text(
        '\ufeffday,dest,mean\n2013-02-15,"A,T",\n\n2013-02-16,B,1.50\n', encoding="utf-8"
    )
    assert read_golden(file) == [
        {"day": "2013-02-15", "dest": "A,T", "mean": None},
        {"day": "2013-02-16", "dest": "B", "mean": "1.50"},
    ]


@pytest.mark.req("Q5", "T7")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no table"),
        ("a,b\n", "holds no table"),
        ("a,a\n1,2\n", "holds no table"),
        ("a,b\n1,2\n1\n", "golden.csv:3: 1 cells"),
        ('a,b\n"1,2\n', "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "golden.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        read_golden(file)


@pytest.mark.req("Q5", "T7")
def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_golden(tmp_path / "none.csv")
