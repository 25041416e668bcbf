"""Tolerances and row conditions of a diff."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lakehouse_backfill.core.comparison.conditions import (
    condition_columns,
    format_decimal,
    parse_tolerances,
    render_condition,
    require_applicable_tolerances,
    require_ignored_columns_exist,
)
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.errors import ConfigError

pytestmark = pytest.mark.req("Q5")


def test_a_tolerance_is_a_distance_or_a_share() -> None:
    assert parse_tolerances(["amount=0.01", "a=b=1%", "n=0"]) == (
        Tolerance(column="amount", limit=Decimal("0.01")),
        Tolerance(column="a=b", limit=Decimal("0.01"), is_relative=True),
        Tolerance(column="n", limit=Decimal(0)),
    )


@pytest.mark.parametrize("text", ["amount", "=1", "a=x", "a=-1", "a=NaN", "a=inf", "a=1e40", "a=%"])
def test_what_is_no_tolerance_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_tolerances([text])


def test_two_tolerances_of_a_column_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tolerances for column a"):
        parse_tolerances(["a=1", "a=1%"])


@pytest.mark.parametrize(
    ("column", "key", "words"),
    [("s", ("k",), "no compared column of numbers"), ("k", ("k",), "no compared"),
     ("x", (), "needs a key")],
)  # fmt: skip
def test_a_tolerance_is_of_a_compared_number(column: str, key: tuple[str, ...], words: str) -> None:
    one = Tolerance(column=column, limit=Decimal(1))
    with pytest.raises(ConfigError, match=words):
        require_applicable_tolerances([one], {"x": "number", "s": "category"}, key)


def test_a_slip_in_an_ignored_column_is_seen() -> None:
    require_ignored_columns_exist(["a", "produced_at"], [["a", "b"], []])
    require_ignored_columns_exist(["anything"], [[], []])
    with pytest.raises(ConfigError, match="no column c to ignore"):
        require_ignored_columns_exist(["c"], [["a"], ["b"]])


def test_limits_reach_sql_as_plain_digits() -> None:
    texts = [format_decimal(Decimal(text)) for text in ("1e-7", "1E+3", "0.50")]
    assert texts == ["0.0000001", "1000", "0.50"]


NAMES = {"carrier": "c0", "flights": "c1", "Day": "c2", "st": "c3", "a b": "c4"}


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("carrier = 'AA'", "\"c0\" = 'AA'"),
        ("CARRIER = 'O''Hare' -- note", "\"c0\" = 'O''Hare'"),
        ("`a b` > 1", '"c4" > 1'),
        ('"a b" > 1', '"c4" > 1'),
        ("day IS NULL OR flights BETWEEN 1 AND 2", '"c2" IS NULL OR "c1" BETWEEN 1 AND 2'),
        ("st.x = 1", '"c3"."x" = 1'),
        ("carrier IN ('c1', 'x')", "\"c0\" IN ('c1', 'x')"),
    ],
)
def test_a_condition_is_written_again_with_our_column_names(text: str, sql: str) -> None:
    assert render_condition(text, NAMES) == sql


def test_the_columns_of_a_condition_are_named_once() -> None:
    assert condition_columns("flights > 1 AND Day = '2024-01-01' OR flights < 0") == (
        "flights",
        "Day",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 = 1; DROP TABLE x",
        "flights > (SELECT 1)",
        "EXISTS (SELECT 1)",
        "flights IN (SELECT 1)",
        "SELECT 1",
        "DELETE FROM x",
        "sum(flights) > 1",
        "row_number() OVER () = 1",
        "read_text('/etc/passwd') = ''",
        "getenv('HOME') = ''",
        "flights > ?",
        "flights > $1",
        "flights > :x",
        "random() > 0.5",
        "carrier = 'x",
        "*",
        "flights AS x",
        "nope = 1",
        "CURRENT_DATE > Day",
    ],
)
def test_what_is_no_plain_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="condition"):
        render_condition(text, NAMES)
