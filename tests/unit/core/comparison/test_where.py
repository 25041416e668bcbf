"""Conditions typed by users: rewritten for the engine, or refused."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.comparison.conditions import condition_columns, render_condition
from lakehouse_backfill.errors import ConfigError

NAMES = {"carrier": "c0", "flights": "c1", "Day": "c2", "st": "c3", "a b": "c4"}


@pytest.mark.req("Q5")
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
    assert render_condition(text, NAMES, "duckdb") == sql


@pytest.mark.req("Q5")
def test_spark_gets_its_own_quotes() -> None:
    assert render_condition("\"a b\" > 1 AND carrier = 'x'", {**NAMES, "a b": "a b"}, "spark") == (
        "`a b` > 1 AND `c0` = 'x'"
    )


@pytest.mark.req("Q5")
def test_the_columns_of_a_condition_are_named_once() -> None:
    assert condition_columns("flights > 1 AND Day = '2024-01-01' OR flights < 0") == (
        "flights",
        "Day",
    )


@pytest.mark.req("Q5")
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
        render_condition(text, NAMES, "duckdb")
