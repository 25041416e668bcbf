"""Composes rows of the base with the columns that a transform restates (P9).

Base and output meet by the product's key, in one join. What would change anything else is refused
before a row is written: docs/modes.md has the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import (
    SparkTables,
    aliased_key,
    cached,
    is_true,
    key_aliases,
    quoted_column,
)
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging.merge import (
    MAX_KEYS_SHOWN,
    ComposedChunk,
    describe_keys,
    require_same_columns,
)
from lakehouse_backfill.core.planning.target import catch_up, publish_modes
from lakehouse_backfill.domain.catch_up import ExcludedRows
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.schema_change import added_column_names
from lakehouse_backfill.errors import ChecksFailed

_BASE, _JOB = "lhb_base", "lhb_job"
_BASE_COPIES, _JOB_COPIES, _EXCLUDED = "lhb_base_copies", "lhb_job_copies", "lhb_excluded"
_JOB_KEY, _OUTCOME = "lhb_of_job_", "lhb_fate"
_CHANGED = "lhb_changed_"
_RESTATED, _LEFT_OUT = "restated", "left out"
_CHANGES = "changes"

#: Marks the rows that tombstones and deletions name, in the column of the given name.
ExclusionMarker = Callable[[DataFrame, ExcludedRows], DataFrame]


def given_columns(plan: Plan, output: DataFrame, target: StructType) -> StructType:
    """Return the columns that an output is fitted to: the key, the restated, and those it gives.

    All columns of the target where the run restates whole rows.
    """
    names = plan.resolved.manifest.target.columns
    if not names:
        return target
    wanted = {*plan.resolved.contract.key, *names, *output.columns}
    return T.StructType([field for field in target.fields if field.name in wanted])


def columns_of_no_base_row(plan: Plan, base: DataFrame) -> tuple[str, ...]:
    """Return what the run adds, and restated columns that the table got after its last commit."""
    added = added_column_names(declared_schema_change(plan))
    restated = plan.resolved.manifest.target.columns or ()
    return (*added, *(name for name in restated if name not in (*base.columns, *added)))


def compared_rows(plan: Plan, added: Collection[str], rows: DataFrame) -> DataFrame:
    """Return rows with the columns by which partitions beyond the range are compared.

    These are all but those that the run adds, or the restated ones with key and partition.
    """
    names = [name for name in rows.columns if name not in (*LINEAGE_NAMES, *added)]
    if restated := plan.resolved.manifest.target.columns:
        wanted = {plan.resolved.scope.field.root, *plan.resolved.contract.key, *restated}
        names = [name for name in names if name in wanted]
    return rows.select(*map(quoted_column, names))


def contract_of_edges(plan: Plan, compared: DataFrame) -> Contract:
    """Return the contract without measures of columns that are not compared."""
    contract, names = plan.resolved.contract, {None, *compared.columns}
    if not publish_modes.restates_columns(plan):
        return contract
    measures = tuple(
        one for one in contract.measures if {one.sum, one.count, one.counts_by} <= names
    )
    return contract.model_copy(update={"measures": measures})


def restrict_to_scope(
    tables: SparkTables, plan: Plan, scope: Scope, output: DataFrame
) -> DataFrame:
    """Return the rows of the output that lie in the scope's partitions.

    Rows of an output without the column of the partitions lie where the base's row with their key
    does; those without one are left out.
    """
    column = scope.field.root
    if scope.field.is_whole_table:
        return output
    if publish_modes.restates_columns(plan) and column not in output.columns:
        base = plan.resolved.target
        held = tables.read_scope(base.table, base.snapshot_id, scope)
        names = key_aliases(plan.resolved.contract.key)
        places = held.select(*aliased_key(plan.resolved.contract.key), quoted_column(column))
        same = dataframes.is_same(plan.resolved.contract.key, names)
        return output.join(places, same, "inner").drop(*names)
    return output.where(dataframes.range_filter(scope_row_ranges(scope)))


def keep_rows_of(held: DataFrame, rows: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows with the key of a row of `held`: rows of a run of some columns stay."""
    key = plan.resolved.contract.key
    names = key_aliases(key)
    return rows.join(held.select(*aliased_key(key)), dataframes.is_same(key, names), "left_semi")


class ColumnComposer:
    """Composes chunks of the base's rows with restated columns; writes nothing."""

    def __init__(self, tables: SparkTables, marker: ExclusionMarker, excluded_column: str) -> None:
        """Set up; `marker` adds `excluded_column`, which is true for rows to leave out."""
        self._tables = tables
        self._marker = marker
        self._excluded_column = excluded_column

    @contextmanager
    def compose(
        self, plan: Plan, scope: Scope, job: DataFrame, target: StructType, *, is_strict: bool
    ) -> Iterator[ComposedChunk]:
        """Yield the base's rows of the scope with the restated columns; lineage is not set.

        Raises ChecksFailed, with example keys, for rows without a key or with a repeated one, for
        rows that only one side has, and for another value of a column that is not restated. Without
        `is_strict`, rows that only one side has are left out instead, and the base's values stay.
        Rows that the run leaves out are in the result: the caller removes and counts them.
        """
        with cached(self._joined(plan, scope, job, target)) as joined:
            outside = 0
            if is_strict:
                _refuse_other_changes(joined, plan, job)
                outside = _count_outside(job, scope)
            is_kept = quoted_column(_OUTCOME).isin(_RESTATED, _LEFT_OUT)
            if not is_strict:
                is_kept = quoted_column(_BASE).isNotNull() & quoted_column(_JOB).isNotNull()
            names = plan.resolved.manifest.target.columns or ()
            columns = [
                quoted_column(_JOB if field.name in names else _BASE)
                .getField(field.name)
                .alias(field.name)
                for field in target.fields
                if field.name not in _lineage_of(plan)
            ]
            yield ComposedChunk(joined.where(is_kept).select(*columns), outside_rows=outside)

    def _joined(self, plan: Plan, scope: Scope, job: DataFrame, target: StructType) -> DataFrame:
        """Join both sides by key; each row has its outcome, and what the job changes of it."""
        key = plan.resolved.contract.key
        names = key_aliases(key)
        base = self._base(plan, scope, target)
        copies = Window.partitionBy(*names)
        held = base.select(
            *aliased_key(key),
            F.struct(*(quoted_column(name) for name in base.columns)).alias(_BASE),
            is_true(quoted_column(self._excluded_column)).alias(_EXCLUDED),
        ).withColumn(_BASE_COPIES, F.count(F.lit(1)).over(copies))
        theirs = [f"{_JOB_KEY}{name}" for name in names]
        rows = self._computed(plan, scope, job)
        given = rows.select(
            *aliased_key(key, _JOB_KEY),
            F.struct(*(quoted_column(name) for name in rows.columns)).alias(_JOB),
        ).withColumn(_JOB_COPIES, F.count(F.lit(1)).over(Window.partitionBy(*theirs)))
        pairs = zip(names, theirs, strict=True)
        same = reduce(and_, (quoted_column(one) == quoted_column(other) for one, other in pairs))
        joined = held.join(given, same, "full_outer")
        kept = _kept_columns(plan, job)
        changed = [
            (is_true(quoted_column(_BASE).isNotNull() & quoted_column(_JOB).isNotNull())
             & ~_is_same_value(field)).alias(f"{_CHANGED}{place}")
            for place, field in enumerate(kept)
        ]  # fmt: skip
        joined = joined.select("*", *changed)
        has_key = [
            F.when(quoted_column(side).isNotNull(), _is_whole(of)).otherwise(F.lit(True))  # noqa: FBT003 (a literal of Spark)
            for side, of in ((_BASE, names), (_JOB, theirs))
        ]
        return joined.withColumn(_OUTCOME, _outcome(reduce(and_, has_key), len(kept)))

    def _base(self, plan: Plan, scope: Scope, target: StructType) -> DataFrame:
        """Read what the run carries over, with a mark on the rows that it leaves out.

        Restated columns are no part of it: the table may have got one after its last commit.
        """
        base, change = plan.resolved.target, declared_schema_change(plan)
        held = self._tables.read_scope(base.table, base.snapshot_id, scope)
        restated = plan.resolved.manifest.target.columns or ()
        given = {*added_column_names(change), *restated}
        kept, there = (
            StructType([field for field in schema.fields if field.name not in given])
            for schema in (target, held.schema)
        )
        require_same_columns(base.table, there, kept)
        lineage = _lineage_of(plan)
        names = [field.name for field in kept.fields if field.name not in lineage]
        rows = held.select(*map(quoted_column, names))
        return self._marker(rows, catch_up.excluded_rows(plan.resolved))

    def _computed(self, plan: Plan, scope: Scope, job: DataFrame) -> DataFrame:
        """Return the job's rows of the scope, without those that deletions name by its columns."""
        rows = job
        if scope.field.root in job.columns:
            rows = rows.where(dataframes.is_in_ranges(scope_row_ranges(scope)))
        excluded = catch_up.excluded_rows(plan.resolved)
        known = set(job.columns)
        named = excluded.model_copy(
            update={
                "tombstones": tuple(x for x in excluded.tombstones if set(x.columns) <= known),
                "erasures": tuple(x for x in excluded.erasures if set(x.key) <= known),
            }
        )
        if named.is_empty:
            return rows
        # A row of the base that is left out meets no computed row, and is not missed.
        marked = self._marker(rows, named)
        return marked.where(~quoted_column(self._excluded_column)).drop(self._excluded_column)


def _lineage_of(plan: Plan) -> tuple[str, ...]:
    """Return the columns that the toolkit writes into every row."""
    return LINEAGE_NAMES if plan.resolved.contract.lineage_columns else ()


def _kept_columns(plan: Plan, job: DataFrame) -> list[StructField]:
    """Return the columns that the job gives and must not change, but for the key."""
    target = plan.resolved.manifest.target
    free = {*plan.resolved.contract.key, *(target.columns or ()), *LINEAGE_NAMES}
    return [field for field in job.schema.fields if field.name not in free]


def _is_same_value(field: StructField) -> Column:
    """Compare the values of both sides; maps, which have no order, by their hash."""
    sides = [quoted_column(side).getField(field.name) for side in (_BASE, _JOB)]
    if "map<" in field.dataType.simpleString():
        sides = [row_hash.value_hash(field.dataType, side) for side in sides]
    return sides[0].eqNullSafe(sides[1])


def _is_whole(names: list[str]) -> Column:
    return reduce(and_, (quoted_column(name).isNotNull() for name in names))


def _outcome(has_key: Column, kept: int) -> Column:
    """Build the column that says what becomes of a row of either side, or of a pair."""
    no = F.lit(False)  # noqa: FBT003 (a literal of Spark)
    changes = reduce(or_, (quoted_column(f"{_CHANGED}{place}") for place in range(kept)), no)
    return (
        F.when(is_true(quoted_column(_EXCLUDED)), F.lit(_LEFT_OUT))
        .when(~has_key, F.lit("no key"))
        .when(quoted_column(_BASE_COPIES) > 1, F.lit("repeated in the base"))
        .when(quoted_column(_JOB_COPIES) > 1, F.lit("repeated"))
        .when(quoted_column(_JOB).isNull(), F.lit("not computed"))
        .when(quoted_column(_BASE).isNull(), F.lit("not in the base"))
        .when(changes, F.lit(_CHANGES))
        .otherwise(F.lit(_RESTATED))
    )


_REFUSED_OUTCOMES = {
    "no key": ("rows without a whole key", "give every row of base and transform its key"),
    "repeated in the base": (
        "rows of the base that share a key",
        "restate whole rows of these partitions, so that each key has one row",
    ),
    "repeated": (
        "computed rows that share a key",
        "let the transform give one row for each key",
    ),
    "not computed": (
        "rows of the base without a computed row",
        "let the transform give every row of the partitions; null, or the value of before, where "
        "there is nothing to say",
    ),
    "not in the base": (
        "computed rows without a row of the base",
        "let the transform give rows of the partitions only, or their column, by which others are "
        "known; for new rows, restate whole rows",
    ),
    _CHANGES: (
        "rows of which the transform changes another column",
        "name the column in target.columns, or let the transform leave it out",
    ),
}


def _refuse_other_changes(joined: DataFrame, plan: Plan, job: DataFrame) -> None:
    """Raise ChecksFailed where the outcome would be more than the restated columns."""
    with spark_errors("finding the rows of the restated columns"):
        counts: Counter[str] = Counter(dict(joined.groupBy(_OUTCOME).count().collect()))
    refused = [outcome for outcome in _REFUSED_OUTCOMES if counts[outcome]]
    if not refused:
        return
    problems = []
    for outcome in refused:
        text = f"{counts[outcome]:,} {_REFUSED_OUTCOMES[outcome][0]}"
        if outcome == _CHANGES:
            text += f" ({_changed_names(joined, plan, job)})"
        problems.append(f"{text}: {_example_keys(joined, plan, outcome)}")
    columns = ", ".join(plan.resolved.manifest.target.columns or ())
    raise ChecksFailed(
        f"more than the columns {columns} would change: {'; '.join(problems)}",
        state="nothing of this chunk was written; readers see what they saw before",
        fix="; ".join(_REFUSED_OUTCOMES[outcome][1] for outcome in refused),
    )


def _changed_names(joined: DataFrame, plan: Plan, job: DataFrame) -> str:
    names = [field.name for field in _kept_columns(plan, job)]
    sums = [
        F.count(F.when(quoted_column(f"{_CHANGED}{place}"), F.lit(1)))
        for place in range(len(names))
    ]
    with spark_errors("naming the columns that a transform changes"):
        row = joined.where(quoted_column(_OUTCOME) == _CHANGES).agg(*sums).collect()[0]
    found = [(name, count) for name, count in zip(names, row, strict=True) if count]
    return ", ".join(f"{name} in {count:,}" for name, count in found)


def _example_keys(joined: DataFrame, plan: Plan, outcome: str) -> str:
    key = plan.resolved.contract.key
    names = key_aliases(key)
    either = [
        F.coalesce(quoted_column(name), quoted_column(f"{_JOB_KEY}{name}")).alias(name)
        for name in names
    ]
    found = joined.where(quoted_column(_OUTCOME) == outcome).select(*either).distinct()
    with spark_errors("naming the keys of rows"):
        rows = found.orderBy(*names).limit(MAX_KEYS_SHOWN).collect()
    return describe_keys(plan, rows)


def _count_outside(job: DataFrame, scope: Scope) -> int:
    """Count the job's rows outside the scope; 0 where its columns do not tell."""
    if scope.field.root not in job.columns:
        return 0
    is_outside = ~dataframes.is_in_ranges(scope_row_ranges(scope))
    with spark_errors("counting the rows outside the chunk"):
        return int(job.agg(F.count(F.when(is_outside, F.lit(1)))).collect()[0][0])
