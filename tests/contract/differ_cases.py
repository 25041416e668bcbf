"""Pairs of snapshots that every differ has to compare alike.

`CASES` is the conformance suite of the port `Differ`: build a case in any catalog that PyIceberg
and the engine share, then `check(differ, built)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, GreaterThan, IsNull
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
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
    TimeType,
    UUIDType,
)

from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.ports.comparison import DiffRequest
from tests.support.lakes.deletes import hide_rows
from tests.support.oracles.diff import (
    Map,
    Question,
    Row,
    answer,
    norm,
    seen,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

D = date(2024, 1, 1)
U = timezone.utc
DAY = ScopeField(column="d", transform="identity", type="date")


def day(number: int) -> date:
    return D + timedelta(days=number)


@dataclass(frozen=True)
class Built:
    """A case in a catalog: the request, and what the answer must be worked out from."""

    request: DiffRequest
    question: Question
    files: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Case:
    """One pair of snapshots. `engines` names those that can read all of its types."""

    name: str
    build: Callable[[Maker], Built]
    engines: tuple[str, ...] = ("local", "spark")


class Diffs(Protocol):
    """What of a differ the cases ask."""

    def diff(self, request: DiffRequest) -> Diff: ...


def check(differ: Diffs, built: Built) -> None:
    """Assert that the differ's answer is the oracle's."""
    expected = answer(built.question)
    found = seen(differ.diff(replace(built.request, samples=10_000)))
    assert found == replace(expected, files=built.files or found.files)


class Maker:
    """Makes the tables of one case inside a namespace."""

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self._catalog = catalog
        self._namespace = namespace
        catalog.create_namespace_if_not_exists(namespace)

    def table(
        self,
        columns: dict[str, IcebergType],
        by: Sequence[tuple[str, Transform[Any, Any]]] = (),
        name: str = "t",
    ) -> Table:
        fields = [
            NestedField(number, column, kind, required=False)
            for number, (column, kind) in enumerate(columns.items(), start=1)
        ]
        ids = {field.name: field.field_id for field in fields}
        spec = PartitionSpec(
            *(
                PartitionField(ids[column], 1000 + place, transform, f"{column}_{place}")
                for place, (column, transform) in enumerate(by)
            )
        )
        return self._catalog.create_table(
            f"{self._namespace}.{name}",
            Schema(*fields),
            partition_spec=spec if by else UNPARTITIONED_PARTITION_SPEC,
            properties={"format-version": "2"},
        )

    def request(
        self, table: Table, old: int | None, new: int | None, key: tuple[str, ...], **options: Any
    ) -> DiffRequest:
        name = f"{self._namespace}.{table.name()[-1]}"
        return DiffRequest(name, old, name, new, key, **options)


def arrow(table: Table, rows: Sequence[Row]) -> pa.Table:
    def cell(value: Any) -> Any:
        if isinstance(value, Map):
            return [(key, cell(each)) for key, each in value.entries]
        return value.bytes if isinstance(value, UUID) else value

    schema = table.schema().as_arrow()
    return pa.Table.from_pylist(
        [{k: cell(v) for k, v in row.items()} for row in rows], schema=schema
    )


def append(table: Table, rows: Sequence[Row]) -> int:
    table.append(arrow(table, rows))
    return table.metadata.current_snapshot_id or 0


def overwrite(table: Table, rows: Sequence[Row], what: BooleanExpression | None = None) -> int:
    table.overwrite(arrow(table, rows), overwrite_filter=what or AlwaysTrue())
    return table.metadata.current_snapshot_id or 0


def plain_pair(
    make: Maker,
    columns: dict[str, IcebergType],
    old: Sequence[Row],
    new: Sequence[Row],
    key: tuple[str, ...],
    **options: Any,
) -> Built:
    """An unpartitioned table whose content is replaced."""
    table = make.table(columns)
    before = append(table, old) if old else None
    after = overwrite(table, new) if new else None
    ignore = options.get("ignore", ())
    question = Question(old, new, tuple(columns), key, ignore=ignore)
    return Built(make.request(table, before, after, key, **options), question)


SIMPLE: dict[str, IcebergType] = {"d": DateType(), "k": LongType(), "v": LongType()}


def simple(days: int = 4, keys: int = 3, **change: Any) -> list[Row]:
    return [
        {"d": day(d), "k": k, "v": d * 10 + k, **change} for d in range(days) for k in range(keys)
    ]


def _all_types(make: Maker, *, with_time: bool) -> Built:
    columns: dict[str, IcebergType] = {
        "k": LongType(), "flag": BooleanType(), "i": IntegerType(), "f": FloatType(),
        "x": DoubleType(), "money": DecimalType(20, 4), "d": DateType(), "ts": TimestampType(),
        "tz": TimestamptzType(), "s": StringType(), "b": BinaryType(), "fx": FixedType(3),
    }  # fmt: skip
    one: Row = {
        "flag": True, "i": -7, "f": 0.5, "x": 1e300, "money": Decimal("1234567890123456.7891"),
        "d": date(1969, 12, 31), "ts": datetime.fromisoformat("2024-01-01T01:02:03.000004"),
        "tz": datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=U), "s": "ä'\"; --", "b": b"\x00\xff",
        "fx": b"abc",
    }  # fmt: skip
    other: Row = {
        "flag": False, "i": 7, "f": 0.25, "x": 1e299, "money": Decimal("1234567890123456.7890"),
        "d": date(1970, 1, 1), "ts": datetime.fromisoformat("2024-01-01T01:02:03.000005"),
        "tz": datetime(2024, 1, 1, 1, 2, 3, 5, tzinfo=U), "s": "a", "b": b"\x00", "fx": b"abd",
    }  # fmt: skip
    if with_time:
        columns |= {"t": TimeType(), "u": UUIDType()}
        one |= {"t": time(1, 2, 3, 4), "u": UUID(int=5)}
        other |= {"t": time(1, 2, 3, 5), "u": UUID(int=6)}
    old = [{"k": n, **one} for n in range(len(one) + 2)]
    new = [{"k": n, **one, name: other[name]} for n, name in enumerate(one)]
    new += [{"k": len(one), **one}, {"k": 99}]
    return plain_pair(make, columns, old, new, ("k",))


def _nested(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {
        "k": LongType(),
        "st": StructType(
            NestedField(10, "a", LongType(), required=False),
            NestedField(
                11, "b", ListType(12, StringType(), element_required=False), required=False
            ),
        ),
        "ls": ListType(13, DoubleType(), element_required=False),
        "mp": MapType(14, StringType(), 15, LongType(), value_required=False),
    }
    base: Row = {
        "st": {"a": 1, "b": ["x", None]}, "ls": [1.0, float("nan"), 0.0],
        "mp": Map((("a", 1), ("b", None))),
    }  # fmt: skip
    old = [{"k": n, **base} for n in range(8)]
    new = [dict(row) for row in old]
    new[1]["st"] = {"a": 1, "b": ["x", "y"]}
    new[2]["ls"] = [1.0, float("nan"), -0.0]
    new[3]["ls"] = [1.0, 0.0, float("nan")]
    new[4]["mp"] = Map((("b", None), ("a", 1)))
    new[5]["mp"] = Map((("a", 2), ("b", None)))
    new[6]["st"] = None
    new[7]["ls"] = []
    return plain_pair(make, columns, old, new, ("k",))


def _nulls(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"k": StringType(), "j": LongType(), "v": StringType()}
    old = [
        {"k": None, "j": 1, "v": "a"},
        {"k": "", "j": 1, "v": "b"},
        {"k": None, "j": None, "v": "c"},
    ]
    new = [
        {"k": None, "j": 1, "v": None},
        {"k": "", "j": 1, "v": ""},
        {"k": None, "j": None, "v": "c"},
    ]
    return plain_pair(make, columns, old, new, ("k", "j"))


def _floats(make: Maker) -> Built:
    nan = float("nan")
    columns: dict[str, IcebergType] = {"k": DoubleType(), "x": DoubleType(), "f": FloatType()}
    old = [
        {"k": nan, "x": nan, "f": nan},
        {"k": 0.0, "x": 0.0, "f": -0.0},
        {"k": 1.0, "x": nan, "f": 1.0},
    ]
    new = [
        {"k": nan, "x": nan, "f": nan},
        {"k": -0.0, "x": -0.0, "f": 0.0},
        {"k": 1.0, "x": 1.0, "f": nan},
    ]
    return plain_pair(make, columns, old, new, ("k",))


def _decimals(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"k": LongType(), "m": DecimalType(38, 10)}
    big = Decimal("1234567890123456789012345678.1234567890")
    old = [{"k": 1, "m": big}, {"k": 2, "m": Decimal("1.10")}]
    more = Decimal("1234567890123456789012345678.1234567891")
    new = [{"k": 1, "m": more}, {"k": 2, "m": Decimal("1.1")}]
    return plain_pair(make, columns, old, new, ("k",))


DUPES: dict[str, IcebergType] = {"k": LongType(), "v": StringType()}


def _duplicates(make: Maker) -> Built:
    pairs_old = [(1, "a"), (1, "a"), (1, "b"), (2, "x"), (3, "y"), (4, "p"), (4, "q"), (6, "z")]
    pairs_new = [
        (1, "a"),
        (1, "b"),
        (1, "c"),
        (2, "x"),
        (2, "x"),
        (3, "w"),
        (4, "p"),
        (5, None),
        (5, None),
    ]
    old, new = ([{"k": k, "v": v} for k, v in pairs] for pairs in (pairs_old, pairs_new))
    return plain_pair(make, DUPES, old, new, ("k",))


def _no_key(make: Maker) -> Built:
    pairs_old = [(1, "a"), (1, "a"), (1, "a"), (2, None), (3, "c")]
    pairs_new = [(1, "a"), (2, None), (2, None), (3, "d")]
    old, new = ([{"k": k, "v": v} for k, v in pairs] for pairs in (pairs_old, pairs_new))
    return plain_pair(make, DUPES, old, new, ())


def _many_duplicates(make: Maker) -> Built:
    # A join would make 40,000 rows of these.
    old = [{"k": 1, "v": str(n)} for n in range(200)]
    return plain_pair(make, DUPES, old, old[:150] + [{"k": 1, "v": "new"}] * 50, ("k",))


def _by_day(
    make: Maker, old: list[Row], new: list[Row], key: tuple[str, ...], **options: Any
) -> Built:
    """A table by day whose days from 2024-01-03 on are replaced: two days keep their file."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    before = append(table, old)
    late = [row for row in new if row["d"] is None or row["d"] > day(1)]
    rest = GreaterThan("d", day(1).isoformat())
    after = overwrite(table, late, rest)
    kept = [row for row in old if row["d"] is not None and row["d"] <= day(1)]
    question = Question(
        old, kept + [row for row in late if row not in kept], tuple(SIMPLE), key,
        label=lambda row: "null" if row["d"] is None else row["d"].isoformat(),
        ignore=options.get("ignore", ()),
    )  # fmt: skip
    return Built(make.request(table, before, after, key, **options), question)


def _shared_days(make: Maker) -> Built:
    new = simple()
    new[6]["v"] = -1
    del new[7]
    new.append({"d": day(5), "k": 1, "v": 1})
    return replace(_by_day(make, simple(), new, ("d", "k")), files=(2, 2, 3))


def _moved(make: Maker, key: tuple[str, ...]) -> Built:
    old = [{"d": day(d), "k": d * 10 + k, "v": 1} for d in range(4) for k in range(3)]
    new = [dict(row, d=day(3)) if row["k"] == 20 else row for row in old]
    return _by_day(make, old, new, key)


def _ignored(make: Maker) -> Built:
    new = [dict(row, v=-1) for row in simple()]
    return _by_day(make, simple(), new, ("d", "k"), ignore=("v",))


def _scoped(make: Maker) -> Built:
    new = [dict(row, v=-1) for row in simple()]
    scope = Scope(
        field=DAY, partitions=(day(1).isoformat(), day(3).isoformat(), day(9).isoformat())
    )
    built = _by_day(make, simple(), new, ("d", "k"), scope=scope)
    inside = built.question
    inside.keeps = lambda row: row["d"] in (day(1), day(3))
    return replace(built, files=(1, 1, 1))


def _condition(make: Maker) -> Built:
    new = [dict(row, v=row["v"] - 1) for row in simple()]
    built = _by_day(make, simple(), new, ("d", "k"), where="V >= 11 AND k <> 1")
    built.question.keeps = lambda row: row["v"] >= 11 and row["k"] != 1
    return built


def _condition_on_ignored(make: Maker) -> Built:
    new = [dict(row, v=row["v"] - 1) for row in simple()]
    where, ignore = "`v` BETWEEN 11 AND 31", ("v",)
    built = _by_day(make, simple(), new, ("d", "k"), where=where, ignore=ignore)
    built.question.keeps = lambda row: 11 <= row["v"] <= 31
    return built


def _null_partition(make: Maker) -> Built:
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    old = [*simple(2), {"d": None, "k": 1, "v": 1}, {"d": None, "k": 2, "v": 2}]
    before = append(table, old)
    new = [*simple(2), {"d": None, "k": 1, "v": 5}, {"d": None, "k": 3, "v": 2}]
    after = overwrite(table, new[-2:], IsNull("d"))
    scope = Scope(field=DAY, partitions=("null", day(0).isoformat()))
    question = Question(
        old, new, tuple(SIMPLE), ("d", "k"),
        label=lambda row: "null" if row["d"] is None else row["d"].isoformat(),
        keeps=lambda row: row["d"] in (None, day(0)),
    )  # fmt: skip
    request = make.request(table, before, after, ("d", "k"), scope=scope)
    return Built(request, question, files=(1, 1, 1))


def _texts(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"p": StringType(), "k": LongType(), "v": LongType()}
    table = make.table(columns, [("p", IdentityTransform())])
    names = ["null", None, "=", "EU/ä", ""]
    old = [{"p": p, "k": k, "v": 1} for p in names for k in range(2)]
    before = append(table, old)
    new = [dict(row, v=2 if row["k"] else 1) for row in old]
    after = overwrite(table, new)
    labels = {"null": "=null", None: "null", "=": "==", "EU/ä": "EU/ä", "": ""}
    question = Question(old, new, tuple(columns), ("k",), label=lambda row: labels[row["p"]])
    return Built(make.request(table, before, after, ("k",)), question)


def _timed(make: Maker, transform: Any, kind: IcebergType, label: str) -> Built:
    columns: dict[str, IcebergType] = {"at": kind, "k": LongType(), "v": LongType()}
    table = make.table(columns, [("at", transform)])
    zone = U if isinstance(kind, TimestamptzType) else None
    moments: list[Any] = [
        datetime(2023, 12, 31, 22, 59, tzinfo=zone) + timedelta(hours=h) for h in range(4)
    ]
    if isinstance(kind, DateType):
        moments = [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)]
    old = [{"at": at, "k": k, "v": 1} for k, at in enumerate([*moments, None])]
    before = append(table, old)
    new = [dict(row, v=2 if row["k"] == 1 else 1) for row in old]
    after = overwrite(table, new)
    named = "null" if label == "" else label

    def of(row: Row) -> str:
        return "null" if row["at"] is None else row["at"].strftime(named)

    return Built(
        make.request(table, before, after, ("k",)),
        Question(old, new, tuple(columns), ("k",), label=of),
    )


def _identity_instant(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"at": TimestamptzType(), "k": LongType()}
    table = make.table(columns, [("at", IdentityTransform())])
    old = [{"at": datetime(2024, 1, 1, h, 30, 0, 5, tzinfo=U), "k": h} for h in range(2)]
    before, after = append(table, old), overwrite(table, old[:1])
    question = Question(
        old, old[:1], tuple(columns), ("k",), label=lambda row: row["at"].isoformat()
    )
    return Built(make.request(table, before, after, ("k",)), question)


def _two_fields(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"d": DateType(), "r": StringType(), "k": IntegerType()}
    table = make.table(columns, [("d", IdentityTransform()), ("r", IdentityTransform())])
    old = [{"d": day(d), "r": r, "k": k} for d in range(2) for r in ("a", "b") for k in range(2)]
    before = append(table, old)
    new = [row for row in old if row["k"] or row["r"] == "a"]
    after = overwrite(table, [r for r in new if r["r"] == "b"], EqualTo("r", "b"))
    question = Question(
        old, new, tuple(columns), ("d", "r", "k"),
        label=lambda row: f"d_0={row['d'].isoformat()}/r_1={row['r']}",
    )  # fmt: skip
    return Built(make.request(table, before, after, ("d", "r", "k")), question, files=(2, 2, 2))


def _bucket(make: Maker) -> Built:
    table = make.table(SIMPLE, [("k", BucketTransform(1))])
    before = append(table, simple())
    after = overwrite(table, simple(3))
    question = Question(simple(), simple(3), tuple(SIMPLE), ("d", "k"), label=lambda _: "k_0=0")
    return Built(make.request(table, before, after, ("d", "k")), question)


def _empty_side(make: Maker, which: str) -> Built:
    rows = simple()
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    snapshot = append(table, rows)
    sides = {"old": (None, snapshot), "new": (snapshot, None), "both": (None, None)}[which]
    old, new = ([] if side is None else rows for side in sides)
    columns = tuple(SIMPLE) if old or new else ()
    question = Question(
        old, new, columns, ("d", "k") if columns else (),
        label=lambda row: row["d"].isoformat(),
    )  # fmt: skip
    return Built(make.request(table, *sides, ("d", "k")), question)


def _absent_old_table(make: Maker) -> Built:
    table = make.table(SIMPLE)
    rows = simple(1)
    request = make.request(table, None, append(table, rows), ("d", "k"))
    return Built(
        replace(request, old_table="nowhere.at_all"), Question([], rows, tuple(SIMPLE), ("d", "k"))
    )


def _same_snapshot(make: Maker) -> Built:
    table = make.table(SIMPLE, [("d", DayTransform())])
    rows = simple()
    snapshot = append(table, rows)
    question = Question(
        rows, rows, tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat()
    )
    return Built(make.request(table, snapshot, snapshot, ("d", "k")), question, files=(4, 0, 0))


def _appended_file(make: Maker) -> Built:
    table = make.table(SIMPLE)
    before = append(table, simple(2))
    after = append(table, simple(4)[6:])
    question = Question(simple(2), simple(4), tuple(SIMPLE), ("d", "k"))
    return Built(make.request(table, before, after, ("d", "k")), question, files=(1, 0, 1))


def _evolved(make: Maker, change: Callable[[Table], None], new: list[Row], **options: Any) -> Built:
    """The first file is written before the change and shared; the second one after it."""
    table = make.table(SIMPLE)
    old = simple(2)
    before = append(table, old)
    change(table)
    after = append(table, [row for row in new if row["k"] > 90])
    columns = tuple(options.pop("columns"))
    question = Question(old, new, columns, ("d", "k"), **options)
    return Built(make.request(table, before, after, ("d", "k")), question, files=(1, 0, 1))


def _deleted_merge_on_read(make: Maker, *, is_both: bool) -> Built:
    """Rows hidden by delete files; on one side, or on both with an append since."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    append(table, simple())
    first = table.refresh().metadata.current_snapshot_id
    hidden = hide_rows(table, "v", {1, 21})
    seen = [row for row in simple() if row["v"] not in {1, 21}]
    if not is_both:
        question = Question(
            simple(), seen, tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat()
        )
        request = make.request(table, first, hidden, ("d", "k"))
        return Built(request, question, files=(2, 2, 2))
    added = [{"d": day(2), "k": 99, "v": 5}]
    after = append(table.refresh(), added)
    question = Question(
        seen, [*seen, *added], tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat()
    )
    return Built(make.request(table, hidden, after, ("d", "k")), question, files=(4, 0, 1))


def _added_column(make: Maker) -> Built:
    def change(table: Table) -> None:
        with table.update_schema() as update:
            update.add_column("note", StringType())

    new = [*simple(2), {"d": day(0), "k": 99, "v": 1, "note": "n"}]
    return _evolved(make, change, new, columns=("d", "k", "v", "note"))


def _added_column_rewritten(make: Maker) -> Built:
    table = make.table(SIMPLE)
    before = append(table, simple(2))
    with table.update_schema() as update:
        update.add_column("note", StringType())
    new = [dict(row, note="n" if row["k"] else None) for row in simple(2)]
    after = overwrite(table, new)
    question = Question(simple(2), new, ("d", "k", "v", "note"), ("d", "k"))
    return Built(make.request(table, before, after, ("d", "k")), question, files=(0, 1, 1))


def _dropped_column(make: Maker) -> Built:
    def change(table: Table) -> None:
        with table.update_schema() as update:
            update.delete_column("v")

    new = [{"d": row["d"], "k": row["k"]} for row in simple(2)] + [{"d": day(0), "k": 99}]
    return _evolved(make, change, new, columns=("d", "k", "v"))


def _renamed_column(make: Maker) -> Built:
    def change(table: Table) -> None:
        with table.update_schema() as update:
            update.rename_column("v", "w")

    new = [{"d": row["d"], "k": row["k"], "w": row["v"]} for row in simple(2)]
    new.append({"d": day(0), "k": 99, "w": 5})
    return _evolved(make, change, new, columns=("d", "k", "w", "v"))


def _replaced_column(make: Maker) -> Built:
    def change(table: Table) -> None:
        with table.update_schema() as update:
            update.delete_column("v")
        with table.update_schema() as update:
            update.add_column("v", StringType())

    new = [{"d": row["d"], "k": row["k"], "v": None} for row in simple(2)]
    new.append({"d": day(0), "k": 99, "v": "1"})
    built = _evolved(make, change, new, columns=("d", "k", "v"))
    tags = {int: "long: {}", str: "string: {}"}
    shape = {"v": lambda value: None if value is None else tags[type(value)].format(value)}
    built.question.shapes = shape
    return built


def _swapped_names(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"k": LongType(), "a": LongType(), "b": LongType()}
    table = make.table(columns)
    old = [{"k": k, "a": k, "b": 10} for k in range(12)]
    before = append(table, old)
    for names in (("a", "x"), ("b", "a"), ("x", "b")):
        with table.update_schema() as update:
            update.rename_column(*names)
    after = append(table, [{"k": 99, "a": 1, "b": 2}])
    new = [{"k": k, "a": 10, "b": k} for k in range(12)] + [{"k": 99, "a": 1, "b": 2}]
    question = Question(old, new, ("k", "a", "b"), ("k",))
    return Built(make.request(table, before, after, ("k",)), question, files=(1, 0, 1))


def _renamed_scope_column(make: Maker) -> Built:
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    before = append(table, simple())
    after = overwrite(table, simple(4, 2)[4:], GreaterThan("d", day(1).isoformat()))
    with table.update_schema() as update:
        update.rename_column("d", "date_of_day")
    scope = Scope(field=DAY, partitions=(day(2).isoformat(), day(3).isoformat()))
    new = simple(2) + simple(4, 2)[4:]
    question = Question(
        simple(), new, tuple(SIMPLE), ("d", "k"),
        label=lambda row: row["d"].isoformat(), keeps=lambda row: row["d"] > day(1),
    )  # fmt: skip
    request = make.request(table, before, after, ("d", "k"), scope=scope)
    return Built(request, question, files=(0, 2, 2))


def _promoted(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {
        "k": IntegerType(), "n": IntegerType(), "f": FloatType(), "m": DecimalType(5, 2)
    }  # fmt: skip
    table = make.table(columns)
    old = [{"k": k, "n": k, "f": 0.5, "m": Decimal("1.50")} for k in range(4)]
    before = append(table, old)
    with table.update_schema() as update:
        for name, kind in (("k", LongType()), ("n", LongType()), ("f", DoubleType())):
            update.update_column(name, field_type=kind)
        update.update_column("m", field_type=DecimalType(9, 2))
    new = [dict(row) for row in old]
    new[1]["n"] = 2**40
    new[2]["f"] = 0.1
    new[3]["m"] = Decimal("1234567.50")
    after = overwrite(table, new)
    question = Question(old, new, tuple(columns), ("k",))
    return Built(make.request(table, before, after, ("k",)), question)


def _evolved_struct(make: Maker) -> Built:
    inner = StructType(NestedField(10, "a", LongType(), required=False))
    table = make.table({"k": LongType(), "st": inner})
    old = [{"k": k, "st": {"a": k}} for k in range(3)]
    before = append(table, old)
    with table.update_schema() as update:
        update.add_column(("st", "Z"), StringType())
    new = [dict(row, st={"a": row["k"], "Z": "z" if row["k"] else None}) for row in old]
    after = overwrite(table, new)
    question = Question(old, new, ("k", "st"), ("k",))
    question.shapes = {"st": lambda st: {"a": st["a"], "Z": st.get("Z")}}
    return Built(make.request(table, before, after, ("k",)), question)


def _two_tables(make: Maker) -> Built:
    """Tables of different layout: there is no common partition to tell apart."""
    one, other = make.table(SIMPLE), make.table(SIMPLE, [("d", DayTransform())], name="u")
    new = [dict(row, v=0) for row in simple()]
    before, after = append(one, simple()), append(other, new)
    base = make.request(one, before, after, ("d", "k"))
    request = replace(base, new_table=make.request(other, 0, 0, ()).new_table)
    return Built(request, Question(simple(), new, tuple(SIMPLE), ("d", "k")), files=(0, 1, 4))


def _scope_on_two_layouts(make: Maker) -> Built:
    """A scope names partitions even where one side's files do not follow it."""
    built = _two_tables(make)
    labels = (day(1).isoformat(), day(2).isoformat())
    built.question.label = lambda row: row["d"].isoformat()
    built.question.keeps = lambda row: row["d"] in (day(1), day(2))
    request = replace(built.request, scope=Scope(field=DAY, partitions=labels))
    return Built(request, built.question, files=(0, 1, 2))


def _evolved_layout(make: Maker) -> Built:
    """Months became days: the old file reaches beyond the scope and is shared."""
    table = make.table(SIMPLE, [("d", MonthTransform())])
    old = simple()
    before = append(table, old)
    with table.update_spec() as update:
        update.remove_field("d_0")
        update.add_field("d", DayTransform(), "d_day")
    extra = [{"d": day(1), "k": 50, "v": 1}, {"d": day(2), "k": 51, "v": 1}]
    after = append(table, extra)
    field = ScopeField(column="d", transform="day", type="date")
    scope = Scope(field=field, partitions=(day(1).isoformat(), day(3).isoformat()))
    question = Question(
        old, [*old, *extra], tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat(),
        keeps=lambda row: row["d"] in (day(1), day(3)),
    )  # fmt: skip
    request = make.request(table, before, after, ("d", "k"), scope=scope)
    return Built(request, question, files=(1, 0, 1))


def _names(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {
        "K": LongType(), "a b": LongType(), 'q"uote': StringType(), "select": LongType(),
    }  # fmt: skip
    old = [{"K": 1, "a b": 1, 'q"uote': "x", "select": 1}]
    new = [{"K": 1, "a b": 2, 'q"uote': "y", "select": 1}]
    return plain_pair(make, columns, old, new, ("K",))


def _twin_names(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"k": LongType(), "v": LongType(), "V": LongType()}
    return plain_pair(make, columns, [{"k": 1, "v": 1, "V": 2}], [{"k": 1, "v": 1, "V": 3}], ("k",))


def _only_keys(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"k": LongType()}
    return plain_pair(make, columns, [{"k": 1}, {"k": 2}], [{"k": 2}, {"k": 3}], ("k",))


LOCAL = ("local",)
CASES = (
    Case("all primitive types", lambda make: _all_types(make, with_time=False)),
    Case("time and uuid", lambda make: _all_types(make, with_time=True), LOCAL),
    Case("nested types", _nested),
    Case("nulls in keys and values", _nulls),
    Case("NaN and minus zero", _floats),
    Case("decimals exactly", _decimals),
    Case("duplicate keys", _duplicates),
    Case("many duplicates of one key", _many_duplicates),
    Case("no key", _no_key),
    Case("only key columns", _only_keys),
    Case("shared partitions", _shared_days),
    Case("moved, key with partition", lambda make: _moved(make, ("d", "k"))),
    Case("moved, key without partition", lambda make: _moved(make, ("k",))),
    Case("ignored column", _ignored),
    Case("scope", _scoped),
    Case("condition", _condition),
    Case("condition on an ignored column", _condition_on_ignored),
    Case("null partition", _null_partition),
    Case("text partitions", _texts),
    Case("days", lambda make: _timed(make, DayTransform(), TimestampType(), "%Y-%m-%d")),
    Case(
        "hours with zone",
        lambda make: _timed(make, HourTransform(), TimestamptzType(), "%Y-%m-%dT%H"),
    ),
    Case("months", lambda make: _timed(make, MonthTransform(), DateType(), "%Y-%m")),
    Case("years", lambda make: _timed(make, YearTransform(), TimestampType(), "%Y")),
    Case("instants as partitions", _identity_instant),
    Case("two partition fields", _two_fields),
    Case("buckets", _bucket),
    Case("empty old side", lambda make: _empty_side(make, "old")),
    Case("empty new side", lambda make: _empty_side(make, "new")),
    Case("empty sides", lambda make: _empty_side(make, "both")),
    Case("old table does not exist", _absent_old_table),
    Case("same snapshot", _same_snapshot),
    Case("appended file", _appended_file),
    Case("rows deleted merge-on-read", lambda make: _deleted_merge_on_read(make, is_both=False)),
    Case(
        "rows deleted merge-on-read before",
        lambda make: _deleted_merge_on_read(make, is_both=True),
    ),
    Case("added column, shared file", _added_column),
    Case("added column, rewritten", _added_column_rewritten),
    Case("dropped column", _dropped_column),
    Case("renamed column", _renamed_column),
    Case("column of another type", _replaced_column),
    Case("swapped names", _swapped_names),
    Case("scope column renamed later", _renamed_scope_column),
    Case("promoted types", _promoted),
    Case("evolved struct", _evolved_struct),
    Case("two layouts", _two_tables),
    Case("scope on two layouts", _scope_on_two_layouts),
    Case("evolved layout", _evolved_layout),
    Case("awkward names", _names),
    Case("names that differ in case", _twin_names, LOCAL),
)

__all__ = ["CASES", "Built", "Case", "Maker", "check", "norm"]
