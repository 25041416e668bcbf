"""What is made of a restricted column of an input stops a run before anything of it is written."""

from __future__ import annotations

import json

import pytest

from lakehouse_backfill.core.evidence import trial
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.staging.determinism import RESTRICTED_FLOW
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import Blocked
from tests.support.fakes.steps import approved_run, state_of, world
from tests.unit.core.guards.privacy.test_plan_lineage import alias, attribute, node, project
from tests.unit.core.guards.privacy.test_rules import private, with_source

pytestmark = pytest.mark.req("E3")

#: `amount` is the restricted `id` of the input, by another name; `id` itself is not read.
COLUMNS = [attribute(1, "day"), attribute(2, "id"), attribute(3, "amount")]
INPUT = node("DataSourceV2Relation", output=COLUMNS, timeTravelSpec={})
COPY = json.dumps(project(INPUT, COLUMNS[0], alias(9, "amount", COLUMNS[1])))
LOW = r"amount \(of class internal\) is made of raw\.id"


def declared_run(*waived: str) -> DeclaredRun:
    columns = {"id": {"classification": "restricted"}}
    source = {"columns": columns, "purposes": {"repair": ["*"]}}
    flows = [{"column": name, "by": "lead", "reason": "a test"} for name in waived]
    return with_source(
        private(columns), source, run={"purpose": "repair"}, safety={"restricted_flows": flows}
    )


def test_staging_is_refused_before_a_shadow_exists() -> None:
    where, found = world(analysed=COPY)
    run = approved_run(found, declared_run())
    with pytest.raises(Blocked, match=LOW):
        stage(found, run, "bob")
    assert found.runs.plan(run).shadow_table not in where.tables
    assert found.evidence.newest(run, RESTRICTED_FLOW)[1] == {"columns": {"amount": ["raw.id"]}}


def test_a_column_that_a_person_waives_by_name_is_staged() -> None:
    _, found = world(analysed=COPY)
    run = approved_run(found, declared_run("amount"))
    stage(found, run, "bob")
    assert state_of(found, run) == "staged"


def test_without_an_analysed_plan_every_lower_column_must_be_waived() -> None:
    _, found = world(analysed=None)
    run = approved_run(found, declared_run("amount"))
    with pytest.raises(Blocked, match=r"to 2 columns of a lower class: day .* mail "):
        stage(found, run, "bob")


def test_a_trial_is_refused_before_its_scratch_table_exists() -> None:
    where, found = world(analysed=COPY)
    before = set(where.tables)
    plan: Plan = make_plan(found, declared_run(), "bob", None)
    with pytest.raises(Blocked, match=LOW):
        trial.try_partition(found, plan, None, "bob")
    assert set(where.tables) == before
