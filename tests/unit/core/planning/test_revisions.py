"""A revision is compared with the first plan: it widens nothing quietly, and loses no privacy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.target import catch_up as rules
from lakehouse_backfill.core.publication import catch_up
from lakehouse_backfill.core.publication.publish import publish, publish_with_catch_up
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.privacy import InputPrivacy
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import ApprovalMissing, Blocked, NotFound, Tampered, TargetChanged
from tests.support.fakes import steps
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared
from tests.support.fakes.lake import FakeLake

E4 = pytest.mark.req("E4")
RAW = "bronze.raw"
FOLLOWS: dict[str, Any] = {"safety": {"on_conflict": "catch_up"}}


def raw_contract() -> Any:
    """The contract of the input: its column `amount` is restricted."""
    return contract(
        product=RAW, table=RAW, classification="internal",
        retention_days="unlimited",
        privacy={
            "columns": {"amount": {"classification": "restricted"}},
            "purposes": {"repair": ["bob"]},
        },
    )  # fmt: skip


def world() -> tuple[FakeLake, Context]:
    where = steps.lake()
    return where, context(where, FakeCompute(where))


def revision_of(found: Context, where: FakeLake, run_id: str) -> Plan:
    """The revision that follows a live commit in the first day of the run."""
    where.write(PRODUCT, "2020-01-02", f"old-2@live-{run_id}")
    with pytest.raises(TargetChanged) as changed:
        publish(found, run_id, "bob")
    plan = found.runs.plan(run_id)
    return catch_up.plan_catch_up(found, plan, changed.value, "bob")


@pytest.mark.req("E4", "E3")
def test_a_revision_keeps_what_was_declared_of_the_privacy_of_its_inputs() -> None:
    where, found = world()
    own = contract(privacy={"columns": {"amount": {"classification": "restricted"}}})
    wanted = dataclasses.replace(
        declared(contract=own, run={"purpose": "repair"}, **FOLLOWS),
        input_contracts={RAW: raw_contract()},
    )
    run_id = steps.accepted_run(found, wanted)
    (first,) = found.runs.plan(run_id).resolved.sources
    assert first.privacy is not None
    assert first.privacy.is_restricted
    revision = revision_of(found, where, run_id)
    (pin,) = revision.resolved.sources
    assert pin.privacy == first.privacy


def edited(plan: Plan, **resolved: Any) -> Plan:
    changed = plan.resolved.model_copy(update=resolved)
    return plan.model_copy(update={"resolved": changed, "manifest_hash": changed.manifest_hash})


def without_privacy(plan: Plan) -> Plan:
    pins = [
        pin.model_copy(update={"privacy": InputPrivacy(classification="public")})
        for pin in plan.resolved.sources
    ]
    return edited(plan, sources=tuple(pins))


WIDENED = {
    "contract": lambda plan: edited(plan, contract=contract(roles={"accept": ["eve"]})),
    "scope": lambda plan: edited(
        plan, scope=plan.resolved.scope.model_copy(update={"partitions": ("2020-01-05",)})
    ),
    "code_hash": lambda plan: edited(plan, code_hash="e71l"),
    "environment": lambda plan: edited(plan, environment="prod"),
    "created_by": lambda plan: plan.model_copy(update={"created_by": "eve"}),
    "inputs": without_privacy,
    "target": lambda plan: edited(
        plan, target=plan.resolved.target.model_copy(update={"uuid": "another"})
    ),
}


@E4
@pytest.mark.parametrize("field", WIDENED)
def test_an_approval_is_not_carried_over_to_a_revision_that_does_something_else(
    field: str,
) -> None:
    where, found = world()
    run_id = steps.accepted_run(found, declared(**FOLLOWS))
    revision = WIDENED[field](revision_of(found, where, run_id))
    first = found.runs.plan(run_id)
    rules.require_same_intent(first, first)
    with pytest.raises(ApprovalMissing, match=rf"differs from {run_id} in .*{field}") as caught:
        rules.require_same_intent(first, revision)
    assert caught.value.exit_code == 3


@E4
@pytest.mark.parametrize("later", [False, True], ids=["revision", "revision of a revision"])
def test_publish_compares_a_revision_with_the_plan_that_people_approved(*, later: bool) -> None:
    """Whoever writes to the control tables edits first plan and log after the carrying over."""
    where, found = world()
    run_id = steps.accepted_run(found, declared(**FOLLOWS))
    newest = revision_of(found, where, run_id)
    catch_up.bring_to_accepted(found, newest, "bob")
    if later:
        newest = revision_of(found, where, newest.run_id)
        catch_up.bring_to_accepted(found, newest, "bob")
    runs: Any = found.runs
    whole = runs.plans[run_id]
    runs.plans[run_id] = edited(whole, code_hash="appr0ved")
    with pytest.raises(Blocked, match=rf"differs from {run_id} in code_hash"):
        publish(found, newest.run_id, "bob")
    assert "publish" not in {row.action for row in found.versions.history(PRODUCT)}
    runs.plans[run_id] = whole
    assert publish_with_catch_up(found, run_id, "bob").publication.run_id == newest.run_id


@E4
def test_a_carried_approval_of_a_run_that_follows_none_opens_nothing() -> None:
    found = steps.world()[1]
    run_id = steps.accepted_run(found)
    steps.rewrite_log(
        found, run_id,
        lambda events: [
            event.model_copy(update={"verb": event.verb.replace("approve", "carry approval")})
            for event in events
        ],
    )  # fmt: skip
    with pytest.raises(ApprovalMissing, match="follows no other run, and took its approval"):
        publish(found, run_id, "bob")


@E4
def test_an_approver_sees_how_a_revision_goes_beyond_the_first_plan() -> None:
    found = steps.world()[1]
    first = steps.planned_run(found, declared(contract=contract(roles={"accept": ["ana"]})))
    # The scope grows in one revision, the approvers change in the next one.
    second = steps.planned_run(found, declared("2020-01-02", "2020-01-05"), first)
    wanted = declared(
        "2020-01-02", "2020-01-05", contract=contract(roles={"accept": ["eve"]}, four_eyes=False)
    )
    third = steps.planned_run(found, wanted, second)
    warnings = found.runs.plan(third).warnings
    for text in (
        "2020-01-04 were not in its scope",
        "roles of the contract was another",
        "four_eyes of the contract was another",
    ):
        assert f"compared with the first plan, {first}: {text}" in warnings
    same = make_plan(found, declared(contract=contract(roles={"accept": ["ana"]})), "bob", third)
    assert not [text for text in same.warnings if text.startswith("compared with")]
    runs: Any = found.runs
    scope = runs.plans[first].resolved.scope
    region = Scope(
        field=ScopeField(column="region", transform="identity", type="string"), partitions=("DE",)
    )
    some = scope.model_copy(update={"field": scope.field.model_copy(update={"only": (region,)})})
    runs.plans[first] = edited(runs.plans[first], scope=some)
    wider = make_plan(found, declared(contract=contract(roles={"accept": ["ana"]})), "bob", third)
    text = "it restated identity(day) with region = DE, and this one identity(day)"
    assert f"compared with the first plan, {first}: {text}" in wider.warnings


@E4
def test_a_first_plan_that_is_gone_or_in_a_circle_is_named_and_no_obstacle() -> None:
    found = steps.world()[1]
    first = steps.planned_run(found)
    runs: Any = found.runs
    runs.plans[first] = runs.plans[first].model_copy(update={"revises": "bf-gone"})
    wanted = declared(transform={"version": "2.0.0"})
    text = "it cannot be compared with the first plan of the run: "
    found_warnings = make_plan(found, wanted, "bob", first).warnings
    assert [one for one in found_warnings if one.startswith(text)]
    with pytest.raises(NotFound):
        rules.first_plan(found, runs.plans[first])
    other = runs.plans[first].model_copy(update={"run_id": "bf-other", "revises": first})
    runs.plans["bf-other"] = other
    runs.plans[first] = runs.plans[first].model_copy(update={"revises": "bf-other"})
    with pytest.raises(Tampered, match="revises a run that revises it"):
        rules.first_plan(found, other)
    assert decisions.failed_gates(found, first) == ()
