"""Row ranges and key values as PyIceberg expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import reduce
from typing import Any

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
    Reference,
)
from pyiceberg.expressions.literals import literal

from lakehouse_backfill.domain.scope import Bound, RowRange


def filter_of_ranges(ranges: Iterable[RowRange]) -> BooleanExpression:
    """Give the rows of any of the ranges; no ranges: every row."""
    expressions = [_filter_of_range(rows) for rows in ranges]
    return _balanced_or(expressions) if expressions else AlwaysTrue()


def filter_of_keys(keys: Sequence[Mapping[str, Any]]) -> BooleanExpression:
    """Give a filter that lets through at least the rows whose columns have one of the key values.

    Column by column, so that a thousand keys make one `In` each and not a thousand branches.
    """
    result: BooleanExpression = AlwaysTrue() if keys else AlwaysFalse()
    for column in keys[0] if keys else ():
        values = {_literal_value(key[column]) for key in keys if key[column] is not None}
        has_null = any(key[column] is None for key in keys)
        one: BooleanExpression = (
            In(term=Reference(name=column), literals=set(map(literal, values)))
            if values
            else AlwaysFalse()
        )
        result = And(result, Or(one, IsNull(term=Reference(name=column))) if has_null else one)
    return result


def _filter_of_range(rows: RowRange) -> BooleanExpression:
    column = Reference(name=rows.column)
    if rows.is_null:
        return IsNull(term=column)
    if rows.equals is not None:
        return EqualTo(term=column, value=_bound_literal(rows.equals))
    result: BooleanExpression = AlwaysTrue()
    if rows.lower is not None:
        result = And(result, GreaterThanOrEqual(term=column, value=_bound_literal(rows.lower)))
    if rows.upper is not None:
        result = And(result, LessThan(term=column, value=_bound_literal(rows.upper)))
    return result


def _balanced_or(parts: list[BooleanExpression]) -> BooleanExpression:
    # PyIceberg visits expressions recursively: a thousand chained Ors overflow the stack.
    while len(parts) > 1:
        parts = [reduce(Or, parts[at : at + 2]) for at in range(0, len(parts), 2)]
    return parts[0]


def _bound_literal(value: Bound) -> Any:
    return literal(value.isoformat() if isinstance(value, (date, datetime)) else value)


def _literal_value(value: Any) -> Any:
    if isinstance(value, (bool, int, float, bytes, str)):
        return value
    return value.isoformat() if isinstance(value, (date, datetime)) else str(value)
