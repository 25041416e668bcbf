"""Tables without partitions and partitions without order, from the drafted contract to rollback.

Rows are compared as DuckDB reads them through PyIceberg, beside what Spark reads.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType, NestedField
from pyspark.sql import types as T

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.lake]

JOB = """
from lakehouse_backfill.transforms import transform

@transform(name="out", version="1.0.0", inputs=("src",))
def job(context, src):
    return src.drop("t")
"""


def parse_type(text: str) -> IcebergType:
    return NestedField(1, "c", text).field_type


ANSWERS = "consumers: []\nclassification: internal\nretention_days: unlimited\n"


def life(lake: Lake, target: dict[str, Any], key: str = "[]") -> tuple[Project, str]:
    """Go from the table `out` to a validated run; the drafts are answered, not rewritten."""
    where = str(lake.profile_folder)
    real = {k: v.replace("${project}", where) for k, v in lake.profile.catalog.items()}
    profile = lake.profile.model_copy(update={"catalog": real})
    (lake.project / "catalog").mkdir(exist_ok=True)
    project = Project(Adapters(lake.project, profile, NullProgress(), "dev"))
    product = lake.table("out")
    contract = Path(project.add_product(product, "lead").file)
    drafted = contract.read_text().replace("key: []", f"key: {key}")
    contract.write_text(drafted + ANSWERS)
    lake.job(JOB, "jobs/out/transform.py")
    extent = (None, None) if target.get("partitions") is None else ("0", "1")
    manifest = Path(project.new_manifest(product, *extent, "why", "bug_fix", "ann").file)
    drawn = yaml.safe_load(manifest.read_text())
    drawn["sources"]["src"] |= {
        "table": lake.table("src"),
        "range": {"column": "t", "from": date(2023, 12, 1), "to": date(2024, 2, 1)},
    }
    drawn["target"] |= {name: value for name, value in target.items() if value is not None}
    manifest.write_text(yaml.safe_dump(drawn))
    planned = project.plan(manifest, by="ann")
    run_id = str(planned.run_id)
    project.approve(run_id, by="lead")
    found = project.run(run_id, "ann").to_dict()
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    return project, run_id


def seen(lake: Lake, order: str) -> list[tuple[Any, ...]]:
    """Read the table by PyIceberg and DuckDB, and by Spark: both must agree."""
    import duckdb

    held = lake.catalog.load_table(lake.table("out")).scan().to_arrow()
    found = duckdb.from_arrow(held).order(order).fetchall()
    lake.spark.catalog.refreshTable(f"{lake.name}.{lake.table('out')}")
    assert sorted(map(repr, found)) == sorted(map(repr, lake.rows("out")))
    return found


@pytest.mark.long
@pytest.mark.req("U16", "U4", "U12")
def test_changes_are_merged_by_key_into_a_table_without_partitions_and_rolled_back(
    lake: Lake,
) -> None:
    lake.sql("CREATE TABLE {ns}.out (id bigint, ver bigint, v bigint) USING iceberg")
    lake.append("out", *((number, 1, number * 10) for number in range(6)))
    lake.sql("CREATE TABLE {ns}.src (id bigint, ver bigint, v bigint, t date) USING iceberg")
    day = date(2024, 1, 1)
    lake.append("src", (1, 2, 11, day), (2, 0, 12, day), (9, 1, 90, day))
    before = seen(lake, "id")
    project, run_id = life(lake, {"publish_mode": "merge", "merge": {"version": "ver"}}, key="[id]")
    notes = " ".join(project.show(run_id).to_dict()["notes"])
    assert "the whole table, as declared: 1 files, 6 rows" in notes
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    changed = {1: (1, 2, 11), 9: (9, 1, 90)}
    assert seen(lake, "id") == sorted({**{row[0]: row for row in before}, **changed}.values())
    checks = project.verify(run_id, deep=True).to_dict()["checks"]
    assert [check["name"] for check in checks if check["ok"] is False] == []
    project.rollback(lake.table("out"), reason="wrong", by="lead")
    assert seen(lake, "id") == before


@pytest.mark.long
@pytest.mark.req("U16", "P3")
def test_buckets_are_restated_and_rolled_back(lake: Lake) -> None:
    names = ["a", "b", "c", "é€", "", None]
    number_of = parse_transform("bucket[3]").transform(parse_type("string"))
    lake.sql("CREATE TABLE {ns}.out (id bigint, p string) USING iceberg "
             "PARTITIONED BY (bucket(3, p))")  # fmt: skip
    lake.append("out", *enumerate(names))
    lake.sql("CREATE TABLE {ns}.src (id bigint, p string, t date) USING iceberg")
    lake.append("src", *((number + 100, p, date(2024, 1, 1)) for number, p in enumerate(names)))
    before = seen(lake, "id")
    wanted = [number_of("a"), None]
    project, run_id = life(lake, {"partitions": {"column": "p", "values": wanted}})
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    inside = [None if p is None else number_of(p) for p in names]
    assert seen(lake, "id") == sorted(
        ((number + 100 if bucket in wanted else number, p)
         for number, (p, bucket) in enumerate(zip(names, inside, strict=True))),
        key=lambda row: row[0],
    )  # fmt: skip
    checks = project.verify(run_id, deep=True).to_dict()["checks"]
    assert [check["name"] for check in checks if check["ok"] is False] == []
    project.rollback(lake.table("out"), reason="wrong", by="lead")
    assert seen(lake, "id") == before


#: Transform, type for Spark, type for Iceberg, values of a column that holds null too.
COLUMNS: list[tuple[str, str, str, list[Any]]] = [
    ("bucket[4]", "bigint", "long", [1, -1, 2**62, 0]),
    ("bucket[16]", "string", "string", ["a", "", "é€", "𝄞"]),
    ("bucket[5]", "date", "date", [date(2024, 1, 1), date(1960, 5, 5)]),
    ("bucket[3]", "decimal(9,2)", "decimal(9, 2)", [Decimal("1.50"), Decimal("-2.25")]),
    ("bucket[3]", "binary", "binary", [b"", b"\x00\xff"]),
    ("truncate[2]", "string", "string", ["abc", "abd", "a", "", "null", "=x", "é€é", "𝄞𝄞z"]),
    ("truncate[10]", "int", "int", [-11, -10, -1, 0, 9, 10, 2**31 - 1]),
    ("truncate[10]", "bigint", "long", [-11, -1, 0, 9, 2**62]),
    ("truncate[25]", "decimal(9,2)", "decimal(9, 2)", [Decimal("-0.01"), Decimal("0.24"),
                                                       Decimal("0.25"), Decimal("7.00")]),
    ("truncate[2]", "binary", "binary", [b"", b"a", b"ab", b"abc", b"\xff\xff\xff"]),
    ("identity", "boolean", "boolean", [True, False]),
    ("identity", "decimal(9,2)", "decimal(9, 2)", [Decimal("1.50"), Decimal("-2.25")]),
    ("identity", "binary", "binary", [b"", b"\x00\xff"]),
]  # fmt: skip


@pytest.mark.req("U16")
def test_spark_puts_each_value_into_the_partition_that_pyiceberg_does(lake: Lake) -> None:
    tables = SparkTables(lake.spark, lake.name)
    rows = max(len(values) for *_, values in COLUMNS) + 1
    columns = [[*values, *[None] * (rows - len(values))] for *_, values in COLUMNS]
    names = [f"c {number}.`{kind}" for number, (_, kind, *_) in enumerate(COLUMNS)]
    schema = T.StructType([
        T.StructField(name, T.StructType.fromDDL(f"x {kind}")["x"].dataType)
        for name, (_, kind, *_) in zip(names, COLUMNS, strict=True)
    ])  # fmt: skip
    frame = tables.spark.createDataFrame(list(zip(*columns, strict=True)), schema)
    fields = [
        ScopeField(column=name, transform=transform, type=kind)
        for name, (transform, _, kind, _) in zip(names, COLUMNS, strict=True)
    ]
    wanted = [
        [_pyiceberg_label(field, value) for value in values]
        for field, values in zip(fields, columns, strict=True)
    ]
    labels = [sorted(set(each)) for each in wanted]
    found = frame.select(
        *(dataframes.raw_label(field).alias(f"l{at}") for at, field in enumerate(fields)),
        *(
            dataframes.is_in_ranges(
                partitions.scope_row_ranges(Scope(field=field, partitions=(label,)))
            ).alias(f"f{at}_{place}")
            for at, field in enumerate(fields)
            for place, label in enumerate(labels[at])
        ),
    ).collect()
    for at, field in enumerate(fields):
        assert [dataframes.format_label(field, row[f"l{at}"]) for row in found] == wanted[at], field
        for place, label in enumerate(labels[at]):
            picked = [row[f"f{at}_{place}"] for row in found]
            assert picked == [each == label for each in wanted[at]], (field, label)


def _pyiceberg_label(field: ScopeField, value: Any) -> str:
    """Give the label of the partition that PyIceberg writes a value into."""
    if value is None:
        return partitions.partition_label(field, None)
    if isinstance(value, date):
        value = (value - date(1970, 1, 1)).days
    stored = parse_transform(field.transform).transform(parse_type(field.type))(value)
    start = partitions.partition_start(field.transform, field.type, stored)
    return partitions.partition_label(field, start)


@pytest.mark.req("U16")
def test_texts_are_replaced_by_prefixes_that_are_longer_than_the_bounds_of_files(
    lake: Lake,
) -> None:
    same = "x" * 19
    lake.sql("CREATE TABLE {ns}.out (id bigint, p string) USING iceberg "
             "PARTITIONED BY (truncate(20, p))")  # fmt: skip
    lake.append("out", (0, f"{same}abc"), (1, f"{same}azz"), (2, f"{same}b"), (3, "x"), (4, None))
    field = ScopeField(column="p", transform="truncate[20]", type="string")
    scope = Scope(field=field, partitions=("x", f"{same}a"))
    where = dataframes.range_filter(partitions.scope_row_ranges(scope))
    none = lake.spark.createDataFrame([], "id bigint, p string")
    none.writeTo(f"{lake.name}.{lake.table('out')}").overwrite(where)
    assert [row[0] for row in seen(lake, "id")] == [2, 4]
