"""A project with an event store, and a judge of what handlers made of it, in plain Python."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.iceberg.schema import create_table
from lakehouse_backfill.domain.contract import Contract, ContractColumn, ContractPartition
from lakehouse_backfill.project import Project
from tests.support.forks import FORKS
from tests.support.sources.case import new_project

COLUMNS = (
    ("event_id", "string"), ("aggregate_id", "string"), ("aggregate_type", "string"),
    ("event_type", "string"), ("payload", "string"), ("correlation_id", "string"),
    ("causation_id", "string"), ("sequence_num", "long"), ("occurred_at", "timestamptz"),
    ("created_at", "timestamptz"), ("version", "int"),
)  # fmt: skip
HANDLERS = """\
from lakehouse_backfill.events import SKIP, RejectEvent


def balance(state, event, context):
    if event.event_type == "note":
        return SKIP
    state = state or {"cents": 0, "ids": []}
    cents = state["cents"] + event.payload["cents"]
    if cents < 0:
        raise RejectEvent("the balance would be negative")
    if event.event_type == "mailed":
        context.send("mail", event.event_id, {"cents": cents})
    assert context.is_replay
    return {"cents": cents, "ids": [*state["ids"], event.event_id]}


def count(state, event, context):
    return {"events": (state or {"events": 0})["events"] + 1}


def broken(state, event, context):
    return {"rate": 1 / (event.sequence_num - 3)}


def to_cents(payload):
    return {"cents": payload["euros"] * 100}


def from_millis(payload):
    return {"cents": payload["cents"]["value"]}
"""
DECLARATION = """\
api_version: lakehouse-backfill/v1
events: orders
table: bronze.order_events
handlers:
  balances:
    function: "handlers.money:balance"
    version: 1.0.0
    table: silver.balances
    checkpoint_events: 5
    state_every: 3
    buckets: 2
  counts: {function: "handlers.money:count", version: 1.0.0, table: silver.counts, buckets: 1}
  broken:
    function: "handlers.money:broken"
    version: 1.0.0
    table: silver.broken
    checkpoint_events: 2
    buckets: 1
"""
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Made:
    """One event as the tests make it."""

    event_id: str
    aggregate_id: str
    sequence_num: int
    seconds: int = 0
    cents: int = 1
    event_type: str = "paid"
    payload: str | bytes | None = None
    version: int | None = None

    def row(self) -> dict[str, Any]:
        """Return its row of the table."""
        text = json.dumps({"cents": self.cents}) if self.payload is None else self.payload
        return {
            "event_id": self.event_id,
            "aggregate_id": self.aggregate_id,
            "aggregate_type": "order",
            "event_type": self.event_type,
            "payload": text,
            "sequence_num": self.sequence_num,
            "occurred_at": START + timedelta(seconds=self.seconds),
            "created_at": START,
            "version": self.version,
        }


class EventCase:
    """A table of events in an embedded lake, with handlers."""

    def __init__(
        self, folder: Path, more: str = "", declaration: str = DECLARATION, payload: str = "string"
    ) -> None:
        self.project = new_project(folder)
        (folder / "catalog/events").mkdir()
        (folder / "handlers").mkdir()
        (folder / "handlers/money.py").write_text(HANDLERS)
        self.declare(more, declaration)
        wiring = Project.open(folder).wiring
        wiring.create_lake()
        create_table(wiring.catalog, contract_of(payload))

    def declare(self, more: str = "", declaration: str = DECLARATION) -> None:
        """Write the declaration, with further fields."""
        (self.project / "catalog/events/orders.yaml").write_text(declaration + more)

    def append(self, events: Iterable[Made]) -> None:
        """Append events to the table, in one commit."""
        table = self.table()
        rows = [event.row() for event in events]
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    def table(self, name: str = "bronze.order_events") -> Any:
        """Load a table of the lake."""
        return Project.open(self.project).wiring.catalog.load_table(name)

    def replay(self, handler: str = "balances", **selected: Any) -> Any:
        """Replay in this process."""
        return Project.open(self.project).replay("orders", handler, **selected)

    def rows(self, name: str = "silver.balances") -> list[dict[str, Any]]:
        """Return what a handler has written."""
        found: list[dict[str, Any]] = self.table(name).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row["aggregate_id"], row["sequence_num"]))

    def states(self, name: str = "silver.balances") -> dict[str, Any]:
        """Return the newest state of each aggregate."""
        kept = [row for row in self.rows(name) if row["state"] is not None]
        return {row["aggregate_id"]: json.loads(row["state"]) for row in kept}

    def control(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a control table, oldest first."""
        found = self.table(f"lakehouse_backfill.{name}").scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["log_seq"])

    def require_equals_oracle(self, events: Sequence[Made]) -> None:
        """Compare states, ledgers and counts with what one thread makes of the events."""
        states, outcomes = oracle(events)
        assert self.states() == states
        rows = self.rows()
        assert {row["event_id"]: row["outcome"] for row in rows} == outcomes
        assert len(rows) == len(outcomes)
        ledger = [(row["event_id"], row["outcome"]) for row in self.control("processed_event")]
        assert Counter(ledger) == Counter(outcomes.items())


def oracle(events: Sequence[Made]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the states and outcomes that `balance` leads to, handled one after another."""
    states: dict[str, Any] = {}
    outcomes: dict[str, str] = {}
    for event in sorted(set(events), key=lambda one: (one.aggregate_id, one.sequence_num)):
        old = states.setdefault(event.aggregate_id, None)
        before = old or {"cents": 0, "ids": []}
        cents = before["cents"] + event.cents
        if event.event_type == "note":
            outcomes[event.event_id] = "skipped"
        elif cents < 0:
            outcomes[event.event_id] = "rejected"
        else:
            outcomes[event.event_id] = "suppressed" if event.event_type == "mailed" else "done"
            states[event.aggregate_id] = {"cents": cents, "ids": [*before["ids"], event.event_id]}
    return states, outcomes


def contract_of(payload: str = "string") -> Contract:
    """Return the contract of the table of events."""
    return Contract(
        api_version="lakehouse-backfill/v1",
        product="bronze.order_events",
        table="bronze.order_events",
        description="Events.",
        owner="o@example.com",
        key=(),
        partitioning=(ContractPartition(column="aggregate_id", transform="bucket[4]"),),
        columns=tuple(
            ContractColumn(name=name, type=payload if name == "payload" else kind)
            for name, kind in COLUMNS
        ),
    )


def replay_quietly(folder: Path) -> Any:
    """Replay; rejected events are part of the cases."""
    return Project.open(folder).replay("orders", "balances")


def _replay_until(folder: str, moment: str) -> None:
    seen: Counter[str] = Counter()

    def kill(point: str) -> None:
        seen[point] += 1
        if f"{point} {seen[point]}" == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.install_hook(kill)
    replay_quietly(Path(folder))


def kill_while_replaying(case: EventCase, moment: str) -> None:
    """Replay in a process of its own that dies at a moment, `POINT COUNT`."""
    child: multiprocessing.process.BaseProcess = FORKS.Process(
        target=_replay_until, args=(str(case.project), moment)
    )
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL, moment
