"""Labels of partitions against PyIceberg's transforms, and the tables that no run can restate."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform, parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from lakehouse_backfill.adapters.iceberg.catalog import load_table
from lakehouse_backfill.adapters.iceberg.manifests.column_spans import ColumnSpans
from lakehouse_backfill.adapters.iceberg.scope_field import finest_scope_field
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.tables.table import Column, PartitionField, TableInfo
from lakehouse_backfill.errors import Unsupported
from tests.support.lakes.catalogs import catalog_of

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
MONEY = DecimalType(9, 2)
#: Each transform with values of its column, as a writer holds them.
KINDS: dict[str, tuple[str, IcebergType, st.SearchStrategy[Any]]] = {
    "bucket of numbers": ("bucket[4]", LongType(), st.integers(-(2**62), 2**62)),
    "bucket of texts": ("bucket[16]", StringType(), NAMES),
    "bucket of decimals": (
        "bucket[3]", MONEY, st.decimals(-99999, 99999, places=2, allow_nan=False),
    ),
    "truncated texts": ("truncate[2]", StringType(), NAMES),
    "truncated numbers": ("truncate[10]", IntegerType(), st.integers(-10_000, 2**31 - 1)),
    "truncated decimals": (
        "truncate[25]", MONEY, st.decimals(-9999, 9999, places=2, allow_nan=False),
    ),
    "truncated bytes": ("truncate[2]", BinaryType(), st.binary(max_size=4)),
    "booleans": ("identity", BooleanType(), st.booleans()),
    "decimals": ("identity", MONEY, st.decimals(-99999, 99999, places=2, allow_nan=False)),
    "bytes": ("identity", BinaryType(), st.binary(max_size=4)),
    "texts": ("identity", StringType(), NAMES),
    "numbers": ("identity", LongType(), st.integers(-(2**62), 2**62)),
}  # fmt: skip


def is_in(rows: RowRange, value: Any, stored: Any) -> bool:
    """Tell whether a row lies in a range; of a bucket, `stored` is its number."""
    if rows.is_null or value is None:
        return rows.is_null and value is None
    if rows.equals is not None:
        return bool((stored if rows.buckets else value) == rows.equals)
    above = rows.lower is None or value >= rows.lower
    return above and (rows.upper is None or value < rows.upper)


@pytest.mark.req("U16", "M3")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_the_range_of_a_label_holds_exactly_the_rows_of_its_partition(
    kind: str, data: st.DataObject
) -> None:
    transform, of, values = KINDS[kind]
    store: Callable[[Any], Any] = parse_transform(transform).transform(of)
    field = ScopeField(column="c", transform=transform, type=str(of))
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=8))
    partition_of = {repr(row): None if row is None else store(row) for row in rows}
    labels = {
        key: partitions.partition_label(
            field,
            None if stored is None else partitions.partition_start(transform, str(of), stored),
        )
        for key, stored in partition_of.items()
    }
    for one in rows:
        label = labels[repr(one)]
        found = partitions.partition_row_range(field, label)
        for other in rows:
            same = partition_of[repr(one)] == partition_of[repr(other)]
            assert is_in(found, other, partition_of[repr(other)]) is same
            assert (labels[repr(other)] == label) is same
        # What a manifest says of the partition names it again.
        named = found.equals if found.lower is None else found.lower
        assert partitions.whole_partition_label(field, named) == label


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("transform", "kind", "value", "label"),
    [
        pytest.param("identity", "boolean", "True", "true", id="boolean as YAML quotes it"),
        pytest.param("identity", "decimal(9, 2)", "1.5", "1.50", id="all digits of the scale"),
        pytest.param("identity", "decimal(9, 2)", Decimal("-0.00"), "0.00", id="no negative zero"),
        pytest.param("identity", "decimal(38, 0)", "9" * 38, "9" * 38, id="38 digits"),
        pytest.param("identity", "binary", b"", "0x", id="no bytes"),
        pytest.param("identity", "binary", "0xAB", "0xab", id="bytes as text"),
        pytest.param("bucket[16]", "string", "7", "7", id="bucket"),
        pytest.param("truncate[4]", "string", "null", "=null", id="the text null"),
        pytest.param("table", "string", "all", "all", id="whole table"),
    ],
)
def test_a_value_of_a_manifest_names_one_partition(transform, kind, value, label) -> None:
    field = ScopeField(column="c", transform=transform, type=kind)
    assert partitions.whole_partition_label(field, value) == label


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("transform", "kind", "value", "problem"),
    [
        ("identity", "boolean", "yes", "'yes' is no value of c, which is boolean"),
        ("identity", "decimal(9, 2)", "1.555", "is no value of c, which is decimal"),
        ("identity", "decimal(9, 2)", "12345678.00", "is no value of c, which is decimal"),
        ("identity", "int", 2**31, "2147483648 is no value of c, which is int"),
        ("identity", "binary", "ab", "is no value of c, which is binary"),
        ("bucket[4]", "long", 4, "4 is no value of c, which is cut into 4 buckets"),
        ("truncate[2]", "string", "abc", "abc lies inside partition ab of"),
        ("truncate[10]", "int", 15, "15 lies inside partition 10 of"),
        ("truncate[10]", "int", -2147483650, "-2147483650 of truncate[10](c) begins below the sm"),
        ("table", "string", "some", "'some' is no value of"),
    ],
)
def test_what_names_no_partition_is_refused(transform, kind, value, problem) -> None:
    field = ScopeField(column="c", transform=transform, type=kind)
    with pytest.raises(partitions.ConfigError) as refused:
        partitions.whole_partition_label(field, value)
    assert problem in refused.value.problem


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("transform", "kind", "label", "lower", "upper"),
    [
        ("truncate[25]", "decimal(9, 2)", "9999999.75", Decimal("9999999.75"), None),
        ("truncate[25]", "decimal(9, 2)", "-10000000.00", None, Decimal("-9999999.75")),
        ("truncate[10]", "int", "2147483640", 2147483640, None),
        ("truncate[10]", "int", "-2147483650", None, -2147483640),
    ],
)
def test_a_range_has_no_end_that_its_column_cannot_hold(
    transform, kind, label, lower, upper
) -> None:
    field = ScopeField(column="c", transform=transform, type=kind)
    assert partitions.partition_row_range(field, label) == RowRange("c", lower=lower, upper=upper)


@pytest.mark.req("U16")
@pytest.mark.parametrize(("kind", "bits"), [(IntegerType(), 31), (LongType(), 63)])
@pytest.mark.parametrize("width", [2, 3, 10, 1000])
def test_files_of_the_smallest_numbers_have_the_label_of_their_rows(kind, bits, width) -> None:
    numbers = [-(2**bits), -(2**bits) + 1, -(2**bits) + width, -1, 0, 2**bits - 1]
    values = pa.array(numbers, schema_to_pyarrow(kind))
    stored = TruncateTransform(width).pyarrow_transform(kind)(values).to_pylist()
    types = {str(kind), "long"}  # an int may be promoted
    for field in (ScopeField(column="c", transform=f"truncate[{width}]", type=t) for t in types):
        starts = [partitions.partition_start(field.transform, field.type, one) for one in stored]
        labels = [partitions.partition_label(field, start) for start in starts]
        assert labels == [partitions.partition_label(field, number) for number in numbers]


@pytest.mark.req("U16")
def test_ranges_of_prefixes_stay_apart_so_that_each_is_told_from_a_files_partition() -> None:
    field = ScopeField(column="c", transform="truncate[2]", type="string")
    assert partitions.scope_row_ranges(Scope(field=field, partitions=("a", "ab", "ac"))) == (
        RowRange("c", equals="a"),
        RowRange("c", lower="ab", upper="ac", prefix="ab"),
        RowRange("c", lower="ac", upper="ad", prefix="ac"),
    )


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("transform", "label"), [("bucket[4]", "4"), ("bucket[4]", "03"), ("identity", "007")]
)
def test_what_no_file_can_be_labelled_with_is_no_label(transform: str, label: str) -> None:
    with pytest.raises(ValueError, match=label):
        partitions.partition_row_range(
            ScopeField(column="c", transform=transform, type="int"), label
        )


def test_a_whole_table_is_one_range_of_all_rows_and_has_no_neighbours() -> None:
    field = partitions.WHOLE_TABLE_FIELD
    scope = Scope(field=field, partitions=(partitions.WHOLE_TABLE_LABEL,))
    assert partitions.scope_row_ranges(scope) == (RowRange("*", is_everything=True),)
    assert partitions.shift_label(field, "all", 1) is None
    with pytest.raises(ValueError, match="EU"):
        partitions.partition_row_range(field, "EU")


def info_of(transform: str, kind: str, column: str = "c") -> TableInfo:
    return TableInfo(
        table="n.t", uuid="u", location="file:///x", format_version=2, snapshot_id=1, schema_id=0,
        spec_id=0, columns=(Column(field_id=1, name="c", type=kind),), spec_count=1, refs={},
        partitioning=(PartitionField(name="p", column=column, transform=transform),), properties={},
    )  # fmt: skip


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("transform", "kind", "column", "reason"),
    [
        ("identity", "double", "c", "partitions by identity of a double have no names"),
        ("identity", "uuid", "c", "partitions by identity of a uuid have no names"),
        ("bucket[4]", "uuid", "c", r"partitions by bucket\[4\] of a uuid have no names"),
        ("identity", "fixed[2]", "c", "of a fixed"),
        ("truncate[17]", "binary", "c", r"partitions by truncate\[17\] of a binary have no names"),
        ("void", "long", "c", r"void\(c\) does not tell its values apart"),
        ("identity", "long", "l.element", "it lies in a list or a map"),
    ],
)
def test_partitions_without_names_are_refused_with_the_whole_table_as_the_way_out(
    transform, kind, column, reason
) -> None:
    info = info_of(transform, kind, column)
    with pytest.raises(Unsupported, match=reason) as refused:
        finest_scope_field(info, column)
    assert refused.value.fix == (
        "scope by one of: the whole table, by target.partitions.whole_table: true"
    )
    assert finest_scope_field(info, "*") == partitions.WHOLE_TABLE_FIELD


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"format-version": 4}, "is of format version 4", id="format 4"),
        pytest.param({"type": "variant"}, "a column of type variant", id="variant"),
    ],
)
def test_metadata_that_no_reader_knows_is_unsupported_and_not_called_damaged(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", Schema(NestedField(1, "c", DateType())))
    file = Path(table.metadata_location.removeprefix("file://"))
    known = json.loads(file.read_text())
    known["schemas"][0]["fields"][0] |= {x: y for x, y in change.items() if x == "type"}
    known |= {x: y for x, y in change.items() if x != "type"}
    file.write_text(json.dumps(known))
    with pytest.raises(Unsupported, match=reason):
        load_table(catalog_of(tmp_path), "n.t")


@pytest.mark.req("X4")
def test_a_span_names_the_delete_files_that_hide_rows_of_it(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", Schema(NestedField(1, "c", DateType())))
    table.append(pa.table({"c": pa.array([date(2024, 1, 5)])}))
    (task,) = table.scan().plan_files()
    spans = ColumnSpans(table, table.schema().find_field("c"))
    seen = [spans.span(task.file, None, **one) for one in ({}, {"deletes": ("d",), "hidden": {}})]
    assert [(one.deletes, one.least_rows, one.most_rows) for one in seen] == [
        ((), 1, 1), (("d",), 0, 1),
    ]  # fmt: skip
