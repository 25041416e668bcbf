"""Rules of handlers, states and upcasters."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill import events
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.events import (
    SKIP,
    AggregateEvent,
    HandledEvent,
    RejectEvent,
    Upcasters,
    UpcastStep,
    handle_event,
)

MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def event(payload: Any = "{}", version: int | None = None) -> AggregateEvent:
    return AggregateEvent("e", "A", "paid", 1, MOMENT, payload, version)


def test_a_state_that_a_handler_changes_before_it_rejects_is_not_kept() -> None:
    def handler(state: Any, _: AggregateEvent, __: Any) -> Any:
        state["cents"] = 7
        raise RejectEvent("no")

    made = handle_event(handler, {"cents": 1}, event())
    assert made == HandledEvent("rejected", {"cents": 1}, "no")


@pytest.mark.parametrize(
    "state",
    [None, 1, [1], {"a": float("nan")}, {1: 2}, {"a": {None: 1}}, {"a": MOMENT}, {"a": {1}}],
)
def test_a_state_that_json_cannot_hold_is_an_error_of_the_handler(state: Any) -> None:
    with pytest.raises(ConfigError, match="no object that JSON can hold"):
        handle_event(lambda *_: state, None, event())


@pytest.mark.req("E2")
def test_messages_are_listed_and_the_outcome_says_so() -> None:
    def handler(state: Any, _: AggregateEvent, context: Any) -> Any:
        assert context.is_replay
        context.send("mail", "k", {"secret": 1})
        return SKIP if state else {"a": 1}

    sent = ({"sink": "mail", "key": "k"},)
    assert handle_event(handler, None, event()) == HandledEvent("suppressed", {"a": 1}, None, sent)
    assert handle_event(handler, {"b": 1}, event()).state == {"b": 1}


@given(st.one_of(st.text(), st.binary()))
def test_no_payload_is_an_error_of_the_replay(payload: str | bytes) -> None:
    made = handle_event(lambda _, one, __: {"p": one.payload}, None, event(payload))
    if made.outcome == "done":
        assert made.state == {"p": json.loads(payload)}
    else:
        assert made.reason is not None
        assert made.reason.startswith("its payload is no JSON")


STEPS = Upcasters(
    [
        UpcastStep("paid", 1, 2, lambda payload: {**payload, "two": True}),
        UpcastStep("paid", 2, 4, lambda payload: {**payload, "four": True}),
    ],
    {"paid": 4},
)


@pytest.mark.req("S7")
def test_upcasters_are_chained_up_to_the_current_version() -> None:
    assert STEPS.raise_version(event({}, 1)) == event({"two": True, "four": True}, 4)
    assert STEPS.raise_version(event({}, 4)) == event({}, 4)


@pytest.mark.req("S7")
@pytest.mark.parametrize(
    ("version", "why"),
    [
        (0, "no upcaster begins at 0"),
        (3, "no upcaster begins at 3"),
        (5, "4 is the newest known"),
        (None, "without a version"),
    ],
)
def test_a_version_without_a_chain_is_rejected_with_the_missing_link(
    version: int | None, why: str
) -> None:
    assert why in str(STEPS.missing_link("paid", version))
    made = handle_event(lambda *_: {}, None, event("{}", version), STEPS)
    assert made.outcome == "rejected"
    past = Upcasters([UpcastStep("paid", 1, 9, dict)], {"paid": 4})
    assert past.missing_link("paid", 1) == "upcasters of paid lead past 4 to 9"
    assert past.missing_link("other", None) is None


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("a", 1, "{}"), ("b", 1, "{}")], "have the sequence number 1"),
        ([("a", 1, "{}"), ("a", 2, "{}")], "has several sequence numbers"),
        ([("a", 1, "{}"), ("a", 1, "[]")], "have the sequence number 1"),
    ],
)
def test_the_fold_of_a_job_fails_on_events_that_contradict_each_other(
    rows: list[tuple[str, int, str]], text: str
) -> None:
    frame = pd.DataFrame(
        [
            {"event_id": name, "aggregate_id": "A", "event_type": "paid", "payload": payload,
             "sequence_num": number, "occurred_at": 0}
            for name, number, payload in rows
        ]
    )  # fmt: skip
    with pytest.raises(ValueError, match=text):
        events._fold_frame(frame, lambda *_: {}, Upcasters((), {}))


@pytest.mark.parametrize("lacking", ["sequence_num", "event_id", "occurred_at", "event_type"])
def test_the_fold_of_a_job_fails_on_a_row_without_a_value_that_each_event_has(lacking: str) -> None:
    whole: dict[str, Any] = {
        "event_id": "a", "aggregate_id": "A", "event_type": "paid", "payload": "{}",
        "sequence_num": 1, "occurred_at": 0,
    }  # fmt: skip
    frame = pd.DataFrame([whole, {**whole, "event_id": "b", lacking: None}])
    with pytest.raises(ValueError, match=f"a row has no {lacking}"):
        events._fold_frame(frame, lambda *_: {}, Upcasters((), {}))
