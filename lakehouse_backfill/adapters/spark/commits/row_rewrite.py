"""Row rewrite: Spark writes a candidate's rows into the target, by its public API alone.

This write path serves tables that PyIceberg cannot write when no JVM is available (Spark Connect).
Its commit has only the snapshot with its summary. The Iceberg adapter does the remaining changes,
which other write paths do in the same commit, from the summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import DataFrame

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import (
    EPOCH_PROPERTY,
    SparkTables,
    quoted_column,
)
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging.shadow_writer import (
    FENCE_UUID_PROPERTY,
)
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.labels.names import quote_identifier
from lakehouse_backfill.domain.tables.commits import (
    REWRITE_PROPERTY,
    InspectedState,
    PartitionContent,
    PendingRewrite,
    SwapCommit,
)
from lakehouse_backfill.errors import OutcomeUnknown, TooBusy, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import RowRewriter

#: Messages when another writer changed the partitions, or fenced the table, first; nothing was
#: committed.
_CONFLICT_MESSAGES = (
    "Found conflicting files",
    "Found new conflicting delete",
    "Cannot determine history",
    *dataframes.TABLE_CHANGED_MESSAGES,
    dataframes.TABLE_MOVED_MARKER,
)
_DAY_MS = 24 * 60 * 60 * 1000
_NOTHING_PUBLISHED = "nothing was published; readers see what they saw before"


@contextmanager
def translate_conflicts(table: str) -> Iterator[None]:
    """Raise TooBusy when another writer was first, so that nothing was committed."""
    try:
        yield
    except Exception as error:
        if not any(words in str(error) for words in _CONFLICT_MESSAGES):
            raise
        raise TooBusy(f"{table} moved since it was inspected", fix="try again") from error


class SparkRewrites(RowRewriter):
    """Swaps by rewriting rows, and tags by SQL, on the tables of one catalog."""

    writes_rows = True

    def __init__(self, tables: Callable[[], SparkTables]) -> None:
        """Set up; `tables` starts the session, when it is first called."""
        self._open_tables = tables

    def prepare(self, order: SwapCommit) -> Callable[[], None]:
        """Prepare the rows of a swap: exactly those of its partitions, in the target's columns.

        Its commit replaces the partitions' rows, validated; it raises TooBusy on a conflict.

        Raises TooBusy when the table changed since it was inspected, or when another process fenced
        it; Unsupported for an append, and for rows in other columns.
        """
        if order.operation == "append":
            raise Unsupported(
                f"{order.base.table} is written by Spark row by row, which cannot commit "
                "an append, which streaming readers follow",
                state=_NOTHING_PUBLISHED,
                fix="run the command with a Spark of its own: remove spark.remote from the profile",
            )
        table, tables = order.base.table, self._open_tables()
        with spark_errors(f"preparing {table}"):
            # A server may have cached the table.
            with write_guard.allow_own_writes():
                tables.spark.catalog.refreshTable(tables.quoted_name(table))
            identity = tables.pin_identity(table)
            _require_as_inspected(tables.properties(table), order.base)
            frames = [
                _content_rows(tables, content, identity)
                for content in order.contents
                if content.table is not None
            ]
            frame = reduce(lambda left, right: left.unionByName(right), frames, identity)
        before = next(iter(order.tags), None)
        pending = PendingRewrite(contents=order.contents, before=before, after=order.after)
        summary = {**order.summary, REWRITE_PROPERTY: pending.model_dump_json()}
        writer = tables.writer(frame, table, order.base.head_id, summary)
        rows = dataframes.range_filter(order.ranges)

        def commit() -> None:
            with (
                translate_conflicts(table),
                write_guard.allow_own_writes(),
                commit_window("Publisher.swap"),
            ):
                writer.overwrite(rows)

        return commit

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        """Set the tag, or drop it (None); the age is rounded up to whole days."""
        tables, tag = self._open_tables(), quote_identifier(name)
        change = f"DROP TAG {tag}"
        if snapshot_id is not None:
            # Days that overflow in milliseconds are stored as the longest possible age.
            days = max_age_ms // _DAY_MS + 1
            change = (
                f"CREATE OR REPLACE TAG {tag} AS OF VERSION {int(snapshot_id)} RETAIN {days} DAYS"
            )
        with (
            spark_errors(f"tagging {table}"),
            write_guard.allow_own_writes(),
            commit_window("Pins.tag"),
        ):
            tables.spark.sql(f"ALTER TABLE {tables.quoted_name(table)} {change}")

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

    def _content_checksum(
        self, one: PartitionContent, table: str | None, snapshot_id: int | None, like: str
    ) -> Checksum:
        tables = self._open_tables()
        if table is None:
            return row_hash.frame_checksum(tables.empty_frame(tables.schema(like)))
        return row_hash.frame_checksum(tables.read_scope(table, snapshot_id, one.scope))


def _content_rows(tables: SparkTables, one: PartitionContent, target: DataFrame) -> DataFrame:
    """Read only the rows of the partitions: Spark would append rows of other partitions."""
    table = str(one.table)
    frame = tables.read(table, one.snapshot_id)
    if [(f.name, f.dataType) for f in frame.schema] != [
        (f.name, f.dataType) for f in target.schema
    ]:
        raise Unsupported(
            f"{table}@{one.snapshot_id} has other columns than the table it is written into",
            state=_NOTHING_PUBLISHED,
            fix="repeat the command: it looks at the columns again",
        )
    rows = tables.restrict_to_ranges(table, frame, partitions.scope_row_ranges(one.scope))
    return rows.select(*(quoted_column(name) for name in target.columns))


def _require_as_inspected(shown: Mapping[str, str], base: InspectedState) -> None:
    """Compare head and fence; Spark only shows the UUID that a fence has stored."""
    head = "none" if base.head_id is None else str(base.head_id)
    # A clone has no epoch until it is fenced itself; it may have the fence of its original.
    fence_uuid = shown.get(FENCE_UUID_PROPERTY) if EPOCH_PROPERTY in shown else None
    if fence_uuid not in (None, base.uuid):
        raise TooBusy(f"{base.table} was fenced since it was inspected", fix="try again")
    if shown["current-snapshot-id"] != head:
        raise TooBusy(f"{base.table} moved since it was inspected", fix="try again")
