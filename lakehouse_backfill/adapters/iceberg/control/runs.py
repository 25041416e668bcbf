"""Runs and their logs, on `pipeline_run` and `run_event`.

The status of an open run stands in a table property beside its events, so that looking at all
open runs is one table load; a closed run is read from its newest event.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.control_schemas import PIPELINE_RUN, RUN_EVENT
from lakehouse_backfill.adapters.iceberg.control.run_rows import (
    STATUS_COLUMNS,
    event_row,
    next_seal_properties,
    plan_row,
    read_event,
    read_event_chains,
    read_open_status,
    read_open_statuses,
    status_from_row,
    status_key,
    status_text,
)
from lakehouse_backfill.core.planning.code_identity import code_files
from lakehouse_backfill.core.runs import run_log
from lakehouse_backfill.core.runs.sealed import open_plan
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event, Lease, RunStatus
from lakehouse_backfill.errors import RunMoved, Tampered


class IcebergRuns:
    """`ports.control.Runs` on PyIceberg: every move is one conditional commit."""

    def __init__(self, tables: ControlTables) -> None:
        self._plans = tables.log(PIPELINE_RUN)
        self._events = tables.log(RUN_EVENT)

    def register(self, plan: Plan, event: Event) -> RunStatus:
        """Store the plan and its first event (seq 1); a run id that exists raises RunMoved.

        A registration that was killed between the two is completed by the same intent.
        """
        run_log.require_first_event(plan, event)
        current = _find_status(self._events.head(), plan.run_id)
        if current is not None:
            raise run_log.run_exists_error(current)
        self._plans.append(lambda head: _store_plan(head, plan))
        return self._events.append(lambda head: _append_first_event(head, plan, event))

    def plan(self, run_id: str) -> Plan:
        """Load the plan; raises NotFound, and Tampered when it was edited since it was made."""
        rows = self._plans.head().rows({"run_id": run_id}, ("plan", "manifest_hash"))
        if not rows:
            raise run_log.unknown_run_error(run_id)
        return open_plan(run_id, rows[-1]["plan"], rows[-1]["manifest_hash"])

    def code_of(self, name: str, version: str) -> dict[str, dict[str, str]]:
        """Give, by run, the code of all stored plans with this transform: SHA-256 by file."""
        where: dict[str, str | int] = {"transform": name, "transform_version": version}
        found = {}
        for row in self._plans.head().rows(where, ("run_id", "plan", "manifest_hash")):
            with suppress(Tampered):
                plan = open_plan(row["run_id"], row["plan"], row["manifest_hash"])
                found[plan.run_id] = code_files(plan.resolved)
        return found

    def status(self, run_id: str) -> RunStatus:
        """Load the newest status: one table load while the run is open; raises NotFound."""
        return _require_status(self._events.head(), run_id)

    def append(self, event: Event, lease: Lease | None = None) -> RunStatus:
        """Append `event`, sealed, if its seq is exactly one above the run's; else raises RunMoved.

        With a lease its holder becomes the run's driver, and the event's seq the epoch; a move
        without one ends the lease, a note leaves it as it is. The seal over all runs moves in the
        same commit.
        """
        return self._events.append(lambda head: _append_event(head, event, lease))

    def renew(self, run_id: str, epoch: int, until: datetime) -> None:
        """Let a lease last longer; raises RunMoved when it is not the run's lease any more.

        No event is written, yet the head moves: an event that is under way is decided again, so
        that neither overwrites what the other wrote.
        """
        self._events.append(lambda head: _renew_lease(head, run_id, epoch, until))

    def events(self, run_id: str) -> tuple[Event, ...]:
        """The run's log, oldest first; none for an unknown run."""
        return tuple(read_event(row) for row in self._events.head().rows({"run_id": run_id}))

    def list(self, *, open_only: bool = True) -> tuple[RunStatus, ...]:
        """Open runs from one table load, or all runs from history; newest first."""
        head = self._events.head()
        found = read_open_statuses(head) if open_only else _all_statuses(head)
        return tuple(sorted(found, key=lambda one: (one.at, one.run_id), reverse=True))


def _store_plan(head: LogHead, plan: Plan) -> LogAppend[None]:
    stored = head.rows({"run_id": plan.run_id}, ("manifest_hash", "created_by"))
    if not stored:
        return LogAppend(result=None, rows=(plan_row(plan),))
    if stored[-1]["manifest_hash"] != plan.manifest_hash:
        raise RunMoved(
            f"{plan.run_id} was planned by {stored[-1]['created_by']} with another intent",
            fix="plan again",
        )
    return LogAppend(result=None)


def _append_first_event(head: LogHead, plan: Plan, event: Event) -> LogAppend[RunStatus]:
    current = _find_status(head, plan.run_id)
    if current is not None:
        raise run_log.run_exists_error(current)
    return _event_append(head, *run_log.apply_first_event(plan, event))


def _append_event(head: LogHead, event: Event, lease: Lease | None) -> LogAppend[RunStatus]:
    current = _require_status(head, event.run_id)
    if event.seq != current.seq + 1:
        rows = head.rows({"run_id": event.run_id, "seq": event.seq})
        raise run_log.run_moved_error(event, current, read_event(rows[0]) if rows else None)
    return _event_append(head, *run_log.apply_event(_with_newest_hash(head, current), event, lease))


def _renew_lease(head: LogHead, run_id: str, epoch: int, until: datetime) -> LogAppend[None]:
    status = run_log.extend_lease(_require_status(head, run_id), epoch, until)
    return LogAppend(result=None, set={status_key(run_id): status_text(status)}, moves_head=True)


def _event_append(head: LogHead, event: Event, status: RunStatus) -> LogAppend[RunStatus]:
    key, seal = status_key(status.run_id), next_seal_properties(head, event.previous, event.hash)
    is_open = run_log.is_open_run(status)
    return LogAppend(
        result=status,
        rows=(event_row(event),),
        set=seal | ({key: status_text(status)} if is_open else {}),
        remove=() if is_open else (key,),
    )


def _with_newest_hash(head: LogHead, status: RunStatus) -> RunStatus:
    """Work out the newest hash of a run whose events an older release wrote without one."""
    if status.head:
        return status
    chain = read_event_chains(head.rows({"run_id": status.run_id}))[status.run_id]
    return status.model_copy(update={"head": run_log.chain_events(chain)[-1].hash})


def _require_status(head: LogHead, run_id: str) -> RunStatus:
    found = _find_status(head, run_id)
    if found is None:
        raise run_log.unknown_run_error(run_id)
    return found


def _find_status(head: LogHead, run_id: str) -> RunStatus | None:
    found = read_open_status(head, run_id)
    if found is None:
        rows = head.rows({"run_id": run_id}, STATUS_COLUMNS)
        found = status_from_row(rows[-1]) if rows else None
    return found


def _all_statuses(head: LogHead) -> list[RunStatus]:
    """Open runs as their properties say, with the lease; closed ones from their newest rows."""
    newest = {row["run_id"]: status_from_row(row) for row in head.rows(columns=STATUS_COLUMNS)}
    return [*{**newest, **{one.run_id: one for one in read_open_statuses(head)}}.values()]
