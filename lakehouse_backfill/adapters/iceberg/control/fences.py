"""Fences of runs: what refuses writes of an overtaken driver.

A fence is a table property, the smallest epoch that may write for a run, and is set with a new
snapshot: a commit prepared before requires the old head, so it is refused, and the next decision
reads the fence.
"""

from __future__ import annotations

from lakehouse_backfill.adapters.iceberg.control.log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    ACCEPTED_OUTPUT_VERSION,
    BACKFILL_CHUNK_RUN,
    EVIDENCE,
    REJECT_RECORD,
)
from lakehouse_backfill.core.runs import event_log

_FENCE_PREFIX = "fence."
#: The tables that a run's driver writes to. Its events in `run_event` need no fence: each is
#: conditional on the number of the previous one.
FENCED_TABLES = (ACCEPTED_OUTPUT_VERSION, BACKFILL_CHUNK_RUN, EVIDENCE, REJECT_RECORD)


def raise_fence(head: LogHead, run_id: str, epoch: int) -> LogAppend[None]:
    """Set the run's fence in one table; nothing where it is already as high."""
    if _current_fence(head, run_id) >= epoch:
        return LogAppend(result=None)
    return LogAppend(
        result=None, set_properties={f"{_FENCE_PREFIX}{run_id}": str(epoch)}, moves_head=True
    )


def lift_fences(head: LogHead, run_ids: tuple[str, ...]) -> LogAppend[None]:
    """Remove the fences of the runs in one table."""
    keys = (f"{_FENCE_PREFIX}{run_id}" for run_id in run_ids)
    present = tuple(key for key in keys if key in head.properties)
    return LogAppend(result=None, remove_properties=present, moves_head=bool(present))


def fenced_runs(head: LogHead) -> set[str]:
    """Return the runs that have a fence in one table."""
    return set(head.named_properties(_FENCE_PREFIX))


def require_not_fenced(head: LogHead, run_id: str | None, epoch: int) -> None:
    """Raise RunMoved when a later epoch has fenced the run in this table; no run: no check."""
    if run_id is not None and epoch < (fence := _current_fence(head, run_id)):
        raise event_log.overtaken_error(run_id, epoch, fence)


def _current_fence(head: LogHead, run_id: str) -> int:
    return int(head.properties.get(f"{_FENCE_PREFIX}{run_id}", "0"))
