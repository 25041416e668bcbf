"""Messages of job code to sinks: what each policy does, and what is recorded of it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from lakehouse_backfill.core.guards.outside.effect_log import recorded_messages
from lakehouse_backfill.core.guards.outside.sinks import MEANINGS
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging import sinks
from lakehouse_backfill.core.staging.sinks import RunSinks
from lakehouse_backfill.domain.guards.outside import Hook, HookCall, SinkPolicy, SinkType
from lakehouse_backfill.errors import (
    ConfigError,
    EnvironmentDown,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Unsupported,
)
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.kills import Killed, killed_at, other_process

LIVE, SANDBOX = "https://crm.example.org/hook", "https://test.example.org/hook"
CRM = {
    "name": "crm", "type": "ticket", "webhook": LIVE, "sandbox": SANDBOX,
    "answers": "jobs/answers.json",
}  # fmt: skip
MESSAGE = ("order-1", {"text": "late"})
pytestmark = pytest.mark.req("E1")


class _Receiver:
    """Receives messages; refuses the first ones, or answers them with nothing."""

    def __init__(self, refuses: int = 0, loses: int = 0) -> None:
        self.refuses = refuses or loses
        self.loses = loses > 0
        self.got: list[tuple[str | None, str]] = []

    def call(self, hook: Hook, message: dict[str, Any]) -> HookCall:
        is_ok = self.refuses <= 0
        self.refuses -= 1
        self.got.append((hook.webhook, message["idempotency_key"]))
        detail = "HTTP 200" if is_ok else "HTTP 503"
        return HookCall(
            hook=hook.name, on=hook.on, is_ok=is_ok, detail=detail, seconds=0,
            may_have_arrived=self.loses and not is_ok,
        )  # fmt: skip


def run_with(
    policy: str, receiver: _Receiver, epoch: int | None = 0, **changes: Any
) -> tuple[Context, RunSinks]:
    found = context(
        lake(),
        hooks=receiver,
        file_text=lambda file: (
            json.dumps({"order-1": {"ticket": 7}}) if file.endswith(".json") else "# code"
        ),
    )
    wanted = declared(
        contract=contract(sinks=[{**CRM, **changes}], roles={"approve": ["ana"]}),
        safety={"sinks": {"crm": policy}},
    )
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    return found, RunSinks(found, plan, epoch)


def outcomes(found: Context) -> list[tuple[str, str]]:
    run_id = found.runs.list()[0].run_id
    return [(one["policy"], one["outcome"]) for one in recorded_messages(found, run_id)]


#: What comes of a message to a sink for which everything is declared: its answer, and who got it.
WORKS: dict[str, tuple[Any, list[str]]] = {
    "forbid": ("refused", []),
    "mock": ({"ticket": 7}, []),
    "allow": (None, [LIVE]),
    "sandbox": (None, [SANDBOX]),
    "dedupe": (None, [LIVE]),
    "compensate": (None, [LIVE]),
}
BY_PUBLICATION = ("table", "materialised_view", "feature_store", "topic", "cache")


@pytest.mark.req("T6")
@pytest.mark.parametrize("policy", get_args(SinkPolicy))
@pytest.mark.parametrize("kind", get_args(SinkType))
def test_each_policy_of_each_type_works_or_is_refused_when_planned(kind: str, policy: str) -> None:
    receiver = _Receiver()
    declared_too = {"type": kind, "idempotent": True, "inverse": "https://crm.example.org/undo"}
    if kind in BY_PUBLICATION and policy not in ("forbid", "mock"):
        with pytest.raises(Unsupported) as refused:
            run_with(policy, receiver, **declared_too)
        assert f"the sink crm ({kind}) cannot honour {policy}: " in refused.value.problem
        assert refused.value.fix == "write forbid or mock"
        assert refused.value.field == "safety.sinks.crm"
        return
    _, sinks_of_run = run_with(policy, receiver, **declared_too)
    refusal = sinks_of_run.refusal("crm")
    found = "refused" if refusal else sinks_of_run.send("crm", *MESSAGE)
    assert (found, [address for address, _ in receiver.got]) == WORKS[policy]


def test_a_forbidden_message_is_refused() -> None:
    receiver = _Receiver()
    _, crm = run_with("forbid", receiver)
    assert crm.refusal("crm") == "a message to the ticket crm, which this run forbids"
    assert receiver.got == []


def test_a_mocked_sink_answers_from_its_file_and_nothing_is_sent() -> None:
    receiver = _Receiver()
    found, crm = run_with("mock", receiver)
    assert (crm.refusal("crm"), crm.send("crm", *MESSAGE)) == ("", {"ticket": 7})
    assert crm.send("crm", *MESSAGE) == {"ticket": 7}
    assert (receiver.got, outcomes(found)) == ([], [("mock", "mocked")])
    with pytest.raises(ConfigError, match="has no answer"):
        crm.send("crm", "order-2", {})


def test_a_sandbox_gets_messages_instead_of_the_sink() -> None:
    receiver = _Receiver()
    found, crm = run_with("sandbox", receiver)
    assert crm.send("crm", *MESSAGE) is None
    assert (receiver.got, outcomes(found)) == ([(SANDBOX, "order-1")], [("sandbox", "sent")])


def test_a_deduplicated_message_is_sent_once_also_by_another_process() -> None:
    receiver = _Receiver()
    found, crm = run_with("dedupe", receiver)
    crm.send("crm", *MESSAGE)
    crm.send("crm", *MESSAGE)
    RunSinks(found, crm._plan, 0).send("crm", *MESSAGE)
    assert (receiver.got, outcomes(found)) == ([(LIVE, "order-1")], [("dedupe", "sent")])


def send_by_another_run(
    found: Context, crm: RunSinks, message: tuple[str, Any] = MESSAGE, revised: str | None = None
) -> str:
    """Send a message from a second run of the product; return the run."""
    wanted = crm._plan.resolved
    other = make_plan(
        found,
        declared(
            contract=wanted.contract,
            safety={"sinks": dict(wanted.manifest.safety.sinks)},
            run={"reason": f"another {len(found.runs.list(open_only=False))}"},
        ),
        "bob",
        revised,
    )
    plan, _ = register_plan(found, other, "bob")
    RunSinks(found, plan, 0).send("crm", *message)
    return plan.run_id


def outcome_of(found: Context, run_id: str) -> tuple[str, str | None]:
    (message,) = recorded_messages(found, run_id)
    return message["outcome"], message.get("by")


@pytest.mark.parametrize("policy", ["allow", "dedupe"])
def test_a_message_is_sent_once_over_all_runs_and_the_second_run_records_who_sent_it(
    policy: SinkPolicy,
) -> None:
    receiver = _Receiver()
    found, crm = run_with(policy, receiver, idempotent=policy == "allow")
    for _ in range(3):
        crm.send("crm", *MESSAGE)
    for _ in range(2):
        other = send_by_another_run(found, crm)
        assert outcome_of(found, other) == ("sent before", crm._plan.run_id)
    assert receiver.got == [(LIVE, "order-1")]


def test_other_contents_under_the_key_are_sent_under_a_key_of_the_run() -> None:
    receiver = _Receiver()
    found, crm = run_with("dedupe", receiver)
    crm.send("crm", *MESSAGE)
    other = send_by_another_run(found, crm, ("order-1", {"text": "in time"}))
    back = send_by_another_run(found, crm)
    assert [key for _, key in receiver.got] == ["order-1", f"order-1@{other}", f"order-1@{back}"]


def test_what_may_be_undone_is_not_relied_on() -> None:
    receiver = _Receiver()
    found, crm = run_with("compensate", receiver, inverse="https://crm.example.org/undo")
    crm.send("crm", *MESSAGE)
    other = send_by_another_run(found, crm)
    assert [key for _, key in receiver.got] == [f"order-1@{crm._plan.run_id}", f"order-1@{other}"]


def test_a_run_does_not_send_what_another_may_have_sent_and_can_when_it_did_not() -> None:
    receiver = _Receiver(loses=1)
    found, crm = run_with("dedupe", receiver)
    with pytest.raises(EnvironmentDown) as lost:
        crm.send("crm", *MESSAGE)
    assert lost.value.state.endswith("whether this one arrived is unknown")
    for send in (lambda: send_by_another_run(found, crm), lambda: crm.send("crm", *MESSAGE)):
        with pytest.raises(OutcomeUnknown, match="whether it arrived is unknown") as unknown:
            send()
        assert unknown.value.state == "it was not sent again; nothing was published"
    runs = [run.run_id for run in found.runs.list()]
    outcomes_by_run = {run: outcome_of(found, run) for run in runs}
    (other,) = set(runs) - {crm._plan.run_id}
    assert outcomes_by_run == {
        crm._plan.run_id: ("unknown", None), other: ("not sent", crm._plan.run_id),
    }  # fmt: skip
    assert len(receiver.got) == 1
    crm.send("crm", "order-1/2", {"text": "late"})  # the way out: a person chooses another key
    assert len(receiver.got) == 2


@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize("moment", range(1, 9))
def test_no_kill_between_any_two_effects_makes_a_receiver_act_twice(
    moment: int, is_idempotent: bool
) -> None:
    receiver = _Receiver()
    found, crm = run_with("dedupe", receiver, idempotent=is_idempotent)
    with suppress(Killed), killed_at(moment) as reached:
        RunSinks(other_process(found), crm._plan, 0).send("crm", *MESSAGE)
    may_have_arrived = bool(receiver.got)
    is_done = outcomes(found) == [("dedupe", "sent")]
    was_begun = outcomes(found) == [("dedupe", "sending")]
    if was_begun and not is_idempotent:
        with pytest.raises(OutcomeUnknown, match=f"{crm._plan.run_id} began to send"):
            crm.send("crm", *MESSAGE)
        assert len(receiver.got) == may_have_arrived
        return
    crm.send("crm", *MESSAGE)
    assert {key for _, key in receiver.got} == {"order-1"}
    assert len(receiver.got) == 1 + (may_have_arrived and not is_done)
    assert "Hooks.call:before" in reached or moment < 4


def test_the_page_says_what_the_policies_mean() -> None:
    page = (Path(__file__).parents[4] / "docs" / "side-effects.md").read_text("utf-8")
    for name, meaning in MEANINGS.items():
        assert f"| `{name}` | {meaning} |" in page


def test_a_message_that_was_not_accepted_is_sent_again_with_the_same_key() -> None:
    receiver = _Receiver(refuses=1)
    found, crm = run_with("dedupe", receiver)
    with pytest.raises(EnvironmentDown, match="HTTP 503"):
        crm.send("crm", *MESSAGE)
    assert outcomes(found) == [("dedupe", "failed")]
    crm.send("crm", *MESSAGE)
    assert receiver.got == [(LIVE, "order-1"), (LIVE, "order-1")]
    assert outcomes(found) == [("dedupe", "sent")]


@pytest.mark.parametrize("policy", ["dedupe", "sandbox", "mock"])
def test_what_only_checks_a_run_sends_and_records_nothing(policy: str) -> None:
    receiver = _Receiver()
    found, checking = run_with(policy, receiver, epoch=None)
    answer = checking.send("crm", *MESSAGE)
    assert answer == ({"ticket": 7} if policy == "mock" else None)
    assert (receiver.got, outcomes(found)) == ([], [])


def test_one_key_is_one_message() -> None:
    receiver = _Receiver()
    _, crm = run_with("dedupe", receiver)
    crm.send("crm", *MESSAGE)
    with pytest.raises(ConfigError, match="two messages with one key"):
        crm.send("crm", "order-1", {"text": "early"})
    assert len(receiver.got) == 1


def test_an_undeclared_sink_is_not_found() -> None:
    _, crm = run_with("dedupe", _Receiver())
    with pytest.raises(NotFound, match="declares no sink mail"):
        crm.refusal("mail")


def test_keys_and_contents_are_recorded_as_digests_only() -> None:
    found, crm = run_with("dedupe", _Receiver())
    crm.send("crm", "person-4711", {"mail": "eva@example.org"})
    text = json.dumps(recorded_messages(found, found.runs.list()[0].run_id))
    assert "4711" not in text
    assert "eva" not in text


def test_more_messages_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "MAX_MESSAGES", 2)
    receiver = _Receiver()
    _, crm = run_with("dedupe", receiver)
    for number in range(2):
        crm.send("crm", str(number), {})
    with pytest.raises(LimitExceeded, match="more than 2 messages"):
        crm.send("crm", "2", {})
    assert len(receiver.got) == 2
