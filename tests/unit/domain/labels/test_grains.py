"""Grains: any partitions are widened to the smallest union of whole grains."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.domain.labels.grains import (
    contract_grain,
    grain_fault,
    group_by_grain,
    whole_grains,
    without_cut_grains,
)
from lakehouse_backfill.domain.labels.values import Grain
from lakehouse_backfill.domain.partitions import Scope, ScopeField, label_sort_key
from tests.support.fakes.context import contract

pytestmark = pytest.mark.req("P3")

DAY = ScopeField(column="day", transform="identity", type="date")
HOUR = ScopeField(column="at", transform="hour", type="timestamptz")
NUMBER = ScopeField(column="id", transform="identity", type="long")
WIDE = ScopeField(column="id", transform="truncate[10]", type="long")
_LENGTHS = {"day": 10, "month": 7, "year": 4}
_DAYS = [str(date(2019, 12, 1) + timedelta(days=number)) for number in range(2000)]


def _name(grain: Grain, label: str) -> str:
    """The grain of a label by an oracle: the first letters of a time, a quotient of a number."""
    if label == "null":
        return label
    return label[: _LENGTHS[grain]] if isinstance(grain, str) else str(int(label) // grain)


def _labels(field: ScopeField, near: list[int]) -> set[str]:
    if field is DAY:
        return {_DAYS[number] for number in near}
    if field is HOUR:
        return {f"{_DAYS[number]}T{number % 24:02d}" for number in near}
    return {str(number // 10 * 10 if field is WIDE else number - 1000) for number in near}


def _every(field: ScopeField) -> set[str]:
    """All partitions that a grain of the drawn ones may hold."""
    if field is HOUR:
        days = _every(DAY)
        return {f"{day}T{hour:02d}" for day in days for hour in range(24)}
    if field is DAY:
        return {str(date(2019, 1, 1) + timedelta(days=number)) for number in range(2557)}
    return {str(number) for number in range(-1500, 2500, 10 if field is WIDE else 1)}


_CASES: list[tuple[ScopeField, Grain]] = [
    (DAY, "day"), (DAY, "month"), (DAY, "year"), (HOUR, "day"), (HOUR, "month"),
    (NUMBER, 7), (NUMBER, 100), (WIDE, 50),
]  # fmt: skip
_GRAINS: dict[tuple[ScopeField, Grain], dict[str, set[str]]] = {}
for _field, _grain in _CASES:
    _found = _GRAINS.setdefault((_field, _grain), {"null": {"null"}})
    for _label in _every(_field):
        _found.setdefault(_name(_grain, _label), set()).add(_label)


@settings(max_examples=60)
@given(
    st.sampled_from(_CASES),
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
    st.booleans(),
)
def test_any_scope_is_widened_to_the_smallest_union_of_whole_grains(
    case: tuple[ScopeField, Grain], near: list[int], has_null: bool
) -> None:
    field, grain = case
    labels = _labels(field, near) | ({"null"} if has_null else set())
    expected = set[str]().union(*(_GRAINS[case][_name(grain, label)] for label in labels))
    found = whole_grains(field, grain, labels)
    assert set(found) == expected
    assert list(found) == sorted(expected, key=label_sort_key(field))
    assert whole_grains(field, grain, found) == found
    groups = group_by_grain(field, grain, found)
    assert [{_name(grain, one) for one in group} for group in groups] == [
        {_name(grain, group[0])} for group in groups
    ]


def test_without_a_grain_nothing_is_widened() -> None:
    assert whole_grains(DAY, None, ["2020-02-03", "2020-01-01"]) == ("2020-01-01", "2020-02-03")


def test_a_width_ends_where_numbers_of_the_column_do() -> None:
    small = ScopeField(column="id", transform="identity", type="int")
    assert whole_grains(small, 4, ["2147483647"])[-1] == "2147483647"
    wide = ScopeField(column="id", transform="truncate[10]", type="int")
    assert whole_grains(wide, 20, ["-2147483650"]) == ("-2147483650",)
    assert whole_grains(wide, 20, ["-2147483630"]) == ("-2147483640", "-2147483630")
    assert whole_grains(wide, 50, ["-2147483640"])[0] == "-2147483650"
    assert whole_grains(DAY, "year", ["9999-05-01"])[-1] == "9999-12-31"


def test_partitions_are_kept_only_with_all_others_of_their_grain() -> None:
    product = contract(partitioning=[{"column": "day", "grain": "month"}])
    scope = Scope(field=DAY, partitions=whole_grains(DAY, "month", ["2020-01-01", "2020-02-01"]))
    kept = {one for one in scope.partitions if one != "2020-02-17"}
    assert without_cut_grains(product, scope, kept) == {
        one for one in scope.partitions if one < "2020-02"
    }


def test_a_grain_is_declared_along_the_field_of_the_scope() -> None:
    product = contract(partitioning=[{"column": "Day", "grain": "month"}, {"column": "id"}])
    whole = ScopeField(column="*", transform="table", type="string")
    assert [contract_grain(product, one) for one in (DAY, NUMBER, whole)] == ["month", None, None]


@pytest.mark.parametrize(
    ("transform", "kind", "grain", "problem"),
    [
        ("identity", "date", "month", ""),
        ("hour", "timestamp", "day", ""),
        ("month", "date", "day", "a day is finer than a partition, which is one month"),
        ("identity", "timestamp", "day", "a day needs partitions that are spans of time"),
        ("bucket[8]", "long", "day", "a day needs partitions that are spans of time"),
        ("identity", "string", 10, "a width needs partitions of whole numbers"),
        ("bucket[8]", "long", 16, "a width needs partitions of whole numbers"),
        ("identity", "int", 10, ""),
        ("truncate[10]", "long", 50, ""),
        ("truncate[10]", "long", 55, "a partition is 10 wide, so a grain ends inside one"),
    ],
)
def test_a_grain_is_a_union_of_whole_partitions(
    transform: str, kind: str, grain: Grain, problem: str
) -> None:
    found = grain_fault(transform, kind, grain)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
