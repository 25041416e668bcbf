"""Counts with Arrow the rows that break rules, where Arrow counts just as Spark does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.domain.quality.row_rules import (
    Greater,
    Matches,
    NotNull,
    OneOf,
    RowRule,
    Unique,
    Within,
)

#: Java's `.` and `$` stop at each of these, RE2's do not.
_LINE_ENDS = "[\n\r\u0085\u2028\u2029]"


def count_breaking(rows: pa.Table, rule: RowRule) -> int | None:
    """Return how many rows break a rule; None where Arrow may count otherwise than Spark."""
    if isinstance(rule, NotNull):
        return int(rows[rule.column].null_count)
    if isinstance(rule, Unique):
        return _count_repeated(rows, rule.column)
    try:
        condition = _condition(rows, rule)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return None if condition is None else int(pc.sum(pc.invert(condition)).as_py() or 0)


def _condition(rows: pa.Table, rule: RowRule) -> Any:
    values = rows[rule.column]
    match rule:
        case OneOf():
            return _is_one_of(values, rule)
        case Matches():
            return _is_match(values, rule)
        case Greater():
            others = rows[rule.other]
            if _holds_nan(values) or _holds_nan(others):
                return None
            return (pc.greater_equal if rule.or_equal else pc.greater)(values, others)
        case Within():
            return _is_within(pc.utf8_length(values) if rule.of_length else values, rule)
        case _:
            return None


def _is_one_of(values: pa.ChunkedArray, rule: OneOf) -> Any:
    if pa.types.is_integer(values.type):
        values = values.cast(pa.int64())
    found = pc.is_in(values, value_set=pa.array(rule.values, values.type))
    # `is_in` says false of null; a null breaks no rule.
    found = pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))
    return pc.invert(found) if rule.is_excluded else found


def _is_match(values: pa.ChunkedArray, rule: Matches) -> Any:
    if pc.any(pc.match_substring_regex(values, _LINE_ENDS)).as_py():
        return None
    found = pc.match_substring_regex(values, rule.pattern)
    return pc.invert(found) if rule.is_excluded else found


def _is_within(values: pa.ChunkedArray, rule: Within) -> Any:
    # Spark takes NaN for greater than every number, Arrow for not comparable.
    if _holds_nan(values):
        return None
    conditions = []
    if rule.low is not None:
        above = pc.greater if rule.is_low_excluded else pc.greater_equal
        conditions.append(above(values, _bound(rule.low, values.type)))
    if rule.high is not None:
        below = pc.less if rule.is_high_excluded else pc.less_equal
        conditions.append(below(values, _bound(rule.high, values.type)))
    return conditions[0] if len(conditions) == 1 else pc.and_kleene(*conditions)


def _bound(value: Any, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(value) if isinstance(value, (int, float)) else pa.scalar(value, kind)


def _holds_nan(values: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())


def _count_repeated(rows: pa.Table, column: str) -> int:
    counted = rows.select([column]).group_by(column).aggregate([([], "count_all")])
    is_repeated = pc.and_(pc.greater(counted["count_all"], 1), pc.is_valid(counted[column]))
    return int(pc.sum(counted["count_all"].filter(is_repeated)).as_py() or 0)
