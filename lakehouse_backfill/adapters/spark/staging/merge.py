"""Keyed merge of change rows into the base's rows, decided by version (U4); row predicates.

Rows of one key meet in one window: the merge needs one shuffle by key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column, spark_errors
from lakehouse_backfill.core.planning import row_changes
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.manifest import MergeBy, RowPredicate, RowValue
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkCounts
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ChecksFailed, Unsupported

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


#: Iceberg's type names by Spark's, where they differ.
_ICEBERG_TYPES = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def typed_row_predicate(plan: Plan, schema: StructType) -> RowPredicate | None:
    """Return the run's row predicate with values of the columns' types; None without one."""
    target = plan.resolved.manifest.target
    if not target.row_predicate:
        return None
    kinds = {field.name: field.dataType.typeName() for field in schema.fields}
    types = {name: _ICEBERG_TYPES.get(kind, kind) for name, kind in kinds.items()}
    return row_changes.resolve_row_predicate(target, types)


def matches_predicate(predicate: RowPredicate) -> Column:
    """Build a column, never null, that is true for rows that match the predicate."""
    parts = [_matches(quoted_column(name), values) for name, values in predicate.items()]
    return reduce(lambda one, other: one & other, parts)


def read_base_rows(
    spark: SparkSession, catalog: str, plan: Plan, scope: Scope, target: StructType
) -> DataFrame:
    """Read the base's rows of the scope, all columns; none when the base has no snapshot.

    These are the rows that a run carries over from the base into its partitions (U1b). Raises
    Unsupported when the columns changed after the base's last commit: carried-over rows could not
    be proven equal.
    """
    base = plan.resolved.target
    if base.snapshot_id is None:
        return dataframes.empty_frame(spark, target)
    rows = dataframes.read_scope(spark, catalog, base.table, base.snapshot_id, scope)
    require_same_columns(base.table, rows.schema, target)
    return rows.select(*(quoted_column(field.name) for field in target.fields))


def require_same_columns(table: str, base: StructType, target: StructType) -> None:
    """Raise Unsupported when the base has other columns than the target."""
    base_types = {field.name: field.dataType.simpleString() for field in base.fields}
    target_types = {field.name: field.dataType.simpleString() for field in target.fields}
    differing = sorted({name for name, _ in base_types.items() ^ target_types.items()})
    if differing:
        raise Unsupported(
            f"the columns of {table} changed after its last commit: {', '.join(differing)}; its "
            "rows cannot be carried over and proven equal",
            state="nothing was written",
            fix="restate whole partitions, or plan again after the next live commit",
        )


def _matches(value: Column, values: tuple[RowValue, ...]) -> Column:
    from pyspark.sql import functions as F

    literals = [_literal(each) for each in values if each is not None]
    is_listed = F.coalesce(value.isin(literals), F.lit(False)) if literals else F.lit(False)  # noqa: FBT003 (a Spark literal)
    return is_listed | value.isNull() if None in values else is_listed


def _literal(value: RowValue) -> Column:
    from pyspark.sql import functions as F

    if isinstance(value, datetime):
        # F.lit would read a naive datetime in the local zone of the Python process.
        kind = "timestamp" if value.tzinfo else "timestamp_ntz"
        return F.lit(value.isoformat(sep=" ")).cast(kind)
    if isinstance(value, bool | date | str):
        return F.lit(value)
    return F.lit(value).cast("bigint")


#: Maximum number of keys that an error shows.
_MAX_KEYS_SHOWN = 5
_ORIGIN, _DELETED, _SIGNATURE = "lhb_from", "lhb_gone", "lhb_sign"
_BASE, _OTHER_PARTITION, _CHANGE, _OUTSIDE_SCOPE = "base", "elsewhere", "change", "beyond"
_OUTCOME, _TOP_VERSION = "lhb_fate", "lhb_top_version"
_CARRIED_OVER, _UPSERT = "kept", "put"


@dataclass(frozen=True)
class MergedChunk:
    """The partitions' rows after the merge; `outside_rows` are job rows that have no effect."""

    rows: DataFrame
    counts: ChunkCounts
    outside_rows: int


def with_deletion_flag(plan: Plan, target: StructType) -> StructType:
    """Return the columns of the job's rows: those of the target, and the deletion flag."""
    from pyspark.sql import types as T

    merge = plan.resolved.manifest.target.merge
    if merge is None or merge.deleted is None:
        return target
    return T.StructType([*target.fields, T.StructField(merge.deleted, T.BooleanType())])


@contextmanager
def merge_changes(
    spark: SparkSession,
    catalog: str,
    plan: Plan,
    scope: Scope,
    job: DataFrame,
    target: StructType,
) -> Iterator[MergedChunk]:
    """Merge change rows into the base's rows of the scope; docs/modes.md has the rules.

    The merged frame is cached until the block ends. Raises ChecksFailed, with example keys, for
    changes without key or version, for an equal version with other content, and for a key that
    would move into or out of the run's partitions.
    """
    merge = plan.resolved.manifest.target.merge
    if merge is None:
        raise ValueError("a merge without the columns that decide")
    decided = _with_outcome(
        _with_origin(spark, catalog, plan, scope, job, target), plan, merge
    ).persist()
    try:
        with spark_errors("merging the changes"):
            counted = decided.groupBy(_OUTCOME).count().collect()
        counts = {row[_OUTCOME]: int(row["count"]) for row in counted}
        _refuse_unmergeable(decided, plan, counts)
        is_written = quoted_column(_OUTCOME).isin(
            _CARRIED_OVER, *(f"{_UPSERT} {how}" for how in ("new", "newer"))
        )
        rows = decided.where(is_written).select(
            *(quoted_column(field.name) for field in target.fields)
        )
        yield MergedChunk(rows, _count_outcomes(counts), counts.get("outside", 0))
    finally:
        decided.unpersist()


def _count_outcomes(fates: dict[str, int]) -> ChunkCounts:
    def of(*names: str) -> int:
        return sum(fates.get(name, 0) for name in names)

    return ChunkCounts(
        carried_rows=of(_CARRIED_OVER),
        inserted_rows=of(f"{_UPSERT} new"),
        updated_rows=of(f"{_UPSERT} newer"),
        deleted_rows=of("deletes"),
        ignored_rows=of("older", "known", "deletes nothing"),
    )


def _with_origin(
    spark: SparkSession, catalog: str, plan: Plan, scope: Scope, job: DataFrame, target: StructType
) -> DataFrame:
    """Unite base and changes; each row has its origin and its signature."""
    from pyspark.sql import functions as F

    merge, contract = plan.resolved.manifest.target.merge, plan.resolved.contract
    flag = quoted_column(merge.deleted) if merge and merge.deleted else F.lit(False)  # noqa: FBT003 (a Spark literal)
    is_deleted = F.coalesce(flag, F.lit(False))  # noqa: FBT003 (a Spark literal)
    inside = dataframes.is_in_ranges(partitions.scope_row_ranges(scope))
    columns = [quoted_column(field.name) for field in target.fields]
    origin = F.when(inside, F.lit(_CHANGE)).otherwise(F.lit(_OUTSIDE_SCOPE))
    changes = job.select(*columns, origin.alias(_ORIGIN), is_deleted.alias(_DELETED))
    base = read_base_rows(spark, catalog, plan, scope, target)
    not_deleted = F.lit(False).alias(_DELETED)  # noqa: FBT003 (a Spark literal)
    rows = changes.unionByName(base.select(*columns, F.lit(_BASE).alias(_ORIGIN), not_deleted))
    if not row_changes.key_stays_in_partition(contract, scope.field.column):
        others = _rows_in_other_partitions(spark, catalog, plan, scope, job)
        if others is not None:
            rows = rows.unionByName(
                others.select("*", F.lit(_OTHER_PARTITION).alias(_ORIGIN), not_deleted),
                allowMissingColumns=True,
            )
    hashed = row_hash.row_hash_column(target, LINEAGE_NAMES)
    # A deletion has no values of other columns; a row elsewhere is in another partition.
    signature = F.when(quoted_column(_DELETED), F.lit("gone")).otherwise(hashed.cast("string"))
    signature = F.when(quoted_column(_ORIGIN) == _OTHER_PARTITION, F.lit("elsewhere")).otherwise(
        signature
    )
    return rows.withColumn(_SIGNATURE, signature)


def _rows_in_other_partitions(
    spark: SparkSession, catalog: str, plan: Plan, scope: Scope, job: DataFrame
) -> DataFrame | None:
    """Return key and version of base rows outside the scope that have the key of a change."""
    base, merge = plan.resolved.target, plan.resolved.manifest.target.merge
    if base.snapshot_id is None or merge is None:
        return None
    key = list(plan.resolved.contract.key)
    base_rows = dataframes.read_table(spark, catalog, base.table, base.snapshot_id)
    others = base_rows.where(~dataframes.is_in_ranges(partitions.scope_row_ranges(scope)))
    other_keys = others.select(
        *(quoted_column(name) for name in dict.fromkeys([*key, merge.version]))
    )
    return other_keys.join(
        job.select(*(quoted_column(name) for name in key)).distinct(), key, "left_semi"
    )


def _with_outcome(rows: DataFrame, plan: Plan, merge: MergeBy) -> DataFrame:
    """Add the merge outcome to every row: one window per key, one shuffle, no join."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [quoted_column(name) for name in plan.resolved.contract.key]
    version, origin = quoted_column(merge.version), quoted_column(_ORIGIN)
    same_key = Window.partitionBy(*key)
    # A separate step, because window functions cannot be nested.
    rows = rows.withColumn(_TOP_VERSION, F.max(version).over(same_key))
    is_change = origin.isin(_CHANGE, _OUTSIDE_SCOPE)
    is_top = version.eqNullSafe(quoted_column(_TOP_VERSION))

    def any_of(condition: Column) -> Column:
        return F.max(F.coalesce(condition, F.lit(False))).over(same_key)  # noqa: FBT003 (a Spark literal)

    changes_top = any_of(is_change & is_top)
    signatures = F.size(F.collect_set(F.when(is_top, quoted_column(_SIGNATURE))).over(same_key))
    in_base, elsewhere = any_of(origin == _BASE), any_of(origin == _OTHER_PARTITION)
    base_top = any_of(origin.isin(_BASE, _OTHER_PARTITION) & is_top)
    # A deletion may be in any partition: often it has no values but the key.
    leaves = any_of((origin == _OUTSIDE_SCOPE) & is_top & ~quoted_column(_DELETED))
    arrives = any_of((origin == _CHANGE) & is_top)
    within = any_of(origin.isin(_BASE, _CHANGE))
    moves = ~base_top & ((leaves & within) | (arrives & elsewhere))
    first = F.row_number().over(
        same_key.orderBy(is_change.desc(), is_top.desc(), quoted_column(_SIGNATURE))
    )
    facts = rows.select(
        "*",
        first.alias("lhb_first"),
        *(value.alias(f"lhb_{name}") for name, value in {
            "change": is_change, "top": is_top, "changes_top": changes_top, "signs": signatures,
            "in_base": in_base, "base_top": base_top, "moves": moves, "within": within,
        }.items()),
    )  # fmt: skip
    return facts.withColumn(_OUTCOME, _outcome_column(plan, merge))


def _outcome_column(plan: Plan, merge: MergeBy) -> Column:
    """Build the column with the merge outcome of a row, from the facts of its key's window."""
    from pyspark.sql import functions as F

    origin = quoted_column(_ORIGIN)
    is_change, is_top = quoted_column("lhb_change"), quoted_column("lhb_top")
    key_is_null = [quoted_column(name).isNull() for name in plan.resolved.contract.key]
    no_key = key_is_null[0]
    for is_null in key_is_null[1:]:
        no_key = no_key | is_null
    clash = quoted_column("lhb_changes_top") & (quoted_column("lhb_signs") > 1)
    stays = ~quoted_column("lhb_changes_top") | quoted_column("lhb_base_top")
    winner = is_change & is_top & (quoted_column("lhb_first") == 1)
    outside = (origin == _OUTSIDE_SCOPE) & (~quoted_column("lhb_within") | no_key)
    return (
        F.when(outside, F.lit("outside"))
        .when(is_change & no_key, F.lit("no key"))
        .when(no_key, F.lit(_CARRIED_OVER))
        .when(is_change & quoted_column(merge.version).isNull(), F.lit("no version"))
        .when(winner & clash, F.lit("clashes"))
        .when(winner & quoted_column("lhb_moves"), F.lit("moves"))
        .when(origin == _OTHER_PARTITION, F.lit("elsewhere"))
        .when((origin == _BASE) & stays, F.lit(_CARRIED_OVER))
        .when(origin == _BASE, F.lit("replaced"))
        .when(is_change & ~is_top, F.lit("older"))
        .when(
            is_change & (quoted_column("lhb_base_top") | (quoted_column("lhb_first") > 1)),
            F.lit("known"),
        )
        .when(quoted_column(_DELETED) & quoted_column("lhb_in_base"), F.lit("deletes"))
        .when(quoted_column(_DELETED), F.lit("deletes nothing"))
        .when(quoted_column("lhb_in_base"), F.lit(f"{_UPSERT} newer"))
        .otherwise(F.lit(f"{_UPSERT} new"))
    )


_REFUSED_OUTCOMES = {
    "no key": (
        "change rows without a key",
        "let the transform drop them, or give them a key",
    ),
    "no version": (
        "change rows without a version",
        "let the transform set the version of every row",
    ),
    "clashes": (
        "keys with an equal version, but other content",
        "correct the source or the transform: a change needs a higher version",
    ),
    "moves": (
        "keys that move between a partition of the run and one that it does not change",
        "widen target.partitions so that it holds both partitions of each",
    ),
}


def _refuse_unmergeable(decided: DataFrame, plan: Plan, fates: dict[str, int]) -> None:
    refused = [outcome for outcome in _REFUSED_OUTCOMES if fates.get(outcome)]
    if not refused:
        return
    problems = [
        f"{fates[outcome]} {_REFUSED_OUTCOMES[outcome][0]}: {_example_keys(decided, plan, outcome)}"
        for outcome in refused
    ]
    raise ChecksFailed(
        "the changes cannot be merged: " + "; ".join(problems),
        state="nothing of this chunk was written; readers see what they saw before",
        fix="; ".join(_REFUSED_OUTCOMES[outcome][1] for outcome in refused),
    )


def _example_keys(decided: DataFrame, plan: Plan, fate: str) -> str:
    key = plan.resolved.contract.key
    names = [quoted_column(name) for name in key]
    with spark_errors("naming the keys of changes"):
        examples = (
            decided.where(quoted_column(_OUTCOME) == fate)
            .select(*names)
            .orderBy(*names)
            .limit(_MAX_KEYS_SHOWN)
        )
        rows = examples.collect()
    return ", ".join(_key_text(dict(zip(key, row, strict=True))) for row in rows)


def _key_text(key: dict[str, Any]) -> str:
    return " ".join(f"{name}={to_json_value(value)}" for name, value in key.items())
