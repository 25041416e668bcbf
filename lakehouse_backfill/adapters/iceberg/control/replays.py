"""The ledgers of replays, in the control tables `processed_event` and `replay_job`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lakehouse_backfill.adapters.iceberg.control.log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.schemas import PROCESSED_EVENT, REPLAY_JOB
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.events import ProcessedEvent, ReplayJob, ReplayState


class IcebergReplayLedger:
    """`ports.events.ReplayLedger` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._events = tables.log(PROCESSED_EVENT)
        self._jobs = tables.log(REPLAY_JOB)

    def record(self, state: ReplayState, events: Sequence[ProcessedEvent]) -> None:
        """Append the events of one commit; the same again does nothing."""

        def change(head: LogHead) -> LogAppend[None]:
            if _is_recorded(head, state):
                return LogAppend(result=None)
            return LogAppend(
                result=None,
                rows=tuple(map(PROCESSED_EVENT.row, events)),
                set_properties={_property(state): canonical_json([state.lineage, state.step])},
            )

        if events:
            self._events.append(change)

    def has(self, state: ReplayState) -> bool:
        """Return whether the events of the newest commit are recorded."""
        return _is_recorded(self._events.head(), state)

    def report(self, job: ReplayJob) -> None:
        """Append where a replay stands; the same again does nothing."""

        def change(head: LogHead) -> LogAppend[None]:
            rows = _jobs(head, job.replay_id)
            if rows and is_outdated(job, rows[-1]):
                return LogAppend(result=None)
            return LogAppend(result=None, rows=(REPLAY_JOB.row(job),))

        self._jobs.append(change)


def is_outdated(job: ReplayJob, newest: ReplayJob) -> bool:
    """Return whether a row says nothing new: also one of a process that another one overtook."""
    if newest.status == "done" or job.events < newest.events:
        return True
    return newest == job.model_copy(update={"updated_at": newest.updated_at})


def _property(state: ReplayState) -> str:
    """Return the property that names the newest commit whose events are recorded."""
    return f"replay.{state.store}.{state.ledger_name}"


def _is_recorded(head: LogHead, state: ReplayState) -> bool:
    """Return whether this commit is recorded, or a later one of the same table, and so this too."""
    text = head.properties.get(_property(state))
    if text is None:
        return False
    lineage, step = json.loads(text)
    return bool(lineage == state.lineage and step >= state.step)


def _jobs(head: LogHead, replay_id: str) -> list[ReplayJob]:
    if head.table is None:
        return []
    return [REPLAY_JOB.read(row, ReplayJob) for row in head.rows({"replay_id": replay_id})]
