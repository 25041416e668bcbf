"""Change logs as Debezium writes them, and the state that they give when applied in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.sources.case import Row
from tests.support.sources.files import FileCase

CHANGE_LOG = "change_log: {key: [id], position: [lsn]}\n"
#: 2026-01-01T00:00:00Z
_BEGAN_MS = 1_767_225_600_000


class Change(NamedTuple):
    """A change of the row of one key; a snapshot's rows have one lsn and a mark."""

    lsn: int
    op: str
    id: int
    value: int | None = None
    mark: str = "false"


def envelope(change: Change, row: Row | None = None, **origin: Any) -> dict[str, Any]:
    """Return the record of a change; `row` is the row after it, or before a deletion."""
    image = {"id": change.id, "v": change.value} if row is None else row
    return {
        "before": image if change.op == "d" else None,
        "after": None if change.op == "d" else image,
        "source": {
            "connector": "postgresql", "ts_ms": _BEGAN_MS + change.lsn, "lsn": change.lsn,
            "txId": change.lsn // 2, "snapshot": change.mark, **origin,
        },
        "op": change.op, "ts_ms": _BEGAN_MS + 1_000_000,
    }  # fmt: skip


def lines(records: Iterable[Any]) -> bytes:
    """Return records as JSON lines."""
    return "".join(f"{json.dumps(one)}\n" for one in records).encode()


def oracle(log: Sequence[Change], as_of: int | None = None) -> dict[int, int | None]:
    """Return what the table holds after a log that is in order."""
    state: dict[int, int | None] = {}
    for place, one in enumerate(log):
        if as_of is not None and one.lsn > as_of:
            break
        if one.op == "r" and one.mark != "incremental":
            is_first = place == 0 or log[place - 1].lsn != one.lsn
            last = [later.mark for later in log if later.lsn == one.lsn and later.op == "r"][-1]
            if is_first and last.startswith("last"):
                state.clear()
        if one.op == "d":
            state.pop(one.id, None)
        else:
            state[one.id] = one.value
    return state


class ChangeCase(FileCase):
    """Files of a change log, whose rows are created one by one."""

    def __init__(self, folder: Path) -> None:
        self._lsn = 100
        super().__init__(folder, "debezium")

    def declare(self, more: str) -> None:
        """Write the declaration, with the change log."""
        super().declare(more)
        path = self.project / "catalog/sources/trips.yaml"
        path.write_text(path.read_text() + CHANGE_LOG)

    def write(self, stem: str, records: Sequence[Row]) -> Path:
        """Write a file with a creation of each row."""
        path = self.inbox / f"{stem}.{self.format}"
        found = []
        for row in records:
            self._lsn += 1
            change = Change(self._lsn, "c", row["id"])
            found.append(envelope(change, {**row, "fare": str(row["fare"])}))
        path.write_bytes(lines(found))
        return path
