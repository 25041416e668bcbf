"""Keyed merge of change rows into the base's rows, decided by version (U4); row predicates.

Rows of one key meet in one window: the merge needs one shuffle by key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import (
    ICEBERG_TYPES,
    SparkTables,
    cached,
    is_true,
    quoted_column,
)
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.core.planning.target import row_changes
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.labels.row_values import NamedValue
from lakehouse_backfill.domain.labels.values import NamedRange
from lakehouse_backfill.domain.manifest import MergeBy, RowPredicate
from lakehouse_backfill.domain.partitions import Scope, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkCounts
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ChecksFailed, Unsupported


def typed_row_predicate(plan: Plan, schema: StructType) -> RowPredicate | None:
    """Return the run's row predicate with values of the columns' types; None without one."""
    target = plan.resolved.manifest.target
    if not target.row_predicate:
        return None
    types: dict[str, str] = {
        field.name: ICEBERG_TYPES.get(field.dataType.typeName(), field.dataType.simpleString())
        for field in schema.fields
    }
    return row_changes.resolve_row_predicate(target, types)


def matches_predicate(predicate: RowPredicate) -> Column:
    """Build a column, never null, that is true for rows that match the predicate."""
    parts = [_matches(quoted_column(name), values) for name, values in predicate.items()]
    return reduce(and_, parts)


def read_base_rows(tables: SparkTables, plan: Plan, scope: Scope, target: StructType) -> DataFrame:
    """Read the base's rows of the scope, all columns; none when the base has no snapshot.

    These are the rows that a run carries over from the base into its partitions (U1b). Raises
    Unsupported when the columns changed after the base's last commit: carried-over rows could not
    be proven equal.
    """
    base = plan.resolved.target
    if base.snapshot_id is None:
        return tables.empty_frame(target)
    rows = tables.read_scope(base.table, base.snapshot_id, scope)
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


def _matches(value: Column, values: tuple[NamedValue, ...] | NamedRange) -> Column:
    if isinstance(values, NamedRange):
        first, stop = map(dataframes.typed_literal, (values.start, values.stop))
        return is_true((value >= first) & (value < stop))
    literals = [dataframes.typed_literal(each) for each in values if each is not None]
    is_listed = is_true(value.isin(literals)) if literals else F.lit(False)  # noqa: FBT003 (a Spark literal)
    return is_listed | value.isNull() if None in values else is_listed


#: Maximum number of keys that an error shows.
MAX_KEYS_SHOWN = 5
_ORIGIN, _DELETED, _SIGNATURE = "lhb_from", "lhb_gone", "lhb_sign"
_BASE, _OTHER_PARTITION, _CHANGE, _OUTSIDE_SCOPE = "base", "elsewhere", "change", "beyond"
_OUTCOME, _TOP_VERSION = "lhb_fate", "lhb_top_version"
_CARRIED_OVER, _INSERTED, _UPDATED, _OUTSIDE = "carried over", "inserted", "updated", "outside"


@dataclass(frozen=True)
class ComposedChunk:
    """Rows to write, some of which may be outside the chunk, and the counts of their parts.

    `outside_rows`: number of the job's rows outside the chunk that `rows` no longer contains.
    """

    rows: DataFrame
    counts: ChunkCounts = field(default_factory=ChunkCounts)
    outside_rows: int = 0


def with_deletion_flag(plan: Plan, target: StructType) -> StructType:
    """Return the columns of the job's rows: those of the target, and the deletion flag."""
    merge = plan.resolved.manifest.target.merge
    if merge is None or merge.deleted is None:
        return target
    return T.StructType([*target.fields, T.StructField(merge.deleted, T.BooleanType())])


@contextmanager
def merge_changes(
    tables: SparkTables, plan: Plan, scope: Scope, job: DataFrame, target: StructType
) -> Iterator[ComposedChunk]:
    """Merge change rows into the base's rows of the scope; docs/modes.md has the rules.

    The merged frame is cached until the block ends. Raises ChecksFailed, with example keys, for
    changes without key or version, for an equal version with other content, and for a key that
    would move into or out of the run's partitions.
    """
    merge = plan.resolved.manifest.target.merge
    if merge is None:
        raise ValueError("a merge without the columns that decide")
    rows = _with_origin(tables, plan, scope, job, target)
    with cached(_with_outcome(rows, plan, merge)) as decided:
        with spark_errors("merging the changes"):
            counts: Counter[str] = Counter(dict(decided.groupBy(_OUTCOME).count().collect()))
        _refuse_unmergeable(decided, plan, counts)
        is_written = quoted_column(_OUTCOME).isin(_CARRIED_OVER, _INSERTED, _UPDATED)
        columns = [quoted_column(field.name) for field in target.fields]
        written = decided.where(is_written).select(*columns)
        yield ComposedChunk(written, _count_outcomes(counts), counts[_OUTSIDE])


def _count_outcomes(counts: Counter[str]) -> ChunkCounts:
    return ChunkCounts(
        carried_rows=counts[_CARRIED_OVER],
        inserted_rows=counts[_INSERTED],
        updated_rows=counts[_UPDATED],
        deleted_rows=counts["deletes"],
        ignored_rows=counts["older"] + counts["known"] + counts["deletes nothing"],
    )


def _with_origin(
    tables: SparkTables, plan: Plan, scope: Scope, job: DataFrame, target: StructType
) -> DataFrame:
    """Unite base and changes; each row has its origin and its signature."""
    merge, contract = plan.resolved.manifest.target.merge, plan.resolved.contract
    no = F.lit(False)  # noqa: FBT003 (a Spark literal)
    flag = is_true(quoted_column(merge.deleted)) if merge and merge.deleted else no
    inside = dataframes.is_in_ranges(scope_row_ranges(scope))
    columns = [quoted_column(field.name) for field in target.fields]
    origin = F.when(inside, F.lit(_CHANGE)).otherwise(F.lit(_OUTSIDE_SCOPE))
    changes = job.select(*columns, origin.alias(_ORIGIN), flag.alias(_DELETED))
    base = read_base_rows(tables, plan, scope, target)
    rows = changes.unionByName(
        base.select(*columns, F.lit(_BASE).alias(_ORIGIN), no.alias(_DELETED))
    )
    if not row_changes.key_stays_in_partition(contract, scope.field.column):
        others = _rows_in_other_partitions(tables, plan, scope, job)
        if others is not None:
            rows = rows.unionByName(
                others.select("*", F.lit(_OTHER_PARTITION).alias(_ORIGIN), no.alias(_DELETED)),
                allowMissingColumns=True,
            )
    # A deletion has no values of other columns; a row elsewhere is in another partition.
    signature = (
        F.when(quoted_column(_ORIGIN) == _OTHER_PARTITION, F.lit("elsewhere"))
        .when(quoted_column(_DELETED), F.lit("gone"))
        .otherwise(row_hash.row_hash_column(target, LINEAGE_NAMES).cast("string"))
    )
    return rows.withColumn(_SIGNATURE, signature)


def _rows_in_other_partitions(
    tables: SparkTables, plan: Plan, scope: Scope, job: DataFrame
) -> DataFrame | None:
    """Return key and version of base rows outside the scope that have the key of a change."""
    base, merge = plan.resolved.target, plan.resolved.manifest.target.merge
    if base.snapshot_id is None or merge is None:
        return None
    key = list(plan.resolved.contract.key)
    is_inside = dataframes.is_in_ranges(scope_row_ranges(scope))
    names = [quoted_column(name) for name in dict.fromkeys([*key, merge.version])]
    others = tables.read(base.table, base.snapshot_id).where(~is_inside).select(*names)
    changed = job.select(*(quoted_column(name) for name in key)).distinct()
    return others.join(changed, key, "left_semi")


def _with_outcome(rows: DataFrame, plan: Plan, merge: MergeBy) -> DataFrame:
    """Add the merge outcome to every row: one window per key, one shuffle, no join."""
    key = [quoted_column(name) for name in plan.resolved.contract.key]
    version, origin = quoted_column(merge.version), quoted_column(_ORIGIN)
    same_key = Window.partitionBy(*key)
    # A separate step, because window functions cannot be nested.
    rows = rows.withColumn(_TOP_VERSION, F.max(version).over(same_key))
    is_change = origin.isin(_CHANGE, _OUTSIDE_SCOPE)
    is_top = version.eqNullSafe(quoted_column(_TOP_VERSION))

    def any_of(condition: Column) -> Column:
        return F.max(is_true(condition)).over(same_key)

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
    origin = quoted_column(_ORIGIN)
    is_change, is_top = quoted_column("lhb_change"), quoted_column("lhb_top")
    no_key = reduce(or_, (quoted_column(name).isNull() for name in plan.resolved.contract.key))
    clash = quoted_column("lhb_changes_top") & (quoted_column("lhb_signs") > 1)
    stays = ~quoted_column("lhb_changes_top") | quoted_column("lhb_base_top")
    winner = is_change & is_top & (quoted_column("lhb_first") == 1)
    outside = (origin == _OUTSIDE_SCOPE) & (~quoted_column("lhb_within") | no_key)
    return (
        F.when(outside, F.lit(_OUTSIDE))
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
        .when(quoted_column("lhb_in_base"), F.lit(_UPDATED))
        .otherwise(F.lit(_INSERTED))
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


def _refuse_unmergeable(decided: DataFrame, plan: Plan, counts: Counter[str]) -> None:
    refused = [outcome for outcome in _REFUSED_OUTCOMES if counts[outcome]]
    if not refused:
        return
    problems = [
        f"{counts[each]} {_REFUSED_OUTCOMES[each][0]}: {_example_keys(decided, plan, each)}"
        for each in refused
    ]
    raise ChecksFailed(
        "the changes cannot be merged: " + "; ".join(problems),
        state="nothing of this chunk was written; readers see what they saw before",
        fix="; ".join(_REFUSED_OUTCOMES[outcome][1] for outcome in refused),
    )


def _example_keys(decided: DataFrame, plan: Plan, outcome: str) -> str:
    key = plan.resolved.contract.key
    names = [quoted_column(name) for name in key]
    with spark_errors("naming the keys of changes"):
        found = decided.where(quoted_column(_OUTCOME) == outcome).select(*names).orderBy(*names)
        rows = found.limit(MAX_KEYS_SHOWN).collect()
    return describe_keys(plan, rows)


def describe_keys(plan: Plan, rows: Iterable[Sequence[Any]]) -> str:
    """Return keys as text, the values in the order of the product's key; restricted ones hidden."""
    key = plan.resolved.contract.key
    shown = Redaction.of(plan.resolved.contract.restricted_columns)
    return ", ".join(
        " ".join(
            f"{name}={to_json_value(shown.value(name, value))}"
            for name, value in zip(key, row, strict=True)
        )
        for row in rows
    )
