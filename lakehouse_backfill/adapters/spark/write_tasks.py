"""How Spark cuts the tasks that write a chunk: how many, how large, and with which partitions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pyspark.sql import DataFrame

from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.session import job_tags
from lakehouse_backfill.adapters.spark.session.session import analysed_plan, executed_plan, items
from lakehouse_backfill.core.planning.target.file_sizes import WriteDistribution

_TASK_BYTES = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
#: By default, Spark rather gives each core a task than tasks their size.
_PARALLELISM_FIRST = "spark.sql.adaptive.coalescePartitions.parallelismFirst"
_BUCKETS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
#: Buckets are put together to no fewer tasks, if these have a megabyte. It holds for what a job
#: computes before the write, too: by default Spark has a task there for each of its cores.
_LEAST_TASKS = "spark.sql.adaptive.coalescePartitions.minPartitionNum"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
#: Spark's default of it, and how many it writes in its cheapest way. In fewer buckets, some of a
#: dozen partitions would share one, and be the last task, alone.
_USUAL_PARTITIONS = 200
#: Rows of one partition of a source stay in one task.
_GROUPING = "spark.sql.iceberg.planning.preserve-data-grouping"
#: With it, executors come and go.
_DYNAMIC = "spark.dynamicAllocation.enabled"
#: Each is asked for its size, which takes a millisecond.
_MOST_TASKS = 2_000


def spread(frame: DataFrame, distribution: WriteDistribution) -> DataFrame:
    """Return the rows in as many tasks as there shall be files; Iceberg spreads by partitions."""
    if distribution.task_bytes is not None:
        return frame.hint("rebalance")
    return frame if distribution.tasks is None else frame.repartition(distribution.tasks)


class TaskSizes:
    """How Spark cuts tasks while chunks are written, also side by side."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        #: Of each setting in force: for how many writes, and what it was before.
        self._writes: Counter[str] = Counter()
        self._before: dict[str, str | None] = {}

    @contextmanager
    def in_force(self, distribution: WriteDistribution) -> Iterator[None]:
        """Have Spark make such tasks while the block runs; others leave it as it is.

        Chunks of one table have like sizes; the settings before are back when the last is written.
        """
        wanted = self._settings(distribution)
        with ExitStack() as in_force:
            for key, value in wanted.items():
                self._set(key, value)
                in_force.callback(self._restore, key)
            yield

    def cores(self) -> int | None:
        """Return how many tasks Spark runs side by side; None: that may change, or is not told."""
        spark = self._tables.spark
        may_change = str(spark.conf.get(_DYNAMIC, "false")).lower() == "true"
        return None if may_change else job_tags.cores(spark)

    def _settings(self, distribution: WriteDistribution) -> dict[str, str]:
        if distribution.mode == "grouped":
            return {_GROUPING: "true"}
        if distribution.task_bytes is not None:
            return {_TASK_BYTES: str(distribution.task_bytes), _PARALLELISM_FIRST: "false"}
        if distribution.buckets is None:
            return {}
        usual = self._number(_BUCKETS) or self._number(_SHUFFLE_PARTITIONS)
        buckets = max(distribution.buckets, usual, _USUAL_PARTITIONS)
        wanted = {_BUCKETS: str(buckets)}
        cores = self._least_cores()
        if cores is not None:
            least = max(distribution.buckets, self._number(_LEAST_TASKS), cores)
            wanted[_LEAST_TASKS] = str(least)
        return wanted

    def _number(self, key: str) -> int:
        """Return a setting that is a number, 0 for any other; some vendors' Spark says `auto`."""
        text = str(self._tables.spark.conf.get(key, None))
        return int(text) if text.isdecimal() else 0

    def _least_cores(self) -> int | None:
        """Return to how many tasks Spark gives its cores by itself; None: Connect does not say."""
        spark = self._tables.spark
        cores = job_tags.cores(spark)
        is_asked = str(spark.conf.get(_PARALLELISM_FIRST, "true")).lower() == "true"
        return cores if is_asked or cores is None else 0

    def _set(self, key: str, value: str) -> None:
        conf = self._tables.spark.conf
        with self._lock:
            if not self._writes[key]:
                self._before[key] = conf.get(key, None)
                conf.set(key, value)
            self._writes[key] += 1

    def _restore(self, key: str) -> None:
        conf = self._tables.spark.conf
        with self._lock:
            self._writes[key] -= 1
            if not self._writes[key]:
                old = self._before.pop(key)
                conf.unset(key) if old is None else conf.set(key, old)


def options(distribution: WriteDistribution) -> dict[str, str]:
    """Return Iceberg's options of a write; a task of one partition needs no sort to write it."""
    if distribution.mode == "grouped":
        return {"distribution-mode": "none", "fanout-enabled": "true"}
    return {"distribution-mode": "hash"} if distribution.mode == "hash" else {}


def group_sizes(frame: DataFrame, table: DataFrame) -> tuple[int, ...] | None:
    """Return the bytes that each task reads, where each computes one partition of a table.

    So it is where the rows come from one table with the same partitions, and each stays in its own:
    nothing moves rows between tasks, and the columns that decide the partition are passed on as
    they are. Spark says so of its own plan, which is made here, in force of `grouped`; nothing is
    executed. None where it does not, where there are thousands of tasks, and on Spark Connect.
    """
    if not _is_of_one_table(analysed_plan(frame)):
        return None
    plan: Any = executed_plan(frame)
    if not _is_kind(plan.outputPartitioning(), "KeyGroupedPartitioning"):
        return None
    leaves = plan.collectLeaves()
    if leaves.size() != 1 or not _is_kind(leaves.apply(0), "BatchScanExec"):
        return None
    names = {int(one.exprId().id()): str(one.name()) for one in items(plan.output())}
    held = {_of_expression(one, names) for one in items(plan.outputPartitioning().expressions())}
    if None in held or held != _transforms(table):
        return None
    found = leaves.apply(0).groupedPartitions()
    groups = found.get().groupedParts() if found.isDefined() else None
    if groups is None or leaves.apply(0).inputPartitions().size() > _MOST_TASKS:
        return None
    return tuple(
        sum(int(part.taskGroup().sizeBytes()) for part in items(group.parts()))
        for group in items(groups)
    )


#: A field of a partition spec: transform, column, number of buckets.
_Field = tuple[str, str, int | None]
#: Nodes of an analysed plan by which rows come to other tasks.
_MOVING = frozenset({
    "Aggregate", "Deduplicate", "Distinct", "GlobalLimit", "LocalLimit", "Offset", "Pivot",
    "RebalancePartitions", "Repartition", "RepartitionByExpression", "Sort", "Window",
})  # fmt: skip


def _is_of_one_table(plan: Any | None) -> bool:
    """Return whether a plan may leave rows in the tasks that read them; costs no look at files."""
    while plan is not None and plan.children().size() == 1:
        if str(plan.nodeName()) in _MOVING:
            return False
        plan = plan.children().apply(0)
    return plan is not None and plan.children().isEmpty()


def _transforms(table: DataFrame) -> set[_Field | None]:
    """Return the partition fields of a table, of which a frame reads nothing but this table."""
    relation = analysed_plan(table).collectLeaves().apply(0)  # type: ignore[union-attr]
    return {_of_transform(one) for one in relation.table().partitioning()}


def _of_transform(transform: Any) -> _Field | None:
    """Return a partition field; None where it is of a struct's field, or cut to a width."""
    [column, *deeper] = transform.references()[0].fieldNames()
    name = str(transform.name())
    if deeper or name == "truncate":
        return None
    buckets = int(transform.arguments()[0].value()) if name == "bucket" else None
    return name, str(column), buckets


def _of_expression(expression: Any, names: dict[int, str]) -> _Field | None:
    """Return the partition field of an expression; None where it is of no column of the output."""
    column, name, buckets = expression, "identity", None
    if _is_kind(expression, "TransformExpression"):
        name, [column] = str(expression.function().name()), list(items(expression.children()))
        if (number := expression.numBucketsOpt()).isDefined():
            buckets = int(number.get())
    if not _is_kind(column, "AttributeReference") or name == "truncate":
        return None
    known = names.get(int(column.exprId().id()))
    return None if known is None else (name, known, buckets)


def _is_kind(found: Any, name: str) -> bool:
    return bool(found.getClass().getSimpleName() == name)
