"""Row conditions and tolerances that a user typed.

A condition is parsed, checked, and rendered for DuckDB. A tolerance is parsed, and checked
against the columns of the compared tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.errors import ConfigError

#: Every engine subtracts decimals of more digits than this as floating-point numbers.
EXACT_DIGITS = 37
_SMALLEST, _LARGEST = Decimal("1e-18"), Decimal("1e18")


def parse_tolerances(texts: Iterable[str]) -> tuple[Tolerance, ...]:
    """Parse `COLUMN=0.01` (in the column's unit) and `COLUMN=1%` (of the greater value).

    Raises ConfigError for any other text, and for a column that is named twice.
    """
    tolerances: dict[str, Tolerance] = {}
    for text in texts:
        tolerance = _parse_tolerance(text)
        if tolerance.column in tolerances:
            raise ConfigError(
                f"there are two tolerances for column {tolerance.column}", fix="give one of them"
            )
        tolerances[tolerance.column] = tolerance
    return tuple(tolerances.values())


def require_applicable_tolerances(
    tolerances: Iterable[Tolerance], kinds: Mapping[str, str], key: Collection[str]
) -> None:
    """Raise ConfigError unless each tolerance is of a compared number column.

    `kinds` maps each compared column to its kind, e.g. `number`. Without a key rows have no
    counterparts, so no value can be nearly equal.
    """
    for tolerance in tolerances:
        if not key:
            raise ConfigError(
                f"a tolerance for {tolerance.column} needs a key, "
                "which says what rows are compared",
                fix="name the key columns: --key a,b",
            )
        if kinds.get(tolerance.column) != "number":
            numbers = ", ".join(name for name, kind in kinds.items() if kind == "number")
            raise ConfigError(
                f"{tolerance.column} is no compared column of numbers, so it can have no tolerance",
                fix=f"choose from: {numbers or 'there is none'}",
            )


def require_ignored_columns_exist(ignore: Iterable[str], sides: Iterable[Collection[str]]) -> None:
    """Raise ConfigError when no side has a column that is to be ignored: it may be a typing error.

    Lineage columns are always ignored, whether a table has them or not.
    """
    known = {name for side in sides for name in side}
    for name in ignore:
        if known and name not in known and name not in LINEAGE_NAMES:
            raise ConfigError(
                f"there is no column {name} to ignore", fix=f"choose from: {', '.join(known)}"
            )


def format_decimal(limit: Decimal) -> str:
    """Return the number without exponent: digits and a point."""
    return f"{limit:f}"


def _parse_tolerance(text: str) -> Tolerance:
    column, _, written = text.rpartition("=")
    is_relative = written.endswith("%")
    try:
        number = Decimal(written.removesuffix("%"))
    except InvalidOperation:
        number = Decimal("NaN")
    is_valid = number.is_finite() and (number == 0 or _SMALLEST <= number <= _LARGEST)
    if not column or not is_valid:
        raise ConfigError(
            f"the tolerance {text!r} cannot be read",
            fix="write COLUMN=0.01 for a distance, or COLUMN=1% for a share of the value",
        )
    limit = number / 100 if is_relative else number
    return Tolerance(column=column, limit=limit, is_relative=is_relative)


#: Dialects to parse the text with: standard SQL first, then Spark's (backticks).
_READERS = ("duckdb", "spark")


def condition_columns(text: str) -> tuple[str, ...]:
    """Return the columns that the condition reads, in order of appearance; raises ConfigError."""
    from sqlglot import exp

    tree = _parse(text)
    return tuple(dict.fromkeys(str(node.parts[0].name) for node in tree.find_all(exp.Column)))


def render_condition(text: str, columns: Mapping[str, str]) -> str:
    """Render the condition for DuckDB, with every column replaced by `columns[name]`.

    No part of the text reaches the engine unparsed: it is one boolean expression of literals, known
    functions and the given columns, without subqueries, windows or aggregates. Column names match
    exactly, or without regard to case when only one does. Raises ConfigError.
    """
    from sqlglot import exp

    def replace(node: Any) -> Any:
        if not isinstance(node, exp.Column):
            return node
        parts = [part.name for part in node.parts]
        column = exp.column(columns[_match(parts[0], columns, text)], quoted=True)
        fields = [exp.to_identifier(part, quoted=True) for part in parts[1:]]
        return exp.Dot.build([column, *fields]) if fields else column

    tree = _parse(text).transform(replace)
    return str(tree.sql(dialect="duckdb", comments=False))


def _match(name: str, columns: Mapping[str, str], text: str) -> str:
    if name in columns:
        return name
    matches = [column for column in columns if column.lower() == name.lower()]
    if len(matches) == 1:
        return matches[0]
    raise ConfigError(
        f"no column {name} for the condition {text!r}", fix=f"use one of: {', '.join(columns)}"
    )


def _parse(text: str) -> Any:
    import sqlglot
    from sqlglot.errors import SqlglotError

    problem = ""
    for reader in _READERS:
        try:
            trees = sqlglot.parse(text, read=reader)
        except SqlglotError as error:
            problem = problem or str(error).splitlines()[0]
            continue
        if len(trees) == 1 and trees[0] is not None:
            return _require_safe_expression(trees[0], text)
        problem = problem or "not exactly one expression"
    raise _condition_error(text, problem)


def _require_safe_expression(tree: Any, text: str) -> Any:
    from sqlglot import exp

    forbidden: tuple[tuple[tuple[Any, ...], str], ...] = (
        ((exp.Query, exp.Subquery, exp.Exists), "it holds a subquery"),
        ((exp.AggFunc, exp.Window), "it holds an aggregate or a window function"),
        ((exp.Placeholder, exp.Parameter, exp.SessionParameter), "it holds a parameter"),
        ((exp.Anonymous, exp.Command, exp.DDL, exp.DML), "it holds an unknown function or command"),
        ((exp.Rand, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.Uuid),
         "its outcome differs from run to run"),
        ((exp.Star, exp.Alias, exp.Ordered), "it is a select list, not a condition"),
    )  # fmt: skip
    for types, problem in forbidden:
        if tree.find(*types):
            raise _condition_error(text, problem)
    if not isinstance(tree, exp.Condition):
        raise _condition_error(text, "it is not an expression")
    return tree


def _condition_error(text: str, problem: str) -> ConfigError:
    return ConfigError(
        f"the condition {text!r} cannot be used: {problem}",
        fix="write one boolean expression over columns, e.g. \"carrier = 'AA' AND flights > 3\"",
    )
