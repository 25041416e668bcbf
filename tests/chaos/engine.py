"""Staging and measuring without Spark: PyIceberg on the same tables, by the same rules.

The chunk's commit is conditional on the head that was loaded, and is refused once a later epoch
has fenced the shadow, as `spark/shadow_writer.py` does it.
"""

from __future__ import annotations

import uuid
import zlib
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog

from lakehouse_backfill.fault_points import around
from lakehouse_backfill.iceberg.catalog import translated
from lakehouse_backfill.iceberg.filters import row_filter
from lakehouse_backfill.model.checksum import Checksum
from lakehouse_backfill.model.inspection import ChunkFacts
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import ChunkRecord
from lakehouse_backfill.model.scope import Chunk, Scope
from lakehouse_backfill.ports.compute import Measured
from lakehouse_backfill.rules import partitions, run_log

MARK = "lakehouse-backfill."
_MASK = (1 << 64) - 1
_SHAPE = "c" * 64


class PlainEngine:
    """The ports that need an engine, over the small product of the lab: v becomes ten times v."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def load(self, plan: Plan) -> None:
        """There is no job to import."""

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        where = row_filter(partitions.ranges(scope))
        with translated():
            shadow = self._catalog.load_table(plan.shadow_table)
            fence = int(shadow.properties.get(f"{MARK}epoch", "0"))
            run_log.require_epoch(plan.run_id, epoch, fence)
            # PyIceberg would build the same commit again on whatever it finds then.
            shadow.metadata.properties["commit.retry.num-retries"] = "0"
            rows = self._source(plan, scope)
            marks = {
                f"{MARK}run-id": plan.run_id,
                f"{MARK}chunk-id": chunk.chunk_id,
                f"{MARK}attempt-id": str(uuid.uuid4()),
                f"{MARK}epoch": str(epoch),
            }
            try:
                with around("Spark.overwrite"):
                    shadow.overwrite(rows, where, snapshot_properties=marks)
            except Exception:
                if not self._landed(plan.shadow_table, marks[f"{MARK}attempt-id"]):
                    raise
        head = self._catalog.load_table(plan.shadow_table).current_snapshot()
        assert head is not None
        return self.remeasure(plan, chunk, head.snapshot_id, epoch)

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        found = self.checksums(plan.shadow_table, snapshot_id, scope)
        total = Checksum.empty(_SHAPE)
        for part in found.values():
            total = total + part
        return ChunkRecord(
            run_id=plan.run_id, chunk_id=chunk.chunk_id, partitions=chunk.partitions,
            status="done", input_rows=total.rows, output_rows=total.rows, outside_rows=0,
            checksum=total.text, seconds=0.0, snapshot_id=snapshot_id,
            finished_at=datetime.now(timezone.utc), epoch=epoch,
        )  # fmt: skip

    def edges(self, plan: Plan, around: Any) -> tuple[Any, ...]:
        """Rows never move between partitions here."""
        return ()

    def checksums(
        self, table: str, snapshot_id: int | None, scope: Scope, ignore: tuple[str, ...] = ()
    ) -> dict[str, Checksum]:
        found: dict[str, Checksum] = {}
        if snapshot_id is None:
            return found
        scan = self._catalog.load_table(table).scan(
            row_filter(partitions.ranges(scope)), snapshot_id=snapshot_id
        )
        for row in scan.to_arrow().to_pylist():
            label = str(row["d"])
            mark = zlib.crc32(repr(sorted(row.items())).encode())
            one = Checksum(rows=1, xor=mark, total=mark & _MASK, shape=_SHAPE)
            found[label] = found.get(label, Checksum.empty(_SHAPE)) + one
        return found

    def measure(
        self, old: Any, new: Any, scope: Scope, measures: Any, ignore: tuple[str, ...] = ()
    ) -> Measured:
        return Measured(self.checksums(*old, scope), self.checksums(*new, scope), totals=())

    def periods(self, plan: Plan, name: str, unit: str) -> tuple[str, ...]:
        rows = self._source(plan, plan.resolved.scope)
        return tuple(sorted({str(day) for day in rows["d"].to_pylist()}))

    def chunk(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> ChunkFacts:
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        found = self.checksums(plan.shadow_table, snapshot_id, scope)
        rows = {label: checksum.rows for label, checksum in found.items()}
        return ChunkFacts(rows=rows, null_keys={}, duplicate_keys=0)

    def _source(self, plan: Plan, scope: Scope) -> pa.Table:
        pin = plan.resolved.sources[0]
        scan = self._catalog.load_table(pin.table).scan(
            row_filter(partitions.ranges(scope)), snapshot_id=pin.snapshot_id
        )
        rows = scan.to_arrow()
        return rows.set_column(2, "v", pc.multiply(rows["v"], 10))

    def _landed(self, shadow: str, attempt: str) -> bool:
        snapshots = self._catalog.load_table(shadow).snapshots()
        marks = [s.summary.additional_properties for s in snapshots if s.summary is not None]
        return any(found.get(f"{MARK}attempt-id") == attempt for found in marks)
