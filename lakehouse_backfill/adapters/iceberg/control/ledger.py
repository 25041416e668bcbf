"""The queryable chunk ledger, on `backfill_chunk_run`."""

from __future__ import annotations

from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.control_rows import row_fields
from lakehouse_backfill.adapters.iceberg.control.control_schemas import BACKFILL_CHUNK_RUN
from lakehouse_backfill.adapters.iceberg.control.fences import require_not_fenced
from lakehouse_backfill.core.runs import run_log
from lakehouse_backfill.domain.run import ChunkRecord


class IcebergLedger:
    """`ports.control.Ledger` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(BACKFILL_CHUNK_RUN)

    def record(self, chunk: ChunkRecord) -> None:
        """Append one row; raises RunMoved when a later epoch than the row's has fenced the run."""
        row = chunk.model_dump()

        def change(head: LogHead) -> LogAppend[None]:
            require_not_fenced(head, chunk.run_id, chunk.epoch)
            return LogAppend(result=None, rows=(row,))

        self._log.append(change)

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        """The newest row of each chunk of the run, in chunk order."""
        newest: dict[str, ChunkRecord] = {}
        for row in self._log.head().rows({"run_id": run_id}):
            newest[row["chunk_id"]] = ChunkRecord(**row_fields(row, ChunkRecord))
        return tuple(newest[chunk_id] for chunk_id in sorted(newest, key=run_log.chunk_sort_key))
