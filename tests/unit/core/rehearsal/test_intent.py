"""What a rehearsal does otherwise than the run, and which lake may hold one."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.publication.publication import require_copy_of_rehearsal
from lakehouse_backfill.core.rehearsal import rehearse
from lakehouse_backfill.domain.contract import Roles
from lakehouse_backfill.domain.guards.outside import Hook, Sink
from lakehouse_backfill.domain.guards.safety import PublishWindow, Switches
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.publication import REHEARSAL_PROPERTY
from lakehouse_backfill.domain.stateful.declaration import StateStart
from lakehouse_backfill.errors import ConfigError, Conflict, NotAllowed
from tests.support.examples.plans import a_plan, plan_of, with_fields
from tests.support.fakes import context as fakes
from tests.support.fakes.lake import FakeTable

pytestmark = pytest.mark.req("P8")
REAL = Profile(
    environment="prod",
    catalog={"name": "lake", "type": "rest", "uri": "https://u:secret@x", "warehouse": "s3://w"},
    spark={"spark.master": "spark://m:7077"},
)
PLACE = Profile(
    environment="dev",
    catalog={"name": "practice", "type": "sql", "uri": "sqlite:///a", "warehouse": "file:///w"},
)
SINK = Sink(name="mail", type="notification", webhook="https://x", policies={"backfill": "dedupe"})


def registered(resolved: Any) -> Plan:
    return plan_of(resolved, manifest_file="run.yaml", shadow_table="s.t")


def messages(**changes: Any) -> Any:
    return with_fields(a_plan().resolved, contract__sinks=(SINK.model_copy(update=changes),))


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (PLACE.model_copy(update={"environment": "prod"}), NotAllowed),
        (PLACE.model_copy(update={"catalog": {**PLACE.catalog, "name": "lake"}}), ConfigError),
    ],
    ids=["of prod", "a catalog of the same name"],
)
def test_a_lake_is_refused_that_may_be_the_real_one(place: Profile, error: type) -> None:
    with pytest.raises(error):
        rehearse.require_possible_place(REAL, place, "other")
    rehearse.require_possible_place(REAL, PLACE, "other")


@pytest.mark.parametrize(
    ("declared", "kept"),
    [
        ({"sandbox": "https://sandbox"}, "sandbox"),
        ({"answers": "answers.json"}, "mock"),
        ({"policies": {}}, "forbid"),
    ],
    ids=["to the sandbox", "answered by a file", "never reached"],
)
def test_a_message_of_job_code_reaches_no_receiver(declared: Any, kept: str) -> None:
    resolved = messages(**declared)
    manifest = rehearse.rehearsal_manifest(resolved.contract, resolved.manifest)
    assert manifest.safety.sinks == {"mail": kept}


@pytest.mark.parametrize("declared", [{}, {"sandbox": SINK.webhook}], ids=["nothing", "itself"])
def test_a_sink_that_only_reaches_its_receiver_is_refused(declared: Any) -> None:
    resolved = messages(**declared)
    with pytest.raises(ConfigError, match="sends messages to mail"):
        rehearse.rehearsal_manifest(resolved.contract, resolved.manifest)


def test_the_manifest_hash_of_a_rehearsal_is_never_that_of_the_run() -> None:
    real = a_plan().resolved
    found = rehearse.as_rehearsal(real.manifest_hash)(real)
    assert found.manifest_hash != real.manifest_hash
    rehearse.require_same_intent(real, found)


@pytest.mark.parametrize(
    "change",
    [
        {"chunks": ()}, {"code_hash": "other"}, {"target__snapshot_id": 8},
        {"sources": tuple(pin.model_copy(update={"snapshot_id": 7})
                          for pin in a_plan().resolved.sources)},
    ],
    ids=["chunks", "code", "target", "source"],
)  # fmt: skip
def test_a_rehearsal_of_something_else_is_refused(change: Any) -> None:
    real = a_plan().resolved
    with pytest.raises(Conflict, match="not be of this run"):
        rehearse.require_same_intent(real, with_fields(real, **change))


def test_what_the_real_place_has_otherwise_is_listed_without_secrets() -> None:
    hook = Hook(name="pause", on="before_publish", webhook="https://x")
    real = with_fields(
        messages(sandbox="https://sandbox"),
        contract__hooks=(hook,),
        contract__roles=Roles(publish=("bob",)),
        manifest__safety__publish_window=PublishWindow(from_="01:00", to="02:00"),
    )
    manifest = rehearse.rehearsal_manifest(real.contract, real.manifest)
    amended = rehearse.as_rehearsal("h")(real.model_copy(update={"manifest": manifest}))
    assert (amended.contract.hooks, amended.contract.roles) == ((), Roles())
    profile = REAL.model_copy(update={"switches": Switches(publish=False), "pilot": ("silver.x",)})
    found = rehearse.find_differences((profile, registered(real)), (PLACE, registered(amended)))
    assert {one.what: (one.real, one.rehearsal) for one in found} == {
        "environment": ("prod", "dev"),
        "catalog": ("rest", "sql sqlite"),
        "store": ("s3", "file"),
        "engine": ("spark", "local"),
        "roles": ("publish: bob; rollback: bob", "one person"),
        "four eyes": ("two people", "one person"),
        "signatures": ("required", "optional"),
        "hooks": ("pause (before_publish)", "not called"),
        "sink mail": ("dedupe", "sandbox"),
        "publish window": ("declared", "none"),
        "switches": ("off: publish", "on"),
        "pilot list": ("without this product", "-"),
        "live writers": ("may commit meanwhile", "none"),
    }
    assert "secret" not in str(found)


@pytest.mark.req("X4")
def test_a_state_that_only_the_real_lake_holds_is_a_difference() -> None:
    real = registered(a_plan().resolved)
    kept, cold = (
        with_fields(real, resolved__state_start=StateStart(why=why)) for why in ("kept", "cold")
    )
    found = rehearse.find_differences((REAL, kept), (REAL, cold))
    assert [(one.real, one.rehearsal) for one in found if one.what == "state"] == [("kept", "cold")]
    assert "state" not in {
        one.what for one in rehearse.find_differences((REAL, kept), (REAL, kept))
    }


def test_a_rehearsal_is_published_on_no_table_but_a_copy() -> None:
    plan = registered(rehearse.as_rehearsal("h")(a_plan().resolved))
    lake = fakes.lake()
    lake.tables = {plan.resolved.target.table: FakeTable()}
    context = fakes.context(lake)
    with pytest.raises(NotAllowed, match="no copy for rehearsals"):
        require_copy_of_rehearsal(context, plan)
    lake.tables[plan.resolved.target.table].properties[REHEARSAL_PROPERTY] = "u"
    require_copy_of_rehearsal(context, plan)
    require_copy_of_rehearsal(context, a_plan())
