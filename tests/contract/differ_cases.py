"""Pairs of snapshots that every differ has to compare alike.

`CASES` is the conformance suite of the port `Differ`: build a case in any catalog that PyIceberg
and the engine share, then `check(differ, built)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

import pyarrow as pa
import pytest
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
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from lakehouse_backfill.domain.comparison.diff import Diff
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.ports.comparison import DiffRequest
from tests.support.lakes.deletes import hide_rows
from tests.support.oracles.diff import Map, Question, Row, answer, seen

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.update.schema import UpdateSchema

D = date(2024, 1, 1)
U = timezone.utc
DAY = ScopeField(column="d", transform="identity", type="date")
#: By column: an Iceberg type, or its name.
Columns = Mapping[str, Any]
By = Sequence[tuple[str, Transform[Any, Any]]]
SIMPLE: Columns = {"d": "date", "k": "long", "v": "long"}
BY_DAY: By = [("d", IdentityTransform())]
#: What of a question is more than its rows, columns and key.
ASKED = {"label", "ignore", "keeps", "shapes", "near"}
LOCAL = ("local",)
Build = TypeVar("Build", bound="Callable[..., Built]")


def day(number: int) -> date:
    return D + timedelta(days=number)


def iso(number: int) -> str:
    return day(number).isoformat()


def day_label(row: Row) -> str:
    return "null" if row["d"] is None else row["d"].isoformat()


def days(*numbers: int) -> Scope:
    return Scope(field=DAY, partitions=tuple(iso(number) for number in numbers))


def simple(days: int = 4, keys: int = 3, **change: Any) -> list[Row]:
    return [
        {"d": day(d), "k": k, "v": d * 10 + k, **change} for d in range(days) for k in range(keys)
    ]


def rows(names: str, *values: Sequence[Any]) -> list[Row]:
    """Give rows of these columns."""
    return [dict(zip(names.split(), each, strict=True)) for each in values]


def changed(base: Row, number: int, changes: Mapping[int, Row]) -> tuple[list[Row], list[Row]]:
    """So many rows with keys `k` from 0 on, as they were and with some changed."""
    old = [{"k": k, **base} for k in range(number)]
    return old, [row | changes.get(k, {}) for k, row in enumerate(old)]


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


class Cases(list[Case]):
    """Cases in the order in which they are added."""

    def add(
        self, name: str, engines: tuple[str, ...] = ("local", "spark"), **arguments: Any
    ) -> Callable[[Build], Build]:
        """Decorate a builder: with these arguments it is a case."""

        def register(build: Build) -> Build:
            self.append(Case(name, partial(build, **arguments), engines))
            return build

        return register

    def replaced(
        self,
        name: str,
        columns: Columns,
        contents: tuple[Sequence[Row], Sequence[Row]],
        key: tuple[str, ...] = ("k",),
        engines: tuple[str, ...] = ("local", "spark"),
        **options: Any,
    ) -> None:
        """Add a case of one table whose content is replaced."""
        arguments = {"columns": columns, "contents": contents, "key": key, **options}
        self.append(Case(name, partial(replaced, **arguments), engines))

    def named(self, name: str) -> Case:
        return next(case for case in self if case.name == name)


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

    def table(self, columns: Columns, by: By = (), name: str = "t") -> Table:
        fields = [
            NestedField(number, column, kind, required=False)
            for number, (column, kind) in enumerate(columns.items(), start=1)
        ]
        ids = {field.name: field.field_id for field in fields}
        parts = [
            PartitionField(ids[column], 1000 + place, transform, f"{column}_{place}")
            for place, (column, transform) in enumerate(by)
        ]
        return self._catalog.create_table(
            f"{self._namespace}.{name}",
            Schema(*fields),
            partition_spec=PartitionSpec(*parts) if by else UNPARTITIONED_PARTITION_SPEC,
            properties={"format-version": "2"},
        )

    def request(
        self, table: Table, old: int | None, new: int | None, key: tuple[str, ...], **options: Any
    ) -> DiffRequest:
        name = f"{self._namespace}.{table.name()[-1]}"
        return DiffRequest(name, old, name, new, key, **options)

    def pair(
        self,
        table: Table,
        sides: tuple[int | None, int | None],
        contents: tuple[Sequence[Row], Sequence[Row]],
        key: tuple[str, ...] = ("d", "k"),
        columns: Columns | Sequence[str] = SIMPLE,
        **options: Any,
    ) -> Built:
        """Two states of a table; options are those of the question, of the request, and `files`."""
        files = options.pop("files", None)
        asked = {name: options.pop(name) for name in ASKED & options.keys()}
        request = self.request(table, *sides, key, ignore=asked.get("ignore", ()), **options)
        return Built(request, Question(*contents, tuple(columns), key, **asked), files)

    def two_tables(self, tables: tuple[Table, Table], **options: Any) -> Built:
        """Like a pair, of two tables; `contents` are appended to them."""
        sides = tuple(map(append, tables, options["contents"]))
        built = self.pair(tables[0], sides, **options)
        other = f"{self._namespace}.{tables[1].name()[-1]}"
        return replace(built, request=replace(built.request, new_table=other))


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


def replaced(
    make: Maker,
    columns: Columns,
    contents: tuple[Sequence[Row], Sequence[Row]],
    key: tuple[str, ...],
    by: By = (),
    **options: Any,
) -> Built:
    """A table whose content is replaced."""
    table, (old, new) = make.table(columns, by), contents
    sides = append(table, old) if old else None, overwrite(table, new) if new else None
    return make.pair(table, sides, contents, key, columns, **options)


def evolve(table: Table, *changes: Callable[[UpdateSchema], Any]) -> None:
    for change in changes:
        with table.update_schema() as update:
            change(update)


CASES = Cases()
NAN = float("nan")
TYPES: dict[str, tuple[Any, Any, Any]] = {
    "flag": ("boolean", True, False),
    "i": ("int", -7, 7),
    "f": ("float", 0.5, 0.25),
    "x": ("double", 1e300, 1e299),
    "money": (
        "decimal(20, 4)", Decimal("1234567890123456.7891"), Decimal("1234567890123456.7890")
    ),
    "d": ("date", date(1969, 12, 31), date(1970, 1, 1)),
    "ts": (
        "timestamp",
        datetime.fromisoformat("2024-01-01T01:02:03.000004"),
        datetime.fromisoformat("2024-01-01T01:02:03.000005"),
    ),
    "tz": (
        "timestamptz",
        datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=U), datetime(2024, 1, 1, 1, 2, 3, 5, tzinfo=U),
    ),
    "s": ("string", "ä'\"; --", "a"),
    "b": ("binary", b"\x00\xff", b"\x00"),
    "fx": ("fixed[3]", b"abc", b"abd"),
}  # fmt: skip
MORE_TYPES: dict[str, tuple[Any, Any, Any]] = {
    "t": ("time", time(1, 2, 3, 4), time(1, 2, 3, 5)),
    "u": ("uuid", UUID(int=5), UUID(int=6)),
}


@CASES.add("all primitive types", types=TYPES)
@CASES.add("time and uuid", LOCAL, types=TYPES | MORE_TYPES)
def _all_types(make: Maker, types: dict[str, tuple[Any, Any, Any]]) -> Built:
    """Each row but the last two differs in one column."""
    one = {name: value for name, (_, value, _) in types.items()}
    changes = {k: {name: other} for k, (name, (_, _, other)) in enumerate(types.items())}
    old, new = changed(one, len(one) + 2, changes)
    columns = {"k": "long"} | {name: kind for name, (kind, _, _) in types.items()}
    return replaced(make, columns, (old, [*new[:-1], {"k": 99}]), ("k",))


CASES.replaced(
    "nested types",
    {
        "k": "long",
        "st": StructType(
            NestedField(10, "a", "long", required=False),
            NestedField(11, "b", ListType(12, "string", element_required=False), required=False),
        ),
        "ls": ListType(13, "double", element_required=False),
        "mp": MapType(14, "string", 15, "long", value_required=False),
    },
    changed(
        {
            "st": {"a": 1, "b": ["x", None]}, "ls": [1.0, NAN, 0.0],
            "mp": Map((("a", 1), ("b", None))),
        },
        8,
        {
            1: {"st": {"a": 1, "b": ["x", "y"]}},
            2: {"ls": [1.0, NAN, -0.0]},
            3: {"ls": [1.0, 0.0, NAN]},
            4: {"mp": Map((("b", None), ("a", 1)))},
            5: {"mp": Map((("a", 2), ("b", None)))},
            6: {"st": None},
            7: {"ls": []},
        },
    ),
)  # fmt: skip
CASES.replaced(
    "nulls in keys and values",
    {"k": "string", "j": "long", "v": "string"},
    (
        rows("k j v", (None, 1, "a"), ("", 1, "b"), (None, None, "c")),
        rows("k j v", (None, 1, None), ("", 1, ""), (None, None, "c")),
    ),
    ("k", "j"),
)
CASES.replaced(
    "NaN and minus zero",
    {"k": "double", "x": "double", "f": "float"},
    (
        rows("k x f", (NAN, NAN, NAN), (0.0, 0.0, -0.0), (1.0, NAN, 1.0)),
        rows("k x f", (NAN, NAN, NAN), (-0.0, -0.0, 0.0), (1.0, 1.0, NAN)),
    ),
)
BIG, BIGGER = (Decimal(f"1234567890123456789012345678.123456789{last}") for last in (0, 1))
CASES.replaced(
    "decimals exactly", {"k": "long", "m": "decimal(38, 10)"},
    (rows("k m", (1, BIG), (2, Decimal("1.10"))), rows("k m", (1, BIGGER), (2, Decimal("1.1")))),
)  # fmt: skip
DUPES: Columns = {"k": "long", "v": "string"}
CASES.replaced(
    "duplicate keys",
    DUPES,
    (
        rows("k v", *zip([1, 1, 1, 2, 3, 4, 4, 6], "aabxypqz", strict=True)),
        rows("k v", *zip([1, 1, 1, 2, 2, 3, 4, 5, 5], [*"abcxxwp", None, None], strict=True)),
    ),
)
CASES.replaced(
    "no key",
    DUPES,
    (
        rows("k v", (1, "a"), (1, "a"), (1, "a"), (2, None), (3, "c")),
        rows("k v", (1, "a"), (2, None), (2, None), (3, "d")),
    ),
    (),
)
# A join would make 40,000 rows of these.
SAME_KEY = [{"k": 1, "v": str(n)} for n in range(200)]
CASES.replaced(
    "many duplicates of one key", DUPES, (SAME_KEY, SAME_KEY[:150] + [{"k": 1, "v": "new"}] * 50)
)
CASES.replaced("only key columns", {"k": "long"}, (rows("k", [1], [2]), rows("k", [2], [3])))
CASES.replaced(
    "awkward names",
    {"K": "long", "a b": "long", 'q"uote': "string", "select": "long"},
    (
        [{"K": 1, "a b": 1, 'q"uote': "x", "select": 1}],
        [{"K": 1, "a b": 2, 'q"uote': "y", "select": 1}],
    ),
    ("K",),
)
CASES.replaced(
    "names that differ in case",
    {"k": "long", "v": "long", "V": "long"},
    ([{"k": 1, "v": 1, "V": 2}], [{"k": 1, "v": 1, "V": 3}]),
    engines=LOCAL,
)


def _by_day(
    make: Maker,
    new: list[Row],
    old: list[Row] | None = None,
    key: tuple[str, ...] = ("d", "k"),
    **options: Any,
) -> Built:
    """A table by day whose days from 2024-01-03 on are replaced: two days keep their file."""
    table, old = make.table(SIMPLE, BY_DAY), old or simple()
    before = append(table, old)
    late = [row for row in new if row["d"] > day(1)]
    after = overwrite(table, late, GreaterThan("d", iso(1)))
    contents = old, [row for row in old if row["d"] <= day(1)] + late
    return make.pair(table, (before, after), contents, key, label=day_label, **options)


def _less(number: int) -> list[Row]:
    return [dict(row, v=row["v"] - number) for row in simple()]


@CASES.add("shared partitions")
def _shared_days(make: Maker) -> Built:
    new = simple()
    new[6]["v"] = -1
    del new[7]
    new.append({"d": day(5), "k": 1, "v": 1})
    return _by_day(make, new, files=(2, 2, 3))


@CASES.add("moved, key with partition", key=("d", "k"))
@CASES.add("moved, key without partition", key=("k",))
def _moved(make: Maker, key: tuple[str, ...]) -> Built:
    old = [{"d": day(d), "k": d * 10 + k, "v": 1} for d in range(4) for k in range(3)]
    return _by_day(make, [row | {"d": day(3)} if row["k"] == 20 else row for row in old], old, key)


CASES.add("ignored column", new=simple(v=-1), ignore=("v",))(_by_day)
CASES.add(
    "scope", new=simple(v=-1), scope=days(1, 3, 9), files=(1, 1, 1),
    keeps=lambda row: row["d"] in (day(1), day(3)),
)(_by_day)  # fmt: skip
CASES.add(
    "condition", new=_less(1), where="V >= 11 AND k <> 1",
    keeps=lambda row: row["v"] >= 11 and row["k"] != 1,
)(_by_day)  # fmt: skip
CASES.add(
    "condition on an ignored column", new=_less(1), where="`v` BETWEEN 11 AND 31", ignore=("v",),
    keeps=lambda row: 11 <= row["v"] <= 31,
)(_by_day)  # fmt: skip


@CASES.add("null partition")
def _null_partition(make: Maker) -> Built:
    table = make.table(SIMPLE, BY_DAY)
    old = [*simple(2), *rows("d k v", (None, 1, 1), (None, 2, 2))]
    new = [*simple(2), *rows("d k v", (None, 1, 5), (None, 3, 2))]
    return make.pair(
        table, (append(table, old), overwrite(table, new[-2:], IsNull("d"))), (old, new),
        scope=Scope(field=DAY, partitions=("null", iso(0))), files=(1, 1, 1),
        label=day_label, keeps=lambda row: row["d"] in (None, day(0)),
    )  # fmt: skip


LABELS = {"null": "=null", None: "null", "=": "==", "EU/ä": "EU/ä", "": ""}
CASES.replaced(
    "text partitions",
    {"p": "string", "k": "long", "v": "long"},
    (
        [{"p": p, "k": k, "v": 1} for p in LABELS for k in range(2)],
        [{"p": p, "k": k, "v": k + 1} for p in LABELS for k in range(2)],
    ),
    by=[("p", IdentityTransform())],
    label=lambda row: LABELS[row["p"]],
)


@CASES.add("days", transform=DayTransform(), kind="timestamp", label="%Y-%m-%d")
@CASES.add("hours with zone", transform=HourTransform(), kind="timestamptz", label="%Y-%m-%dT%H")
@CASES.add("months", transform=MonthTransform(), kind="date", label="%Y-%m")
@CASES.add("years", transform=YearTransform(), kind="timestamp", label="%Y")
def _timed(make: Maker, transform: Transform[Any, Any], kind: str, label: str) -> Built:
    start = datetime(2023, 12, 31, 22, 59, tzinfo=U if kind == "timestamptz" else None)
    moments: list[Any] = [start + timedelta(hours=hours) for hours in range(4)]
    if kind == "date":
        moments = [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)]
    old = [{"at": at, "k": k, "v": 1} for k, at in enumerate([*moments, None])]
    return replaced(
        make, {"at": kind, "k": "long", "v": "long"},
        (old, [row | {"v": 2 if row["k"] == 1 else 1} for row in old]), ("k",),
        by=[("at", transform)],
        label=lambda row: "null" if row["at"] is None else row["at"].strftime(label),
    )  # fmt: skip


INSTANTS = [{"at": datetime(2024, 1, 1, h, 30, 0, 5, tzinfo=U), "k": h} for h in range(2)]
CASES.replaced(
    "instants as partitions", {"at": "timestamptz", "k": "long"}, (INSTANTS, INSTANTS[:1]),
    by=[("at", IdentityTransform())], label=lambda row: row["at"].isoformat(),
)  # fmt: skip


@CASES.add("two partition fields")
def _two_fields(make: Maker) -> Built:
    columns = {"d": "date", "r": "string", "k": "int"}
    table = make.table(columns, [("d", IdentityTransform()), ("r", IdentityTransform())])
    old = [{"d": day(d), "r": r, "k": k} for d in range(2) for r in ("a", "b") for k in range(2)]
    before = append(table, old)
    new = [row for row in old if row["k"] or row["r"] == "a"]
    after = overwrite(table, [r for r in new if r["r"] == "b"], EqualTo("r", "b"))
    return make.pair(
        table, (before, after), (old, new), ("d", "r", "k"), columns, files=(2, 2, 2),
        label=lambda row: f"d_0={row['d'].isoformat()}/r_1={row['r']}",
    )  # fmt: skip


CASES.replaced(
    "buckets", SIMPLE, (simple(), simple(3)), ("d", "k"), by=[("k", BucketTransform(1))],
    label=lambda _: "k_0=0",
)  # fmt: skip


@CASES.add("empty old side", has_old=False, has_new=True)
@CASES.add("empty new side", has_old=True, has_new=False)
@CASES.add("empty sides", has_old=False, has_new=False)
def _empty_side(make: Maker, *, has_old: bool, has_new: bool) -> Built:
    table, rows = make.table(SIMPLE, BY_DAY), simple()
    snapshot = append(table, rows)
    request = make.request(
        table, snapshot if has_old else None, snapshot if has_new else None, ("d", "k")
    )
    columns, key = (tuple(SIMPLE), ("d", "k")) if has_old or has_new else ((), ())
    contents = rows if has_old else [], rows if has_new else []
    return Built(request, Question(*contents, columns, key, label=day_label))


@CASES.add("old table does not exist")
def _absent_old_table(make: Maker) -> Built:
    table = make.table(SIMPLE)
    built = make.pair(table, (None, append(table, simple(1))), ([], simple(1)))
    return replace(built, request=replace(built.request, old_table="nowhere.at_all"))


@CASES.add("same snapshot")
def _same_snapshot(make: Maker) -> Built:
    table = make.table(SIMPLE, [("d", DayTransform())])
    snapshot = append(table, simple())
    contents = simple(), simple()
    return make.pair(table, (snapshot, snapshot), contents, label=day_label, files=(4, 0, 0))


@CASES.add("appended file")
def _appended_file(make: Maker) -> Built:
    table = make.table(SIMPLE)
    sides = append(table, simple(2)), append(table, simple(4)[6:])
    return make.pair(table, sides, (simple(2), simple(4)), files=(1, 0, 1))


@CASES.add("rows deleted merge-on-read", is_both=False)
@CASES.add("rows deleted merge-on-read before", is_both=True)
def _deleted_merge_on_read(make: Maker, *, is_both: bool) -> Built:
    """Rows hidden by delete files; on one side, or on both with an append since."""
    table = make.table(SIMPLE, BY_DAY)
    first = append(table, simple())
    hidden = hide_rows(table, "v", {1, 21})
    left = [row for row in simple() if row["v"] not in {1, 21}]
    if not is_both:
        contents = simple(), left
        return make.pair(table, (first, hidden), contents, label=day_label, files=(2, 2, 2))
    added = [{"d": day(2), "k": 99, "v": 5}]
    sides = hidden, append(table.refresh(), added)
    return make.pair(table, sides, (left, left + added), label=day_label, files=(4, 0, 1))


def _tagged(value: Any) -> str | None:
    return None if value is None else f"{'long' if isinstance(value, int) else 'string'}: {value}"


@CASES.add(
    "added column, shared file",
    changes=[lambda update: update.add_column("note", StringType())],
    kept=simple(2),
    added={"v": 1, "note": "n"},
    columns=("d", "k", "v", "note"),
)
@CASES.add(
    "dropped column",
    changes=[lambda update: update.delete_column("v")],
    kept=[{"d": row["d"], "k": row["k"]} for row in simple(2)],
    added={},
    columns=("d", "k", "v"),
)
@CASES.add(
    "renamed column",
    changes=[lambda update: update.rename_column("v", "w")],
    kept=[{"d": row["d"], "k": row["k"], "w": row["v"]} for row in simple(2)],
    added={"w": 5},
    columns=("d", "k", "w", "v"),
)
@CASES.add(
    "column of another type",
    changes=[
        lambda update: update.delete_column("v"),
        lambda update: update.add_column("v", StringType()),
    ],
    kept=simple(2, v=None),
    added={"v": "1"},
    columns=("d", "k", "v"),
    shapes={"v": _tagged},
)
def _evolved(make: Maker, changes: list[Any], kept: list[Row], added: Row, **options: Any) -> Built:
    """The first file is written before the changes and shared; the second one after them."""
    table, added = make.table(SIMPLE), {"d": day(0), "k": 99, **added}
    before = append(table, simple(2))
    evolve(table, *changes)
    sides = before, append(table, [added])
    return make.pair(table, sides, (simple(2), [*kept, added]), files=(1, 0, 1), **options)


@CASES.add("added column, rewritten")
def _added_column_rewritten(make: Maker) -> Built:
    table = make.table(SIMPLE)
    before = append(table, simple(2))
    evolve(table, lambda update: update.add_column("note", StringType()))
    new = [dict(row, note="n" if row["k"] else None) for row in simple(2)]
    sides, columns = (before, overwrite(table, new)), ("d", "k", "v", "note")
    return make.pair(table, sides, (simple(2), new), columns=columns, files=(0, 1, 1))


@CASES.add("swapped names")
def _swapped_names(make: Maker) -> Built:
    table = make.table({"k": "long", "a": "long", "b": "long"})
    old = [{"k": k, "a": k, "b": 10} for k in range(12)]
    before = append(table, old)
    for names in (("a", "x"), ("b", "a"), ("x", "b")):
        with table.update_schema() as update:
            update.rename_column(*names)
    after = append(table, [{"k": 99, "a": 1, "b": 2}])
    new = [{"k": k, "a": 10, "b": k} for k in range(12)] + [{"k": 99, "a": 1, "b": 2}]
    return make.pair(table, (before, after), (old, new), ("k",), ("k", "a", "b"), files=(1, 0, 1))


@CASES.add("scope column renamed later")
def _renamed_scope_column(make: Maker) -> Built:
    table, late = make.table(SIMPLE, BY_DAY), simple(4, 2)[4:]
    sides = append(table, simple()), overwrite(table, late, GreaterThan("d", iso(1)))
    evolve(table, lambda update: update.rename_column("d", "date_of_day"))
    return make.pair(
        table, sides, (simple(), simple(2) + late), scope=days(2, 3), files=(0, 2, 2),
        label=day_label, keeps=lambda row: row["d"] > day(1),
    )  # fmt: skip


@CASES.add("promoted types")
def _promoted(make: Maker) -> Built:
    columns = {"k": "int", "n": "int", "f": "float", "m": "decimal(5, 2)"}
    table = make.table(columns)
    old = [{"k": k, "n": k, "f": 0.5, "m": Decimal("1.50")} for k in range(4)]
    before = append(table, old)
    with table.update_schema() as update:
        for name, kind in (("k", LongType()), ("n", LongType()), ("f", DoubleType())):
            update.update_column(name, field_type=kind)
        update.update_column("m", field_type=DecimalType(9, 2))
    changes: list[Row] = [{}, {"n": 2**40}, {"f": 0.1}, {"m": Decimal("1234567.50")}]
    new = [row | change for row, change in zip(old, changes, strict=True)]
    return make.pair(table, (before, overwrite(table, new)), (old, new), ("k",), columns)


@CASES.add("evolved struct")
def _evolved_struct(make: Maker) -> Built:
    inner = StructType(NestedField(10, "a", "long", required=False))
    table = make.table({"k": "long", "st": inner})
    old = [{"k": k, "st": {"a": k}} for k in range(3)]
    before = append(table, old)
    evolve(table, lambda update: update.add_column(("st", "Z"), StringType()))
    new = [dict(row, st={"a": row["k"], "Z": "z" if row["k"] else None}) for row in old]
    shapes = {"st": lambda st: {"a": st["a"], "Z": st.get("Z")}}
    sides = before, overwrite(table, new)
    return make.pair(table, sides, (old, new), ("k",), ("k", "st"), shapes=shapes)


@CASES.add("two layouts", files=(0, 1, 4))
@CASES.add(
    "scope on two layouts", files=(0, 1, 2), scope=days(1, 2), label=day_label,
    keeps=lambda row: row["d"] in (day(1), day(2)),
)  # fmt: skip
def _two_tables(make: Maker, **options: Any) -> Built:
    """Tables of different layout: no common partition, but a scope names partitions there too."""
    tables = make.table(SIMPLE), make.table(SIMPLE, [("d", DayTransform())], name="u")
    return make.two_tables(tables, contents=(simple(), simple(v=0)), **options)


@CASES.add("evolved layout")
def _evolved_layout(make: Maker) -> Built:
    """Months became days: the old file reaches beyond the scope and is shared."""
    table = make.table(SIMPLE, [("d", MonthTransform())])
    before = append(table, simple())
    with table.update_spec() as update:
        update.remove_field("d_0")
        update.add_field("d", DayTransform(), "d_day")
    extra = rows("d k v", (day(1), 50, 1), (day(2), 51, 1))
    field = ScopeField(column="d", transform="day", type="date")
    return make.pair(
        table, (before, append(table, extra)), (simple(), simple() + extra), files=(1, 0, 1),
        scope=Scope(field=field, partitions=(iso(1), iso(3))),
        label=day_label, keeps=lambda row: row["d"] in (day(1), day(3)),
    )  # fmt: skip


#: Changes of a request, and how they are refused. Types of a condition are the local engine's.
BAD_REQUESTS = [
    pytest.param({"old_table": "no.table"}, NotFound, r"no\.table", id="table"),
    pytest.param({"new_snapshot_id": 7}, NotFound, "7", id="snapshot"),
    pytest.param({"key": ("d", "nope")}, ConfigError, "key column nope", id="key"),
    pytest.param({"where": "nope > 1"}, ConfigError, "no column nope", id="column"),
    pytest.param({"where": "v"}, ConfigError, "not true or false", id="number"),
    pytest.param({"where": "d > 'x'"}, ConfigError, "cannot be evaluated", id="type"),
]
