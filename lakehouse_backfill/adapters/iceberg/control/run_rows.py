"""Runs and their events as rows of `pipeline_run` and `run_event`, and the seal over all events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.control_log import LogHead
from lakehouse_backfill.adapters.iceberg.control.control_rows import row_fields
from lakehouse_backfill.core.runs import audit
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.domain.value import canonical_json

_STATUS_PREFIX = "run."
_SEAL_COUNT_KEY, _SEAL_SUM_KEY = "audit.events", "audit.sum"
_COLUMN_BY_FIELD = {"product": "data_product"}
#: In place of a hash that was there: rows of older releases have neither it nor `previous`.
_REMOVED_HASH = "taken away"
#: The columns of an event's row that a status is made from.
STATUS_COLUMNS = (
    "run_id", "seq", "data_product", "at", "to_state", "driver", "epoch", "hash",
)  # fmt: skip


def event_row(event: Event) -> dict[str, Any]:
    """Give the row of a sealed event."""
    return {
        **event.model_dump(exclude={"detail", "product"}),
        "from_state": event.from_state.value,
        "to_state": event.to_state.value,
        "detail": canonical_json(event.detail),
        "data_product": event.product,
    }


def read_event(row: Mapping[str, Any]) -> Event:
    """Read a row of `run_event`."""
    fields = row_fields(row, Event, _COLUMN_BY_FIELD)
    return Event(**{**fields, "detail": json.loads(row["detail"])})


def read_untrusted_event(row: Mapping[str, Any]) -> Event:
    """Read a row that somebody may have edited; what is no event keeps its odd values."""
    try:
        event = read_event(row)
    except ValueError:
        # Bad JSON, or a state that does not exist: no hash was ever made of that.
        return Event.model_construct(
            **{**row_fields(row, Event, _COLUMN_BY_FIELD), "detail": row["detail"]}
        )
    is_older = row.get("hash") is None and row.get("previous") is None
    return event if event.hash or is_older else event.model_copy(update={"hash": _REMOVED_HASH})


def read_event_chains(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Event, ...]]:
    """Give the events by run, in the order of the rows."""
    found: dict[str, list[Event]] = {}
    for row in rows:
        found.setdefault(row["run_id"], []).append(read_untrusted_event(row))
    return {run_id: tuple(events) for run_id, events in found.items()}


def status_key(run_id: str) -> str:
    """Name the table property that holds an open run's status."""
    return f"{_STATUS_PREFIX}{run_id}"


def status_text(status: RunStatus) -> str:
    """Give the text of the property that holds an open run's status."""
    return canonical_json(status.model_dump(mode="json", exclude={"run_id"}))


def read_open_status(head: LogHead, run_id: str) -> RunStatus | None:
    """Read an open run's status from its property; None when the run is closed or unknown."""
    text = head.properties.get(status_key(run_id))
    return None if text is None else RunStatus(run_id=run_id, **json.loads(text))


def read_open_statuses(head: LogHead) -> list[RunStatus]:
    """Read the statuses of all open runs from the properties."""
    keys = (key for key in head.properties if key.startswith(_STATUS_PREFIX))
    found = (read_open_status(head, key.removeprefix(_STATUS_PREFIX)) for key in keys)
    return [one for one in found if one is not None]


def status_from_row(row: Mapping[str, Any]) -> RunStatus:
    """Make the status of a closed run from its newest row."""
    return RunStatus(
        run_id=row["run_id"],
        product=row["data_product"],
        state=row["to_state"],
        seq=row["seq"],
        at=row["at"],
        driver=row["driver"],
        epoch=row.get("epoch") or 0,
        head=row.get("hash") or "",
    )


def read_seal(head: LogHead) -> tuple[int, str] | None:
    """Read the seal over all events; None when there is none that can be read."""
    count, mark = head.properties.get(_SEAL_COUNT_KEY, ""), head.properties.get(_SEAL_SUM_KEY)
    return (int(count), mark) if count.isdecimal() and mark is not None else None


def next_seal_properties(head: LogHead, previous: str, newest: str) -> dict[str, str]:
    """Give the properties of the seal once a run's newest hash goes from `previous` to `newest`.

    The first seal of a table of an older release covers the events that are there. None is made
    where one was and is gone.
    """
    seal = read_seal(head)
    if seal is None and head.snapshot_id is not None:
        seal = audit.initial_seal(read_event_chains(head.rows()))
        if seal is None:
            return {}
    count, mark = audit.advance_seal(seal, previous, newest)
    return {_SEAL_COUNT_KEY: str(count), _SEAL_SUM_KEY: mark}


def plan_row(plan: Plan) -> dict[str, Any]:
    """Give the row of a plan."""
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
