"""Kinds of tables: by what they are partitioned, how they are called, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

UTC = timezone.utc
TEXTS = ["EU", "US", "é€", "", "null", None]
NUMBERS = [1, -1, 0, 11, 2**31 - 1, None]
MONEY = [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00"), Decimal("0.24"), None, None]
BYTES = [b"", b"\x00\xff", b"ab", b"abc", None, None]
DATES = [date(2024, 1, 5), date(1960, 2, 29), date(2024, 1, 6), date(2023, 12, 31), None, None]
INSTANTS = [
    datetime(2024, 1, 5, 7, 30, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(2024, 1, 5, 8, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC), None, None,
]  # fmt: skip
LOCAL = [None if each is None else each.replace(tzinfo=None) for each in INSTANTS]
IDS = [UUID(int=number) for number in range(5)]

Name = str | tuple[str, ...]
Part = tuple[Name, str]


@dataclass(frozen=True)
class Kind:
    """One kind: `by` is the path to the partition column; None restates the whole table.

    `values` are those of the column, row by row. `parts` are the partition fields: a path and a
    transform; by default one, of `by`. `respec` are fields that are added once half of the rows are
    there. With `days`, only rows of the partition on these days are restated.
    """

    id: str
    by: Name | None
    transform: str
    type: IcebergType
    values: Sequence[Any]
    parts: tuple[Part, ...] | None = None
    table: tuple[str, ...] | None = None
    format: int = 2
    respec: tuple[Part, ...] = ()
    part_name: str = "part {}"
    days: tuple[date, ...] = ()

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead to the column of the values."""
        by = self.by or "v"
        return (by,) if isinstance(by, str) else by

    def schema(self) -> Schema:
        """Give id, the column of the values (in structs, where it is nested), and a time."""
        ids = iter(range(3, 20))
        kind: IcebergType = self.type
        for name in reversed(self.path[1:]):
            kind = StructType(NestedField(next(ids), name, kind, required=False))
        return Schema(
            NestedField(1, "id", LongType(), required=False),
            NestedField(2, self.path[0], kind, required=False),
            NestedField(20, "on day", DateType(), required=False),
        )

    def spec(self, schema: Schema) -> PartitionSpec:
        """Give the partition fields, with names that need quoting."""
        parts = self.parts
        if parts is None:
            parts = ((self.path, self.transform),) if self.by else ()
        return PartitionSpec(
            *(
                PartitionField(
                    schema.find_field(full_name(path)).field_id, 1000 + at,
                    parse_transform(transform), self.part_name.format(at),
                )
                for at, (path, transform) in enumerate(parts)
            )
        )  # fmt: skip

    def is_restated(self, row: dict[str, Any]) -> bool:
        """Return whether a row of the restated partition is restated."""
        return not self.days or row["on day"] in self.days

    def rows(self, plus: int = 0) -> list[dict[str, Any]]:
        """Give one row for each value; ids go up from `plus`."""
        rows = []
        for number, value in enumerate(self.values):
            held = value.bytes if isinstance(value, UUID) else value
            for name in reversed(self.path[1:]):
                held = {name: held}
            day = date(2024, 1, 1 + number % 2)
            rows.append({"id": plus + number, self.path[0]: held, "on day": day})
        return rows


def full_name(path: Name) -> str:
    """Give Iceberg's name of a column or of a field of a struct."""
    return path if isinstance(path, str) else ".".join(path)


def _by(transform: str, kind: IcebergType, values: Sequence[Any], **more: Any) -> Kind:
    of = str(kind).partition("(")[0]
    return Kind(f"{transform} of {of}", "v", transform, kind, values, **more)


LONG, TEXT, DAY, AT, MONEY_TYPE = (
    LongType(), StringType(), DateType(), TimestamptzType(), DecimalType(9, 2),
)  # fmt: skip
NESTED = ("s", "x")
EVERYTHING = StructType(
    *(
        NestedField(30 + at, f"c.{at} {kind}", kind, required=False)
        for at, kind in enumerate(
            (BooleanType(), IntegerType(), LONG, FloatType(), DoubleType(), MONEY_TYPE, DAY,
             TimestampType(), AT, TEXT, BinaryType(), FixedType(2))
        )
    ),
    NestedField(50, "a list", ListType(51, TEXT, element_required=False), required=False),
    NestedField(52, "a map", MapType(53, TEXT, 54, LONG, value_required=False), required=False),
)  # fmt: skip
ALL_VALUES = {
    field.name: value
    for field, value in zip(
        EVERYTHING.fields,
        (True, 1, 2**40, 0.5, -0.0, Decimal("1.25"), DATES[1], LOCAL[1], INSTANTS[1], "é`'\"",
         b"\x00", b"ab", ["a", None], [("k", None)]),
        strict=True,
    )
}  # fmt: skip
KINDS: tuple[Kind, ...] = (
    # By one field.
    *(_by("identity", kind, values) for kind, values in (
        (DAY, DATES), (AT, INSTANTS), (LONG, NUMBERS), (TEXT, TEXTS),
        (BooleanType(), [True, False, None]), (MONEY_TYPE, MONEY), (BinaryType(), BYTES),
    )),
    *(_by(unit, DAY, DATES) for unit in ("year", "month")),
    _by("day", AT, INSTANTS),
    _by("hour", TimestampType(), LOCAL),
    *(_by("bucket[3]", kind, values) for kind, values in (
        (LONG, NUMBERS), (TEXT, TEXTS), (BinaryType(), BYTES),
    )),
    *(_by("truncate[2]", kind, values) for kind, values in (
        (TEXT, TEXTS), (IntegerType(), NUMBERS), (MONEY_TYPE, MONEY),
    )),
    Kind("the null partition", "v", "identity", TEXT, [None, "EU"]),
    # As a whole.
    Kind("unpartitioned", None, "table", LONG, NUMBERS),
    Kind("some rows of a table without partitions", None, "table", LONG, NUMBERS,
         days=(date(2024, 1, 1),)),
    Kind("a whole partitioned table", None, "table", DAY, DATES, parts=(("v", "month"),)),
    Kind("by a double", None, "table", DoubleType(), [1.5, -0.5, None], parts=(("v", "identity"),)),
    Kind("a void field", None, "table", LONG, NUMBERS, parts=(("v", "void"),)),
    Kind("by buckets of a uuid", None, "table", UUIDType(), IDS, parts=(("v", "bucket[2]"),)),
    Kind("columns of all types", None, "table", EVERYTHING, [ALL_VALUES, ALL_VALUES, None]),
    # Several fields.
    Kind("two fields", "v", "identity", TEXT, TEXTS, parts=(("v", "identity"), ("on day", "day"))),
    Kind("two fields, by the other", "v", "month", DAY, DATES,
         parts=(("id", "bucket[2]"), ("v", "month"))),
    Kind("three fields", "v", "bucket[2]", LONG, NUMBERS,
         parts=(("id", "truncate[4]"), ("v", "bucket[2]"), ("on day", "identity"))),
    Kind("two fields by pairs", "v", "identity", TEXT, ["EU", "EU", "US", "US", None],
         parts=(("v", "identity"), ("on day", "identity")), days=(date(2024, 1, 1),)),
    # Fields of structs.
    Kind("identity of a struct's field", NESTED, "identity", TEXT, TEXTS),
    Kind("bucket of a struct's field", NESTED, "bucket[3]", LONG, NUMBERS),
    Kind("month of a struct's field", NESTED, "month", AT, INSTANTS),
    Kind("a struct in a struct, with odd names", ("s t", "in `it`", "x y"), "identity", DAY, DATES),
    # Names.
    *(Kind(f"column {name}", name, "identity", TEXT, TEXTS) for name in (
        "a.b", "it's \"q\"", "tick`s`", "${spark.id}",
    )),
    *(Kind(f"table {name}", "v", "identity", TEXT, TEXTS, table=(name,)) for name in (
        "a.b", "tick`s \"q\"", "é𝄞", "Order", "ORDER", "a@b <b>",
    )),
    Kind("a partition field with an odd name", "v", "identity", TEXT, TEXTS, part_name="p.`é {}\""),
    # Formats, and specs that changed.
    _by("identity", TEXT, TEXTS, format=1),
    _by("bucket[2]", LONG, NUMBERS, format=1),
    Kind("a field that came later", "v", "identity", TEXT, TEXTS, respec=(("id", "bucket[2]"),)),
    Kind("format 1, a field that came later", "v", "identity", TEXT, TEXTS, format=1,
         respec=(("id", "bucket[2]"),)),
)  # fmt: skip
