"""The manifest decides what a declared sink gets; a policy that it cannot honour is refused."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.guards.outside.sinks import (
    HONOURED,
    describe_sinks,
    effective_policy,
    require_honourable_sinks,
)
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.errors import Unsupported
from tests.support.fakes.context import context, contract, declared, lake

CRM = {
    "name": "crm", "type": "ticket", "webhook": "https://crm.example.org/hook",
    "sandbox": "https://test.example.org/hook", "answers": "jobs/answers.json",
}  # fmt: skip
UNDO = {"inverse": "https://crm.example.org/undo"}
ROLES = {"roles": {"approve": ["ana"]}}


def with_sink(**changes: Any) -> Contract:
    return contract(sinks=[{**CRM, **changes}], **ROLES)


def manifest(mode: str = "backfill", **sinks: str) -> Any:
    safety = {"safety": {"sinks": sinks}} if sinks else {}
    return declared(run={"mode": mode}, **safety).manifest


@pytest.mark.req("E1")
@pytest.mark.parametrize("kind", HONOURED)
@pytest.mark.parametrize("mode", ["live", "backfill", "replay", "dry_run", "reconciliation"])
def test_without_a_policy_each_sink_is_forbidden_but_an_isolated_index(
    kind: str, mode: str
) -> None:
    sink = with_sink(type=kind, sandbox=None).sinks[0]
    assert effective_policy(manifest(mode), sink) == "forbid"
    isolated = with_sink(type=kind).sinks[0]
    expected = "sandbox" if kind == "search_index" and mode != "live" else "forbid"
    assert effective_policy(manifest(mode), isolated) == expected


@pytest.mark.req("E1")
def test_the_manifest_decides_before_the_contract_and_the_contract_by_mode() -> None:
    found = with_sink(policies={"backfill": "dedupe", "replay": "mock"})
    policies = [
        effective_policy(manifest("backfill"), found.sinks[0]),
        effective_policy(manifest("replay"), found.sinks[0]),
        effective_policy(manifest("live"), found.sinks[0]),
        effective_policy(manifest("backfill", crm="mock"), found.sinks[0]),
    ]
    assert policies == ["dedupe", "mock", "forbid", "mock"]


@pytest.mark.req("E1")
@pytest.mark.parametrize(
    ("sink", "mode", "policy", "problem"),
    [
        ({}, "backfill", "compensate", "it has no http(s) address that undoes a message"),
        ({"inverse": "ftp://a"}, "backfill", "compensate", "it has no http(s) address that undoes"),
        ({"type": "cache"}, "backfill", "compensate", "no client for caches is built in"),
        ({}, "backfill", "allow", "a run in mode backfill would repeat what was sent before"),
        ({}, "dry_run", "dedupe", "a dry run sends nothing"),
        ({"type": "topic"}, "backfill", "dedupe", "no client for topics is built in"),
        ({"type": "table"}, "backfill", "allow", "rows of a table are those that the transform"),
        ({"type": "feature_store"}, "live", "allow", "its rows are a product of its own"),
        ({"answers": None}, "backfill", "mock", "it has no answers"),
        ({"sandbox": None}, "backfill", "sandbox", "it has no http(s) address for it"),
        ({"webhook": "ftp://a"}, "backfill", "dedupe", "it has no http(s) address for it"),
        ({"sandbox": CRM["webhook"]}, "backfill", "sandbox", "its sandbox is the sink itself"),
    ],
)
def test_a_policy_that_a_sink_cannot_honour_is_refused_naming_why(
    sink: dict[str, Any], mode: str, policy: str, problem: str
) -> None:
    with pytest.raises(Unsupported) as refused:
        require_honourable_sinks(with_sink(**sink), manifest(mode, crm=policy))
    assert f"cannot honour {policy}: {problem}" in refused.value.problem
    assert refused.value.field == "safety.sinks.crm"
    assert refused.value.fix


@pytest.mark.req("E1")
def test_a_sink_is_reached_only_where_somebody_must_approve_it() -> None:
    anybody = contract(sinks=[CRM])
    with pytest.raises(Unsupported, match="does not say who may approve it"):
        require_honourable_sinks(anybody, manifest("backfill", crm="dedupe"))
    require_honourable_sinks(with_sink(), manifest("backfill", crm="dedupe"))
    for policy, declared_too in (("allow", {"idempotent": True}), ("compensate", UNDO)):
        sink = {**CRM, **declared_too}
        with pytest.raises(Unsupported, match="does not say who may approve it"):
            require_honourable_sinks(contract(sinks=[sink]), manifest("backfill", crm=policy))
        require_honourable_sinks(with_sink(**declared_too), manifest("backfill", crm=policy))
    require_honourable_sinks(anybody, manifest("backfill", crm="mock"))


def test_sinks_that_are_unknown_or_declared_twice_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"safety\.sinks names mail"):
        require_honourable_sinks(with_sink(), manifest(mail="forbid"))
    with pytest.raises(Unsupported, match="declares the sink crm twice"):
        require_honourable_sinks(contract(sinks=[CRM, CRM]), manifest())


@pytest.mark.req("E1")
def test_plan_and_checklist_show_what_each_sink_gets() -> None:
    wanted = declared(contract=with_sink(), safety={"sinks": {"crm": "dedupe"}})
    plan = make_plan(context(lake()), wanted, "bob", None)
    answer = next(one.answer for one in plan.checklist if one.question == "Which side effects?")
    shown = (
        "crm (ticket): dedupe (a message is sent once for each key and contents, over all runs of "
        "the product)"
    )
    assert describe_sinks(with_sink(), wanted.manifest) == shown
    assert f"declared sinks: {shown}" in (answer or "")


def test_documents_without_sinks_keep_their_hash() -> None:
    assert "sinks" not in contract().model_dump(mode="json")
    assert "sinks" not in manifest().model_dump(mode="json")["safety"]
