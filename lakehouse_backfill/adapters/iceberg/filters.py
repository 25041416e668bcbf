"""Row ranges as PyIceberg expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    Or,
)

from lakehouse_backfill.domain.scope import Bound, RowRange

_TermFactory = Callable[[str, Any], BooleanExpression]
# They take column and value by position, which the signatures that mypy sees do not say.
equal_term = cast("_TermFactory", EqualTo)
in_term = cast("_TermFactory", In)
at_least_term = cast("_TermFactory", GreaterThanOrEqual)
below_term = cast("_TermFactory", LessThan)
null_term = cast("Callable[[str], BooleanExpression]", IsNull)


def row_range_filter(ranges: tuple[RowRange, ...]) -> BooleanExpression:
    """Give the expression that holds for the rows of any range; no range: no row."""
    equals: dict[str, list[Bound]] = {}
    terms: list[BooleanExpression] = []
    for rows in ranges:
        if rows.equals is not None:
            equals.setdefault(rows.column, []).append(rows.equals)
        else:
            terms.append(_range_term(rows))
    # One In instead of many EqualTo: evaluators recurse over Or.
    terms += [_equality_term(column, values) for column, values in equals.items()]
    if not terms:
        return AlwaysFalse()
    return terms[0] if len(terms) == 1 else Or(*terms)


def _equality_term(column: str, values: list[Bound]) -> BooleanExpression:
    return equal_term(column, values[0]) if len(values) == 1 else in_term(column, set(values))


def _range_term(rows: RowRange) -> BooleanExpression:
    if rows.is_null:
        return null_term(rows.column)
    if rows.lower is not None and rows.upper is not None:
        return And(at_least_term(rows.column, rows.lower), below_term(rows.column, rows.upper))
    if rows.lower is not None:
        return at_least_term(rows.column, rows.lower)
    return AlwaysTrue() if rows.upper is None else below_term(rows.column, rows.upper)
