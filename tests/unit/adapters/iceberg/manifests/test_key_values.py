"""Bounds of a key column of real files: by statistics where they suffice, else by the column."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lakehouse_backfill.adapters.iceberg.manifests import key_values
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.domain.labels.key_ranges import KeyRanges

_START = datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
#: For each type a value of a number: ascending with it, below and above 0.
KINDS: dict[str, tuple[Any, Any]] = {
    "long": (LongType(), lambda n: n * 2**50),
    "int": (IntegerType(), lambda n: n),
    "price": (DecimalType(9, 2), lambda n: Decimal(n).scaleb(-2)),
    "name": (StringType(), lambda n: "é\U00010000" * 12 + f"{n + 5000:04}"),
    "day": (DateType(), lambda n: date(1970, 1, 1) + timedelta(n)),
    "at": (TimestampType(), lambda n: _START + timedelta(microseconds=n)),
    "atz": (TimestamptzType(), lambda n: _START.replace(tzinfo=timezone.utc) + timedelta(hours=n)),
}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    made.create_namespace("s")
    yield made
    made.engine.dispose()


def table_of(catalog: SqlCatalog, *files: list[int | None]) -> Any:
    """Make a table with a column of each type; None is a row without a value."""
    fields = [
        NestedField(number, name, kind)
        for number, (name, (kind, _)) in enumerate(KINDS.items(), start=1)
    ]
    table = catalog.create_table("s.t", Schema(*fields))
    for rows in files:
        columns = {
            name: [None if n is None else value(n) for n in rows]
            for name, (_, value) in KINDS.items()
        }
        table.append(pa.table(columns, schema=table.schema().as_arrow()))
    return table


def found(catalog: SqlCatalog, column: str, count: int) -> Any:
    head = catalog.load_table("s.t").current_snapshot()
    assert head is not None
    wanted = KeyRanges(column=column, count=count)
    return IcebergTables(catalog).key_bounds("s.t", head.snapshot_id, wanted)


@pytest.mark.req("P3")
def test_values_of_each_type_are_cut_at_their_quantiles_also_among_nulls_and_repeated_ones(
    catalog: SqlCatalog,
) -> None:
    numbers = [-40, *([7] * 30), *range(-20, 20), 90]
    random.Random(1).shuffle(numbers)
    table_of(catalog, [None, *numbers[:30]], [*numbers[30:], None, None])
    ordered = sorted(numbers)
    wanted = list(dict.fromkeys(ordered[number * 72 // 6] for number in range(6)))[1:]
    for name, (_, value) in KINDS.items():
        bounds = found(catalog, name, 6)
        assert bounds.bounds == tuple(value(number) for number in wanted)
        assert (bounds.rows, bounds.by) == (72, "column")


@pytest.mark.req("P3")
def test_files_that_lie_apart_are_cut_between_them_and_none_is_read(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of(catalog, [3, 1, None, 2], [-3, -1, -2], [7, 9, 8])
    monkeypatch.delattr(key_values.KeyColumn, "_read")
    # Of texts, statistics hold the first 16 characters, which are alike here.
    for name in KINDS.keys() - {"name"}:
        bounds, value = found(catalog, name, 3), KINDS[name][1]
        assert bounds.bounds == (value(1), value(7))
        assert (bounds.rows, bounds.by) == (9, "statistics")


def test_a_column_that_was_widened_is_cut_by_its_older_statistics_too(catalog: SqlCatalog) -> None:
    table = table_of(catalog, [-3, -2, -1])
    with table.update_schema() as change:
        change.update_column("int", LongType())
    schema = table.schema().as_arrow()
    rows = {name: [None, 9 if name == "int" else None] for name in KINDS}
    table.append(pa.table(rows, schema))
    assert found(catalog, "int", 4).bounds == (-2, -1, 9)
    assert found(catalog, "int", 4).by == "column"


@pytest.mark.req("P3")
def test_of_very_many_rows_a_part_is_kept_and_ranges_are_about_equal(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_values, "_MOST_VALUES", 500)
    monkeypatch.setattr(key_values, "_BLOCK_VALUES", 250)
    numbers = list(range(-2000, 3000))
    random.Random(2).shuffle(numbers)
    table_of(catalog, numbers[:1700], numbers[1700:1710], numbers[1710:])
    bounds = found(catalog, "long", 5).bounds
    wanted = [-1000, 0, 1000, 2000]
    assert len(bounds) == 4
    for bound, exact in zip(bounds, wanted, strict=True):
        assert abs(bound // 2**50 - exact) < 100, bounds
    assert found(catalog, "long", 5).bounds == bounds


@pytest.mark.req("P3")
def test_no_more_rows_than_a_part_are_read_side_by_side(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_values, "_ROWS_AT_ONCE", 5)
    table_of(
        catalog, *([n, n + 1, n + 2] for n in (0, 2)), *([n] for n in range(9)), list(range(7))
    )
    groups: list[list[int]] = []
    read = ArrowScan.to_record_batches

    def noted(scan: ArrowScan, tasks: list[FileScanTask]) -> Any:
        groups.append(sorted(task.file.record_count for task in tasks))
        return read(scan, tasks)

    monkeypatch.setattr(ArrowScan, "to_record_batches", noted)
    assert found(catalog, "long", 2).rows == 22
    # The file of seven rows is looked at while it is read.
    assert sum(map(sum, groups)) == 15
    assert all(sum(group) <= 5 for group in groups)


@pytest.mark.req("P3")
def test_a_file_that_is_too_large_to_hold_gives_the_same_bounds(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog, [None, 5, -7, 3, 3, 9, None, -1, 4], [2, -3])
    with table.update_schema() as change:
        change.update_column("int", LongType())
        change.rename_column("day", "a.day")
    columns = {name: [value(0), value(7)] for name, (_, value) in KINDS.items()}
    columns["a.day"] = columns.pop("day")
    table.append(pa.table(columns, table.schema().as_arrow()))
    whole = [found(catalog, name, 3) for name in columns]
    monkeypatch.setattr(key_values, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(key_values, "_BATCH_ROWS", 2)
    assert [found(catalog, name, 3) for name in columns] == whole
    assert {one.by for one in whole} == {"column"}


def test_a_column_without_values_has_no_bounds(catalog: SqlCatalog) -> None:
    table_of(catalog, [None, None])
    assert found(catalog, "long", 5)[:2] == ((), 0)
    assert found(catalog, "none", 5)[:2] == ((), 0)


def test_more_ranges_than_a_run_may_have_are_not_looked_for(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_values, "MAX_KEY_CHUNKS", 3)
    table_of(catalog, [1, 2, 3, 4])
    assert found(catalog, "long", 4)[:2] == ((), 4)
