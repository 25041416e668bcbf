"""States of stateful jobs, kept as tables: written once, and read back by their checksum.

The name of a table follows from the key of its state, so a repeated chunk finds what it kept. Of a
state that is missing, or is not what was kept, nothing is made up: the chunk is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark import row_hash
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, cached, quoted_column
from lakehouse_backfill.adapters.spark.kept_tables import PREFIX, find_kept, write_kept
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.stateful.declaration import StateSnapshot
from lakehouse_backfill.domain.stateful.states import ChunkStart
from lakehouse_backfill.errors import BackfillError, ChecksFailed, NotFound
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.compute import PlanReads

KEY_PROPERTY = f"{PREFIX}state"
_CHECKSUM_PROPERTY = f"{PREFIX}state-checksum"
_NOT_RESTORED = "no row was written; the chunk was not computed from another state"


class StateStore:
    """Keeps the states of runs as tables in a namespace."""

    def __init__(self, tables: SparkTables, namespace: str) -> None:
        self._tables, self._namespace = tables, namespace
        self._lock = threading.Lock()
        self._verified: set[tuple[str, int]] = set()

    def without_start(self, plan: Plan, chunk: Chunk, reads: PlanReads | None) -> PlanReads | None:
        """Return what a chunk reads besides the state that it is given."""
        start = states.start_of(plan.resolved, plan.chunk_scope(chunk))
        if reads is None or not start.boundary:
            return reads
        own = self._table_of(start)
        return reads._replace(tables=tuple(one for one in reads.tables if one.table != own))

    def restore(self, plan: Plan, scope: Scope, columns: str) -> DataFrame:
        """Return the state that some partitions start from; without one an empty frame.

        `columns` are those that the transform declares. Raises NotFound for a state that is not
        there, ChecksFailed for one that is not what was kept.
        """
        start = states.start_of(plan.resolved, scope)
        if not start.boundary:
            return self._tables.spark.createDataFrame([], columns)
        kept = self._find(self._table_of(start), start)
        if kept is None:
            raise NotFound(
                f"the state at the end of {start.boundary} is not kept in {self._table_of(start)}",
                state=_NOT_RESTORED,
                fix=f"{command_line('cancel', plan.run_id)}, then plan again: the plan says from "
                "which state it can start",
            )
        frame = self._tables.read(kept.table, kept.snapshot_id)
        self._require_whole(frame, start.kept or kept, kept)
        return frame

    def keep(self, plan: Plan, chunk: Chunk, frame: DataFrame | None) -> StateSnapshot:
        """Keep the state that a chunk leaves; the same state again is found, not written.

        Without a frame it is only found: raises NotFound. Raises ChecksFailed when its key is not
        unique, or another state is kept under its key.
        """
        if frame is None:
            return self._after(plan, chunk)
        after = states.state_after(plan.resolved, chunk)
        table = self._table_of(after)
        with spark_errors(f"computing the state after chunk {chunk.chunk_id}"), cached(frame):
            checksum = row_hash.frame_checksum(frame).text
            self._require_unique(plan, chunk, frame)
            found = self._find(table, after)
            if found is None:
                found = self._write(plan, chunk, after, frame, checksum)
        if found.checksum != checksum:
            raise ChecksFailed(
                f"chunk {chunk.chunk_id} leaves another state than the one that is kept of it in "
                f"{table}: its code gives two results for the same input",
                state="no row was written; the kept state is unchanged",
                fix="plan with --prove-determinism, and correct what differs",
            )
        return found

    def check(self, plan: Plan, chunk: Chunk, frame: DataFrame | None) -> None:
        """Raise ChecksFailed, as `keep` does, for a state whose key is not unique."""
        if frame is not None:
            with spark_errors(f"computing the state after chunk {chunk.chunk_id}"):
                self._require_unique(plan, chunk, frame)

    def _after(self, plan: Plan, chunk: Chunk) -> StateSnapshot:
        after = states.state_after(plan.resolved, chunk)
        found = self._find(self._table_of(after), after)
        if found is None:
            raise NotFound(
                f"the rows of chunk {chunk.chunk_id} are staged, and the state that it left is not "
                f"kept in {self._table_of(after)}",
                state="the shadow keeps its rows; readers see what they saw before",
                fix=f"{command_line('cancel', plan.run_id)}, then plan again: the next run makes "
                "rows and state",
            )
        return found

    def _table_of(self, start: ChunkStart) -> str:
        return start.kept.table if start.kept else states.table_of(self._namespace, start.key)

    def _find(self, table: str, wanted: ChunkStart) -> StateSnapshot | None:
        """Return a kept state; None unless the table has exactly one snapshot, of this key."""
        found = find_kept(self._tables, table, KEY_PROPERTY, wanted.key)
        checksum = found.summary.get(_CHECKSUM_PROPERTY, "") if found else ""
        if found is None or not checksum:
            return None
        return StateSnapshot(
            table=table,
            snapshot_id=found.snapshot_id,
            checksum=checksum,
            key=wanted.key,
            boundary=wanted.boundary,
        )

    def _require_whole(self, frame: DataFrame, wanted: StateSnapshot, found: StateSnapshot) -> None:
        """Raise ChecksFailed when a kept state is not the wanted one, or its rows changed."""
        place = found.table, found.snapshot_id
        if place in self._verified and wanted == found:
            return
        with spark_errors(f"reading the state {found.table}"):
            checksum = row_hash.frame_checksum(frame).text
        if wanted != found or checksum != wanted.checksum:
            raise ChecksFailed(
                f"{found.table} does not hold the state that was kept at the end of "
                f"{wanted.boundary}: its checksum is {checksum}, and {wanted.checksum} was kept",
                state=_NOT_RESTORED,
                fix="restore the files of that table from a copy, or drop the table and plan again",
            )
        with self._lock:
            self._verified.add(place)

    def _require_unique(self, plan: Plan, chunk: Chunk, frame: DataFrame) -> None:
        declared = plan.resolved.manifest.stateful
        key: Sequence[str] = declared.state.key if declared else ()
        if missing := [name for name in key if name not in frame.columns]:
            raise ChecksFailed(
                f"the state of the transform has no {', '.join(missing)}, its key by the manifest",
                state="nothing was written",
                fix="correct stateful.state.key, or the columns of the state",
            )
        names = [quoted_column(name) for name in key]
        twice = frame.groupBy(*names).agg(F.count(F.lit(1)).alias("n")).where("n > 1").count()
        if twice:
            raise ChecksFailed(
                f"the state after chunk {chunk.chunk_id} has {twice} values of {', '.join(key)} "
                "more than once",
                state="nothing was written",
                fix="return one row of state for each key",
            )

    def _write(
        self, plan: Plan, chunk: Chunk, after: ChunkStart, frame: DataFrame, checksum: str
    ) -> StateSnapshot:
        table = self._table_of(after)
        try:
            with spark_errors(f"keeping the state {table}"):
                write_kept(
                    self._tables, table, frame, plan, chunk.chunk_id,
                    window=commit_window("Spark.keep_state"),
                    own={KEY_PROPERTY: after.key, _CHECKSUM_PROPERTY: checksum},
                )  # fmt: skip
        except BackfillError:
            # Another driver may have been first.
            if (first := self._find(table, after)) is not None:
                return first
            raise
        if (written := self._find(table, after)) is None:
            raise NotFound(f"{table} is not what was written", state="the chunk is not staged")
        return written
