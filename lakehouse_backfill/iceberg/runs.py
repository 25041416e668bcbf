"""Runs and their logs, on `pipeline_run` and `run_event`.

The status of an open run stands in a table property beside its events, so that looking at all
open runs is one table load; a closed run is read from its newest event.
"""

from __future__ import annotations

import json
from typing import Any

from lakehouse_backfill.errors import RunMoved
from lakehouse_backfill.iceberg.control import ControlTables
from lakehouse_backfill.iceberg.control_log import Change, Head
from lakehouse_backfill.iceberg.control_schemas import PIPELINE_RUN, RUN_EVENT
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import Event, RunStatus
from lakehouse_backfill.model.value import canonical_json
from lakehouse_backfill.rules import run_log

_PREFIX = "run."
_STATUS = ("run_id", "seq", "data_product", "at", "to_state", "driver")


class IcebergRuns:
    """`ports.control.Runs` on PyIceberg: every move is one conditional commit."""

    def __init__(self, tables: ControlTables) -> None:
        self._plans = tables.log(PIPELINE_RUN)
        self._events = tables.log(RUN_EVENT)

    def register(self, plan: Plan, event: Event) -> RunStatus:
        """Store the plan and its first event (seq 1); a run id that exists raises RunMoved.

        A registration that was killed between the two is completed by the same intent.
        """
        run_log.require_first(plan, event)
        current = _status(self._events.head(), plan.run_id)
        if current is not None:
            raise run_log.registered(current)
        self._plans.append(lambda head: _store(head, plan))
        return self._events.append(lambda head: _begin(head, plan, event))

    def plan(self, run_id: str) -> Plan:
        """Load the plan; raises NotFound."""
        rows = self._plans.head().rows({"run_id": run_id}, ("plan",))
        if not rows:
            raise run_log.unknown(run_id)
        return Plan.model_validate_json(rows[-1]["plan"])

    def status(self, run_id: str) -> RunStatus:
        """Load the newest status: one table load while the run is open; raises NotFound."""
        found = _status(self._events.head(), run_id)
        if found is None:
            raise run_log.unknown(run_id)
        return found

    def append(self, event: Event, driver: str | None = None) -> RunStatus:
        """Append `event` if its seq is exactly one above the run's; else raises RunMoved.

        The driver of the run becomes `driver`; a note without one leaves it as it is.
        """
        return self._events.append(lambda head: _move(head, event, driver))

    def events(self, run_id: str) -> tuple[Event, ...]:
        """The run's log, oldest first; none for an unknown run."""
        return tuple(_event(row) for row in self._events.head().rows({"run_id": run_id}))

    def list(self, open_only: bool = True) -> tuple[RunStatus, ...]:  # noqa: FBT001, FBT002 (port)
        """Open runs from one table load, or all runs from history; newest first."""
        head = self._events.head()
        found = _open_runs(head) if open_only else _all_runs(head)
        return tuple(sorted(found, key=lambda one: (one.at, one.run_id), reverse=True))


def _store(head: Head, plan: Plan) -> Change[None]:
    stored = head.rows({"run_id": plan.run_id}, ("manifest_hash", "created_by"))
    if not stored:
        return Change(result=None, rows=(_plan_row(plan),))
    if stored[-1]["manifest_hash"] != plan.manifest_hash:
        raise RunMoved(
            f"{plan.run_id} was planned by {stored[-1]['created_by']} with another intent",
            fix="plan again",
        )
    return Change(result=None)


def _begin(head: Head, plan: Plan, event: Event) -> Change[RunStatus]:
    current = _status(head, plan.run_id)
    if current is not None:
        raise run_log.registered(current)
    return _change(event, run_log.first(plan, event))


def _move(head: Head, event: Event, driver: str | None) -> Change[RunStatus]:
    current = _status(head, event.run_id)
    if current is None:
        raise run_log.unknown(event.run_id)
    if event.seq != current.seq + 1:
        rows = head.rows({"run_id": event.run_id, "seq": event.seq})
        raise run_log.moved(event, current, _event(rows[0]) if rows else None)
    return _change(event, run_log.after(current, event, driver))


def _change(event: Event, status: RunStatus) -> Change[RunStatus]:
    key = f"{_PREFIX}{status.run_id}"
    is_open = run_log.is_open(status)
    return Change(
        result=status,
        rows=(_event_row(event, status),),
        set={key: canonical_json(status.model_dump(mode="json", exclude={"run_id"}))}
        if is_open
        else {},
        remove=() if is_open else (key,),
    )


def _status(head: Head, run_id: str) -> RunStatus | None:
    text = head.properties.get(f"{_PREFIX}{run_id}")
    if text is not None:
        return RunStatus(run_id=run_id, **json.loads(text))
    rows = head.rows({"run_id": run_id}, _STATUS)
    return _status_of(rows[-1]) if rows else None


def _open_runs(head: Head) -> list[RunStatus]:
    return [
        RunStatus(run_id=key.removeprefix(_PREFIX), **json.loads(text))
        for key, text in head.properties.items()
        if key.startswith(_PREFIX)
    ]


def _all_runs(head: Head) -> list[RunStatus]:
    newest = {row["run_id"]: row for row in head.rows(columns=_STATUS)}
    return [_status_of(row) for row in newest.values()]


def _status_of(row: dict[str, Any]) -> RunStatus:
    return RunStatus(
        run_id=row["run_id"],
        product=row["data_product"],
        state=row["to_state"],
        seq=row["seq"],
        at=row["at"],
        driver=row["driver"],
    )


def _event_row(event: Event, status: RunStatus) -> dict[str, Any]:
    return {
        **event.model_dump(exclude={"detail"}),
        "from_state": event.from_state.value,
        "to_state": event.to_state.value,
        "detail": canonical_json(event.detail),
        "data_product": status.product,
        "driver": status.driver,
    }


def _event(row: dict[str, Any]) -> Event:
    fields = {name: row[name] for name in Event.model_fields if name != "detail"}
    return Event(**fields, detail=json.loads(row["detail"]))


def _plan_row(plan: Plan) -> dict[str, Any]:
    resolved = plan.resolved
    run = resolved.manifest.run
    transform = resolved.manifest.transform
    return {
        "run_id": plan.run_id,
        "data_product": plan.product,
        "kind": run.kind,
        "mode": run.mode,
        "requested_by": run.requested_by,
        "reason": run.reason,
        "reason_code": run.reason_code,
        "transform": transform.name,
        "transform_version": transform.version,
        "git_commit": resolved.git_commit,
        "target_table": resolved.target.table,
        "target_snapshot_id": resolved.target.snapshot_id,
        "shadow_table": plan.shadow_table,
        "partitions": list(resolved.scope.partitions),
        "manifest_hash": plan.manifest_hash,
        "revises": plan.revises,
        "created_at": plan.created_at,
        "created_by": plan.created_by,
        "plan": plan.model_dump_json(),
    }
