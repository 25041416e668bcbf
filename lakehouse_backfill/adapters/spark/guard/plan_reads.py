"""Which tables Catalyst's analysed plan of a frame reads, and at which version.

The JSON of a plan does not name them, so the leaves of the plan are asked; subqueries included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.session.session import analysed_plan, items
from lakehouse_backfill.domain.labels.names import table_text
from lakehouse_backfill.ports.compute import PlanReads, TableRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TABLE = "DataSourceV2Relation"
#: Leaves whose rows the driver made, of whatever it had read before.
_ROWS_OF_THE_DRIVER = frozenset({"LocalRelation", "LogicalRDD", "ExternalRDD"})


def tables_read(frame: DataFrame, catalog: str) -> PlanReads | None:
    """Return the tables below a frame; those of the catalog without its name.

    None on Spark Connect, which gives no plan.
    """
    if (analysed := analysed_plan(frame)) is None:
        return None
    plans = [analysed, *items(analysed.subqueriesAll())]
    found: set[TableRead] = set()
    is_whole = True
    for leaf in (leaf for plan in plans for leaf in items(plan.collectLeaves())):
        kind = str(leaf.getClass().getSimpleName())
        is_whole = is_whole and kind not in _ROWS_OF_THE_DRIVER
        if kind == _TABLE and leaf.identifier().isDefined():
            found.add(_read_of(leaf, catalog))
    return PlanReads(tables=tuple(sorted(found)), is_whole=is_whole)


def read_together(one: PlanReads | None, other: PlanReads | None) -> PlanReads | None:
    """Return what two frames read; None where nothing is known of one of them."""
    if one is None or other is None:
        return None
    tables = tuple(sorted({*one.tables, *other.tables}))
    return PlanReads(tables=tables, is_whole=one.is_whole and other.is_whole)


def _read_of(relation: Any, catalog: str) -> TableRead:
    identifier, owner = relation.identifier().get(), relation.catalog()
    parts = [*map(str, identifier.namespace()), str(identifier.name())]
    if owner.isDefined() and str(owner.get().name()) != catalog:
        parts.insert(0, str(owner.get().name()))
    spec = relation.timeTravelSpec()
    version = _version(spec.get()) if spec.isDefined() else ""
    return TableRead(table=table_text(parts), version=version)


def _version(spec: Any) -> str:
    """Return the version that a read names; of a read by time, the time."""
    is_version = str(spec.getClass().getSimpleName()) == "AsOfVersion"
    return str(spec.version()) if is_version else str(spec)
