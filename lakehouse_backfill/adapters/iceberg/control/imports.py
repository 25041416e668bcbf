"""The ledger of imported files, in the control table `file_import_ledger`."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.schemas import FILE_IMPORT_LEDGER
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.domain.sources.landings import FileDelivery


class IcebergImportLedger:
    """`ports.sources.ImportLedger` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(FILE_IMPORT_LEDGER)

    def deliveries(self, source: str) -> tuple[FileDelivery, ...]:
        """Return all attempts of a source, oldest first."""
        rows = _rows_of(self._log.head(), frozenset({source}))
        return tuple(FILE_IMPORT_LEDGER.read(row, FileDelivery) for row in rows)

    def record(self, deliveries: tuple[FileDelivery, ...]) -> None:
        """Append those that are not there yet, in one commit; the same again does nothing."""
        sources = frozenset(str(one.source) for one in deliveries)

        def change(head: LogHead) -> LogAppend[None]:
            rows = _rows_of(head, sources)
            key = itemgetter("source", "file_id", "attempt", "accepted_run_id")
            known = set(map(key, rows))
            new = [one for one in deliveries if key(dict(one)) not in known]
            return LogAppend(result=None, rows=tuple(map(FILE_IMPORT_LEDGER.row, new)))

        if deliveries:
            self._log.append(change)


def _rows_of(head: LogHead, sources: frozenset[str]) -> list[dict[str, Any]]:
    """Return the rows of sources; a table of a release that wrote no rows has no such column."""
    if head.table is None or "source" not in head.table.schema().column_names:
        return []
    return head.rows({"source": sources})
