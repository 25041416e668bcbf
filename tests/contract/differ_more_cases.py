"""More pairs of snapshots for every differ: tolerances, what need not be read, odd contents."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.expressions import EqualTo, In
from pyiceberg.transforms import DayTransform, TruncateTransform
from pyiceberg.types import ListType, MapType, NestedField, StringType, StructType

from lakehouse_backfill.domain.manifest import Tolerance
from tests.contract.differ_cases import (
    BY_DAY,
    DUPES,
    LOCAL,
    NAN,
    SIMPLE,
    Built,
    Cases,
    Columns,
    Maker,
    append,
    changed,
    day,
    day_label,
    evolve,
    iso,
    overwrite,
    replaced,
    rows,
    simple,
)
from tests.contract.differ_file_cases import FILE_CASES
from tests.support.lakes.deletes import hide_rows
from tests.support.oracles.diff import Map, Row

MORE_CASES = Cases(FILE_CASES)
U = timezone.utc
Near = Callable[[Any, Any], bool]
Pairs = list[tuple[Any, Any]]


def _within(limit: Any) -> Near:
    return lambda one, other: bool(abs(one - other) <= limit)


def _finite(limit: float, *, is_relative: bool) -> Near:
    def near(one: Any, other: Any) -> bool:
        a, b = float(one), float(other)
        bound = limit * max(abs(a), abs(b)) if is_relative else limit
        return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= bound

    return near


def _decimals(*pairs: str) -> Pairs:
    return [(Decimal(one), Decimal(other)) for one, other in (pair.split() for pair in pairs)]


BIG, INF = 2**63 - 1, float("inf")
FLOATS: Pairs = [
    (1.0, 1.25), (1.0, 1.5), (NAN, NAN), (NAN, 1.0), (INF, INF), (INF, -INF), (1.0, INF),
    (0.0, -0.0), (None, 0.0), (1e300, -1e300),
]  # fmt: skip
CENTS = _decimals(
    "1.00 1.01", "1.00 1.02", "123456789.01 123456789.02", "-1.00 -0.99", "5.00 5.00", "0.00 0.01"
)


@MORE_CASES.add(
    "tolerance of decimals",
    columns={"m": "decimal(15, 2)"},
    pairs={"m": [*CENTS, (None, Decimal("0.01")), (None, None)]},
    limits={"m": "0.01"},
    near={"m": _within(Decimal("0.01"))},
)
@MORE_CASES.add(
    "tolerance of whole numbers",
    columns={"n": "long", "i": "int"},
    pairs={
        "n": [(1, 3), (1, 4), (-BIG, BIG), (BIG, BIG - 2), (None, 1), (5, 5)],
        "i": [(-1, 0), (7, 7), (-(2**31), 2**31 - 1), (3, 5), (0, None), (1, 1)],
    },
    limits={"n": "2", "i": "1.5"},
    near={"n": _within(2), "i": _within(Decimal("1.5"))},
)
@MORE_CASES.add(
    "tolerance of floats",
    columns={"x": "double", "f": "float"},
    pairs={"x": FLOATS, "f": FLOATS[:9]},
    limits={"x": "0.25", "f": "0.25"},
    near=dict.fromkeys("xf", _finite(0.25, is_relative=False)),
)
@MORE_CASES.add(
    "tolerance as a share",
    columns={"x": "double", "m": "decimal(38, 2)", "n": "long"},
    pairs={
        "x": [(100.0, 101.0), (100.0, 102.0), (0.0, 1e-9), (INF, 1.0), (-100.0, -99.5)],
        "m": _decimals("100.00 99.00", "1.00 2.00"),
        "n": [(1000, 1010), (1000, 1011), (0, 0), (-5, 5)],
    },
    limits=dict.fromkeys("xmn", "0.01"),
    near=dict.fromkeys("xmn", _finite(0.01, is_relative=True)),
    is_relative=True,
)
def _tolerant(
    make: Maker,
    columns: Columns,
    pairs: dict[str, Pairs],
    limits: dict[str, str],
    *,
    is_relative: bool = False,
    **options: Any,
) -> Built:
    """One key for each pair of values of each column; the other columns do not differ."""
    count = max(len(values) for values in pairs.values())
    old, new = (
        [{"k": k} | {n: v[k % len(v)][side] for n, v in pairs.items()} for k in range(count)]
        for side in range(2)
    )
    tolerances = tuple(
        Tolerance(column=name, limit=Decimal(limit), is_relative=is_relative)
        for name, limit in limits.items()
    )
    columns = {"k": "long", **columns}
    return replaced(make, columns, (old, new), ("k",), tolerances=tolerances, **options)


# Rows of a repeated key are matched exactly: nobody knows which is whose counterpart.
MORE_CASES.replaced(
    "tolerance and duplicate keys",
    {"k": "long", "x": "double"},
    (
        rows("k x", (1, 1.0), (1, 2.0), (2, 1.0), (3, 1.0)),
        rows("k x", (1, 1.05), (1, 2.0), (2, 1.05), (3, 1.5)),
    ),
    tolerances=(Tolerance(column="x", limit=Decimal("0.1")),),
    near={"x": _within(0.1)},
)
# A row within its tolerance is changed all the same when another column differs.
MORE_CASES.replaced(
    "tolerance beside another column",
    {"k": "long", "x": "double", "s": "string"},
    (
        [{"k": k, "x": 1.0, "s": "a"} for k in range(4)],
        [{"k": k, "x": 1.0 + k / 4, "s": "ab"[k % 2]} for k in range(4)],
    ),
    tolerances=(Tolerance(column="x", limit=Decimal("0.5")),),
    near={"x": _within(0.5)},
)


@MORE_CASES.add("partitions known to be equal")
@MORE_CASES.add("known to be equal, with a condition", where="k > 0")
def _known_equal(make: Maker, where: str | None = None) -> Built:
    """Every day is written anew; two hold the rows they held, and fingerprints say so."""
    new = [row | ({"v": -1} if row["d"] == day(2) else {}) for row in simple()]
    return replaced(
        make, SIMPLE, (simple(), new), ("d", "k"), BY_DAY, files=(0, 4, 4), where=where,
        known_equal=frozenset({iso(0), iso(1)}), label=day_label,
        keeps=lambda row: where is None or row["k"] > 0,
    )  # fmt: skip


@MORE_CASES.add("two tables of one layout")
def _tables_by_day(make: Maker) -> Built:
    """Two tables with one layout: partitions are told apart, no file is shared."""
    tables = make.table(SIMPLE, BY_DAY), make.table(SIMPLE, BY_DAY, name="u")
    contents = simple(), [row for row in simple(v=0) if row["k"]]
    return make.two_tables(tables, contents=contents, label=day_label, files=(0, 4, 4))


@MORE_CASES.add("a migrated table")
def _migrated(make: Maker) -> Built:
    """Another table with other types and an extra column, as a migration leaves it."""
    one = make.table({"k": "long", "m": "decimal(10, 2)", "t": "timestamp"})
    columns = {"k": "int", "m": "decimal(12, 2)", "t": "date", "note": "string"}
    other = make.table(columns, name="u")
    old = [
        {"k": k, "m": Decimal(f"{k}.00"), "t": datetime(2024, 1, 1 + k)}  # noqa: DTZ001 (without zone)
        for k in range(4)
    ]
    new = [
        {"k": k, "m": Decimal(f"{k + (k == 1)}.00"), "t": date(2024, 1, 1 + k), "note": None}
        for k in range(1, 5)
    ]
    return make.two_tables(
        (one, other), contents=(old, new), key=("k",), columns=("k", "m", "t", "note"),
        ignore=("t",), files=(0, 1, 1),
    )  # fmt: skip


# A key repeats in one partition only; in others its rows are paired.
REPEATED = [*simple(3), {"d": day(1), "k": 1, "v": 11}]
MORE_CASES.replaced(
    "duplicate keys in one partition",
    SIMPLE,
    (REPEATED, [row | {"v": row["v"] + (row["k"] == 1)} for row in REPEATED]),
    by=BY_DAY,
    label=day_label,
)
MORE_CASES.replaced(
    "duplicate null keys",
    DUPES,
    (
        rows("k v", (None, "a"), (None, "a"), (None, None), (1, "x")),
        rows("k v", (None, "a"), (None, None), (None, None), (1, "y")),
    ),
)
# -0.0 and 0.0 are one key, and so are two NaN.
MORE_CASES.replaced(
    "duplicate keys of minus zero and NaN",
    {"k": "double", "v": "string"},
    (
        rows("k v", (0.0, "a"), (-0.0, "b"), (NAN, "c")),
        rows("k v", (0.0, "a"), (NAN, "c"), (NAN, "d")),
    ),
)
# Empty, missing, and holding only a missing value: three different things.
EMPTY: Row = {
    "s": "", "b": b"", "ls": [], "mp": Map(()), "st": {"a": None}, "lt": [], "mt": Map(()),
}  # fmt: skip
MISSING: Row = dict.fromkeys(EMPTY)
INNER: Row = MISSING | {"ls": [None], "mp": Map((("x", None),)), "st": {"a": 0}, "lt": [None]}
KINDS = [EMPTY, MISSING, INNER]
ITEM = StructType(NestedField(17, "a", "long", required=False))
MORE_CASES.replaced(
    "empty and missing values",
    {
        "k": "long", "s": "string", "b": "binary",
        "ls": ListType(10, "long", element_required=False),
        "mp": MapType(11, "string", 12, "long", value_required=False),
        "st": StructType(NestedField(13, "a", "long", required=False)),
        "lt": ListType(14, ITEM, element_required=False),
        "mt": MapType(15, "string", 16, ITEM, value_required=False),
    },
    ([{"k": k, **KINDS[k // 3]} for k in range(9)], [{"k": k, **KINDS[k % 3]} for k in range(9)]),
)  # fmt: skip
DEEP = StructType(
    NestedField(20, "x", "double", required=False),
    NestedField(21, "ls", ListType(22, "string", element_required=False), required=False),
)
MORE_CASES.replaced(
    "deeply nested",
    {
        "k": "long", "deep": ListType(23, DEEP, element_required=False),
        "outer": StructType(NestedField(24, "in", DEEP, required=False)),
        "at": StructType(NestedField(25, "t", "timestamp", required=False)),
    },
    changed(
        {
            "deep": [{"x": NAN, "ls": ["a"]}, None], "outer": {"in": {"x": -0.0, "ls": []}},
            "at": {"t": datetime.fromisoformat("2024-01-01T00:00:00.000001")},
        },
        5,
        {
            1: {"deep": [{"x": NAN, "ls": ["b"]}, None]},
            2: {"outer": {"in": {"x": 0.0, "ls": []}}}, 3: {"outer": {"in": None}},
            4: {"at": {"t": datetime.fromisoformat("2024-01-01T00:00:00.000002")}},
        },
    ),
)  # fmt: skip
# Values move to the next column, with null in between: each is a change.
MORE_CASES.replaced(
    "values move to a neighbour",
    {"k": "long", "a": "long", "b": "long", "f": "boolean", "g": "boolean"},
    changed(
        {"a": 1, "b": None, "f": True, "g": None},
        3,
        {0: {"a": None, "b": 1}, 1: {"f": None, "g": True}},
    ),
)
INSTANTS = [
    {
        "t": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=U) + timedelta(microseconds=k),
        "n": datetime.fromisoformat("1900-01-01T00:00:00") + timedelta(days=k),
        "v": k,
    }
    for k in range(4)
]
MORE_CASES.replaced(
    "instants as keys",
    {"t": "timestamptz", "n": "timestamp", "v": "long"},
    (INSTANTS, [INSTANTS[0], INSTANTS[1] | {"v": 9}, INSTANTS[2]]),
    ("t",),
)


@MORE_CASES.add("several files in a partition")
def _many_files(make: Maker) -> Built:
    """Each side has several files in a partition, and shares some of them."""
    table = make.table(SIMPLE, BY_DAY)
    parts = [[row for row in simple(3, 6) if row["k"] % 3 == part] for part in range(3)]
    _, *sides = (append(table, part) for part in parts)
    contents = [*parts[0], *parts[1]], [row for part in parts for row in part]
    return make.pair(table, (sides[0], sides[1]), contents, label=day_label, files=(6, 0, 3))


@MORE_CASES.add("compacted")
def _compacted(make: Maker) -> Built:
    """The same rows in other files: nothing differs, all of it is read."""
    table = make.table(SIMPLE, BY_DAY)
    for k in range(3):
        before = append(table, [row for row in simple() if row["k"] == k])
    sides = before, overwrite(table, simple())
    return make.pair(table, sides, (simple(), simple()), label=day_label, files=(0, 12, 4))


MORE_CASES.replaced(
    "truncated texts as partitions",
    {"s": "string", "k": "long"},
    (rows("s k", ("ab", 0), ("ac", 1), ("b", 2)), rows("s k", ("ab", 0), ("ad", 1), ("b", 2))),
    by=[("s", TruncateTransform(1))],
    label=lambda row: f"s_0={row['s'][0]}",
)
# More different texts than are counted, and a column of few.
TEXTS = [{"k": k, "wide": f"t{k}", "few": "ab"[k % 2]} for k in range(1500)]
MORE_CASES.replaced(
    "more texts than are counted",
    {"k": "long", "wide": "string", "few": "string"},
    (TEXTS, [row if k % 3 else row | {"wide": f"u{k}"} for k, row in enumerate(TEXTS)]),
)


@MORE_CASES.add("dictionaries in some files")
def _some_dictionaries(make: Maker) -> Built:
    """A text column is a dictionary of few values in one file, and all different in another."""
    columns = {"k": "long", "s": "string"}
    table = make.table(columns)
    few = [{"k": k, "s": "ab"[k % 2]} for k in range(600)]
    many = [{"k": 1000 + k, "s": f"text {k}" if k else None} for k in range(30)]
    append(table, few)
    before = append(table, many)
    new = [dict(row, s="c") if row["k"] in (7, 1007) else row for row in [*few, *many]]
    sides, contents = (before, overwrite(table, new)), ([*few, *many], new)
    return make.pair(table, sides, contents, ("k",), columns, files=(0, 2, 1))


@MORE_CASES.add("layout evolved, rewritten")
def _evolved_layout_rewritten(make: Maker) -> Built:
    """Whole table to days, and written anew under the new layout: no common partitions."""
    table = make.table(SIMPLE)
    before = append(table, simple())
    with table.update_spec() as update:
        update.add_field("d", DayTransform(), "d_day")
    new = [dict(row, v=row["v"] * 2) for row in simple()]
    return make.pair(table, (before, overwrite(table, new)), (simple(), new), files=(0, 1, 4))


@MORE_CASES.add("deletes, then an added column")
def _evolved_and_deleted(make: Maker) -> Built:
    """Rows hidden by position deletes, then a column comes, then a day is written anew."""
    table = make.table(SIMPLE, BY_DAY)
    append(table, simple())
    before = hide_rows(table, "v", {1, 21})
    evolve(table.refresh(), lambda update: update.add_column("note", StringType()))
    late = [{"d": day(3), "k": k, "v": 30 + k, "note": "n"} for k in range(2)]
    after = overwrite(table, late, EqualTo("d", iso(3)))
    old = [row for row in simple() if row["v"] not in {1, 21}]
    new = [row for row in old if row["d"] != day(3)] + late
    columns = ("d", "k", "v", "note")
    return make.pair(table, (before, after), (old, new), columns=columns, label=day_label)


@MORE_CASES.add("deletes, then rewritten days")
def _deleted_and_rewritten(make: Maker) -> Built:
    """Delete files of days that are written anew go with them; those of others stay."""
    table = make.table(SIMPLE, BY_DAY)
    append(table, simple())
    before = hide_rows(table, "v", {1, 11, 21})
    after = overwrite(table.refresh(), simple(2), In("d", {iso(0), iso(1)}))
    old = [row for row in simple() if row["v"] not in {1, 11, 21}]
    new = simple(2) + [row for row in old if row["d"] > day(1)]
    return make.pair(table, (before, after), (old, new), label=day_label)


# An engine's hashes of 128-bit numbers coincide where their halves mirror each other.
MORE_CASES.replaced(
    "decimals of 128 bits",
    {"k": "long", "m": "decimal(38, 2)", "n": "decimal(19, 4)", "same": "long"},
    changed(
        {"m": Decimal("0.00"), "n": Decimal("0.0000"), "same": 7},
        5,
        {
            1: {"m": Decimal("-0.01")},
            2: {"n": Decimal("-0.0001")},
            3: {"m": Decimal("184467440737095516.15"), "n": None},
        },
    ),
)
HALF = 1 << 63
MORE_CASES.replaced(
    "UUIDs of mirrored halves",
    {"k": "long", "u": "uuid"},
    (
        [{"k": k, "u": UUID(int=HALF << 64)} for k in range(3)],
        [{"k": k, "u": UUID(int=(HALF + k) << 64 | k)} for k in range(3)],
    ),
    engines=LOCAL,
)
