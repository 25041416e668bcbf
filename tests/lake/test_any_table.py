"""Tables without partitions and partitions without order, from the drafted contract to rollback.

Rows are compared as DuckDB reads them through PyIceberg, beside what Spark reads.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyspark.sql import types as T

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.serialization import to_json_value
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


def life(
    lake: Lake,
    target: dict[str, Any],
    key: str = "[]",
    table: str | None = None,
    extent: tuple[str, str] = ("0", "1"),
    partition_column: str | None = None,
    per_chunk: int = 16,
) -> tuple[Project, str]:
    """Go from the table `out` to a validated run; the drafts are answered, not rewritten."""
    where = str(lake.profile_folder)
    real = {k: v.replace("${project}", where) for k, v in lake.profile.catalog.items()}
    profile = lake.profile.model_copy(update={"catalog": real})
    (lake.project / "catalog").mkdir(exist_ok=True)
    project = Project(Adapters(lake.project, profile, NullProgress(), "dev"))
    contract = Path(project.add_product(table or lake.table("out"), "lead").file)
    drafted = contract.read_text().replace("key: []", f"key: {key}")
    contract.write_text(drafted + ANSWERS)
    product, job = contract.stem, contract.stem.rpartition(".")[2]
    lake.job(JOB.replace('"out"', f'"{job}"'), f"jobs/{job}/transform.py")
    whole = (None, None) if target.get("partitions") is None and table is None else extent
    manifest = Path(project.new_manifest(product, *whole, "why", "bug_fix", "ann").file)
    drawn = yaml.safe_load(manifest.read_text())
    drawn["sources"]["src"] |= {
        "table": lake.table("src"),
        "range": {"column": "t", "from": date(2023, 12, 1), "to": date(2024, 2, 1)},
        "partition_column": partition_column,
    }
    drawn["limits"] = {"partitions_per_chunk": per_chunk}
    drawn["target"] |= {name: value for name, value in target.items() if value is not None}
    if table is not None:
        drawn["validation"] = {"edge_partitions": 0}
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


def seen_in(lake: Lake, parts: tuple[str, ...]) -> list[str]:
    """Read a table by PyIceberg and by Spark, each row as text: both must agree."""
    held = lake.catalog.load_table(parts).scan().to_arrow().to_pylist()
    by_spark = lake.tables.read(names.table_text(parts), None).collect()
    found = _texts(held)
    assert found == _texts([row.asDict(recursive=True) for row in by_spark])
    return found


def _texts(rows: list[dict[str, Any]]) -> list[str]:
    """Give rows as sorted texts; Spark's instants come without their zone, which is UTC."""
    texts = (json.dumps(to_json_value(row), sort_keys=True) for row in rows)
    return sorted(text.replace("+00:00", "") for text in texts)


def ids_of(rows: list[str]) -> list[int]:
    return sorted(json.loads(row)["id"] for row in rows)


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
    values = ["a", "b", "c", "é€", "", None]
    number_of = parse_transform("bucket[3]").transform(parse_type("string"))
    lake.sql("CREATE TABLE {ns}.out (id bigint, p string) USING iceberg "
             "PARTITIONED BY (bucket(3, p))")  # fmt: skip
    lake.append("out", *enumerate(values))
    lake.sql("CREATE TABLE {ns}.src (id bigint, p string, t date) USING iceberg")
    lake.append("src", *((number + 100, p, date(2024, 1, 1)) for number, p in enumerate(values)))
    before = seen(lake, "id")
    wanted = [number_of("a"), None]
    target = {"partitions": {"column": "p", "values": wanted}}
    project, run_id = life(lake, target, partition_column="p")
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    inside = [None if p is None else number_of(p) for p in values]
    read = sum(chunk.input_rows or 0 for chunk in project.chunks(run_id).chunks)
    assert read == sum(bucket in wanted for bucket in inside)
    assert seen(lake, "id") == sorted(
        ((number + 100 if bucket in wanted else number, p)
         for number, (p, bucket) in enumerate(zip(values, inside, strict=True))),
        key=lambda row: row[0],
    )  # fmt: skip
    checks = project.verify(run_id, deep=True).to_dict()["checks"]
    assert [check["name"] for check in checks if check["ok"] is False] == []
    project.rollback(lake.table("out"), reason="wrong", by="lead")
    assert seen(lake, "id") == before


@pytest.mark.long
@pytest.mark.req("P3")
def test_offsets_of_a_topic_bound_chunks_and_each_reads_only_its_own(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.out (kafka_partition int, kafka_offset bigint, v bigint) "
             "USING iceberg PARTITIONED BY (truncate(10, kafka_offset))")  # fmt: skip
    lake.append("out", *((part, at, 0) for at in range(40) for part in (0, 1)))
    lake.sql("CREATE TABLE {ns}.src (kafka_partition int, kafka_offset bigint, v bigint, t date) "
             "USING iceberg")  # fmt: skip
    day = date(2024, 1, 1)
    lake.append("src", *((part, at, at + 1, day) for at in range(40) for part in (0, 1)))
    target = {"partitions": {"column": "kafka_offset", "values": [10, 20]}}
    project, run_id = life(
        lake, target, "[kafka_partition, kafka_offset]",
        partition_column="kafka_offset", per_chunk=1,
    )  # fmt: skip
    notes = project.show(run_id).to_dict()["notes"]
    assert "src: a chunk reads only rows whose kafka_offset is in its own partitions" in notes
    assert [chunk.input_rows for chunk in project.chunks(run_id).chunks] == [20, 20]
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    new = [(part, at, at + 1) for at in range(10, 30) for part in (0, 1)]
    old = [(part, at, 0) for at in range(40) for part in (0, 1) if not 10 <= at < 30]
    assert seen(lake, "kafka_offset, kafka_partition") == sorted(
        new + old, key=lambda row: (row[1], row[0])
    )


#: Columns of a table whose every name needs quoting somewhere, but for `id`.
ODD_COLUMNS: dict[str, tuple[IcebergType, list[Any]]] = {
    "id": (LongType(), list(range(6))),
    "a.b": (StringType(), ["a", "b", None] * 2),
    "on `day`": (DateType(), [date(2024, 1, 1), date(2024, 1, 2)] * 3),
    "q\"uo'te": (DecimalType(9, 2), [Decimal("1.50"), None, Decimal("-2.25")] * 2),
    "select": (BooleanType(), [True, False, None] * 2),
    "null": (FixedType(2), [b"ab", b"\x00\xff", None] * 2),
    "é𝄞": (BinaryType(), [b"", b"\x00", None] * 2),
    "1st": (DoubleType(), [0.5, -0.0, None] * 2),
    "s.t `x`": (
        StructType(
            NestedField(101, "x.y", LongType(), required=False),
            NestedField(102, "z w", TimestamptzType(), required=False),
        ),
        [{"x.y": 1, "z w": datetime(2024, 1, 1, tzinfo=timezone.utc)}, None] * 3,
    ),
    "<b>list</b>": (
        ListType(103, StringType(), element_required=False),
        [["a", None], [], None] * 2,
    ),
}


@pytest.mark.long
@pytest.mark.req("U16", "P3")
def test_names_and_structs_are_carried_through_all_verbs(lake: Lake) -> None:
    parts = (lake.namespace, "my.`odd` Täble's")
    fields = [
        NestedField(at, name, kind, required=False)
        for at, (name, (kind, _)) in enumerate(ODD_COLUMNS.items(), 1)
    ]
    rows = [dict(zip(ODD_COLUMNS, row, strict=True)) for row in
            zip(*(values for _, values in ODD_COLUMNS.values()), strict=True)]  # fmt: skip
    spec = PartitionSpec(
        PartitionField(3, 1000, IdentityTransform(), "p.`day`"),
        PartitionField(2, 1001, BucketTransform(2), "a.b!bucket"),
    )
    place = f"file://{lake.profile_folder}/odd/{lake.namespace}"
    table = lake.catalog.create_table(parts, Schema(*fields), place, spec)
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    fields.append(NestedField(50, "t", DateType(), required=False))
    source = lake.catalog.create_table(lake.table("src"), Schema(*fields))
    changed = [{**row, "id": row["id"] + 100, "t": date(2024, 1, 1)} for row in rows]
    source.append(pa.Table.from_pylist(changed, schema=source.schema().as_arrow()))
    before = seen_in(lake, parts)
    text = names.table_text(parts)
    project, run_id = life(lake, {}, table=text, extent=("2024-01-01", "2024-01-02"))
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    assert ids_of(seen_in(lake, parts)) == [1, 3, 5, 100, 102, 104]
    checks = project.verify(run_id, deep=True).to_dict()["checks"]
    assert [check["name"] for check in checks if check["ok"] is False] == []
    page = Path(project.evidence(run_id).to_dict()["report"]).read_text(encoding="utf-8")
    assert "<b>list" not in page
    assert "&lt;b&gt;list" in page
    (contract,) = project.wiring.contracts()
    project.rollback(contract.product, reason="wrong", by="lead")
    assert seen_in(lake, parts) == before


@pytest.mark.long
@pytest.mark.req("U16", "P3")
def test_months_of_a_structs_field_are_restated_in_format_3(lake: Lake) -> None:
    parts = (lake.namespace, "deep 3")
    rows = (
        "SELECT id, named_struct('a t', timestamp'2024-01-05 07:00:00' + make_dt_interval(20 * id),"
        " 'x', 'v') AS `s t` FROM range({first}, {stop})"
    )
    lake.sql("CREATE TABLE {ns}.`deep 3` (id bigint, `s t` struct<`a t`: timestamp, x: string>) "
             "USING iceberg PARTITIONED BY (months(`s t`.`a t`), bucket(2, id)) "
             "TBLPROPERTIES ('format-version'='3')")  # fmt: skip
    lake.sql("INSERT INTO {ns}.`deep 3` " + rows.format(first=0, stop=4))
    lake.sql(f"CREATE TABLE {{ns}}.src USING iceberg AS SELECT id + 100 AS id, `s t`, "
             f"date'2024-01-01' AS t FROM ({rows.format(first=0, stop=4)})")  # fmt: skip
    before = seen_in(lake, parts)
    text = names.table_text(parts)
    project, run_id = life(lake, {}, table=text, extent=("2024-01", "2024-02"))
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    assert ids_of(seen_in(lake, parts)) == [2, 3, 100, 101]
    checks = project.verify(run_id, deep=True).to_dict()["checks"]
    assert [check["name"] for check in checks if check["ok"] is False] == []
    (contract,) = project.wiring.contracts()
    project.rollback(contract.product, reason="wrong", by="lead")
    assert seen_in(lake, parts) == before


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
    columns_of = [f"c {number}.`{kind}" for number, (_, kind, *_) in enumerate(COLUMNS)]
    schema = T.StructType([
        T.StructField(name, T.StructType.fromDDL(f"x {kind}")["x"].dataType)
        for name, (_, kind, *_) in zip(columns_of, COLUMNS, strict=True)
    ])  # fmt: skip
    frame = tables.spark.createDataFrame(list(zip(*columns, strict=True)), schema)
    fields = [
        ScopeField(column=name, transform=transform, type=kind)
        for name, (transform, _, kind, _) in zip(columns_of, COLUMNS, strict=True)
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
