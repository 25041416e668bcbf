"""Four eyes are two keys: who signed a plan, or holds its key under another name, decides not."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.signing.identity import ProjectIdentity
from lakehouse_backfill.core.approval import decisions, signatures
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.identity.statement import Envelope
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ConfigError, NotAllowed
from lakehouse_backfill.ports.system import CheckedSignature
from tests.support.examples.keys import Keyring
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.signed import accepted, planned, prod_world

E4 = pytest.mark.req("E4")


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob")


class OnePerson(ProjectIdentity):
    """All signatures are good, and of one key, as one CI subject has under two names."""

    def check(self, envelope: Envelope, by: str, at: datetime) -> CheckedSignature:
        return CheckedSignature("OIDC https://ci.example.com repo:acme/lake")


def alone(found: Context) -> Context:
    mine = found.identity
    assert isinstance(mine, ProjectIdentity)
    return dataclasses.replace(found, identity=OnePerson(**vars(mine)))


@E4
def test_a_key_that_is_listed_under_two_names_decides_nothing(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = planned(keys, found)
    keys.keys["ana"] = keys.keys["bob"]
    keys.list_keys()
    with pytest.raises(ConfigError, match="the key of bob is listed for ana on line 1 too"):
        decisions.approve(keys.acting(found, "bob"), run_id, "ana", "")
    assert steps.state_of(found, run_id) is RunState.PLANNED


@E4
def test_the_key_of_the_plan_does_not_approve_it_under_another_name(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = planned(keys, found)
    with pytest.raises(NotAllowed, match="repo:acme/lake signed the plan and decides") as caught:
        decisions.approve(alone(keys.acting(found, "ana")), run_id, "ana", "")
    assert caught.value.exit_code == 3
    assert caught.value.fix == "let somebody else decide, with a key of their own"
    assert steps.state_of(found, run_id) is RunState.PLANNED


@E4
def test_one_key_under_two_names_is_found_before_it_computes_or_publishes(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    for act in (
        lambda: stage(alone(found), run_id, "bob"),
        lambda: publish(alone(keys.acting(found, "bob")), run_id, "bob"),
    ):
        with pytest.raises(NotAllowed, match="needs four eyes, of two keys"):
            act()
    assert "publish" not in {row.action for row in found.versions.history(PRODUCT)}


@E4
def test_one_key_decides_where_the_contract_needs_no_four_eyes(keys: Keyring) -> None:
    own = contract(four_eyes=False)
    found = dataclasses.replace(prod_world(keys), contract=lambda _: own)
    run_id = planned(keys, found, declared(contract=own))
    one = alone(keys.acting(found, "ana"))
    decisions.approve(one, run_id, "ana", "")
    stage(one, run_id, "ana")
    assert steps.state_of(found, run_id) is RunState.STAGED


WAIVERS = {
    "retention_exception": {"by": "lead", "reason": "a court asked"},
    "incomplete_input": {"by": "lead", "reason": "a preview"},
    "restricted_flows": [{"column": "n", "by": "lead", "reason": "wide"}],
}


@E4
@pytest.mark.parametrize("name", WAIVERS)
def test_a_waiver_of_the_manifest_needs_the_approval_of_whom_it_names(
    keys: Keyring, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prod_world(keys)
    wanted = declared(contract=contract(roles={"waive": ["lead"]}), safety={name: WAIVERS[name]})
    run_id = planned(keys, found, wanted)
    with pytest.raises(NotAllowed, match="in the name of lead, and ana approves it") as caught:
        decisions.approve(keys.acting(found, "ana"), run_id, "ana", "fine")
    assert str(caught.value.fix) == (
        f"lakehouse-backfill approve {run_id} --by lead, signed by lead"
    )
    assert steps.state_of(found, run_id) is RunState.PLANNED
    with monkeypatch.context() as older:  # as a release before this rule approved it
        older.setattr(signatures, "require_named_approver", lambda *_: None)
        approved_run(keys, found, run_id)
    with pytest.raises(NotAllowed, match="who waives has to approve"):
        publish(keys.acting(found, "bob"), run_id, "bob")
    with pytest.raises(NotAllowed, match="who waives has to approve"):
        stage(found, run_id, "bob")


@E4
def test_who_waives_in_the_manifest_and_approves_opens_the_run(keys: Keyring) -> None:
    found = prod_world(keys)
    safety = {"retention_exception": {"by": "ana", "reason": "a court asked"}}
    run_id = accepted(keys, found, declared(safety=safety))
    publish(keys.acting(found, "bob"), run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.PUBLISHED


def approved_run(keys: Keyring, found: Context, run_id: str) -> None:
    """Take a planned run on to its acceptance."""
    decisions.approve(keys.acting(found, "ana"), run_id, "ana", "fine")
    stage(found, run_id, "bob")
    validate(found, run_id, "bob")
    decisions.accept(keys.acting(found, "ana"), run_id, "ana", "fine")
