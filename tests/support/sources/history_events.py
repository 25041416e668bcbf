"""A history with known defects as an event store, and a judge of what is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.events import SKIP, AggregateEvent, HandlerContext
from lakehouse_backfill.histories import EventHistory

#: Late, twice, out of order, with wrong clocks; nothing is lost, so that no number is missing.
HISTORY = EventHistory(
    events=3_000, seed=11, days=20, accounts=40, lost=0, gaps=0, twice=0.05, schema_steps=()
)


Item = TypeVar("Item")


def as_delivered(items: Sequence[Item]) -> list[Item]:
    """Return items as a history delivers so many events: some late, twice, tangled."""
    history = EventHistory(
        events=len(items), seed=2, days=1, accounts=1, late=0.15, late_days=1, twice=0.25,
        tangled=0.5, tangle_seconds=21_600, lost=0, gaps=0, skewed=0, schema_steps=(),
    )  # fmt: skip
    truth = history.truth().total
    assert min(truth.late, truth.twice, truth.overtaken) > 0
    return [items[number] for number in history.table()["event_id"].to_pylist()]


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
