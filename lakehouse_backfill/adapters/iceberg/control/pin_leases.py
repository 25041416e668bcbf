"""The leases beside the pins of runs, on `pin_lease`."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.control_rows import row_fields
from lakehouse_backfill.adapters.iceberg.control.control_schemas import PIN_LEASE
from lakehouse_backfill.domain.retention import PinLease

_COLUMN_BY_FIELD = {
    "table": "table_name",
    "product": "data_product",
    "at": "acted_at",
    "by": "acted_by",
}


class IcebergPinLeases:
    """`ports.retention.PinLeases` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(PIN_LEASE)

    def grant(self, leases: tuple[PinLease, ...]) -> None:
        """Record leases in one commit; those that stand already are left out."""
        self._write(leases, is_standing=False)

    def end(self, leases: tuple[PinLease, ...]) -> None:
        """Record in one commit that leases have ended; the same again does nothing."""
        ends = tuple(lease.model_copy(update={"action": "end"}) for lease in leases)
        self._write(ends, is_standing=True)

    def standing(self) -> tuple[PinLease, ...]:
        """List the leases that were granted and have not ended, oldest first."""
        return tuple(_active_leases(self._log.head()).values())

    def _write(self, leases: tuple[PinLease, ...], *, is_standing: bool) -> None:
        if not leases:
            return

        def change(head: LogHead) -> LogAppend[None]:
            known = _active_leases(head)
            wanted = [one for one in leases if (_lease_key(one) in known) is is_standing]
            return LogAppend(result=None, rows=tuple(_lease_row(one) for one in wanted))

        self._log.append(change)


def _active_leases(head: LogHead) -> dict[tuple[str, str], PinLease]:
    newest: dict[tuple[str, str], PinLease] = {}
    for row in head.rows():
        lease = PinLease(**row_fields(row, PinLease, _COLUMN_BY_FIELD))
        newest.pop(_lease_key(lease), None)
        if lease.action == "grant":
            newest[_lease_key(lease)] = lease
    return newest


def _lease_key(lease: PinLease) -> tuple[str, str]:
    return lease.table, lease.tag


def _lease_row(lease: PinLease) -> dict[str, Any]:
    return {_COLUMN_BY_FIELD.get(name, name): value for name, value in lease.model_dump().items()}
