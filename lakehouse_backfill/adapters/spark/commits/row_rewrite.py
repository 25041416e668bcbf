"""Row rewrite: Spark writes a candidate's rows into the target, by its public API alone.

This write path serves tables that PyIceberg cannot write when no JVM is available (Spark Connect).
Its commit has only the snapshot with its summary. The Iceberg adapter does the remaining changes,
which other write paths do in the same commit, from the summary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import (
    quote_identifier,
    quoted_column,
    quoted_table_name,
    spark_errors,
)
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.staging.shadow_writer import (
    EPOCH_PROPERTY,
    FENCE_UUID_PROPERTY,
)
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.publication import (
    REWRITE_PROPERTY,
    InspectedState,
    PartitionContent,
    PendingRewrite,
    SwapCommit,
)
from lakehouse_backfill.errors import OutcomeUnknown, TooBusy, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.table_writer import RowRewriter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Messages of Iceberg when another writer changed the partitions first; nothing was committed.
_CONFLICT_MESSAGES = (
    "Found conflicting files",
    "Found new conflicting delete",
    "Cannot determine history",
)
#: Messages of Iceberg and Spark when a table has another UUID than the loaded one.
_TABLE_CHANGED_MESSAGES = (
    "UUID does not match",
    "TABLE_ID_MISMATCH",
    dataframes.TABLE_MOVED_MARKER,
)
_DAY_MS = 24 * 60 * 60 * 1000
_NOTHING_PUBLISHED = "nothing was published; readers see what they saw before"


@dataclass(frozen=True)
class PreparedRewrite:
    """Rows of a swap, not written yet."""

    table: str
    quoted_name: str
    frame: DataFrame
    row_filter: Column
    head_id: int | None
    summary: dict[str, str]

    def commit(self) -> None:
        """Replace the partitions' rows in one validated commit; raise TooBusy on a conflict."""
        writer = self.frame.writeTo(self.quoted_name).option("isolation-level", "serializable")
        if self.head_id is not None:
            writer = writer.option("validate-from-snapshot-id", str(self.head_id))
        for key, text in self.summary.items():
            writer = writer.option(f"snapshot-property.{key}", text)
        try:
            with write_guard.allow_own_writes(), commit_window("Publisher.swap"):
                writer.overwrite(self.row_filter)
        except Exception as error:
            if any(
                words in str(error) for words in (*_CONFLICT_MESSAGES, *_TABLE_CHANGED_MESSAGES)
            ):
                raise TooBusy(f"{self.table} moved since it was inspected", fix="try again") from (
                    error
                )
            raise


class SparkRewrites(RowRewriter):
    """Swaps by rewriting rows, and tags by SQL, on the tables of one catalog."""

    writes_rows = True

    def __init__(self, spark: Callable[[], SparkSession], catalog: str) -> None:
        self._open_session = spark
        self._catalog = catalog

    def prepare(self, order: SwapCommit) -> PreparedRewrite:
        """Prepare the rows of a swap: exactly those of its partitions, in the target's columns.

        Raises TooBusy when the table changed since it was inspected, or when another process fenced
        it; Unsupported for an append, and for rows in other columns.
        """
        if order.operation == "append":
            raise _unsupported_order(order, "an append, which streaming readers follow")
        name = quoted_table_name(self._catalog, order.base.table)
        with spark_errors(f"preparing {order.base.table}"):
            identity = self._refresh_and_pin(name)
            _require_as_inspected(self._table_properties(name), order.base)
            frames = [
                self._content_rows(content, identity)
                for content in order.contents
                if content.table is not None
            ]
            frame = reduce(lambda left, right: left.unionByName(right), frames, identity)
        left = PendingRewrite(contents=order.contents, before=_before_tag(order), after=order.after)
        return PreparedRewrite(
            table=order.base.table,
            quoted_name=name,
            frame=frame,
            row_filter=dataframes.range_filter(_ranges(order.contents)),
            head_id=order.base.head_id,
            summary={**order.summary, REWRITE_PROPERTY: left.model_dump_json()},
        )

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        """Set the tag, or drop it (None); the age is rounded up to whole days."""
        alter = f"ALTER TABLE {quoted_table_name(self._catalog, table)}"
        # Days that overflow in milliseconds are stored as the longest possible age.
        days = max_age_ms // _DAY_MS + 1
        create = (
            f"CREATE OR REPLACE TAG {quote_identifier(name)} AS OF VERSION {int(snapshot_id or 0)}"
        )
        statement = f"{alter} {create} RETAIN {days} DAYS"
        if snapshot_id is None:
            statement = f"{alter} DROP TAG {quote_identifier(name)}"
        with (
            spark_errors(f"tagging {table}"),
            write_guard.allow_own_writes(),
            commit_window("Pins.tag"),
        ):
            self._open_session().sql(statement)

    def require_equal(
        self, table: str, snapshot_id: int, contents: tuple[PartitionContent, ...]
    ) -> None:
        """Compare count and checksum of the rows; raises OutcomeUnknown when they differ."""
        for content in contents:
            with spark_errors(f"proving {table}"):
                candidate = self._content_checksum(
                    content, content.table, content.snapshot_id, table
                )
                stored = self._content_checksum(content, table, snapshot_id, table)
            if (candidate.rows, candidate.text) != (stored.rows, stored.text):
                raise OutcomeUnknown(
                    f"{table}@{snapshot_id} holds {stored.rows} rows ({stored.text}) of "
                    f"{partitions.describe_labels(content.scope.partitions)}, the candidate "
                    f"{candidate.rows} ({candidate.text})",
                    state="the snapshot is visible, and not accepted",
                    fix="look at who wrote to the table, and set it back by hand",
                )

    def _refresh_and_pin(self, name: str) -> DataFrame:
        """Refresh the table, which a server may have cached, and pin its identity."""
        spark = self._open_session()
        with write_guard.allow_own_writes():
            spark.catalog.refreshTable(name)
        return dataframes.pin_table_identity(spark, name)

    def _table_properties(self, name: str) -> dict[str, str]:
        with write_guard.allow_own_writes():
            rows = self._open_session().sql(f"SHOW TBLPROPERTIES {name}").collect()
        return {row["key"]: row["value"] for row in rows}

    def _content_rows(self, one: PartitionContent, target: DataFrame) -> DataFrame:
        """Read only the rows of the partitions: Spark would append rows of other partitions."""
        table = str(one.table)
        frame = dataframes.read_table(self._open_session(), self._catalog, table, one.snapshot_id)
        if [(f.name, f.dataType) for f in frame.schema] != [
            (f.name, f.dataType) for f in target.schema
        ]:
            raise Unsupported(
                f"{table}@{one.snapshot_id} has other columns than the table it is written into",
                state=_NOTHING_PUBLISHED,
                fix="repeat the command: it looks at the columns again",
            )
        ranges = partitions.scope_row_ranges(one.scope)
        rows = dataframes.restrict_to_ranges(
            self._open_session(), self._catalog, table, frame, ranges
        )
        return rows.select(*(quoted_column(name) for name in target.columns))

    def _content_checksum(
        self, one: PartitionContent, table: str | None, snapshot_id: int | None, like: str
    ) -> Checksum:
        spark = self._open_session()
        if table is None:
            schema = dataframes.read_table(spark, self._catalog, like, None).schema
            frame = dataframes.empty_frame(spark, schema)
        else:
            frame = dataframes.read_scope(spark, self._catalog, table, snapshot_id, one.scope)
        aggregates = frame.agg(*row_hash.checksum_aggregates(frame.schema)).collect()[0].asDict()
        return row_hash.to_checksum(aggregates, row_hash.shape_digest(frame.schema))


def _require_as_inspected(shown: Mapping[str, str], base: InspectedState) -> None:
    """Compare head and fence; Spark only shows the UUID that a fence has stored."""
    head = "none" if base.head_id is None else str(base.head_id)
    # A clone has no epoch until it is fenced itself; it may have the fence of its original.
    fence_uuid = shown.get(FENCE_UUID_PROPERTY) if EPOCH_PROPERTY in shown else None
    if fence_uuid not in (None, base.uuid):
        raise TooBusy(f"{base.table} was fenced since it was inspected", fix="try again")
    if shown["current-snapshot-id"] != head:
        raise TooBusy(f"{base.table} moved since it was inspected", fix="try again")


def _before_tag(order: SwapCommit) -> str | None:
    return next(iter(order.tags), None)


def _ranges(contents: tuple[PartitionContent, ...]) -> list[RowRange]:
    return [rows for content in contents for rows in partitions.scope_row_ranges(content.scope)]


def _unsupported_order(order: SwapCommit, what: str) -> Unsupported:
    return Unsupported(
        f"{order.base.table} is written by Spark row by row, which cannot commit {what}",
        state=_NOTHING_PUBLISHED,
        fix="run the command with a Spark of its own: remove spark.remote from the profile",
    )
