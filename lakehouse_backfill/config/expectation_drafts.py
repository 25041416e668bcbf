"""Ready expectations: what most products have to be held to, as entries of a suite file (Q3).

Each gives entries as Great Expectations reads them; docs/expectations.md prints them. Rules about
several rows are queries, and name the columns that they read, so that no others are.
"""

# ruff: noqa: S608 (queries are made of column names that are checked to be names)
from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from lakehouse_backfill.errors import ConfigError

SuiteEntry = dict[str, Any]
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
#: E-mail, IBAN, payment card, phone number with country, IPv4 address.
PERSONAL_DATA_PATTERNS = (
    r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+\.[A-Za-z]{2,}",
    r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){3,7}\b",
    r"\b(?:[0-9]{4}[ -]?){3}[0-9]{4}\b",
    r"\+[1-9][0-9]{0,2}[ -]?(?:[0-9][ -]?){6,12}\b",
    r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b",
)
UTC_TEXT_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(Z|[+]00:?00)$"


class ReadyExpectation(NamedTuple):
    """One ready rule: what it is about, how it is made, and an example of it."""

    about: str
    make: Callable[..., list[SuiteEntry]]
    example: dict[str, Any]

    @property
    def entries(self) -> list[SuiteEntry]:
        """The entries of the example."""
        return self.make(**self.example)


def expect_unique(columns: Sequence[str]) -> list[SuiteEntry]:
    """No two rows have the same values in these columns."""
    if len(columns) == 1:
        return [_column_entry("expect_column_values_to_be_unique", columns[0])]
    kwargs = {"column_list": list(columns)}
    return [{"type": "expect_compound_columns_to_be_unique", "kwargs": kwargs}]


def expect_not_null(columns: Sequence[str]) -> list[SuiteEntry]:
    """No row lacks a value in any of the columns."""
    return [_column_entry("expect_column_values_to_not_be_null", name) for name in columns]


def expect_between(
    column: str, low: float | None = None, high: float | None = None
) -> list[SuiteEntry]:
    """Each value lies in the range, its ends included."""
    return [
        _column_entry("expect_column_values_to_be_between", column, min_value=low, max_value=high)
    ]


def expect_one_of(column: str, values: Sequence[Any]) -> list[SuiteEntry]:
    """Each value is one of these."""
    return [_column_entry("expect_column_values_to_be_in_set", column, value_set=list(values))]


def expect_reference(column: str, parameter: str) -> list[SuiteEntry]:
    """Each value stands in the reference table at its pin: `parameters: {NAME: input.column}`."""
    known = {"$PARAMETER": parameter}
    return [_column_entry("expect_column_values_to_be_in_set", column, value_set=known)]


def expect_mapped(column: str, parameter: str) -> list[SuiteEntry]:
    """Each row was mapped, and to something that the reference table knows."""
    return [*expect_not_null([column]), *expect_reference(column, parameter)]


def expect_dates_between(column: str, first: str, last: str) -> list[SuiteEntry]:
    """Each moment lies between two, the first included and the last not."""
    return [
        _column_entry(
            "expect_column_values_to_be_between", column, min_value=first, max_value=last,
            strict_max=True,
        )
    ]  # fmt: skip


def expect_no_personal_data(columns: Sequence[str]) -> list[SuiteEntry]:
    """No text holds an e-mail or IP address, an IBAN, a card or an international phone number."""
    regex = "|".join(f"(?:{pattern})" for pattern in PERSONAL_DATA_PATTERNS)
    kind = "expect_column_values_to_not_match_regex"
    return [_column_entry(kind, name, regex=f"(?s).*(?:{regex}).*") for name in columns]


def expect_increasing(column: str, by: str, within: Sequence[str]) -> list[SuiteEntry]:
    """Inside each group the column never falls from one row to the next, in the order of `by`."""
    group, value = ", ".join(map(_quote_column, within)), _quote_column(column)
    query = (
        f"SELECT * FROM (SELECT {group}, {value}, lag({value}) OVER (PARTITION BY {group} "
        f"ORDER BY {_quote_column(by)}) AS before FROM {{batch}}) WHERE {value} < before"
    )
    text = f"{column} never falls, by {by}, within {', '.join(within)}"
    return [_query_entry(text, query, (column, by, *within))]


def expect_rows_per_key(columns: Sequence[str], least: int, most: int) -> list[SuiteEntry]:
    """Each value of the columns has so many rows: a join neither multiplied nor dropped any."""
    group = ", ".join(map(_quote_column, columns))
    query = (
        f"SELECT {group}, count(*) AS found FROM {{batch}} GROUP BY {group} "
        f"HAVING count(*) < {int(least)} OR count(*) > {int(most)}"
    )
    return [_query_entry(f"{least} to {most} rows for each {', '.join(columns)}", query, columns)]


def expect_one_currency(amount: str, currency: str, per: Sequence[str]) -> list[SuiteEntry]:
    """Each amount has a currency, and amounts that are added up have the same one."""
    money, unit, group = (
        _quote_column(amount),
        _quote_column(currency),
        ", ".join(map(_quote_column, per)),
    )
    bare = f"SELECT {money} FROM {{batch}} WHERE {money} IS NOT NULL AND {unit} IS NULL"
    mixed = (
        f"SELECT {group} FROM {{batch}} WHERE {money} IS NOT NULL GROUP BY {group} "
        f"HAVING count(DISTINCT {unit}) > 1"
    )
    return [
        _query_entry(f"each {amount} has a {currency}", bare, (amount, currency)),
        _query_entry(f"one {currency} for each {', '.join(per)}", mixed, (amount, currency, *per)),
    ]


def expect_utc(column: str, kind: Literal["timestamptz", "text"]) -> list[SuiteEntry]:
    """Each moment is one in UTC: stored as such, or written with Z or +00:00."""
    if kind == "text":
        return [
            _column_entry("expect_column_values_to_match_regex", column, regex=UTC_TEXT_PATTERN)
        ]
    return [_column_entry("expect_column_values_to_be_of_type", column, type_="TimestampType")]


READY_EXPECTATIONS: dict[str, ReadyExpectation] = {
    "unique": ReadyExpectation("uniqueness", expect_unique, {"columns": ["order_id", "line"]}),
    "filled": ReadyExpectation("nulls", expect_not_null, {"columns": ["order_id"]}),
    "between": ReadyExpectation(
        "ranges", expect_between, {"column": "quantity", "low": 0, "high": 1000}
    ),
    "one_of": ReadyExpectation(
        "enums", expect_one_of, {"column": "state", "values": ["open", "paid"]}
    ),
    "refers_to": ReadyExpectation(
        "referential integrity", expect_reference, {"column": "customer", "parameter": "customers"}
    ),
    "mapped": ReadyExpectation(
        "mappings total", expect_mapped, {"column": "region", "parameter": "regions"}
    ),
    "dated_between": ReadyExpectation(
        "timestamp bounds",
        expect_dates_between,
        {"column": "ordered_at", "first": "2020-01-01T00:00:00", "last": "2030-01-01T00:00:00"},
    ),
    "no_personal_data": ReadyExpectation(
        "PII patterns", expect_no_personal_data, {"columns": ["note"]}
    ),
    "increasing": ReadyExpectation(
        "monotonic columns",
        expect_increasing,
        {"column": "balance_seq", "by": "ordered_at", "within": ["customer"]},
    ),
    "rows_per": ReadyExpectation(
        "join cardinality",
        expect_rows_per_key,
        {"columns": ["order_id", "line"], "least": 1, "most": 1},
    ),
    "one_currency": ReadyExpectation(
        "one currency per amount",
        expect_one_currency,
        {"amount": "amount", "currency": "currency", "per": ["order_id"]},
    ),
    "in_utc": ReadyExpectation("UTC normalised", expect_utc, {"column": "sent_at", "kind": "text"}),
}


def draft_suite(name: str, key: Sequence[str], required: Sequence[str]) -> str:
    """Return the text of a suite file that follows from a table's metadata, or an empty text.

    The key is unique and filled, and so is each required column.
    """
    entries = expect_unique(key) if key else []
    entries += expect_not_null(list(dict.fromkeys([*key, *required])))
    if not entries:
        return ""
    return json.dumps({"name": name, "expectations": entries}, indent=2) + "\n"


def _column_entry(kind: str, column: str, **arguments: Any) -> SuiteEntry:
    given = {name: value for name, value in arguments.items() if value is not None}
    return {"type": kind, "kwargs": {"column": column, **given}}


def _query_entry(text: str, query: str, columns: Sequence[str]) -> SuiteEntry:
    return {
        "type": "unexpected_rows_expectation",
        "kwargs": {"unexpected_rows_query": query, "description": text},
        "meta": {"columns": list(dict.fromkeys(columns))},
    }


def _quote_column(name: str) -> str:
    """Quote a column; raises ConfigError for what is no name: it becomes part of a query."""
    if not _COLUMN_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no column name", fix="use letters, digits and _")
    return f"`{name}`"
