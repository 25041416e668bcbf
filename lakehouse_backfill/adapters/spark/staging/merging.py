"""Keyed merge (U4): change rows and the base's rows, decided by version, one shuffle by key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark import filters, readers, rowhash
from lakehouse_backfill.adapters.spark.failures import translated
from lakehouse_backfill.adapters.spark.names import column
from lakehouse_backfill.adapters.spark.staging import carrying
from lakehouse_backfill.core.planning import merging
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.composed import Counts
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.manifest import MergeBy
from lakehouse_backfill.domain.plain import plain_value
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.errors import ChecksFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Keys that an error shows.
_SHOWN = 5
_FROM, _GONE, _SIGN = "lhb_from", "lhb_gone", "lhb_sign"
_BASE, _ELSEWHERE, _CHANGE, _BEYOND = "base", "elsewhere", "change", "beyond"
_FATE, _TOP = "lhb_fate", "lhb_top_version"
_KEPT, _PUT = "kept", "put"


@dataclass(frozen=True)
class Merged:
    """The partitions' rows after the merge; rows of the job outside them that say nothing."""

    rows: DataFrame
    counts: Counts
    outside_rows: int


def with_deleted(plan: Plan, target: StructType) -> StructType:
    """Give the columns that the job's rows have: the target's, and the flag of deletion."""
    from pyspark.sql import types as T

    merge = plan.resolved.manifest.target.merge
    if merge is None or merge.deleted is None:
        return target
    return T.StructType([*target.fields, T.StructField(merge.deleted, T.BooleanType())])


@contextmanager
def merged(
    spark: SparkSession,
    catalog: str,
    plan: Plan,
    scope: Scope,
    job: DataFrame,
    target: StructType,
) -> Iterator[Merged]:
    """Merge change rows into the base's rows of the scope; see docs/modes.md for the rules.

    Raises ChecksFailed, naming keys, for changes without key or version, for an equal version with
    other content, and for a key that would move into or out of the run's partitions.
    """
    merge = plan.resolved.manifest.target.merge
    if merge is None:
        raise ValueError("a merge without the columns that decide")
    decided = _decided(_tagged(spark, catalog, plan, scope, job, target), plan, merge).persist()
    try:
        with translated("merging the changes"):
            found = decided.groupBy(_FATE).count().collect()
        fates = {row[_FATE]: int(row["count"]) for row in found}
        _refuse(decided, plan, fates)
        put = column(_FATE).isin(_KEPT, *(f"{_PUT} {how}" for how in ("new", "newer")))
        rows = decided.where(put).select(*(column(field.name) for field in target.fields))
        yield Merged(rows, _counts(fates), fates.get("outside", 0))
    finally:
        decided.unpersist()


def _counts(fates: dict[str, int]) -> Counts:
    def of(*names: str) -> int:
        return sum(fates.get(name, 0) for name in names)

    return Counts(
        carried_rows=of(_KEPT),
        inserted_rows=of(f"{_PUT} new"),
        updated_rows=of(f"{_PUT} newer"),
        deleted_rows=of("deletes"),
        ignored_rows=of("older", "known", "deletes nothing"),
    )


def _tagged(
    spark: SparkSession, catalog: str, plan: Plan, scope: Scope, job: DataFrame, target: StructType
) -> DataFrame:
    """Put base and changes one above the other, each row with where it came from."""
    from pyspark.sql import functions as F

    merge, contract = plan.resolved.manifest.target.merge, plan.resolved.contract
    flag = column(merge.deleted) if merge and merge.deleted else F.lit(False)  # noqa: FBT003 (a Spark literal)
    gone = F.coalesce(flag, F.lit(False))  # noqa: FBT003 (a Spark literal)
    inside = filters.inside(partitions.ranges(scope))
    columns = [column(field.name) for field in target.fields]
    origin = F.when(inside, F.lit(_CHANGE)).otherwise(F.lit(_BEYOND))
    changes = job.select(*columns, origin.alias(_FROM), gone.alias(_GONE))
    base = carrying.base_rows(spark, catalog, plan, scope, target)
    never = F.lit(False).alias(_GONE)  # noqa: FBT003 (a Spark literal)
    rows = changes.unionByName(base.select(*columns, F.lit(_BASE).alias(_FROM), never))
    if not merging.stays_in_partition(contract, scope.field.column):
        others = _elsewhere(spark, catalog, plan, scope, job)
        if others is not None:
            rows = rows.unionByName(
                others.select("*", F.lit(_ELSEWHERE).alias(_FROM), never),
                allowMissingColumns=True,
            )
    hashed = rowhash.row_hash(target, LINEAGE_NAMES)
    # A deletion says nothing of other columns; a row elsewhere is in another partition.
    sign = F.when(column(_GONE), F.lit("gone")).otherwise(hashed.cast("string"))
    sign = F.when(column(_FROM) == _ELSEWHERE, F.lit("elsewhere")).otherwise(sign)
    return rows.withColumn(_SIGN, sign)


def _elsewhere(
    spark: SparkSession, catalog: str, plan: Plan, scope: Scope, job: DataFrame
) -> DataFrame | None:
    """Give key and version of the base's rows outside the scope that a change may be about."""
    base, merge = plan.resolved.target, plan.resolved.manifest.target.merge
    if base.snapshot_id is None or merge is None:
        return None
    key = list(plan.resolved.contract.key)
    read = readers.read(spark, catalog, base.table, base.snapshot_id)
    others = read.where(~filters.inside(partitions.ranges(scope)))
    kept = others.select(*(column(name) for name in dict.fromkeys([*key, merge.version])))
    return kept.join(job.select(*(column(name) for name in key)).distinct(), key, "left_semi")


def _decided(rows: DataFrame, plan: Plan, merge: MergeBy) -> DataFrame:
    """Give every row its fate. Rows of one key meet in one window; nothing is joined."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [column(name) for name in plan.resolved.contract.key]
    version, origin = column(merge.version), column(_FROM)
    together = Window.partitionBy(*key)
    # First of all: a window's function cannot stand inside another one's.
    rows = rows.withColumn(_TOP, F.max(version).over(together))
    is_change = origin.isin(_CHANGE, _BEYOND)
    is_top = version.eqNullSafe(column(_TOP))

    def any_of(condition: Column) -> Column:
        return F.max(F.coalesce(condition, F.lit(False))).over(together)  # noqa: FBT003 (a Spark literal)

    changes_top = any_of(is_change & is_top)
    signs = F.size(F.collect_set(F.when(is_top, column(_SIGN))).over(together))
    in_base, elsewhere = any_of(origin == _BASE), any_of(origin == _ELSEWHERE)
    base_top = any_of(origin.isin(_BASE, _ELSEWHERE) & is_top)
    # A deletion may lie anywhere: often it carries nothing but the key.
    leaves = any_of((origin == _BEYOND) & is_top & ~column(_GONE))
    arrives = any_of((origin == _CHANGE) & is_top)
    within = any_of(origin.isin(_BASE, _CHANGE))
    moves = ~base_top & ((leaves & within) | (arrives & elsewhere))
    first = F.row_number().over(together.orderBy(is_change.desc(), is_top.desc(), column(_SIGN)))
    facts = rows.select(
        "*",
        first.alias("lhb_first"),
        *(value.alias(f"lhb_{name}") for name, value in {
            "change": is_change, "top": is_top, "changes_top": changes_top, "signs": signs,
            "in_base": in_base, "base_top": base_top, "moves": moves, "within": within,
        }.items()),
    )  # fmt: skip
    return facts.withColumn(_FATE, _fate(plan, merge))


def _fate(plan: Plan, merge: MergeBy) -> Column:
    """Say what becomes of a row, by what its key's window showed."""
    from pyspark.sql import functions as F

    origin = column(_FROM)
    is_change, is_top = column("lhb_change"), column("lhb_top")
    nameless = [column(name).isNull() for name in plan.resolved.contract.key]
    no_key = nameless[0]
    for one in nameless[1:]:
        no_key = no_key | one
    clash = column("lhb_changes_top") & (column("lhb_signs") > 1)
    stays = ~column("lhb_changes_top") | column("lhb_base_top")
    winner = is_change & is_top & (column("lhb_first") == 1)
    outside = (origin == _BEYOND) & (~column("lhb_within") | no_key)
    return (
        F.when(outside, F.lit("outside"))
        .when(is_change & no_key, F.lit("no key"))
        .when(no_key, F.lit(_KEPT))
        .when(is_change & column(merge.version).isNull(), F.lit("no version"))
        .when(winner & clash, F.lit("clashes"))
        .when(winner & column("lhb_moves"), F.lit("moves"))
        .when(origin == _ELSEWHERE, F.lit("elsewhere"))
        .when((origin == _BASE) & stays, F.lit(_KEPT))
        .when(origin == _BASE, F.lit("replaced"))
        .when(is_change & ~is_top, F.lit("older"))
        .when(is_change & (column("lhb_base_top") | (column("lhb_first") > 1)), F.lit("known"))
        .when(column(_GONE) & column("lhb_in_base"), F.lit("deletes"))
        .when(column(_GONE), F.lit("deletes nothing"))
        .when(column("lhb_in_base"), F.lit(f"{_PUT} newer"))
        .otherwise(F.lit(f"{_PUT} new"))
    )


_PROBLEMS = {
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


def _refuse(decided: DataFrame, plan: Plan, fates: dict[str, int]) -> None:
    wrong = [fate for fate in _PROBLEMS if fates.get(fate)]
    if not wrong:
        return
    said = [f"{fates[fate]} {_PROBLEMS[fate][0]}: {_shown(decided, plan, fate)}" for fate in wrong]
    raise ChecksFailed(
        "the changes cannot be merged: " + "; ".join(said),
        state="nothing of this chunk was written; readers see what they saw before",
        fix="; ".join(_PROBLEMS[fate][1] for fate in wrong),
    )


def _shown(decided: DataFrame, plan: Plan, fate: str) -> str:
    key = plan.resolved.contract.key
    names = [column(name) for name in key]
    with translated("naming the keys of changes"):
        found = decided.where(column(_FATE) == fate).select(*names).orderBy(*names).limit(_SHOWN)
        rows = found.collect()
    return ", ".join(_text(dict(zip(key, row, strict=True))) for row in rows)


def _text(key: dict[str, Any]) -> str:
    return " ".join(f"{name}={plain_value(value)}" for name, value in key.items())
