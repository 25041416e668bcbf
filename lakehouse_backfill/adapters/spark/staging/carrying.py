"""Rows that a run leaves alone: carried over from the base into its partitions (U1b)."""

from __future__ import annotations

from datetime import date, datetime
from functools import reduce
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import readers
from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.core.planning import row_predicate
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.predicate import RowPredicate, RowValue
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Iceberg's names of types, by Spark's.
_ICEBERG_TYPES = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def typed_row_predicate(plan: Plan, schema: StructType) -> RowPredicate | None:
    """Give the run's row predicate with values of the columns' types; None: it has none."""
    target = plan.resolved.manifest.target
    if not target.row_predicate:
        return None
    kinds = {field.name: field.dataType.typeName() for field in schema.fields}
    types = {name: _ICEBERG_TYPES.get(kind, kind) for name, kind in kinds.items()}
    return row_predicate.resolve_row_predicate(target, types)


def matches_predicate(predicate: RowPredicate) -> Column:
    """Give true or false, never null, for whether the predicate names a row."""
    parts = [_matches(quoted_column(name), values) for name, values in predicate.items()]
    return reduce(lambda one, other: one & other, parts)


def read_base_rows(
    spark: SparkSession, catalog: str, plan: Plan, scope: Scope, target: StructType
) -> DataFrame:
    """Give the base's rows of the scope, all columns; none where the base holds no snapshot.

    Raises Unsupported when the columns changed after the base's last commit: what was carried over
    could not be proven equal.
    """
    base = plan.resolved.target
    if base.snapshot_id is None:
        return readers.empty_frame(spark, target)
    found = readers.read_scope(spark, catalog, base.table, base.snapshot_id, scope)
    require_same_columns(base.table, found.schema, target)
    return found.select(*(quoted_column(field.name) for field in target.fields))


def require_same_columns(table: str, base: StructType, target: StructType) -> None:
    """Raise Unsupported when the base is read with other columns than the target has."""
    then = {field.name: field.dataType.simpleString() for field in base.fields}
    now = {field.name: field.dataType.simpleString() for field in target.fields}
    differing = sorted({name for name, _ in then.items() ^ now.items()})
    if differing:
        raise Unsupported(
            f"the columns of {table} changed after its last commit: {', '.join(differing)}; its "
            "rows cannot be carried over and proven equal",
            state="nothing was written",
            fix="restate whole partitions, or plan again after the next live commit",
        )


def _matches(value: Column, values: tuple[RowValue, ...]) -> Column:
    from pyspark.sql import functions as F

    literals = [_literal(one) for one in values if one is not None]
    found = F.coalesce(value.isin(literals), F.lit(False)) if literals else F.lit(False)  # noqa: FBT003 (a Spark literal)
    return found | value.isNull() if None in values else found


def _literal(value: RowValue) -> Column:
    from pyspark.sql import functions as F

    if isinstance(value, datetime):
        # F.lit would read a naive datetime in the local zone of the Python process.
        kind = "timestamp" if value.tzinfo else "timestamp_ntz"
        return F.lit(value.isoformat(sep=" ")).cast(kind)
    if isinstance(value, bool | date | str):
        return F.lit(value)
    return F.lit(value).cast("bigint")
