"""What a diff adds up of its sides is what measuring them gives, whatever way it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Any, Literal

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, In

from lakehouse_backfill.adapters.local.diff import tally
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.measuring.measuring import LocalMeasurer
from lakehouse_backfill.core.validation.partition_totals import measured_sides
from lakehouse_backfill.domain.comparison.diff import Diff
from lakehouse_backfill.domain.comparison.partition_sums import PartitionSums
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_FIELD,
    WHOLE_TABLE_LABEL,
    Scope,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.comparison import DiffRequest, ReadSides, SummedDiff
from lakehouse_backfill.ports.compute import MeasuredSides
from tests.contract.differ_cases import (
    BY_DAY,
    Built,
    Case,
    Maker,
    append,
    day,
    days,
    overwrite,
)
from tests.contract.test_differ import LOCAL_CASES, parts_differ
from tests.support.lakes.deletes import hide_rows

pytestmark = [pytest.mark.req("P2", "Q5"), pytest.mark.in_turn]
WAYS: dict[str, Callable[[SqlCatalog], Any]] = {
    "in this process": LocalDiffer,
    "in buckets of keys": lambda catalog: LocalDiffer(catalog, 1, large_rows=1),
    "on workers": parts_differ,
}


#: Names of cases, by what became of their sums.
SEEN: dict[str, set[str]] = {"added up": set(), "left to others": set()}


#: What of the old side is added up, too.
OLD: tuple[Literal["unread", "measured", "hashed"], ...] = ("hashed", "measured", "unread")


def measured(catalog: SqlCatalog, request: DiffRequest, wanted: ReadSides) -> MeasuredSides | None:
    """Both sides, each read by itself; None where Spark would have to measure them."""
    assert request.scope
    old, new = request.states
    if wanted.old == "unread":
        old = old[0], None
    try:
        return LocalMeasurer(catalog).measure(
            old, new, request.scope, wanted.measures, wanted.ignore,
            old_is_known=wanted.old == "measured",
        )  # fmt: skip
    except Unsupported:
        return None


def added_up(request: DiffRequest, found: SummedDiff) -> MeasuredSides:
    """Both sides, as validation takes them from the diff."""
    wanted = request.read_sides
    assert request.scope
    assert wanted
    assert found.new_side is not None
    has_old = wanted.old != "unread" and request.old_snapshot_id is not None
    return measured_sides(
        wanted.measures, request.scope, found.old_side, found.new_side,
        has_old=has_old, has_new=request.new_snapshot_id is not None,
        old_is_known=wanted.old == "measured",
    )  # fmt: skip


def content(diff: Diff) -> Diff:
    """What a diff found, whatever parts it was made of: shared files are some where they count."""
    return diff.model_copy(update={"how": ""})


#: Measures of columns that most cases have; others are counted as columns without values.
MEASURES = (Measure(name="ids", count="id"), Measure(name="v", sum="v"))


@pytest.mark.parametrize(
    ("case", "way", "old"),
    # Each way takes a third of the cases, and so does each reading of the old side.
    [
        pytest.param(*case.values, way, old, id=f"{case.id}, {way}, {old}")
        for number, case in enumerate(LOCAL_CASES)
        for way, old in [([*WAYS][number % 3], OLD[number // 3 % 3])]
    ],
)
def test_a_diff_adds_up_its_sides(
    catalog: SqlCatalog,
    kept: Callable[[Case], Built],
    case: Case,
    way: str,
    old: Literal["unread", "measured", "hashed"],
) -> None:
    request = kept(case).request
    whole = Scope(field=WHOLE_TABLE_FIELD, partitions=(WHOLE_TABLE_LABEL,))
    request = replace(request, scope=request.scope or whole)
    plain = content(WAYS[way](catalog).diff(request))
    for measures in (MEASURES, ()):
        wanted = ReadSides(measures, request.ignore, old)
        found, asked = measured(catalog, request, wanted), replace(request, read_sides=wanted)
        summed = WAYS[way](catalog).diff_and_sum(asked)
        assert content(summed.diff) == plain
        # Whoever is told so before the diff measures the sides beside it, not behind it.
        assert LocalDiffer(catalog).preview(asked).adds_up or summed.new_side is None
        if summed.new_side is None:
            SEEN["left to others"].add(case.name)
            continue
        SEEN["added up"].add(case.name)
        assert found == added_up(asked, summed)
        return


def test_most_cases_are_added_up() -> None:
    assert len(SEEN["added up"]) > len(SEEN["left to others"] - SEEN["added up"])


@pytest.mark.parametrize("way", WAYS)
def test_counted_values_that_spark_refuses_are_not_all_held(
    catalog: SqlCatalog, make: Maker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    rows = [{"d": day(n // 20), "k": n, "s": f"value {n}"} for n in range(100)]
    table = make.table({"d": "date", "k": "long", "s": "string"}, BY_DAY)
    heads = [append(table, rows[first : first + 10]) for first in range(0, 100, 10)]
    request = make.request(table, None, heads[-1], ("k",), scope=days(*range(5)))
    monkeypatch.setattr(tally, "MAX_GROUPS", 25)
    held: list[int] = []
    add = PartitionSums.add_group

    def noted(sums: PartitionSums, label: str, file: str | None, *others: Any) -> None:
        add(sums, label, file, *others)
        held.append(sums.groups)

    monkeypatch.setattr(PartitionSums, "add_group", noted)
    wanted = ReadSides((Measure(name="by", counts_by="s"),), ())
    assert WAYS[way](catalog).diff_and_sum(replace(request, read_sides=wanted)).new_side is None
    assert max(held) <= 50
    # Plain measures are one sum of a partition each, however many there are.
    many = ReadSides(tuple(Measure(name=f"m{n}", count="k") for n in range(30)), ())
    sums = WAYS[way](catalog).diff_and_sum(replace(request, read_sides=many)).new_side
    assert sums is not None
    assert sums.groups == 5 * 30


#: Values of columns whose sums, counts and hashes are exact in this process.
KINDS: dict[str, tuple[str, Callable[[Random], Any]]] = {
    "n": ("long", lambda one: one.choice([None, -(2**40), 2**40, one.randrange(-9, 9)])),
    "i": ("int", lambda one: one.choice([None, one.randrange(100)])),
    "m": (
        "decimal(12, 3)",
        lambda one: one.choice([None, Decimal(one.randrange(-(10**9), 10**9)).scaleb(-3)]),
    ),
    "s": ("string", lambda one: one.choice([None, "", "null", "=", "ä", "x" * 40])),
    "x": ("double", lambda one: one.choice([None, float("nan"), -0.0, 0.0, one.random()])),
    "t": ("timestamp", lambda one: datetime(2024, 1, 1 + one.randrange(9))),  # noqa: DTZ001
}
RANDOM_MEASURES = (
    Measure(name="n", sum="n"), Measure(name="i", sum="i"), Measure(name="m", sum="m"),
    Measure(name="x", count="x"), Measure(name="s", counts_by="s"),
    Measure(name="gone", count="gone"),
)  # fmt: skip


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("way", WAYS)
def test_random_sides_with_shared_files_are_added_up(
    catalog: SqlCatalog, make: Maker, way: str, old: Literal["unread", "measured", "hashed"]
) -> None:
    """Partitions that are kept, emptied, written anew, and rewritten; rows that deletes hide."""
    one = Random(f"{way} {old}")
    table = make.table(
        {"d": "date", "k": "long"} | {name: kind for name, (kind, _) in KINDS.items()}, BY_DAY
    )

    def rows(number: int) -> list[dict[str, Any]]:
        return [
            {"d": day(number), "k": k} | {name: value(one) for name, (_, value) in KINDS.items()}
            for k in range(one.randrange(1, 40))
        ]

    for number in (0, 0, 1, 2, 3, 4):
        append(table, rows(number))
    before = hide_rows(table, "k", {1, 4, 7})
    table.refresh()
    table.delete(EqualTo("d", day(2).isoformat()))
    gone = In("d", {day(number).isoformat() for number in (3, 5)})
    after = overwrite(table, [*rows(3), *rows(5)], gone)
    request = make.request(table, before, after, ("d", "k"), scope=days(*range(7)))
    wanted = ReadSides(RANDOM_MEASURES, ("i",), old)
    asked = replace(request, read_sides=wanted)
    plain = content(WAYS[way](catalog).diff(request))
    summed = WAYS[way](catalog).diff_and_sum(asked)
    assert content(summed.diff) == plain
    assert plain.files.shared >= 3
    assert added_up(asked, summed) == measured(catalog, request, wanted)
