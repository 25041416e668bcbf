"""A plan in prod is signed by who made it; approve, run and publish take no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.verification.verify import verify
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.run import Event, RunState
from lakehouse_backfill.errors import ApprovalMissing, Blocked, NotAllowed, Tampered
from tests.support.examples.keys import PROD, Keyring
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, declared
from tests.support.fakes.lake import FixedClock
from tests.support.fakes.signed import accepted, approved, planned, prod_world, signed_anew

E4 = pytest.mark.req("E4")
LAX = PROD.model_copy(update={"signatures": "optional"})


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob", "eve")


def unsigned(event: Event) -> Event:
    detail = {name: each for name, each in event.detail.items() if name != "signature"}
    return event.model_copy(update={"detail": detail})


def edit_first(found: Context, run_id: str, change: Callable[[Event], Event]) -> None:
    """Make the log anew, with another first event."""
    steps.rewrite_log(found, run_id, lambda events: [change(events[0]), *events[1:]])


def act(keys: Keyring, found: Context, verb: str) -> tuple[str, Callable[[], object]]:
    """A run that is ready for a verb, and the verb as who has key and role types it."""
    run_id = {"approve": planned, "run": approved, "publish": accepted}[verb](keys, found)
    calls: dict[str, Callable[[], object]] = {
        "approve": lambda: decisions.approve(keys.acting(found, "ana"), run_id, "ana", ""),
        "run": lambda: stage(found, run_id, "bob"),
        "publish": lambda: publish(keys.acting(found, "bob"), run_id, "bob"),
    }
    return run_id, calls[verb]


VERBS = pytest.mark.parametrize("verb", ["approve", "run", "publish"])


@E4
def test_a_plan_without_a_key_pins_and_registers_nothing(keys: Keyring) -> None:
    found = prod_world(keys)
    plan = make_plan(found, declared(), "bob", None)
    calls = steps.note_calls(found.pins, "pin")
    with pytest.raises(ApprovalMissing, match="'plan' has to be signed in prod") as caught:
        register_plan(found, plan, "bob")
    assert (caught.value.exit_code, calls, found.runs.list()) == (3, [], ())
    assert "--sign-with KEY" in caught.value.fix


@E4
def test_a_revision_is_signed_too(keys: Keyring) -> None:
    found = prod_world(keys)
    first = accepted(keys, found)
    wanted = declared(transform={"version": "2.0.0"})
    with pytest.raises(ApprovalMissing, match="'plan' has to be signed in prod"):
        steps.planned_run(found, wanted, first)
    assert steps.state_of(found, first) is RunState.ACCEPTED
    second = steps.planned_run(keys.acting(found, "bob"), wanted, first)
    assert steps.state_of(found, first) is RunState.SUPERSEDED
    assert "signature" in found.runs.events(second)[0].detail


@E4
@VERBS
def test_a_plan_that_is_not_signed_is_neither_approved_nor_run_nor_published(
    keys: Keyring, verb: str
) -> None:
    found = prod_world(keys)
    run_id, call = act(keys, found, verb)
    edit_first(found, run_id, unsigned)
    before = found.runs.status(run_id)
    with pytest.raises(ApprovalMissing, match=r"plan \(event 1 of .*not signed") as caught:
        call()
    assert caught.value.exit_code == 3
    assert caught.value.state == "nothing was computed, decided or published"
    assert f"cancel {run_id}" in caught.value.fix
    assert found.runs.status(run_id) == before


@E4
@VERBS
@pytest.mark.parametrize("field", ["created_by", "code_of", "shadow_table", "revises"])
def test_a_forged_row_of_a_plan_is_neither_approved_nor_run_nor_published(
    keys: Keyring, verb: str, field: str
) -> None:
    """The manifest hash does not cover these fields; `created_by` decides on four eyes."""
    found = prod_world(keys)
    run_id, call = act(keys, found, verb)
    runs: Any = found.runs
    runs.plans[run_id] = runs.plans[run_id].model_copy(update={field: "eve"})
    with pytest.raises(Tampered, match="is not the one that was registered"):
        call()
    # Who writes to all tables makes the log agree, and has no key of bob.
    changed = runs.plans[run_id].registered_digest
    edit_first(
        found, run_id,
        lambda event: event.model_copy(
            update={"detail": {**event.detail, "registered": changed}}
        ),
    )  # fmt: skip
    with pytest.raises(ApprovalMissing, match=r"plan .*differs in detail.registered"):
        call()


@E4
@VERBS
def test_a_plan_that_somebody_else_signed_is_refused(keys: Keyring, verb: str) -> None:
    found = prod_world(keys)
    run_id, call = act(keys, found, verb)
    plan = found.runs.plan(run_id)
    edit_first(found, run_id, lambda event: signed_anew(keys, "eve", event, plan))
    with pytest.raises(NotAllowed, match=f"eve signed the plan {run_id}, and bob made it"):
        call()


@E4
def test_a_plan_of_an_older_release_names_no_registered_digest(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id, call = act(keys, found, "approve")

    def older(event: Event) -> Event:
        detail = {name: each for name, each in event.detail.items() if name != "registered"}
        return event.model_copy(update={"detail": detail})

    edit_first(found, run_id, older)
    with pytest.raises(Blocked, match=f"plan of {run_id}: not signed"):
        call()
    dev = steps.world()[1]
    run_id = steps.planned_run(dev)
    edit_first(dev, run_id, older)
    decisions.approve(dev, run_id, "ana", "")
    assert steps.state_of(dev, run_id) is RunState.APPROVED


@E4
def test_a_forged_row_of_a_plan_is_found_in_dev_too() -> None:
    found = steps.world()[1]
    run_id = steps.planned_run(found)
    runs: Any = found.runs
    runs.plans[run_id] = runs.plans[run_id].model_copy(update={"created_by": "eve"})
    with pytest.raises(Tampered, match="is not the one that was registered"):
        decisions.approve(found, run_id, "ana", "")
    check = next(one for one in verify(found, run_id).checks if one.name == "plan")
    assert (check.ok, check.because) == (False, "it is not the one that was registered")


class LaterClock(FixedClock):
    """The clock of the fakes, some time later: a plan that is made again has another time."""

    def now(self) -> Any:
        return super().now() + timedelta(days=2)


@E4
def test_a_plan_that_was_stored_and_not_signed_is_signed_by_its_planner_alone(
    keys: Keyring,
) -> None:
    found = prod_world(keys)
    runs: Any = found.runs
    plan = make_plan(found, declared(), "bob", None)
    runs.plans[plan.run_id] = plan
    eve = keys.acting(found, "eve", clock=LaterClock())
    with pytest.raises(NotAllowed, match=r"bob made the plan .* eve cannot sign it for them") as e:
        recover(eve, plan.run_id, "eve")
    assert e.value.fix == "lakehouse-backfill plan m.yaml --by bob"
    (done,) = recover(eve, None, "eve")
    assert not done.is_done
    bob = keys.acting(found, "bob", clock=LaterClock())
    again = make_plan(bob, declared(), "bob", None)
    register_plan(bob, again, "bob")
    decisions.approve(keys.acting(found, "ana"), plan.run_id, "ana", "")
    assert again.created_at != plan.created_at
    assert steps.state_of(found, plan.run_id) is RunState.APPROVED


@E4
def test_a_plan_of_prod_is_not_registered_under_another_environment(keys: Keyring) -> None:
    found = prod_world(keys)
    plan = make_plan(found, declared(), "bob", None)
    dev = dataclasses.replace(found, profile=PROD.model_copy(update={"environment": "dev"}))
    with pytest.raises(NotAllowed, match="was planned in prod, and the profile is of dev"):
        register_plan(dev, plan, "bob")
    assert found.versions.history(PRODUCT) == ()
