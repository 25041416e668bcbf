"""A history with known defects as an event store, and a judge of what is made of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.events import SKIP, AggregateEvent, HandlerContext
from lakehouse_backfill.histories import EventHistory

#: Late, twice, out of order, with wrong clocks; nothing is lost, so that no number is missing.
HISTORY = EventHistory(
    events=3_000, seed=11, days=20, accounts=40, lost=0, gaps=0, twice=0.05, schema_steps=()
)


def as_events(delivered: pa.Table) -> pa.Table:
    """Return delivered rows as those of an event store, in the order in which they arrive."""
    cents = pc.cast(delivered["amount_cents"], pa.string())
    payload = pc.binary_join_element_wise('{"cents":', cents, "}", "")
    return pa.table(
        {
            "event_id": pc.cast(delivered["event_id"], pa.string()),
            "aggregate_id": pc.cast(delivered["account"], pa.string()),
            "event_type": delivered["kind"],
            "payload": payload,
            "sequence_num": pc.cast(delivered["sequence_num"], pa.int64()),
            "occurred_at": pc.cast(delivered["occurred_at"], pa.timestamp("us", "UTC")),
            "created_at": pc.cast(delivered["arrived_at"], pa.timestamp("us", "UTC")),
        }
    )


def balance(state: Any, event: AggregateEvent, _: HandlerContext) -> Any:
    """Sum up; the newest instant shows that both ways hand over the same one."""
    if event.event_type == "closed":
        return SKIP
    state = state or {"cents": 0, "events": 0, "at": ""}
    return {
        "cents": state["cents"] + event.payload["cents"],
        "events": state["events"] + 1,
        "at": event.occurred_at.isoformat(),
    }


def expected(events: pa.Table) -> dict[str, Any]:
    """Return the state of each aggregate, computed without the package."""
    states: dict[str, Any] = {}
    once = {row["event_id"]: row for row in events.to_pylist()}
    for row in sorted(once.values(), key=lambda one: (one["aggregate_id"], one["sequence_num"])):
        state = states.setdefault(row["aggregate_id"], {"cents": 0, "events": 0, "at": ""})
        if row["event_type"] != "closed":
            state["cents"] += int(row["payload"][len('{"cents":') : -1])
            state["events"] += 1
            state["at"] = row["occurred_at"].isoformat()
    return states
