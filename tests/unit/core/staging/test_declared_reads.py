"""What the plan of a chunk reads, compared with what the run declares."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.staging.determinism import (
    UNREAD_INPUTS,
    undeclared_reads,
    unread_inputs,
)
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.errors import Blocked
from lakehouse_backfill.ports.compute import PlanReads, TableRead
from tests.support.fakes.context import declared
from tests.support.fakes.steps import approved_run, state_of, world

RAW, OTHER = TableRead("bronze.raw", "1"), TableRead("silver.rates", "7")


def pin(name: str, table: str, snapshot_id: int) -> SourcePin:
    return SourcePin(
        name=name, role="reference", table=table, requested=table, snapshot_id=snapshot_id,
        mode="tag",
    )  # fmt: skip


PINS = (pin("raw", "bronze.raw", 1), pin("rates", "silver.rates", 7))

#: reads -> those that are not declared, the inputs that are not read
CASES = {
    "as declared": ((RAW, OTHER), (), set()),
    "one is not read": ((RAW,), (), {"rates"}),
    "names in capitals": ((TableRead("BRONZE.Raw", "1"), OTHER), (), set()),
    "another table": ((RAW, OTHER, TableRead("b.t", "3")), (TableRead("b.t", "3"),), set()),
    "another snapshot": ((RAW, TableRead("silver.rates", "6")),
                         (TableRead("silver.rates", "6"),), {"rates"}),
    "a branch by name": ((RAW, OTHER, TableRead("silver.rates", "audit")),
                         (TableRead("silver.rates", "audit"),), set()),
    "without a version: judged as an unpinned read": (
        (RAW, OTHER, TableRead("b.t", "")), (), set()),
}  # fmt: skip


@pytest.mark.parametrize(("reads", "undeclared", "unread"), CASES.values(), ids=CASES)
def test_reads_are_compared_with_the_pins(reads, undeclared, unread) -> None:
    found = PlanReads(reads, is_whole=True)
    assert undeclared_reads(PINS, found) == undeclared
    assert unread_inputs(PINS, found) == unread


def test_of_a_plan_that_does_not_show_all_nothing_is_said_to_be_unread() -> None:
    assert unread_inputs(PINS, PlanReads((), is_whole=False)) == frozenset()


@pytest.mark.req("P4")
def test_a_read_that_is_not_declared_stops_the_run_before_a_row_is_written() -> None:
    where, found = world(reads=PlanReads((RAW, OTHER), is_whole=True))
    run_id = approved_run(found, declared())
    with pytest.raises(Blocked, match=r"does not declare: silver\.rates at 7") as caught:
        stage(found, run_id, "bob")
    assert caught.value.state == "no row was written; readers see what they saw before"
    assert state_of(found, run_id).value == "failed"
    assert found.runs.plan(run_id).shadow_table not in where.tables


@pytest.mark.req("P4")
def test_an_input_that_is_declared_and_never_read_is_a_note_of_the_run() -> None:
    for reads, noted in ((PlanReads((), is_whole=True), ["raw"]), (PlanReads((RAW,), True), None)):
        _, found = world(reads=reads)
        run_id = approved_run(found, declared())
        stage(found, run_id, "bob")
        document = found.evidence.newest(run_id, UNREAD_INPUTS)
        assert (document and document[1]["inputs"]) == noted
