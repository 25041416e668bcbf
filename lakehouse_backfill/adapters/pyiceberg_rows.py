"""Rows through PyIceberg, as all adapters read and write them: filters of row ranges, null lists.

Adapters share this module and `pyiceberg_manifests`, and no other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from pyiceberg import expressions as expr

from lakehouse_backfill.domain.labels.values import Bound
from lakehouse_backfill.domain.partitions import (
    RowRange,
)

_TermFactory = Callable[[str, Any], expr.BooleanExpression]
# They accept column and value by position, which their signatures for mypy do not declare.
equal_term = cast("_TermFactory", expr.EqualTo)
in_term = cast("_TermFactory", expr.In)
at_least_term = cast("_TermFactory", expr.GreaterThanOrEqual)
below_term = cast("_TermFactory", expr.LessThan)
null_term = cast("Callable[[str], expr.BooleanExpression]", expr.IsNull)


def row_range_filter(ranges: tuple[RowRange, ...]) -> expr.BooleanExpression:
    """Return the expression that is true for the rows of any range; no range: no row.

    For a bucket it is true for all rows. The groups of `only` are those of all ranges.
    """
    if ranges and ranges[0].only:
        own = row_range_filter(tuple(replace(rows, only=()) for rows in ranges))
        return expr.And(own, *map(row_range_filter, ranges[0].only))
    equals: dict[str, list[Bound]] = {}
    terms: list[expr.BooleanExpression] = []
    if any(rows.is_everything or rows.buckets is not None for rows in ranges):
        # PyIceberg has no term for a bucket: `PartitionLabels` tells its files apart.
        return expr.AlwaysTrue()
    for rows in ranges:
        if rows.equals is not None:
            equals.setdefault(rows.column, []).append(rows.equals)
        else:
            terms.append(_range_term(rows))
    # One In instead of many EqualTo: evaluators recurse over Or.
    terms += [_equality_term(column, values) for column, values in equals.items()]
    if not terms:
        return expr.AlwaysFalse()
    return terms[0] if len(terms) == 1 else expr.Or(*terms)


def _equality_term(column: str, values: list[Bound]) -> expr.BooleanExpression:
    return equal_term(column, values[0]) if len(values) == 1 else in_term(column, set(values))


def _range_term(rows: RowRange) -> expr.BooleanExpression:
    if rows.is_null:
        return null_term(rows.column)
    term: expr.BooleanExpression = expr.AlwaysTrue()
    if rows.lower is not None:
        term = at_least_term(rows.column, rows.lower)
    if rows.upper is not None:
        term = expr.And(term, below_term(rows.column, rows.upper))
    return term


def keep_null_lists() -> None:
    """Let PyIceberg read and write a null list, or map, of structs as null, in this process.

    PyIceberg 0.12 builds these columns anew, and makes of a null an empty one, in what it reads and
    in what it writes. A second call changes nothing.
    """
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    for name in ("list", "map"):
        visit = getattr(ArrowProjectionVisitor, name)
        if not hasattr(visit, "__wrapped__"):
            setattr(ArrowProjectionVisitor, name, _with_nulls(visit))


def _with_nulls(visit: Callable[..., Any]) -> Callable[..., Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    @functools.wraps(visit)
    def visiting(visitor: Any, kind: Any, stored: Any, *inner: Any) -> Any:
        """Return the column with the nulls that the stored one has."""
        made = visit(visitor, kind, stored, *inner)
        if made is None or made.null_count == stored.null_count:
            return made
        # A mask fits no slice: the sum is an array of its own. The type keeps the ids of fields.
        offsets, nulls = pc.add(made.offsets, 0), stored.is_null()
        if isinstance(made, pa.MapArray):
            return pa.MapArray.from_arrays(offsets, made.keys, made.items, made.type, mask=nulls)
        return type(made).from_arrays(offsets, made.values, made.type, mask=nulls)

    return visiting
