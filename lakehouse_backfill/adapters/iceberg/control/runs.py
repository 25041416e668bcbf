"""Runs, their events, the chunk ledger, and the fences that refuse writes of an overtaken driver.

The status of an open run is kept in a table property next to its events, so that the status of all
open runs is one table load. The status of a closed run is read from its newest event. A seal over
all events is kept in the table properties too.

A fence is also a table property: the smallest epoch that may write for a run. It is set with a new
snapshot, so a commit that was prepared before is refused, and the next decision reads the fence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    ACCEPTED_OUTPUT_VERSION,
    BACKFILL_CHUNK_RUN,
    EVIDENCE,
    PIPELINE_RUN,
    REJECT_RECORD,
    RUN_EVENT,
)
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.core.planning.job_code import code_files
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.core.runs.event_log import open_plan
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, Event, Lease, RunStatus
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.errors import RunMoved, Tampered
from lakehouse_backfill.ports.control import RecordedRun

_STATUS_PREFIX = "run."
_SEAL_COUNT_KEY, _SEAL_SUM_KEY = "audit.events", "audit.sum"
#: Replaces a missing hash; rows of older releases have neither a hash nor `previous`.
_REMOVED_HASH = "taken away"
#: The columns of an event's row that make up a status.
STATUS_COLUMNS = (
    "run_id", "seq", "data_product", "at", "to_state", "driver", "epoch", "hash",
)  # fmt: skip


def read_event(row: Mapping[str, Any]) -> Event:
    """Read a row of `run_event`."""
    return RUN_EVENT.read(row, Event, detail=json.loads(row["detail"]))


def read_untrusted_event(row: Mapping[str, Any]) -> Event:
    """Read a row that may have been edited; an invalid row keeps its values unchecked."""
    try:
        event = read_event(row)
    except ValueError:
        # Bad JSON or an unknown state: no hash was ever computed over such values.
        return Event.model_construct(**RUN_EVENT.fields(row, Event))
    is_older = row.get("hash") is None and row.get("previous") is None
    return event if event.hash or is_older else event.model_copy(update={"hash": _REMOVED_HASH})


def read_event_chains(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Event, ...]]:
    """Return the events by run, in the order of the rows."""
    events_by_run: dict[str, list[Event]] = {}
    for row in rows:
        events_by_run.setdefault(row["run_id"], []).append(read_untrusted_event(row))
    return {run_id: tuple(events) for run_id, events in events_by_run.items()}


def status_key(run_id: str) -> str:
    """Return the name of the table property that holds an open run's status."""
    return f"{_STATUS_PREFIX}{run_id}"


def status_text(status: RunStatus) -> str:
    """Return the text of the property that holds an open run's status."""
    return canonical_json(status.model_dump(mode="json", exclude={"run_id"}))


def read_open_status(head: LogHead, run_id: str) -> RunStatus | None:
    """Read an open run's status from its property; None when the run is closed or unknown."""
    text = head.properties.get(status_key(run_id))
    return None if text is None else _read_status(run_id, text)


def read_open_statuses(head: LogHead) -> list[RunStatus]:
    """Read the statuses of all open runs from the properties."""
    texts = head.named_properties(_STATUS_PREFIX)
    return [_read_status(run_id, text) for run_id, text in texts.items()]


def _read_status(run_id: str, text: str) -> RunStatus:
    return RunStatus(run_id=run_id, **json.loads(text))


def status_from_row(row: Mapping[str, Any]) -> RunStatus:
    """Build the status of a closed run from its newest row."""
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
    """Read the seal over all events; None when it is missing or not readable."""
    count, seal_sum = head.properties.get(_SEAL_COUNT_KEY, ""), head.properties.get(_SEAL_SUM_KEY)
    return (int(count), seal_sum) if count.isdecimal() and seal_sum is not None else None


def next_seal_properties(head: LogHead, previous: str, newest: str) -> dict[str, str]:
    """Return the properties of the seal after a run's newest hash goes from `previous` to `newest`.

    The first seal of a table of an older release covers its existing events. No seal is written
    if an existing one was removed.
    """
    seal = read_seal(head)
    if seal is None and head.snapshot_id is not None:
        seal = event_log.initial_seal(read_event_chains(head.rows()))
        if seal is None:
            return {}
    count, seal_sum = event_log.advance_seal(seal, previous, newest)
    return {_SEAL_COUNT_KEY: str(count), _SEAL_SUM_KEY: seal_sum}


def plan_row(plan: Plan) -> dict[str, Any]:
    """Return the row of a plan."""
    resolved, manifest = plan.resolved, plan.resolved.manifest
    own = {"run_id", "shadow_table", "manifest_hash", "revises", "created_at", "created_by"}
    intent = {"kind", "mode", "requested_by", "reason", "reason_code"}
    return {
        **plan.model_dump(include=own),
        **manifest.run.model_dump(include=intent),
        "data_product": plan.product,
        "transform": manifest.transform.name,
        "transform_version": manifest.transform.version,
        "git_commit": resolved.git_commit,
        "target_table": resolved.target.table,
        "target_snapshot_id": resolved.target.snapshot_id,
        "partitions": list(resolved.scope.partitions),
        "plan": plan.model_dump_json(),
    }


class IcebergRuns:
    """`ports.control.Runs` on PyIceberg: every move is one conditional commit."""

    def __init__(self, tables: ControlTables) -> None:
        self._plans = tables.log(PIPELINE_RUN)
        self._events = tables.log(RUN_EVENT)
        self._chunks = tables.log(BACKFILL_CHUNK_RUN)
        self._rejects = tables.log(REJECT_RECORD)
        self._fenced = [tables.log(table) for table in FENCED_TABLES]

    def register(self, plan: Plan, event: Event) -> RunStatus:
        """Store the plan and its first event (seq 1); a run id that exists raises RunMoved.

        A registration that was killed between the two is completed by the same intent.
        """
        event_log.require_first_event(plan, event)
        current = _find_status(self._events.head(), plan.run_id)
        if current is not None:
            raise event_log.run_exists_error(current)
        self._plans.append(lambda head: _store_plan(head, plan))
        return self._events.append(lambda head: _append_first_event(head, plan, event))

    def plan(self, run_id: str) -> Plan:
        """Load the plan; raises NotFound, and Tampered when it was edited since it was made.

        Its candidates are the snapshots that the run's log names.
        """
        head = self._plans.head()
        rows = head.rows({"run_id": run_id}, ("run_id", "plan", "manifest_hash"))
        if not rows:
            raise event_log.unknown_run_error(run_id)
        plan = _opened_plan(head, rows[-1])
        if not event_log.reads_candidates(plan):
            return plan
        return event_log.with_bound_inputs(plan, self.events(run_id))

    def code_of(self, name: str, version: str, newest: int) -> dict[str, dict[str, str]]:
        """Return, by run, the code of the newest plans with this transform: SHA-256 by file."""
        where = {"transform": name, "transform_version": version}
        head = self._plans.head()
        ids = [row["run_id"] for row in head.rows(where, ("run_id",))][-newest:]
        code_by_run = {}
        for row in head.rows({"run_id": frozenset(ids)}, ("run_id", "plan", "manifest_hash")):
            with suppress(Tampered):
                plan = _opened_plan(head, row)
                code_by_run[plan.run_id] = code_files(plan.resolved)
        return code_by_run

    def recorded(self, transform: str, newest: int) -> tuple[RecordedRun, ...]:
        """Return the newest runs of a transform, and the newest of all others, oldest first."""
        head = self._plans.head()
        return head.once(
            ("recorded", transform, newest), partial(self._recorded, head, transform, newest)
        )

    def _recorded(self, head: LogHead, transform: str, newest: int) -> tuple[RecordedRun, ...]:
        known = [
            (row["run_id"], row["transform"] == transform)
            for row in head.rows({}, ("run_id", "transform"))
        ]
        own = [run_id for run_id, is_own in known if is_own][-newest:]
        others = [run_id for run_id, is_own in known if not is_own][-newest:]
        where = {"run_id": frozenset((*own, *others))}
        if not known:
            return ()
        events, chunks = self._events.head().rows(where), self._chunks.head().rows(where)
        found = []
        for row in head.rows(where, ("run_id", "plan", "manifest_hash")):
            run_id = row["run_id"]
            # A row that was edited may have lost its form, too.
            with suppress(Tampered, ValueError):
                plan = _opened_plan(head, row)
                log = tuple(read_event(each) for each in events if each["run_id"] == run_id)
                ledger = _newest_chunks(each for each in chunks if each["run_id"] == run_id)
                found.append(RecordedRun(plan, log, ledger))
        return tuple(found)

    def status(self, run_id: str) -> RunStatus:
        """Load the newest status: one table load while the run is open; raises NotFound."""
        return _require_status(self._events.head(), run_id)

    def append(self, event: Event, lease: Lease | None = None) -> RunStatus:
        """Append `event`, sealed, if its seq is exactly one above the run's; else raises RunMoved.

        With a lease its holder becomes the run's driver, and the event's seq becomes the epoch. A
        move without a lease ends the lease; a note leaves it unchanged. The seal over all runs
        moves in the same commit.
        """
        return self._events.append(lambda head: _append_event(head, event, lease))

    def renew(self, run_id: str, epoch: int, until: datetime) -> None:
        """Extend a lease; raises RunMoved when it is no longer the run's lease.

        No event is written, but the head moves: a concurrent event is decided again, so that
        neither overwrites the other's change.
        """
        self._events.append(lambda head: _renew_lease(head, run_id, epoch, until))

    def events(self, run_id: str) -> tuple[Event, ...]:
        """Return the run's log, oldest first; empty for an unknown run."""
        return tuple(read_event(row) for row in self._events.head().rows({"run_id": run_id}))

    def list(self, *, open_only: bool = True) -> tuple[RunStatus, ...]:
        """Return open runs from one table load, or all runs from history; newest first."""
        head = self._events.head()
        statuses = read_open_statuses(head) if open_only else _all_statuses(head)
        return tuple(sorted(statuses, key=lambda one: (one.at, one.run_id), reverse=True))

    def record_chunk(self, chunk: ChunkRecord) -> None:
        """Append one row to the chunk ledger.

        Raises RunMoved when a later epoch than the row's has fenced the run.
        """
        row = BACKFILL_CHUNK_RUN.row(chunk)

        def change(head: LogHead) -> LogAppend[None]:
            require_not_fenced(head, chunk.run_id, chunk.epoch)
            return LogAppend(result=None, rows=(row,))

        self._chunks.append(change)

    def record_rejects(self, run_id: str, epoch: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the table of rejected records, in one commit.

        Raises RunMoved when a later epoch has fenced the run.
        """

        def change(head: LogHead) -> LogAppend[None]:
            require_not_fenced(head, run_id, epoch)
            return LogAppend(result=None, rows=tuple(dict(row) for row in rows))

        self._rejects.append(change)

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        """Return the newest row of each chunk of the run, in chunk order."""
        return _newest_chunks(self._chunks.head().rows({"run_id": run_id}))

    def fence(self, run_id: str, epoch: int) -> None:
        """Refuse rows of the run with an earlier epoch from now on, also in commits under way.

        One commit per table; none where the fence is already as high. The property stays until the
        run is closed and its lease has ended: only runs that were taken over have one.
        """
        for log in self._fenced:
            log.append(lambda head: raise_fence(head, run_id, epoch))

    def fenced(self) -> tuple[str, ...]:
        """Return the runs that have a fence in one of the tables."""
        found = (fenced_runs(log.head()) for log in self._fenced)
        return tuple(sorted(set().union(*found)))

    def lift_fences(self, run_ids: tuple[str, ...]) -> None:
        """Remove the fences of closed runs; one commit per table that has one of them."""
        for log in self._fenced:
            log.append(lambda head: lift_fences(head, run_ids))


def _opened_plan(head: LogHead, row: Mapping[str, Any]) -> Plan:
    """Parse and check the plan of a row; raises Tampered."""
    run_id, text, manifest_hash = row["run_id"], row["plan"], row["manifest_hash"]
    open_it = partial(open_plan, run_id, text, manifest_hash)
    return head.once(("plan", run_id, text, manifest_hash), open_it)


def _newest_chunks(rows: Iterable[Mapping[str, Any]]) -> tuple[ChunkRecord, ...]:
    """Return the newest row of each chunk of one run, in chunk order."""
    newest: dict[str, ChunkRecord] = {}
    for row in rows:
        newest[row["chunk_id"]] = BACKFILL_CHUNK_RUN.read(row, ChunkRecord)
    return tuple(newest[chunk_id] for chunk_id in sorted(newest, key=event_log.chunk_sort_key))


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
        raise event_log.run_exists_error(current)
    return _event_append(head, *event_log.apply_first_event(plan, event))


def _append_event(head: LogHead, event: Event, lease: Lease | None) -> LogAppend[RunStatus]:
    current = _require_status(head, event.run_id)
    if event.seq != current.seq + 1:
        rows = head.rows({"run_id": event.run_id, "seq": event.seq})
        raise event_log.run_moved_error(event, current, read_event(rows[0]) if rows else None)
    return _event_append(
        head, *event_log.apply_event(_with_newest_hash(head, current), event, lease)
    )


def _renew_lease(head: LogHead, run_id: str, epoch: int, until: datetime) -> LogAppend[None]:
    status = event_log.extend_lease(_require_status(head, run_id), epoch, until)
    return LogAppend(
        result=None, set_properties={status_key(run_id): status_text(status)}, moves_head=True
    )


def _event_append(head: LogHead, event: Event, status: RunStatus) -> LogAppend[RunStatus]:
    key, seal = status_key(status.run_id), next_seal_properties(head, event.previous, event.hash)
    is_open = event_log.is_open_run(status)
    row = RUN_EVENT.row(
        event,
        from_state=event.from_state.value,
        to_state=event.to_state.value,
        detail=canonical_json(event.detail),
    )
    return LogAppend(
        result=status,
        rows=(row,),
        set_properties=seal | ({key: status_text(status)} if is_open else {}),
        remove_properties=() if is_open else (key,),
    )


def _with_newest_hash(head: LogHead, status: RunStatus) -> RunStatus:
    """Compute the newest hash of a run whose events an older release wrote without one."""
    if status.head:
        return status
    chain = read_event_chains(head.rows({"run_id": status.run_id}))[status.run_id]
    return status.model_copy(update={"head": event_log.chain_events(chain)[-1].hash})


def _require_status(head: LogHead, run_id: str) -> RunStatus:
    status = _find_status(head, run_id)
    if status is None:
        raise event_log.unknown_run_error(run_id)
    return status


def _find_status(head: LogHead, run_id: str) -> RunStatus | None:
    status = read_open_status(head, run_id)
    if status is None and head.may_hold("run_id", run_id):
        rows = head.rows({"run_id": run_id}, STATUS_COLUMNS)
        status = status_from_row(rows[-1]) if rows else None
    return status


def _all_statuses(head: LogHead) -> list[RunStatus]:
    """Return open runs by their properties, with the lease, and closed ones by newest rows."""
    newest = {row["run_id"]: status_from_row(row) for row in head.rows(columns=STATUS_COLUMNS)}
    return [*{**newest, **{status.run_id: status for status in read_open_statuses(head)}}.values()]


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
