"""What keeps a process that was overtaken from writing to the control tables.

A fence is a table property, the newest epoch that may write for a run. It comes with a new
snapshot: a commit that was made ready before is conditional on the old head, so it is refused, and
deciding again sees the fence.
"""

from __future__ import annotations

from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.control_schemas import (
    ACCEPTED_OUTPUT_VERSION,
    BACKFILL_CHUNK_RUN,
    EVIDENCE,
)
from lakehouse_backfill.core.runs import run_log

_FENCE_PREFIX = "fence."
#: The tables that a run's driver writes to. Its moves in `run_event` need no fence: each is
#: conditional on the number of the one before.
_FENCED_TABLES = (ACCEPTED_OUTPUT_VERSION, BACKFILL_CHUNK_RUN, EVIDENCE)


class IcebergFences:
    """`ports.control.Fences` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._logs = [tables.log(table) for table in _FENCED_TABLES]

    def fence(self, run_id: str, epoch: int) -> None:
        """Refuse rows of the run with an earlier epoch from now on, also those under way.

        One commit per table, none where the fence is as high already. The property stays until the
        run is closed and its lease has ended: only runs that were taken over have one.
        """
        for log in self._logs:
            log.append(lambda head: _raise_fence(head, run_id, epoch))


def _raise_fence(head: LogHead, run_id: str, epoch: int) -> LogAppend[None]:
    if _current_fence(head, run_id) >= epoch:
        return LogAppend(result=None)
    return LogAppend(result=None, set={f"{_FENCE_PREFIX}{run_id}": str(epoch)}, moves_head=True)


def _current_fence(head: LogHead, run_id: str) -> int:
    return int(head.properties.get(f"{_FENCE_PREFIX}{run_id}", "0"))


def require_not_fenced(head: LogHead, run_id: str | None, epoch: int) -> None:
    """Raise RunMoved when a later epoch has fenced the run in this table; no run: no fence."""
    if run_id is not None:
        run_log.require_current_epoch(run_id, epoch, _current_fence(head, run_id))


def fenced_runs(tables: ControlTables) -> tuple[str, ...]:
    """Name the runs that have a fence in one of the tables."""
    heads = [tables.log(table).head() for table in _FENCED_TABLES]
    keys = {key for head in heads for key in head.properties if key.startswith(_FENCE_PREFIX)}
    return tuple(sorted(key.removeprefix(_FENCE_PREFIX) for key in keys))


def lift_fences(tables: ControlTables, run_ids: tuple[str, ...]) -> None:
    """Take the fences of closed runs away; one commit per table that has one of them."""
    keys = tuple(f"{_FENCE_PREFIX}{run_id}" for run_id in run_ids)

    def change(head: LogHead) -> LogAppend[None]:
        held = tuple(key for key in keys if key in head.properties)
        return LogAppend(result=None, remove=held, moves_head=bool(held))

    for table in _FENCED_TABLES:
        tables.log(table).append(change)
