"""More pairs of snapshots for every differ: tolerances, what need not be read, odd contents."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.expressions import EqualTo, In
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
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

from lakehouse_backfill.domain.manifest import Tolerance
from tests.contract.differ_cases import (
    DUPES,
    SIMPLE,
    Built,
    Case,
    Maker,
    append,
    arrow,
    day,
    overwrite,
    plain_pair,
    simple,
)
from tests.contract.differ_file_cases import FILE_CASES
from tests.support.lakes.deletes import hide_rows
from tests.support.oracles.diff import Map, Question, Row

U = timezone.utc


def _tolerant(
    make: Maker,
    columns: dict[str, IcebergType],
    pairs: dict[str, list[tuple[Any, Any]]],
    limits: dict[str, tuple[str, bool]],
    near: dict[str, Callable[[Any, Any], bool]],
) -> Built:
    """One key for each pair of values of each column; the other columns do not differ."""
    rows = max(len(values) for values in pairs.values())
    old = [{"k": k} | {n: v[k % len(v)][0] for n, v in pairs.items()} for k in range(rows)]
    new = [{"k": k} | {n: v[k % len(v)][1] for n, v in pairs.items()} for k in range(rows)]
    tolerances = tuple(
        Tolerance(column=name, limit=Decimal(limit), is_relative=is_relative)
        for name, (limit, is_relative) in limits.items()
    )
    built = plain_pair(make, {"k": LongType(), **columns}, old, new, ("k",), tolerances=tolerances)
    built.question.near = near
    return built


def _within(limit: Any) -> Callable[[Any, Any], bool]:
    return lambda one, other: bool(abs(one - other) <= limit)


def _finite(limit: float, *, is_relative: bool) -> Callable[[Any, Any], bool]:
    def near(one: Any, other: Any) -> bool:
        a, b = float(one), float(other)
        bound = limit * max(abs(a), abs(b)) if is_relative else limit
        return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= bound

    return near


def _decimal_tolerance(make: Maker) -> Built:
    pairs = [
        (Decimal(one), Decimal(other))
        for one, other in (
            ("1.00", "1.01"), ("1.00", "1.02"), ("123456789.01", "123456789.02"),
            ("-1.00", "-0.99"), ("5.00", "5.00"), ("0.00", "0.01"),
        )
    ]  # fmt: skip
    return _tolerant(
        make, {"m": DecimalType(15, 2)}, {"m": [*pairs, (None, Decimal("0.01")), (None, None)]},
        {"m": ("0.01", False)}, {"m": _within(Decimal("0.01"))},
    )  # fmt: skip


def _whole_tolerance(make: Maker) -> Built:
    big = 2**63 - 1
    return _tolerant(
        make, {"n": LongType(), "i": IntegerType()},
        {"n": [(1, 3), (1, 4), (-big, big), (big, big - 2), (None, 1), (5, 5)],
         "i": [(-1, 0), (7, 7), (-(2**31), 2**31 - 1), (3, 5), (0, None), (1, 1)]},
        {"n": ("2", False), "i": ("1.5", False)},
        {"n": _within(2), "i": _within(Decimal("1.5"))},
    )  # fmt: skip


def _floating_tolerance(make: Maker) -> Built:
    nan, inf = float("nan"), float("inf")
    values = [
        (1.0, 1.25), (1.0, 1.5), (nan, nan), (nan, 1.0), (inf, inf), (inf, -inf), (1.0, inf),
        (0.0, -0.0), (None, 0.0), (1e300, -1e300),
    ]  # fmt: skip
    return _tolerant(
        make, {"x": DoubleType(), "f": FloatType()}, {"x": values, "f": values[:9]},
        {"x": ("0.25", False), "f": ("0.25", False)},
        {name: _finite(0.25, is_relative=False) for name in ("x", "f")},
    )  # fmt: skip


def _relative_tolerance(make: Maker) -> Built:
    inf = float("inf")
    return _tolerant(
        make, {"x": DoubleType(), "m": DecimalType(38, 2), "n": LongType()},
        {"x": [(100.0, 101.0), (100.0, 102.0), (0.0, 1e-9), (inf, 1.0), (-100.0, -99.5)],
         "m": [(Decimal("100.00"), Decimal("99.00")), (Decimal("1.00"), Decimal("2.00"))],
         "n": [(1000, 1010), (1000, 1011), (0, 0), (-5, 5)]},
        dict.fromkeys(("x", "m", "n"), ("0.01", True)),
        {name: _finite(0.01, is_relative=True) for name in ("x", "m", "n")},
    )  # fmt: skip


def _tolerance_and_duplicates(make: Maker) -> Built:
    """Rows of a repeated key are matched exactly: nobody knows which is whose counterpart."""
    columns: dict[str, IcebergType] = {"k": LongType(), "x": DoubleType()}
    old = [{"k": 1, "x": 1.0}, {"k": 1, "x": 2.0}, {"k": 2, "x": 1.0}, {"k": 3, "x": 1.0}]
    new = [{"k": 1, "x": 1.05}, {"k": 1, "x": 2.0}, {"k": 2, "x": 1.05}, {"k": 3, "x": 1.5}]
    limit = Tolerance(column="x", limit=Decimal("0.1"))
    built = plain_pair(make, columns, old, new, ("k",), tolerances=(limit,))
    built.question.near = {"x": _within(0.1)}
    return built


def _tolerance_beside_another_column(make: Maker) -> Built:
    """A row within its tolerance is changed all the same when another column differs."""
    columns: dict[str, IcebergType] = {"k": LongType(), "x": DoubleType(), "s": StringType()}
    old = [{"k": k, "x": 1.0, "s": "a"} for k in range(4)]
    new = [{"k": k, "x": 1.0 + k / 4, "s": "b" if k % 2 else "a"} for k in range(4)]
    limit = Tolerance(column="x", limit=Decimal("0.5"))
    built = plain_pair(make, columns, old, new, ("k",), tolerances=(limit,))
    built.question.near = {"x": _within(0.5)}
    return built


def _known_equal(make: Maker, *, where: str | None = None) -> Built:
    """Every day is written anew; two hold the rows they held, and fingerprints say so."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    old = simple()
    before = append(table, old)
    new = [dict(row, v=-1) if row["d"] == day(2) else row for row in old]
    after = overwrite(table, new)
    equal = frozenset({day(0).isoformat(), day(1).isoformat()})
    request = make.request(table, before, after, ("d", "k"), known_equal=equal, where=where)
    question = Question(
        old, new, tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat(),
        keeps=lambda row: where is None or row["k"] > 0,
    )  # fmt: skip
    return Built(request, question, files=(0, 4, 4))


def _tables_by_day(make: Maker) -> Built:
    """Two tables with one layout: partitions are told apart, no file is shared."""
    by = [("d", IdentityTransform())]
    one, other = make.table(SIMPLE, by), make.table(SIMPLE, by, name="u")
    new = [dict(row, v=0) for row in simple() if row["k"]]
    before, after = append(one, simple()), append(other, new)
    base = make.request(one, before, after, ("d", "k"))
    request = replace(base, new_table=make.request(other, 0, 0, ()).new_table)
    question = Question(
        simple(), new, tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat()
    )
    return Built(request, question, files=(0, 4, 4))


def _migrated(make: Maker) -> Built:
    """Another table with other types and an extra column, as a migration leaves it."""
    one = make.table({"k": LongType(), "m": DecimalType(10, 2), "t": TimestampType()})
    other = make.table(
        {"k": IntegerType(), "m": DecimalType(12, 2), "t": DateType(), "note": StringType()},
        name="u",
    )
    old = [
        {"k": k, "m": Decimal(f"{k}.00"), "t": datetime(2024, 1, 1 + k)}  # noqa: DTZ001 (without zone)
        for k in range(4)
    ]
    new = [
        {"k": k, "m": Decimal(f"{k + (k == 1)}.00"), "t": date(2024, 1, 1 + k), "note": None}
        for k in range(1, 5)
    ]
    before, after = append(one, old), append(other, new)
    base = make.request(one, before, after, ("k",))
    request = replace(base, new_table=make.request(other, 0, 0, ()).new_table, ignore=("t",))
    question = Question(old, new, ("k", "m", "t", "note"), ("k",), ignore=("t",))
    return Built(request, question, files=(0, 1, 1))


def _duplicates_by_day(make: Maker) -> Built:
    """A key repeats in one partition only; in others its rows are paired."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    old = [*simple(3), {"d": day(1), "k": 1, "v": 11}]
    before = append(table, old)
    new = [dict(row, v=row["v"] + (row["k"] == 1)) for row in old]
    after = overwrite(table, new)
    question = Question(old, new, tuple(SIMPLE), ("k",), label=lambda row: row["d"].isoformat())
    return Built(make.request(table, before, after, ("k",)), question)


def _duplicate_null_keys(make: Maker) -> Built:
    old: list[Row] = [{"k": None, "v": v} for v in ("a", "a", None)] + [{"k": 1, "v": "x"}]
    new: list[Row] = [{"k": None, "v": v} for v in ("a", None, None)] + [{"k": 1, "v": "y"}]
    return plain_pair(make, DUPES, old, new, ("k",))


def _duplicate_minus_zero(make: Maker) -> Built:
    """-0.0 and 0.0 are one key, and so are two NaN."""
    columns: dict[str, IcebergType] = {"k": DoubleType(), "v": StringType()}
    nan = float("nan")
    old: list[Row] = [{"k": 0.0, "v": "a"}, {"k": -0.0, "v": "b"}, {"k": nan, "v": "c"}]
    new: list[Row] = [{"k": 0.0, "v": "a"}, {"k": nan, "v": "c"}, {"k": nan, "v": "d"}]
    return plain_pair(make, columns, old, new, ("k",))


def _empty_and_missing(make: Maker) -> Built:
    """Empty, missing, and holding only a missing value: three different things."""
    columns: dict[str, IcebergType] = {
        "k": LongType(),
        "s": StringType(),
        "b": BinaryType(),
        "ls": ListType(10, LongType(), element_required=False),
        "mp": MapType(11, StringType(), 12, LongType(), value_required=False),
        "st": StructType(NestedField(13, "a", LongType(), required=False)),
    }
    empty: Row = {"s": "", "b": b"", "ls": [], "mp": Map(()), "st": {"a": None}}
    missing: Row = dict.fromkeys(empty)
    inner: Row = missing | {"ls": [None], "mp": Map((("x", None),)), "st": {"a": 0}}
    kinds = [empty, missing, inner]
    old = [{"k": 3 * i + j, **kinds[i]} for i in range(3) for j in range(3)]
    new = [{"k": 3 * i + j, **kinds[j]} for i in range(3) for j in range(3)]
    return plain_pair(make, columns, old, new, ("k",))


def _deep(make: Maker) -> Built:
    inner = StructType(
        NestedField(20, "x", DoubleType(), required=False),
        NestedField(21, "ls", ListType(22, StringType(), element_required=False), required=False),
    )
    columns: dict[str, IcebergType] = {
        "k": LongType(),
        "deep": ListType(23, inner, element_required=False),
        "outer": StructType(NestedField(24, "in", inner, required=False)),
        "at": StructType(NestedField(25, "t", TimestampType(), required=False)),
    }
    base: Row = {
        "deep": [{"x": float("nan"), "ls": ["a"]}, None],
        "outer": {"in": {"x": -0.0, "ls": []}},
        "at": {"t": datetime.fromisoformat("2024-01-01T00:00:00.000001")},
    }
    old = [{"k": k, **base} for k in range(5)]
    new: list[Row] = [dict(row) for row in old]
    new[1]["deep"] = [{"x": float("nan"), "ls": ["b"]}, None]
    new[2]["outer"] = {"in": {"x": 0.0, "ls": []}}
    new[3]["outer"] = {"in": None}
    new[4]["at"] = {"t": datetime.fromisoformat("2024-01-01T00:00:00.000002")}
    return plain_pair(make, columns, old, new, ("k",))


def _neighbours(make: Maker) -> Built:
    """Values move to the next column, with null in between: each is a change."""
    columns: dict[str, IcebergType] = {
        "k": LongType(), "a": LongType(), "b": LongType(), "f": BooleanType(), "g": BooleanType()
    }  # fmt: skip
    old: list[Row] = [{"k": k, "a": 1, "b": None, "f": True, "g": None} for k in range(3)]
    new: list[Row] = [dict(row) for row in old]
    new[0] |= {"a": None, "b": 1}
    new[1] |= {"f": None, "g": True}
    return plain_pair(make, columns, old, new, ("k",))


def _instants(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {
        "t": TimestamptzType(),
        "n": TimestampType(),
        "v": LongType(),
    }
    old = [
        {
            "t": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=U) + timedelta(microseconds=k),
            "n": datetime.fromisoformat("1900-01-01T00:00:00") + timedelta(days=k),
            "v": k,
        }
        for k in range(4)
    ]
    new = [dict(row, v=9) if row["v"] == 1 else row for row in old[:3]]
    return plain_pair(make, columns, old, new, ("t",))


def _many_files(make: Maker) -> Built:
    """Each side has several files in a partition, and shares some of them."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    parts = [[row for row in simple(3, 6) if row["k"] % 3 == part] for part in range(3)]
    for part in parts[:2]:
        before = append(table, part)
    after = append(table, parts[2])
    old, new = [*parts[0], *parts[1]], [row for part in parts for row in part]
    question = Question(old, new, tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat())
    return Built(make.request(table, before, after, ("d", "k")), question, files=(6, 0, 3))


def _compacted(make: Maker) -> Built:
    """The same rows in other files: nothing differs, all of it is read."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    for k in range(3):
        before = append(table, [row for row in simple() if row["k"] == k])
    after = overwrite(table, simple())
    question = Question(
        simple(), simple(), tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat()
    )
    return Built(make.request(table, before, after, ("d", "k")), question, files=(0, 12, 4))


def _truncated(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"s": StringType(), "k": LongType()}
    table = make.table(columns, [("s", TruncateTransform(1))])
    old = [{"s": s, "k": k} for k, s in enumerate(("ab", "ac", "b"))]
    new = [{"s": s, "k": k} for k, s in enumerate(("ab", "ad", "b"))]
    before, after = append(table, old), overwrite(table, new)
    question = Question(old, new, tuple(columns), ("k",), label=lambda row: f"s_0={row['s'][0]}")
    return Built(make.request(table, before, after, ("k",)), question)


def _many_categories(make: Maker) -> Built:
    """More different texts than are counted, and a column of few."""
    columns: dict[str, IcebergType] = {"k": LongType(), "wide": StringType(), "few": StringType()}
    old = [{"k": k, "wide": f"t{k}", "few": "ab"[k % 2]} for k in range(1500)]
    new = [dict(row, wide=f"u{row['k']}" if row["k"] % 3 == 0 else row["wide"]) for row in old]
    return plain_pair(make, columns, old, new, ("k",))


def _some_dictionaries(make: Maker) -> Built:
    """A text column is a dictionary of few values in one file, and all different in another."""
    columns: dict[str, IcebergType] = {"k": LongType(), "s": StringType()}
    table = make.table(columns)
    few = [{"k": k, "s": "ab"[k % 2]} for k in range(600)]
    many = [{"k": 1000 + k, "s": f"text {k}" if k else None} for k in range(30)]
    append(table, few)
    before = append(table, many)
    new = [dict(row, s="c") if row["k"] in (7, 1007) else row for row in [*few, *many]]
    after = overwrite(table, new)
    question = Question([*few, *many], new, tuple(columns), ("k",))
    return Built(make.request(table, before, after, ("k",)), question, files=(0, 2, 1))


def _evolved_layout_rewritten(make: Maker) -> Built:
    """Whole table to days, and written anew under the new layout: no common partitions."""
    table = make.table(SIMPLE)
    old = simple()
    before = append(table, old)
    with table.update_spec() as update:
        update.add_field("d", DayTransform(), "d_day")
    new = [dict(row, v=row["v"] * 2) for row in old]
    after = overwrite(table, new)
    question = Question(old, new, tuple(SIMPLE), ("d", "k"))
    return Built(make.request(table, before, after, ("d", "k")), question, files=(0, 1, 4))


def _evolved_and_deleted(make: Maker) -> Built:
    """Rows hidden by position deletes, then a column comes, then a day is written anew."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    append(table, simple())
    before = hide_rows(table, "v", {1, 21})
    table.refresh()
    with table.update_schema() as update:
        update.add_column("note", StringType())
    rows = [{"d": day(3), "k": k, "v": 30 + k, "note": "n"} for k in range(2)]
    table.overwrite(arrow(table, rows), overwrite_filter=EqualTo("d", day(3).isoformat()))
    old = [row for row in simple() if row["v"] not in {1, 21}]
    new = [row for row in old if row["d"] != day(3)] + rows
    question = Question(
        old, new, ("d", "k", "v", "note"), ("d", "k"), label=lambda row: row["d"].isoformat()
    )
    after = table.metadata.current_snapshot_id
    return Built(make.request(table, before, after, ("d", "k")), question)


def _deleted_and_rewritten(make: Maker) -> Built:
    """Delete files of days that are written anew go with them; those of others stay."""
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    append(table, simple())
    before = hide_rows(table, "v", {1, 11, 21})
    table.refresh()
    rows = [row for row in simple() if row["d"] in (day(0), day(1))]
    days = In("d", {day(0).isoformat(), day(1).isoformat()})
    table.overwrite(arrow(table, rows), overwrite_filter=days)
    old = [row for row in simple() if row["v"] not in {1, 11, 21}]
    new = rows + [row for row in old if row["d"] > day(1)]
    question = Question(old, new, tuple(SIMPLE), ("d", "k"), label=lambda row: row["d"].isoformat())
    after = table.metadata.current_snapshot_id
    return Built(make.request(table, before, after, ("d", "k")), question)


def _wide_numbers(make: Maker) -> Built:
    """The engine's hashes of 128-bit numbers coincide where their halves mirror each other."""
    columns: dict[str, IcebergType] = {
        "k": LongType(), "m": DecimalType(38, 2), "n": DecimalType(19, 4), "same": LongType()
    }  # fmt: skip
    old: list[Row] = [
        {"k": k, "m": Decimal("0.00"), "n": Decimal("0.0000"), "same": k} for k in range(5)
    ]
    new: list[Row] = [dict(row) for row in old]
    new[1]["m"] = Decimal("-0.01")
    new[2]["n"] = Decimal("-0.0001")
    new[3] |= {"m": Decimal("184467440737095516.15"), "n": None}
    return plain_pair(make, columns, old, new, ("k",))


def _wide_ids(make: Maker) -> Built:
    columns: dict[str, IcebergType] = {"k": LongType(), "u": UUIDType()}
    half = 1 << 63
    old: list[Row] = [{"k": k, "u": UUID(int=half << 64)} for k in range(3)]
    new: list[Row] = [{"k": k, "u": UUID(int=(half + k) << 64 | k)} for k in range(3)]
    return plain_pair(make, columns, old, new, ("k",))


MORE_CASES = (
    Case("decimals of 128 bits", _wide_numbers),
    Case("UUIDs of mirrored halves", _wide_ids, engines=("local",)),
    Case("tolerance of decimals", _decimal_tolerance),
    Case("tolerance of whole numbers", _whole_tolerance),
    Case("tolerance of floats", _floating_tolerance),
    Case("tolerance as a share", _relative_tolerance),
    Case("tolerance and duplicate keys", _tolerance_and_duplicates),
    Case("tolerance beside another column", _tolerance_beside_another_column),
    Case("partitions known to be equal", _known_equal),
    Case("known to be equal, with a condition", lambda make: _known_equal(make, where="k > 0")),
    Case("two tables of one layout", _tables_by_day),
    Case("a migrated table", _migrated),
    Case("duplicate keys in one partition", _duplicates_by_day),
    Case("duplicate null keys", _duplicate_null_keys),
    Case("duplicate keys of minus zero and NaN", _duplicate_minus_zero),
    Case("empty and missing values", _empty_and_missing),
    Case("deeply nested", _deep),
    Case("values move to a neighbour", _neighbours),
    Case("instants as keys", _instants),
    Case("several files in a partition", _many_files),
    Case("compacted", _compacted),
    Case("truncated texts as partitions", _truncated),
    Case("more texts than are counted", _many_categories),
    Case("dictionaries in some files", _some_dictionaries),
    Case("layout evolved, rewritten", _evolved_layout_rewritten),
    Case("deletes, then an added column", _evolved_and_deleted),
    Case("deletes, then rewritten days", _deleted_and_rewritten),
    *FILE_CASES,
)
