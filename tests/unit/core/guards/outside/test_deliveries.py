"""A message reaches its sink once over all runs of a product, whatever was recorded of it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.guards.outside.effect_log import Delivery, decide_delivery

pytestmark = pytest.mark.req("E1")
MINE = {"sink": "crm", "key": "k", "policy": "dedupe", "payload": "new"}


def known(outcome: str, **changes: str) -> dict[str, str]:
    return {**MINE, "outcome": outcome, "at": "2024-01-01", **changes}


SEND, SKIP = Delivery("send"), Delivery("skip")
BY_OTHER = [("bf-1", known("sent"))]
CASES: dict[str, tuple[Any, list[Any], Delivery, Delivery]] = {
    # own record, those of others, what becomes of it, and what where the receiver is idempotent
    "nobody began": (None, [], SEND, SEND),
    "this run sent it": (known("sent"), [], SKIP, SKIP),
    "its sink refused it": (known("failed"), [], SEND, SEND),
    "this run may have sent it": (known("sending"), [], Delivery("refuse"), SEND),
    "no answer came": (known("unknown"), [], Delivery("refuse"), SEND),
    "another run sent it": (None, BY_OTHER, Delivery("skip", "bf-1"), Delivery("skip", "bf-1")),
    "this run may have sent it, another did": (
        known("sending"), BY_OTHER, Delivery("skip", "bf-1"), Delivery("skip", "bf-1"),
    ),
    "another run may have sent it": (
        None, [("bf-1", known("sending"))], Delivery("refuse", "bf-1"), Delivery("send", "bf-1"),
    ),
    "another run may have sent it under its own key": (
        None, [("bf-1", known("unknown", keyed_by="run"))],
        Delivery("refuse", "bf-1"), Delivery("refuse", "bf-1"),
    ),
    "another run sent other contents": (
        None, [("bf-1", known("sent", payload="old"))],
        Delivery("send", "bf-1", has_own_key=True), Delivery("send", "bf-1", has_own_key=True),
    ),
    "contents were changed and changed back": (
        None, [*BY_OTHER, ("bf-2", known("sent", payload="old", at="2024-01-02"))],
        Delivery("send", "bf-2", has_own_key=True), Delivery("send", "bf-2", has_own_key=True),
    ),
    "a retry keeps the key of the run": (
        known("sending", keyed_by="run"), [("bf-1", known("sent", payload="old"))],
        Delivery("refuse", has_own_key=True), Delivery("send", has_own_key=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_was_recorded_decides(name: str) -> None:
    own, others, wanted, where_idempotent = CASES[name]
    assert decide_delivery(MINE, own, others, is_idempotent=False) == wanted
    assert decide_delivery(MINE, own, others, is_idempotent=True) == where_idempotent


@pytest.mark.parametrize("own", [None, known("failed")])
def test_an_undone_message_may_be_sent_again(own: Any) -> None:
    compensated = {**MINE, "policy": "compensate"}
    assert decide_delivery(compensated, own, [], is_idempotent=False) == SEND
    begun = [("bf-1", known("sending"))]
    assert decide_delivery(compensated, None, begun, is_idempotent=True).act == "refuse"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from("ab"), st.sampled_from(["ok", "lost", "died", "no"])
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_no_receiver_acts_twice_on_what_did_not_change(
    attempts: list[tuple[int, str, str]], is_idempotent: bool
) -> None:
    """Runs send one key with contents, in any order; answers, and processes, are lost."""
    recorded: dict[int, dict[str, str]] = {}
    acted: list[tuple[str, str]] = []
    for at, (run, payload, ending) in enumerate(attempts):
        own = recorded.get(run)
        if own is not None and own["payload"] != payload:
            continue  # refused: two messages with one key in a run
        message = {**MINE, "payload": payload}
        held = ("sent", "sending", "unknown")
        others = [
            (str(n), one) for n, one in recorded.items() if n != run and one["outcome"] in held
        ]
        found = decide_delivery(message, own, others, is_idempotent=is_idempotent)
        if found.act != "send":
            continue
        key = f"k@{run}" if found.has_own_key else "k"
        if ending != "no" and not (is_idempotent and key in [one for one, _ in acted]):
            acted.append((key, payload))
        outcome = {"ok": "sent", "lost": "unknown", "died": "sending", "no": "failed"}[ending]
        keyed = {"keyed_by": "run"} if found.has_own_key else {}
        recorded[run] = {**message, **keyed, "outcome": outcome, "at": f"{at:03d}"}
    # Where a repeat may have brought older contents back, the newer ones are sent again.
    assert is_idempotent or all(one[1] != following[1] for one, following in pairwise(acted))
    assert not acted or max(Counter(key for key, _ in acted).values()) == 1
