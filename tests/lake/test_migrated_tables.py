"""Files that a migration adopted where they lie, as Spark reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from tests.support.sources.migration import NEWEST, MigrationCase, trip

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.lake
NESTED = """km, type: double}
  - {name: tags, type: "list<string>"}
  - {name: places, type: "map<string, long>"}
  - {name: spots, type: "list<struct<a: long, b: string>>"}
  - {name: note, type: string"""


@pytest.mark.req("T10")
def test_spark_reads_adopted_files_as_duckdb_reads_the_old_place(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    case = MigrationCase(tmp_path / "p", partitioning="[{column: day}, {column: city}]")
    contract = case.project / "catalog/contracts/silver.trips.yaml"
    contract.write_text(contract.read_text().replace("km, type: double", NESTED))
    plain = NEWEST.remove(1)
    null = "__HIVE_DEFAULT_PARTITION__"
    case.write("day=2024-01-01/city=S%C3%A3o%20Paulo %2F/a b%20c.parquet", [trip(1)], plain)
    case.write(f"day={null}/city=null/a.parquet", [trip(2)], plain)
    case.write(f"day=2024-01-02/city={null}/a.parquet", [trip(3)], pa.schema([("id", pa.int32())]))
    nested = {
        "note": ["n", None],
        "spots": [[{"a": 7, "b": "x"}], []],
        "places": pa.array([[("k", 7)], None], pa.map_(pa.string(), pa.int64())),
        "tags": pa.array([["y", None], None], pa.list_(pa.string())),
    }
    path = case.old / "day=2024-01-03/city=Rome/b.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [4, 5], **nested}), path)
    assert case.migrate().adopted == 4
    name = "migrated.trips"
    catalog.create_namespace_if_not_exists("migrated")
    catalog.register_table(name, case.catalog().load_table(case.table).metadata_location)
    columns = ("id", "day", "city", "fare", "km", "tags", "places", "spots", "note")
    rows = spark.table(f"lake.{name}").select(*columns)
    found = [row.asDict(recursive=True) for row in rows.orderBy("id").collect()]
    expected = sorted(case.expected(", ".join(columns)))
    assert found == [dict(zip(columns, row, strict=True)) for row in expected]
    for condition, ids in (
        ("city = 'São Paulo /'", [1]), ("day IS NULL", [2]), ("city IS NULL", [3]),
        ("note = 'n'", [4]), ("day = DATE '2024-01-03' AND note IS NULL", [5]),
    ):  # fmt: skip
        assert [row.id for row in rows.where(condition).collect()] == ids
