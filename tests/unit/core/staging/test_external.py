"""Bring your own writer: `shadow open`, another engine, `shadow close`, over an in-memory lake."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.external import shadow_close, shadow_open
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import Blocked, ChecksFailed, ConfigError, WriteForbidden
from tests.support.examples.plans import with_fields
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import approved_run, content_of, state_of, world

pytestmark = pytest.mark.req("X11")
EXTERNAL: dict[str, Any] = {
    "transform": {"file": "jobs/daily.sql", "writer": "external"},
    "validation": {"edge_partitions": 0},
}


def _opened() -> tuple[FakeLake, Context, str, str]:
    where, found = world()
    run_id = approved_run(found, declared(**EXTERNAL))
    _, table = shadow_open(found, run_id, "bob")
    return where, found, run_id, table.table


def test_what_another_engine_wrote_is_judged_and_published_like_any_run() -> None:
    where, found, run_id, shadow = _opened()
    where.write(shadow, "2020-01-02", "theirs-2")
    where.write(shadow, "2020-01-03", "theirs-3")
    status, numbers = shadow_close(found, run_id, "bob")
    assert (status.state, numbers["chunks_done"]) == (RunState.STAGED, 2)
    assert {record.snapshot_id for record in found.runs.chunks(run_id)} == {3}
    validate(found, run_id, "bob")
    decisions.accept(found, run_id, "ana", "")
    publish(found, run_id, "ana")
    seen = content_of(where)
    assert (seen["2020-01-02"], seen["2020-01-03"]) == ({"theirs-2"}, {"theirs-3"})


def test_an_open_shadow_waits_and_says_what_to_type() -> None:
    _, found, run_id, _ = _opened()
    status = found.runs.status(run_id)
    assert (status.state, status.driver) == (RunState.PAUSED, None)
    assert "shadow close" in summarise_run_safety(found, status).next_command
    assert recover(found, None, "ana") == ()


def test_rows_outside_the_scope_are_refused_when_it_is_closed() -> None:
    where, found, run_id, shadow = _opened()
    where.write(shadow, "2020-01-02", "theirs-2")
    where.write(shadow, "2020-01-09", "not ours")
    with pytest.raises(WriteForbidden, match="2020-01-09") as refused:
        shadow_close(found, run_id, "bob")
    assert f"shadow close {run_id}" in refused.value.fix
    assert state_of(found, run_id) is RunState.FAILED


def test_a_shadow_that_nobody_wrote_is_not_closed() -> None:
    _, found, run_id, _ = _opened()
    with pytest.raises(Blocked, match="nothing was written"):
        shadow_close(found, run_id, "bob")


def test_a_shadow_that_was_never_opened_is_not_closed() -> None:
    found = context(lake())
    run_id = approved_run(found, declared(**EXTERNAL))
    with pytest.raises(Blocked, match="not opened"):
        shadow_close(found, run_id, "bob")
    assert state_of(found, run_id) is RunState.APPROVED


def test_what_is_written_after_the_shadow_was_closed_is_not_validated() -> None:
    where, found, run_id, shadow = _opened()
    where.write(shadow, "2020-01-02", "theirs-2")
    shadow_close(found, run_id, "bob")
    where.write(shadow, "2020-01-02", "later")
    with pytest.raises(ChecksFailed, match="after it was closed"):
        validate(found, run_id, "bob")
    shadow_close(found, run_id, "bob")
    status, _, _ = validate(found, run_id, "bob")
    assert status.state is RunState.VALIDATED


def test_closing_fences_the_writer_out() -> None:
    where, found, run_id, shadow = _opened()
    before = int(where.tables[shadow].properties["epoch"])
    where.write(shadow, "2020-01-02", "theirs-2")
    shadow_close(found, run_id, "bob")
    assert int(where.tables[shadow].properties["epoch"]) > before


@pytest.mark.parametrize("act", [stage, run_until_decision])
def test_there_is_no_job_to_run(act: Any) -> None:
    found = context(lake())
    run_id = approved_run(found, declared(**EXTERNAL))
    with pytest.raises(Blocked, match="no job to run"):
        act(found, run_id, "bob")
    assert state_of(found, run_id) is RunState.APPROVED


@pytest.mark.parametrize("act", [shadow_open, shadow_close])
def test_a_shadow_that_a_job_writes_is_not_handed_out(act: Any) -> None:
    _, found = world()
    run_id = approved_run(found)
    with pytest.raises(Blocked, match="the job of"):
        act(found, run_id, "bob")


def test_edges_that_nobody_can_compute_must_be_given_up_in_writing() -> None:
    wanted = declared(**{**EXTERNAL, "validation": {"edge_partitions": 2}})
    with pytest.raises(ConfigError, match="cannot be computed") as caught:
        make_plan(context(lake()), wanted, "bob", None)
    assert caught.value.field == "validation.edge_partitions"


def test_what_each_row_must_say_of_its_origin_is_given_where_the_product_wants_it() -> None:
    found = context(lake())
    plan = found.runs.plan(approved_run(found, declared(**EXTERNAL)))
    assert publish_modes.expected_lineage(plan) == {}
    given = publish_modes.expected_lineage(
        with_fields(plan, resolved__contract__lineage_columns=True)
    )
    assert {*given, "produced_at"} == set(gates.REQUIRED_LINEAGE)
    assert given["produced_by_run_id"] == plan.run_id
