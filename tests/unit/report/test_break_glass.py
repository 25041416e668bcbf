"""The way back in plain PyIceberg, as the evidence page prints it."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.report.break_glass import pyiceberg_program

FIELD = ScopeField(column="day", transform="identity", type="date")
NOW = datetime(2026, 3, 2, tzinfo=timezone.utc)


def publication(before: int | None, field: ScopeField, *labels: str) -> Publication:
    return Publication(
        product="silver.t", version=1, token="t" * 32, action="publish", run_id="bf-1",
        table="silver.t", snapshot_id=2, before_snapshot_id=before,
        scope=Scope(field=field, partitions=labels), supersedes=0, at=NOW, by="ana",
    )  # fmt: skip


def rows(day: str, value: int) -> pa.Table:
    days = pa.array([day], pa.string()).cast(pa.date32())
    return pa.table({"day": days, "value": pa.array([value], pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    """A lake that `load_catalog` gives to the printed program, as a user's settings would."""
    (tmp_path / "w").mkdir()
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    made.create_namespace("silver")
    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", lambda _name: made)
    return made


def content(catalog: SqlCatalog) -> list[dict[str, Any]]:
    found = catalog.load_table("silver.t").scan().to_arrow().to_pylist()
    return sorted(
        ({"day": row["day"].isoformat(), "value": row["value"]} for row in found), key=str
    )


@pytest.mark.req("O4")
def test_the_printed_program_restores_old_rows_and_keeps_live_ones(
    catalog: SqlCatalog,
) -> None:
    table = catalog.create_table("silver.t", schema=rows("2013-02-15", 1).schema)
    table.append(pa.concat_tables([rows("2013-02-14", 10), rows("2013-02-15", 1)]))
    before = table.current_snapshot()
    assert before is not None
    table.overwrite(rows("2013-02-15", 2), overwrite_filter="day = '2013-02-15'")
    table.append(rows("2013-03-01", 30))
    program = pyiceberg_program(publication(before.snapshot_id, FIELD, "2013-02-15", "2013-02-16"))
    assert program is not None
    exec("\n".join(program), {})
    assert content(catalog) == [
        {"day": "2013-02-14", "value": 10},
        {"day": "2013-02-15", "value": 1},
        {"day": "2013-03-01", "value": 30},
    ]


@pytest.mark.req("O4")
def test_partitions_that_had_no_rows_before_become_empty_in_one_commit(
    catalog: SqlCatalog,
) -> None:
    table = catalog.create_table("silver.t", schema=rows("2013-02-15", 1).schema)
    table.append(rows("2013-02-14", 10))
    before = table.current_snapshot()
    assert before is not None
    table.append(pa.concat_tables([rows("2013-02-15", 1), rows("2013-02-17", 2)]))
    table.append(rows("2013-03-01", 30))
    commits = len(table.metadata.metadata_log)
    program = pyiceberg_program(publication(before.snapshot_id, FIELD, "2013-02-15", "2013-02-17"))
    exec("\n".join(program or ()), {})
    assert content(catalog) == [
        {"day": "2013-02-14", "value": 10},
        {"day": "2013-03-01", "value": 30},
    ]
    assert len(catalog.load_table("silver.t").metadata.metadata_log) == commits + 1


@pytest.mark.req("O4")
def test_columns_that_were_moved_or_added_since_are_matched_by_name(catalog: SqlCatalog) -> None:
    table = catalog.create_table("silver.t", schema=rows("2013-02-15", 1).schema)
    table.append(rows("2013-02-15", 1))
    before = table.current_snapshot()
    assert before is not None
    table.overwrite(rows("2013-02-15", 2), overwrite_filter="day = '2013-02-15'")
    with table.update_schema() as update:
        update.add_column("note", StringType())
        update.move_first("value")
    exec(
        "\n".join(pyiceberg_program(publication(before.snapshot_id, FIELD, "2013-02-15")) or ()), {}
    )
    found = catalog.load_table("silver.t").scan().to_arrow().to_pylist()
    assert found == [{"value": 1, "day": date(2013, 2, 15), "note": None}]


@pytest.mark.req("O4")
def test_a_product_that_was_empty_before_becomes_empty_there(catalog: SqlCatalog) -> None:
    table = catalog.create_table("silver.t", schema=rows("2013-02-15", 1).schema)
    table.append(pa.concat_tables([rows("2013-02-15", 1), rows("2013-03-01", 30)]))
    exec("\n".join(pyiceberg_program(publication(None, FIELD, "2013-02-15")) or ()), {})
    assert content(catalog) == [{"day": "2013-03-01", "value": 30}]


def test_hostile_partition_values_stay_values() -> None:
    region = ScopeField(column="region", transform="identity", type="string")
    hostile = "'); import os; os.abort(); ('"
    program = pyiceberg_program(publication(7, region, "EU", hostile, "null"))
    assert program is not None
    which = next(line for line in program if line.startswith("restated"))
    assert repr(hostile) in which
    assert "IsNull('region')" in which
    compile("\n".join(program), "program", "exec")


def test_a_program_that_nobody_would_read_is_not_printed() -> None:
    region = ScopeField(column="region", transform="identity", type="string")
    assert (
        pyiceberg_program(publication(7, region, *(f"r{number}" for number in range(51)))) is None
    )


def test_a_release_has_no_way_back() -> None:
    row = publication(7, FIELD, "2013-02-15").model_copy(update={"action": "release"})
    assert pyiceberg_program(row) is None
