"""Which accepted run read the rows of a landed file: a row of the ledger for each of them."""

from __future__ import annotations

from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.sources.landings import FileDelivery
from lakehouse_backfill.ports.sources import ImportLedger, RawTables


def name_accepted_run(
    tables: tuple[RawTables, ImportLedger],
    source: str,
    read: tuple[str, int, tuple[RowRange, ...]],
    run_id: str,
) -> int:
    """Record which landed files an accepted run has read; return how many are new.

    `read` is the raw table, the pinned snapshot, and the rows of it that the run could read. The
    same again records nothing.
    """
    raw_tables, imports = tables
    held = raw_tables.deliveries(*read)
    newest: dict[tuple[str, int], FileDelivery] = {}
    for one in imports.deliveries(source):
        if one.is_landed and (one.file_id, one.attempt) in held:
            newest[one.file_id, one.attempt] = one
    named = tuple(
        one.model_copy(update={"accepted_run_id": run_id})
        for one in newest.values()
        if one.accepted_run_id != run_id
    )
    imports.record(named)
    return len(named)
