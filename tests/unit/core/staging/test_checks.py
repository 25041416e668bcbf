"""Gates that are checked while chunks are staged."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.approval.decisions import failed_gates, waive
from lakehouse_backfill.core.publication.publish import run_until_decision
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging import checks
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord, RunState
from lakehouse_backfill.errors import ChecksFailed
from tests.support.examples.plans import a_plan
from tests.support.fakes.context import contract, declared
from tests.support.fakes.steps import approved_run, state_of, world

FIRST, SECOND = "c0001-2020-01-02", "c0002-2020-01-03"
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
    assert f"waive {run_id} 'raw has rows in every day'" in refused.value.fix
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
    with pytest.raises(ChecksFailed, match=f"{text}: assumed of raw"):
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
        f"chunk {FIRST} (2020-01-02) failed 1 of its checks: keys are unique: 3 duplicate keys in "
        "the chunk"
    )
    assert f"waive {run_id} 'keys are unique' --by WHO --reason TEXT" in refused.value.fix
    event = found.runs.events(run_id)[-1]
    assert (event.verb, event.detail["chunk_id"]) == ("halt", FIRST)
    assert event.detail["failed"] == ["keys are unique"]
    (row,) = found.ledger.chunks(run_id)
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
    rows = found.ledger.chunks(run_id)
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
    assert [row.problem for row in found.ledger.chunks(run_id)] == ["", ""]


@pytest.mark.req("Q9")
def test_suites_of_the_output_judge_the_rows_of_each_chunk() -> None:
    _, found = world(bad_rows={SECOND})
    compute = found.compute()
    run_id = approved_run(found, declared(contract=contract(suites=[OUTPUT])))
    with pytest.raises(ChecksFailed, match=rf"chunk {SECOND} .* {OUTPUT['file']} on {SECOND}"):
        stage(found, run_id, "bob")
    assert compute.judged == [f"{OUTPUT['file']} on {FIRST}", f"{OUTPUT['file']} on {SECOND}"]
    compute.bad_rows.clear()
    stage(found, run_id, "bob")
    # What was judged before the halt stays in the evidence.
    stored = found.evidence.newest(run_id, "chunk-checks")
    told = [(chunk["chunk_id"], chunk["status"]) for chunk in stored[1]["chunks"]]
    assert told == [(FIRST, "done"), (SECOND, "done")]


@pytest.mark.req("Q9")
def test_with_counts_only_no_suite_runs_on_a_chunk() -> None:
    _, found = world(bad_rows={SECOND})
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
    found.ledger.rows.pop(0)
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


def record(**fields: Any) -> ChunkRecord:
    """A chunk of one day with ten rows."""
    said: dict[str, Any] = {
        "run_id": "bf-1", "chunk_id": "c1", "partitions": (DAY,), "status": "done",
        "input_rows": 20, "output_rows": 10, "outside_rows": 0, "checksum": "x", "seconds": 1.0,
        "snapshot_id": 8, "finished_at": datetime(2026, 1, 1, tzinfo=timezone.utc),
    }  # fmt: skip
    return ChunkRecord(**(said | fields))


def facts(**fields: Any) -> ChunkFacts:
    """What the shadow holds of it."""
    return ChunkFacts(**({"rows": {DAY: 10}, "null_keys": {}, "duplicate_keys": 0} | fields))


def judged(
    chunk: ChunkRecord | None = None,
    seen: ChunkFacts | None = None,
    rows_before: int = 0,
    emptied: tuple[str, ...] = (),
    **changes: Any,
) -> dict[str, str]:
    """Give what the failed gates saw, by name."""
    plan = a_plan()
    resolved = plan.resolved
    if "max_rows" in changes:
        safety = resolved.manifest.safety.model_copy(update={"max_rows": changes["max_rows"]})
        manifest = resolved.manifest.model_copy(update={"safety": safety})
        resolved = resolved.model_copy(update={"manifest": manifest})
    if "warm_up_days" in changes:
        pin = resolved.sources[0].model_copy(update={"warm_up_days": changes["warm_up_days"]})
        resolved = resolved.model_copy(update={"sources": (pin,)})
    plan = plan.model_copy(update={"resolved": resolved})
    found = checks.judge_chunk(plan, chunk or record(), seen or facts(), rows_before, emptied)
    return {check.name: check.detail for check in found if not check.passed}


@pytest.mark.req("Q9")
def test_a_good_chunk_passes_every_gate() -> None:
    assert judged() == {}


BAD = [
    pytest.param({"seen": facts(duplicate_keys=2)},
                 {"keys are unique": "2 duplicate keys in the chunk"}, id="duplicate keys"),
    pytest.param({"seen": facts(null_keys={"arrival_date": 3})},
                 {"keys have no nulls": "3 rows without arrival_date"}, id="null keys"),
    pytest.param({"rows_before": 95, "max_rows": 100},
                 {"row count is in range": "105 rows up to this chunk, at most 100"},
                 id="more rows than allowed, together with earlier chunks"),
    pytest.param({"emptied": (DAY,)},
                 {"no partition becomes empty": f"1 become empty, first {DAY}"}, id="emptied"),
    pytest.param({"seen": facts(rows={DAY: 9})},
                 {"chunk rows are all stored": "10 computed, 9 stored"}, id="rows are missing"),
    pytest.param({"chunk": record(outside_rows=4), "warm_up_days": 0},
                 {"rows lie inside the chunk": "10 inside, 4 outside and left out"},
                 id="rows outside without a warm-up"),
]  # fmt: skip


@pytest.mark.req("Q9")
@pytest.mark.parametrize(("given", "failed"), BAD)
def test_a_bad_chunk_fails_the_gate_and_shows_its_number(given, failed) -> None:
    assert judged(**given) == failed


@pytest.mark.req("Q9")
def test_rows_of_a_warm_up_fall_outside_by_design() -> None:
    assert judged(record(outside_rows=4), warm_up_days=1) == {}


@pytest.mark.req("Q9")
@pytest.mark.parametrize(("rows", "blocks"), [(10, False), (0, True)])
def test_rows_outside_block_only_when_none_lies_inside(rows: int, blocks: bool) -> None:
    plan = a_plan()
    pin = plan.resolved.sources[0].model_copy(update={"warm_up_days": 0})
    resolved = plan.resolved.model_copy(update={"sources": (pin,)})
    plan = plan.model_copy(update={"resolved": resolved})
    chunk, seen = record(output_rows=rows, outside_rows=4), facts(rows={DAY: rows} if rows else {})
    found = {each.name: each for each in checks.judge_chunk(plan, chunk, seen, 0, ())}
    assert found["rows lie inside the chunk"].blocking is blocks


@pytest.mark.req("Q9")
def test_partitions_without_rows_are_the_empty_ones() -> None:
    two = record(partitions=(DAY, "2013-02-16"))
    assert checks.empty_chunk_partitions(two, facts()) == ("2013-02-16",)
