"""Gates that are checked while chunks are staged."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.approval.decisions import failed_gates, waive
from lakehouse_backfill.core.publication.publish import run_until_decision
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging import checks
from lakehouse_backfill.core.staging.checks import stored_verdicts
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord, RunState
from lakehouse_backfill.domain.stateful.declaration import Stateful
from lakehouse_backfill.errors import ChecksFailed, EnvironmentDown
from tests.support.examples.plans import a_plan, with_fields
from tests.support.fakes.context import contract, declared
from tests.support.fakes.steps import approved_run, state_of, world

DAYS = ("2020-01-02", "2020-01-03")
FIRST, SECOND = f"c0001-{DAYS[0]}", f"c0002-{DAYS[1]}"
OUTPUT = {"file": "expectations/daily.json", "on": "output"}


def complete(unit: str) -> Any:
    """A source that must have rows in every period."""
    return declared(sources={"raw": {"complete": unit}})


def input_checks(found: Context, run_id: str) -> dict[str, bool]:
    """Give what was stored of the input, by name."""
    stored = found.evidence.newest(run_id, "input-checks")
    return {check["name"]: check["passed"] for check in stored[1]["checks"]}


@pytest.mark.req("Q0", "Q8")
def test_a_gap_in_the_pinned_input_halts_the_run_before_staging_until_it_is_waived() -> None:
    where, found = world(gaps={"2020-01-01"})
    run_id = approved_run(found, complete("day"))
    with pytest.raises(ChecksFailed) as refused:
        stage(found, run_id, "bob")
    assert "no row on 1 of 3 days: 2020-01-01" in refused.value.problem
    assert f"waive {run_id} 'Does raw have rows in every day?'" in refused.value.fix
    assert state_of(found, run_id) is RunState.HALTED
    assert "open shadow" not in where.calls
    waive(found, run_id, "raw has rows in every day", "ana", "a holiday")
    found.compute().gaps.add("2020-01-02")  # It would fail, but the pinned input cannot change.
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED


@pytest.mark.req("Q0")
def test_a_gap_that_nobody_declared_is_in_the_evidence_and_halts_nothing() -> None:
    _, found = world(gaps={"2020-01-01"})
    run_id = approved_run(found)
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED
    assert input_checks(found, run_id) == {"raw has rows in every day": False}


@pytest.mark.req("Q0")
def test_every_assumption_is_a_gate_under_its_own_words() -> None:
    text = "each amount is in euro"
    assumed = {"text": text, "file": "expectations/euro.json", "on": "raw"}
    _, found = world(bad_suites={"expectations/euro.json"})
    run_id = approved_run(found, declared(contract=contract(assumptions=[assumed])))
    with pytest.raises(ChecksFailed, match=f"{text}\\? assumed of raw"):
        stage(found, run_id, "bob")
    assert input_checks(found, run_id)[text] is False
    assert [gate.name for gate in failed_gates(found, run_id)] == [text]


@pytest.mark.req("Q9")
def test_the_first_bad_chunk_halts_the_run_and_later_ones_are_not_computed() -> None:
    _, found = world(chunk_duplicates=3)
    compute = found.compute()
    run_id = approved_run(found)
    with pytest.raises(ChecksFailed) as refused:
        stage(found, run_id, "bob")
    assert compute.staged == ["load", FIRST]
    assert refused.value.problem == (
        f"chunk {FIRST} (2020-01-02) failed 1 of its checks: Is every key unique? 3 duplicate "
        "keys in the chunk"
    )
    assert f"waive {run_id} 'Is every key unique?' --reason TEXT" in refused.value.fix
    event = found.runs.events(run_id)[-1]
    assert (event.verb, event.detail["chunk_id"]) == ("halt", FIRST)
    assert event.detail["failed"] == ["keys are unique"]
    (row,) = found.runs.chunks(run_id)
    assert (row.status, row.problem) == ("failed", refused.value.problem)
    assert state_of(found, run_id) is RunState.HALTED


@pytest.mark.req("Q9", "Q8")
def test_a_halted_chunk_is_judged_again_not_computed_again_and_a_waiver_lets_it_pass() -> None:
    _, found = world(chunk_duplicates=3)
    compute = found.compute()
    run_id = approved_run(found)
    for _ in range(2):
        with pytest.raises(ChecksFailed, match=FIRST):
            stage(found, run_id, "bob")
    waive(found, run_id, "keys are unique", "ana", "known")
    with pytest.raises(ChecksFailed, match=SECOND):
        stage(found, run_id, "bob")
    waive(found, run_id, "keys are unique", "ana", "known too")
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED
    assert [item for item in compute.staged if item != "load"] == [FIRST, SECOND]
    rows = found.runs.chunks(run_id)
    assert [row.status for row in rows] == ["done", "done"]
    assert all(row.problem.startswith("waived: chunk ") for row in rows)


@pytest.mark.req("Q9")
def test_a_chunk_that_is_good_when_it_is_judged_again_needs_no_waiver() -> None:
    _, found = world(chunk_nulls=1)
    compute = found.compute()
    run_id = approved_run(found)
    with pytest.raises(ChecksFailed, match="1 rows without id"):
        stage(found, run_id, "bob")
    compute.chunk_nulls = 0
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED
    assert [row.problem for row in found.runs.chunks(run_id)] == ["", ""]


@pytest.mark.req("Q9")
def test_suites_of_the_output_judge_the_rows_of_each_chunk() -> None:
    _, found = world(bad_rows={DAYS[1]})
    compute = found.compute()
    run_id = approved_run(found, declared(contract=contract(suites=[OUTPUT])))
    with pytest.raises(ChecksFailed, match=rf"chunk {SECOND} .* {OUTPUT['file']} on .*{DAYS[1]}"):
        stage(found, run_id, "bob")
    assert [line.rpartition(": ")[2] for line in compute.judged] == list(DAYS)
    compute.bad_rows.clear()
    stage(found, run_id, "bob")
    # What was judged before the halt stays in the evidence.
    stored = found.evidence.newest(run_id, "chunk-checks")
    told = [(chunk["chunk_id"], chunk["status"]) for chunk in stored[1]["chunks"]]
    assert told == [(FIRST, "done"), (SECOND, "done")]


@pytest.mark.req("Q9")
def test_with_counts_only_no_suite_runs_on_a_chunk() -> None:
    _, found = world(bad_rows={DAYS[1]})
    compute = found.compute()
    validation = {"edge_partitions": 1, "chunk_checks": "counts"}
    wanted = declared(contract=contract(suites=[OUTPUT]), validation=validation)
    run_id = approved_run(found, wanted)
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED
    assert compute.judged == []


@pytest.mark.req("Q9")
def test_a_gate_that_the_manifest_wants_reported_halts_no_chunk() -> None:
    _, found = world(chunk_duplicates=3)
    validation = {"edge_partitions": 1, "gates": {"keys_unique": "report"}}
    run_id = approved_run(found, declared(validation=validation))
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED


@pytest.mark.req("Q9")
def test_rows_are_added_up_over_chunks_against_the_most_that_the_run_may_write() -> None:
    _, found = world()
    wanted = declared(safety={"max_rows": 20})
    run_id = approved_run(found, wanted)
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED
    stored = found.evidence.newest(run_id, "chunk-checks")
    assert stored is not None
    counts = [
        check["detail"]
        for chunk in stored[1]["chunks"]
        for check in chunk["checks"]
        if check["name"] == "row count is in range"
    ]
    assert counts == [
        "10 rows up to this chunk, at most 20", "20 rows up to this chunk, at most 20",
    ]  # fmt: skip


@pytest.mark.req("Q9", "T3")
def test_a_chunk_that_landed_without_its_ledger_row_is_judged_before_it_counts_as_done() -> None:
    _, found = world()
    compute = found.compute()
    run_id = approved_run(found)
    stage(found, run_id, "bob")
    found.runs.chunk_rows.pop(0)
    compute.chunk_duplicates = 1
    with pytest.raises(ChecksFailed, match=FIRST):
        stage(found, run_id, "bob")
    assert compute.staged.count(FIRST) == 1


@pytest.mark.req("Q9")
def test_run_tells_which_gates_it_closed() -> None:
    _, found = world(duplicates=(1, 1))
    done = run_until_decision(found, approved_run(found), "bob")
    checks: Any = done["checks"]
    assert done["state"] == "rejected"
    assert [check.name for check in checks if not check.passed] == ["keys are unique"]


DAY = "2013-02-15"


def outside(
    rows: int, warm_up_days: int, stateful: Stateful | None = None, *, recovered: bool = False
) -> CheckResult:
    """Judge a chunk of so many rows, and four outside of it."""
    record = ChunkRecord(
        run_id="bf-1", chunk_id="c1", partitions=(DAY,), status="done", input_rows=20,
        output_rows=rows, outside_rows=4, checksum="x", seconds=1.0, snapshot_id=8,
        finished_at=datetime(2026, 1, 1, tzinfo=timezone.utc), recovered=recovered,
    )  # fmt: skip
    facts = ChunkFacts(rows={DAY: rows}, null_keys={}, duplicate_keys=0)
    pin = with_fields(a_plan().resolved.sources[0], warm_up_days=warm_up_days)
    plan = with_fields(a_plan(), resolved__sources=(pin,), resolved__manifest__stateful=stateful)
    found = {check.name: check for check in checks.judge_chunk(plan, record, facts, 0, ())}
    return found["rows lie inside the chunk"]


@pytest.mark.req("Q9")
@pytest.mark.parametrize(
    ("rows", "warm_up_days", "passes", "blocks"),
    [(10, 1, True, False), (10, 0, False, False), (0, 0, False, True)],
    ids=["a warm-up, by design", "some inside", "none inside"],
)
def test_rows_outside_block_only_without_a_warm_up_and_when_none_lies_inside(
    rows: int, warm_up_days: int, passes: bool, blocks: bool
) -> None:
    found = outside(rows, warm_up_days)
    assert (found.passed, found.blocking) == (passes, blocks)
    assert found.detail == f"{rows} inside, 4 outside and left out"
    unknown = outside(rows, warm_up_days, recovered=True)
    assert (unknown.detail.split(":")[0], unknown.observed) == (
        f"{rows} inside, those outside are not known", None,
    )  # fmt: skip


@pytest.mark.req("X4", "Q9")
def test_rows_between_two_partitions_of_a_stateful_run_are_outside_by_design() -> None:
    stateful = Stateful.model_validate({
        "state": {"derived_from_input": True, "key": ["k"]}, "start_boundary": "empty",
        "timers": "event_time", "late": "include", "watermark": {"policy": "batch_equivalent"},
    })  # fmt: skip
    found = outside(0, 0, stateful)
    assert (found.passed, found.limit) == (True, None)


@pytest.mark.req("X5", "Q9")
def test_a_full_document_of_verdicts_is_never_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakehouse_backfill.core.staging.checks._VERDICTS_PER_DOCUMENT", 2)
    _, found = world(chunk_nulls=0)
    compute = found.compute()
    run_id = approved_run(found, declared("2020-01-01", "2020-01-06"))
    stop_at, stage_chunk = 4, compute.stage

    def stopped(plan: Any, chunk: Any, epoch: int) -> Any:
        if len(found.runs.chunk_rows) == stop_at:
            raise EnvironmentDown("the engine is gone")
        return stage_chunk(plan, chunk, epoch)

    monkeypatch.setattr(compute, "stage", stopped)
    with pytest.raises(EnvironmentDown):
        stage(found, run_id, "bob")
    stop_at = 99
    stage(found, run_id, "bob")
    of_documents = [
        [int(one["chunk_id"][4]) for one in document["chunks"]]
        for document in found.evidence.all_of(run_id, "chunk-checks")
    ]
    assert of_documents == [[1, 2], [3, 4], [5]]
    told = [one["chunk_id"] for one in stored_verdicts(found, run_id)]
    assert told == [chunk.chunk_id for chunk in found.runs.plan(run_id).resolved.chunks]
