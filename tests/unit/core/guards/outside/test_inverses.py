"""What a run sent under `compensate` is undone when the run is void, also after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.approval.decisions import accept, approve, cancel
from lakehouse_backfill.core.guards.outside.effect_log import (
    messages_lost,
    pending_inverses,
    recorded_messages,
    require_messages_hold,
)
from lakehouse_backfill.core.publication.publish import publish, publish_with_catch_up
from lakehouse_backfill.core.publication.recover import _find_actions
from lakehouse_backfill.core.publication.rollback import plan_rollback
from lakehouse_backfill.core.publication.rollback_preview import preview_rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.sinks import RunSinks
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.guards.outside import Hook, HookCall
from lakehouse_backfill.errors import Blocked, TargetChanged
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.steps import (
    accepted_run,
    planned_run,
    published_run,
    roll_back,
    staged_run,
)

LIVE, UNDO = "https://crm.example.org/hook", "https://crm.example.org/undo"
CRM = {
    "name": "crm", "type": "ticket", "webhook": LIVE, "inverse": UNDO,
    "policies": {"backfill": "compensate"},
}  # fmt: skip
CONTRACT = contract(sinks=[CRM], roles={"approve": ["ana"]})
pytestmark = pytest.mark.req("E1")


class _Receiver:
    """Receives messages; its inverse refuses the first ones."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses = refuses
        self.got: list[tuple[str | None, dict[str, Any]]] = []

    def call(self, hook: Hook, message: dict[str, Any]) -> HookCall:
        self.got.append((hook.webhook, message))
        is_ok = hook.webhook != UNDO or self.refuses <= 0
        self.refuses -= hook.webhook == UNDO
        detail = "HTTP 200" if is_ok else "HTTP 503"
        return HookCall(hook=hook.name, on=hook.on, is_ok=is_ok, detail=detail, seconds=0)


def world(refuses: int = 0) -> tuple[Context, _Receiver]:
    where, receiver = lake(), _Receiver(refuses)
    return context(where, FakeCompute(where), hooks=receiver), receiver


def send(found: Context, run_id: str) -> None:
    plan, epoch = found.runs.plan(run_id), found.runs.status(run_id).epoch
    for _ in range(2):
        RunSinks(found, plan, epoch).send("crm", "order-1", {"text": "late"})


def outcomes(found: Context, run_id: str) -> list[str]:
    return [one["outcome"] for one in recorded_messages(found, run_id)]


def test_a_rollback_undoes_each_message_once_by_its_id() -> None:
    found, receiver = world()
    run_id = published_run(found, declared(contract=CONTRACT))
    send(found, run_id)
    roll_back(found, of=CONTRACT)
    (first, sent), (second, undone) = receiver.got
    assert (first, second) == (LIVE, UNDO)
    assert (sent["idempotency_key"], sent["payload"]) == (f"order-1@{run_id}", {"text": "late"})
    assert undone == {
        "idempotency_key": f"undo-{sent['message_id']}", "undoes": sent["message_id"],
        "sink": "crm",
    }  # fmt: skip
    assert outcomes(found, run_id) == ["undone"]
    assert pending_inverses(found, run_id) == ()


def test_a_run_that_is_cancelled_or_superseded_undoes_what_staging_sent() -> None:
    found, receiver = world()
    first = staged_run(found, declared(contract=CONTRACT))
    send(found, first)
    cancel(found, first, "bob", "not needed")
    second = staged_run(found, declared(contract=CONTRACT, run={"reason": "again"}))
    send(found, second)
    planned_run(found, declared(contract=CONTRACT, run={"reason": "better"}), revise=second)
    assert [address for address, _ in receiver.got] == [LIVE, UNDO, LIVE, UNDO]
    assert outcomes(found, first) == outcomes(found, second) == ["undone"]


def test_an_inverse_that_failed_is_named_and_recover_calls_it_again() -> None:
    found, receiver = world(refuses=1)
    run_id = staged_run(found, declared(contract=CONTRACT))
    send(found, run_id)
    cancel(found, run_id, "bob", "not needed")
    assert outcomes(found, run_id) == ["not undone"]
    (action,) = _find_actions(found, None, dry_run=False)
    assert "to the sink crm" in action.because
    action.execute("bob")
    assert outcomes(found, run_id) == ["undone"]
    assert list(_find_actions(found, None, dry_run=False)) == []
    assert [address for address, _ in receiver.got] == [LIVE, UNDO, UNDO]


def test_messages_of_a_run_that_holds_stay() -> None:
    found, receiver = world()
    run_id = published_run(found, declared(contract=CONTRACT))
    send(found, run_id)
    assert pending_inverses(found, run_id) == ()
    assert [address for address, _ in receiver.got] == [LIVE]


def test_a_message_of_a_published_run_is_not_sent_again_until_it_is_undone() -> None:
    found, receiver = world()
    first = published_run(found, declared(contract=CONTRACT))
    send(found, first)
    second = staged_run(found, declared(contract=CONTRACT, run={"reason": "again"}))
    send(found, second)
    assert outcomes(found, second) == ["sent before"]
    cancel(found, second, "bob", "not needed")
    assert len(receiver.got) == 1  # what it did not send, it does not undo
    roll_back(found, of=CONTRACT)
    third = staged_run(found, declared(contract=CONTRACT, run={"reason": "anew"}))
    send(found, third)
    assert [address for address, _ in receiver.got] == [LIVE, UNDO, LIVE]
    assert (outcomes(found, first), outcomes(found, third)) == (["undone"], ["sent"])


def test_a_run_whose_messages_were_undone_is_not_published_again() -> None:
    found, receiver = world()
    run_id = accepted_run(found, declared(contract=CONTRACT))
    send(found, run_id)
    publish(found, run_id, "bob")
    roll_back(found, of=CONTRACT)
    with pytest.raises(Blocked, match=r"1 messages of .* to crm do not hold") as refused:
        publish(found, run_id, "bob")
    assert f"--revise {run_id}" in refused.value.fix
    assert [address for address, _ in receiver.got] == [LIVE, UNDO]


def test_a_run_is_not_published_that_relied_on_a_message_which_was_undone() -> None:
    found, _ = world()
    first = published_run(found, declared(contract=CONTRACT))
    send(found, first)
    second = accepted_run(found, declared(contract=CONTRACT, run={"reason": "again"}))
    send(found, second)
    plan = found.runs.plan(second)
    require_messages_hold(found, plan)
    roll_back(found, of=CONTRACT)
    with pytest.raises(Blocked, match="they were undone when the run that sent them became void"):
        require_messages_hold(found, plan)


def test_a_rollback_to_a_later_version_says_which_messages_it_does_not_send_and_what_does() -> None:
    found, receiver = world()
    first = published_run(found, declared(contract=CONTRACT))
    send(found, first)
    newest = found.versions.pointer(PRODUCT).last_version
    assert roll_back(found, of=CONTRACT).messages_lost == ()
    assert messages_lost(found, found.runs.status(first)) == ()  # Readers do not get its rows.
    way = plan_rollback(found, PRODUCT, newest, ())
    preview = preview_rollback(found, CONTRACT, way, "ana")
    again = roll_back(found, newest, of=CONTRACT)
    (lost,) = again.messages_lost
    assert lost.startswith(f"1 messages of {first} to crm do not hold")
    assert f"`lakehouse-backfill plan --revise {first}`" in lost
    assert preview.messages_lost == (lost,)
    assert messages_lost(found, found.runs.status(first)) == (lost,)
    assert [address for address, _ in receiver.got] == [LIVE, UNDO]
    # What the text says to type: the run that takes its place sends it, once, under a new key.
    wanted = declared(contract=CONTRACT, run={"reason": "its messages"})
    second = planned_run(found, wanted, revise=first)
    approve(found, second, "ana", "")
    stage(found, second, "bob")
    send(found, second)
    validate(found, second, "bob")
    accept(found, second, "ana", "")
    publish(found, second, "bob")
    sent = [message["idempotency_key"] for address, message in receiver.got if address == LIVE]
    assert sent == [f"order-1@{first}", f"order-1@{second}"]
    assert [address for address, _ in receiver.got] == [LIVE, UNDO, LIVE]
    assert messages_lost(found, found.runs.status(second)) == ()


def test_a_run_that_readers_get_again_lacks_what_it_relied_on() -> None:
    found, _ = world()
    first = published_run(found, declared(contract=CONTRACT))
    send(found, first)
    second = accepted_run(found, declared(contract=CONTRACT, run={"reason": "again"}))
    send(found, second)
    publish(found, second, "bob")
    newest = found.versions.pointer(PRODUCT).last_version
    assert outcomes(found, second) == ["sent before"]
    roll_back(found, newest - 2, of=CONTRACT)  # Both are taken back.
    lost = roll_back(found, newest, of=CONTRACT).messages_lost
    assert {text.split(" to crm")[0] for text in lost} == {
        f"1 messages of {run_id}" for run_id in (first, second)
    }


@pytest.mark.parametrize("policy", ["compensate", "dedupe"])
def test_a_run_whose_messages_would_be_undone_follows_no_live_commits(policy: str) -> None:
    where, receiver = lake(), _Receiver()
    found = context(where, FakeCompute(where), hooks=receiver)
    safety = {"on_conflict": "catch_up", "sinks": {"crm": policy}}
    days = ("2020-01-02", "2020-01-05")
    run_id = accepted_run(found, declared(*days, contract=CONTRACT, safety=safety))
    send(found, run_id)
    where.write(PRODUCT, "2020-01-03", "old-3@live")
    if policy == "dedupe":  # It stays at the sink: the chunks that are carried over need no other.
        assert publish_with_catch_up(found, run_id, "bob").publication.run_id != run_id
    else:
        with pytest.raises(TargetChanged):
            publish_with_catch_up(found, run_id, "bob")
    assert [address for address, _ in receiver.got] == [LIVE]
