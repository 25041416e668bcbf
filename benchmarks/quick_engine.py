"""A stand-in for Spark whose commits cost little, so that what the toolkit adds can be seen.

PyIceberg copies a table's whole metadata several times in each commit: at 2,200 snapshots that
takes seconds. Here what never changes is not copied, the newest metadata file of a table is parsed
once, and a chunk is one append, as its partitions hold nothing before. Rows are those of
`tests.chaos.engine`.

The commits are made in a process of its own, as Spark makes them: what it takes to build one is
not in the memory and the processor time of the program.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import uuid
import zlib
from datetime import date, datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import refs, snapshots

from lakehouse_backfill.adapters.iceberg.catalog import translate_errors
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.checks import RowRule
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord
from lakehouse_backfill.fault_points import commit_window
from tests.chaos import engine
from tests.chaos.engine import MARK, PlainEngine
from tests.support.quick_pyiceberg import forget_metadata, make_quick

_NEVER_CHANGED = (
    snapshots.Snapshot, snapshots.SnapshotLogEntry, snapshots.MetadataLogEntry, refs.SnapshotRef,
)  # fmt: skip


def spare_copies() -> None:
    """Have PyIceberg copy and parse less, in this process.

    Of each table the newest metadata is kept, and nothing else: processes of tests keep 256
    versions.
    """
    for kind in _NEVER_CHANGED:
        kind.__deepcopy__ = lambda self, _: self  # type: ignore[method-assign,assignment]
    forget_metadata()
    parse = FromInputFile.table_metadata
    known: dict[str, tuple[str, Any]] = {}

    def table_metadata(file: Any, *others: Any, **named: Any) -> Any:
        folder = file.location.rpartition("/")[0]
        place, found = known.get(folder, ("", None))
        if place != file.location:
            found = parse(file, *others, **named)
            known[folder] = file.location, found
        return found.model_copy(update={"properties": dict(found.properties)})

    FromInputFile.table_metadata = staticmethod(table_metadata)  # type: ignore[method-assign]


class QuickEngine(PlainEngine):
    """Appends a chunk's rows to its empty partitions, and remembers what it wrote."""

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        """Have the rows of a chunk committed, once."""
        with translate_errors():
            fence = self._catalog.load_table(plan.shadow_table).properties.get(f"{MARK}epoch", "0")
            event_log.require_current_epoch(plan.run_id, epoch, int(fence))
        marks = {
            f"{MARK}run-id": plan.run_id,
            f"{MARK}chunk-id": chunk.chunk_id,
            f"{MARK}attempt-id": str(uuid.uuid4()),
            f"{MARK}epoch": str(epoch),
        }
        with commit_window("Spark.overwrite"):
            pickle.dump((plan.shadow_table, self._rows_of(chunk), marks), self._committer.stdin)
            self._committer.stdin.flush()
            snapshot_id: int = pickle.load(self._committer.stdout)
        return self.remeasure(plan, chunk, snapshot_id, epoch)

    @cached_property
    def _committer(self) -> Any:
        """Start the process that commits; it ends with this one."""
        found = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.quick_engine"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        pickle.dump((self._catalog.name, dict(self._catalog.properties)), found.stdin)
        return found

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        """Sum the rows that the chunk has by its source."""
        total = Checksum.empty(engine._NO_SHAPE)
        for row in self._rows_of(chunk).to_pylist():
            mark = zlib.crc32(repr(sorted(row.items())).encode())
            total = total + Checksum(rows=1, xor=mark, total=mark, shape=engine._NO_SHAPE)
        return ChunkRecord(
            run_id=plan.run_id, chunk_id=chunk.chunk_id, partitions=chunk.partitions,
            status="done", input_rows=total.rows, output_rows=total.rows, outside_rows=0,
            checksum=total.text, seconds=0.0, snapshot_id=snapshot_id,
            finished_at=datetime.now(timezone.utc), epoch=epoch,
        )  # fmt: skip

    def chunk(
        self,
        plan: Plan,  # noqa: ARG002
        chunk: Chunk,
        snapshot_id: int | None,  # noqa: ARG002
        rules: tuple[RowRule, ...] = (),  # noqa: ARG002
    ) -> ChunkFacts:
        """Count the rows that the chunk has by its source."""
        rows = {label: len(self._by_day[label]) for label in chunk.partitions}
        return ChunkFacts(rows=rows, null_keys={}, duplicate_keys=0)

    def _rows_of(self, chunk: Chunk) -> pa.Table:
        return pa.concat_tables(self._by_day[label] for label in chunk.partitions)

    @cached_property
    def _by_day(self) -> dict[str, pa.Table]:
        source = self._catalog.load_table("bronze.s").scan().to_arrow().sort_by("d")
        found: dict[str, list[int]] = {}
        for place, day in enumerate(source["d"].to_pylist()):
            assert isinstance(day, date)
            found.setdefault(day.isoformat(), []).append(place)
        tenfold = pa.compute.multiply(source["v"], 10)
        rows = source.set_column(2, source.schema.field("v"), tenfold)
        return {day: rows.take(places) for day, places in found.items()}


def _commit_all() -> None:
    """Commit what is asked for on the standard input until it ends."""
    make_quick()
    spare_copies()
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    name, properties = pickle.load(asked)
    catalog = SqlCatalog(name, **properties)
    while True:
        try:
            table, rows, marks = pickle.load(asked)
        except EOFError:
            return
        shadow = catalog.load_table(table)
        with shadow.transaction() as change:
            files = _dataframe_to_data_files(shadow.metadata, rows, shadow.io)
            with change.update_snapshot(snapshot_properties=marks).merge_append() as added:
                for file in files:
                    added.append_data_file(file)
        head = shadow.current_snapshot()
        assert head is not None
        pickle.dump(head.snapshot_id, answers)
        answers.flush()


if __name__ == "__main__":
    _commit_all()
