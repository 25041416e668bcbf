"""What is kept of rejected rows shows no value of a restricted column."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.run import RejectedRow, Rejects
from tests.support.fakes.context import contract, declared
from tests.support.fakes.control import FakeRuns
from tests.support.fakes.steps import approved_run, world

ROW = RejectedRow(
    reason="no address of ann@example.org",
    key={"id": 7},
    record={"id": 7, "amount": 4711, "note": "kept"},
)
RESTRICTED = {"columns": {"amount": {"classification": "restricted"}}}


def staged(**more: Any) -> tuple[FakeRuns, str]:
    """Stage a run that rejects the row in its chunk."""
    where, found = world(rejected=Rejects(rows=1, reasons={ROW.reason: 1}, records=(ROW,)))
    where.add("bronze.gone", all="p1")
    wanted = declared(contract=contract(**more), safety={"max_rejected_share": 1.0})
    run_id = approved_run(found, wanted)
    stage(found, run_id, "bob")
    assert isinstance(found.runs, FakeRuns)
    return found.runs, run_id


def kept(**more: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Stage the run; give the record of the row, and the ledger's reasons."""
    runs, run_id = staged(**more)
    return dict(runs.rejected[0]), runs.chunks(run_id)[0].reject_reasons


@pytest.mark.req("X5")
def test_a_record_is_kept_whole_where_nothing_is_restricted() -> None:
    row, reasons = kept()
    assert (row["reason"], json.loads(row["record"])) == (ROW.reason, ROW.record)
    assert reasons == (f"1 {ROW.reason}",)


@pytest.mark.req("X5", "E7")
def test_restricted_values_are_hidden_also_in_a_reason_that_is_not_of_the_code() -> None:
    row, reasons = kept(privacy=RESTRICTED)
    assert "4711" not in row["record"]
    assert json.loads(row["record"])["note"] == "kept"
    assert (row["reason"], reasons) == ("restricted", ("1 restricted",))


@pytest.mark.req("X5", "E7")
def test_no_record_is_kept_where_a_tombstone_may_name_its_person() -> None:
    runs, run_id = staged(tombstones=[{"table": "bronze.gone", "columns": {"id": "id"}}])
    assert runs.rejected == []
    assert runs.chunks(run_id)[0].rejected_rows == 1
