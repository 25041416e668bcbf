"""Tables that are written once beside the shadows: intermediate results, and states of jobs.

The key of the content is a property of such a table and of its only snapshot. By the other
properties `maintain` knows whose files it deletes, as of a run's shadow.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from pyspark.sql import DataFrame

from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.errors import NotFound

PREFIX = "lakehouse-backfill."


class KeptSnapshot(NamedTuple):
    """The only snapshot of a kept table."""

    snapshot_id: int
    summary: Mapping[str, str]


def find_kept(tables: SparkTables, table: str, key_property: str, key: str) -> KeptSnapshot | None:
    """Return the snapshot of a table; None unless the table is exactly what was kept by the key."""
    try:
        properties = tables.stored_properties(table)
    except NotFound:
        return None
    head = properties.get("current-snapshot-id", "none")
    if properties.get(key_property) != key or head == "none":
        return None
    summaries = tables.summaries(table)
    is_whole = set(summaries) == {int(head)} and summaries[int(head)].get(key_property) == key
    return KeptSnapshot(int(head), summaries[int(head)]) if is_whole else None


def write_kept(
    tables: SparkTables,
    table: str,
    frame: DataFrame,
    plan: Plan,
    chunk_id: str,
    *,
    window: AbstractContextManager[None],
    own: Mapping[str, str],
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create the table, and its namespace, with the rows of a frame, in one commit.

    `own`, the key among it, goes into properties and summary; `properties` into these alone.
    `window` is that of the commit's fault points. Raises what Spark raises.
    """
    target, run = plan.resolved.target, {f"{PREFIX}run-id": plan.run_id}
    of_table = {
        **own, **(properties or {}), **run,
        f"{PREFIX}target": target.table,
        **({f"{PREFIX}target-uuid": target.uuid} if target.uuid else {}),
        f"{PREFIX}base-snapshot-id": "none",
        "format-version": "2",
    }  # fmt: skip
    mode = plan.resolved.manifest.run.mode
    summary = {**own, **run, f"{PREFIX}chunk-id": chunk_id, MODE_PROPERTY: mode}
    namespace = tables.quote(*table.rpartition(".")[0].split("."))
    with write_guard.allow_own_writes():
        tables.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    writer = frame.writeTo(tables.quoted_name(table)).using("iceberg")
    for name, text in of_table.items():
        writer = writer.tableProperty(name, text)
    for name, text in summary.items():
        writer = writer.option(f"snapshot-property.{name}", text)
    tables.require_right_clock()
    with write_guard.allow_own_writes(), window:
        writer.create()
