"""The queryable chunk ledger, on `backfill_chunk_run`."""

from __future__ import annotations

from lakehouse_backfill.iceberg.control import ControlTables
from lakehouse_backfill.iceberg.control_log import Change
from lakehouse_backfill.iceberg.control_schemas import BACKFILL_CHUNK_RUN, LOG_ID, LOG_SEQ
from lakehouse_backfill.model.run import ChunkRecord
from lakehouse_backfill.rules import run_log


class IcebergLedger:
    """`ports.control.Ledger` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(BACKFILL_CHUNK_RUN)

    def record(self, chunk: ChunkRecord) -> None:
        """Append one row."""
        row = chunk.model_dump()
        self._log.append(lambda _: Change(result=None, rows=(row,)))

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        """The newest row of each chunk of the run, in chunk order."""
        newest: dict[str, ChunkRecord] = {}
        for row in self._log.head().rows({"run_id": run_id}):
            fields = {name: row[name] for name in row if name not in (LOG_SEQ, LOG_ID)}
            newest[row["chunk_id"]] = ChunkRecord(**fields)
        return tuple(newest[chunk_id] for chunk_id in sorted(newest, key=run_log.chunk_order))
