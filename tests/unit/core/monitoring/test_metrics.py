"""The metrics of a lake, from the ledger, the logs and the evidence of its runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lakehouse_backfill.core.monitoring import metrics
from lakehouse_backfill.domain.monitoring.metrics import DEFINITIONS, METRICS
from lakehouse_backfill.domain.run import ChunkRecord, RunState, RunStatus
from tests.support.examples.plans import NOON, a_plan, an_event, with_fields
from tests.support.fakes.context import context, lake
from tests.support.fakes.steps import published_run

pytestmark = pytest.mark.req("O1")
S = RunState
#: The names that requirement O1 gives.
NAMED = {
    "backfill_input_records_total", "backfill_output_records_total",
    "backfill_rejected_records_total", "backfill_duplicates_total",
    "backfill_divergent_rows_total", "backfill_chunks_completed_total",
    "backfill_redone_chunks_total", "backfill_chunk_duration_seconds", "backfill_rows_per_second",
    "backfill_sink_write_latency_ms", "backfill_validation_failures_total",
    "backfill_cost_estimate", "backfill_publish_duration_seconds",
}  # fmt: skip


def chunk(number: int, **changes: Any) -> ChunkRecord:
    fields = {
        "run_id": "bf-1", "chunk_id": f"c{number}", "partitions": ("p",), "status": "done",
        "input_rows": 10 * number, "output_rows": number, "outside_rows": 0, "checksum": "x",
        "seconds": 2.0, "snapshot_id": 1, "finished_at": NOON, "epoch": 3, "rejected_rows": 1,
    }  # fmt: skip
    return ChunkRecord.model_validate(fields | changes)


def status(state: RunState = S.PUBLISHED, run_id: str = "bf-1", **changes: Any) -> RunStatus:
    fields = {"run_id": run_id, "product": "silver.a", "state": state, "seq": 5, "at": NOON}
    return RunStatus(**(fields | changes))


def check(name: str, *, passed: bool = True, blocking: bool = True, observed: int = 0) -> Any:
    return {"name": name, "passed": passed, "blocking": blocking, "observed": observed}


def observed(*chunks: ChunkRecord, **changes: Any) -> metrics.ObservedRun:
    fields = {
        "status": status(), "mode": "backfill", "plan": a_plan(), "events": (), "chunks": chunks,
        "validation": {},
    }  # fmt: skip
    return metrics.ObservedRun(**(fields | changes))


def values(run: metrics.ObservedRun) -> dict[str, float]:
    found = list(metrics.run_samples(run))
    assert {one.labels for one in found} <= {("silver.a", "bf-1", run.mode)}
    return {one.name.removeprefix("backfill_"): one.value for one in found if not one.observations}


def test_the_metrics_have_the_required_names_and_a_mode_on_each() -> None:
    assert set(DEFINITIONS) > NAMED
    assert all("mode" in one.labels for one in METRICS)
    assert len(DEFINITIONS) == len(METRICS)
    counters = {one.name for one in METRICS if one.kind == "counter"}
    assert counters == {one.name for one in METRICS if one.name.endswith("_total")}


def test_the_ledger_gives_rows_chunks_and_times() -> None:
    redone = chunk(3, epoch=9, seconds=4.0)
    failed = chunk(4, status="failed", epoch=9)
    found = values(observed(chunk(1), chunk(2), redone, failed))
    assert found == {
        "input_records_total": 100, "output_records_total": 10, "rejected_records_total": 4,
        "chunks_completed_total": 3, "redone_chunks_total": 1, "validation_failures_total": 1,
        "rows_per_second": 6 / 8,
    }  # fmt: skip


def test_chunks_that_no_driver_computed_have_no_times() -> None:
    run = observed(chunk(1, recovered=True), chunk(2, carried_from="bf-0", epoch=9))
    assert {one.name for one in metrics.run_samples(run) if one.observations} == set()
    assert "rows_per_second" not in values(run)
    assert values(run)["redone_chunks_total"] == 0


def test_each_chunk_is_one_observation_of_both_histograms() -> None:
    found = {
        one.name: one.observations
        for one in metrics.run_samples(observed(chunk(1), chunk(2, seconds=0.25)))
    }
    assert found["backfill_chunk_duration_seconds"] == (2.0, 0.25)
    assert found["backfill_sink_write_latency_ms"] == (2000.0, 250.0)


def test_the_validation_gives_failures_duplicates_and_divergent_rows() -> None:
    document = {
        "checks": [
            check("keys are unique", passed=False, observed=7),
            check("totals", passed=False, blocking=False), check("rows", passed=False),
        ],
        "diff": {"summary": {"added": 1, "removed": 2, "changed": 3, "unchanged": 9}},
    }  # fmt: skip
    found = values(observed(validation=document))
    assert found["validation_failures_total"] == 2
    assert found["duplicates_total"] == 7
    assert found["divergent_rows_total"] == 6
    assert "duplicates_total" not in values(observed())


def test_plan_and_log_give_cost_and_publication() -> None:
    begun = an_event("bf-1", 6, S.ACCEPTED, S.PUBLISHING, verb="begin publishing", at=NOON)
    ended = an_event(
        "bf-1", 7, S.PUBLISHING, S.PUBLISHED, verb="finish publishing",
        at=NOON + timedelta(seconds=3),
    )  # fmt: skip
    plan = with_fields(a_plan(), estimate__cost_usd=1.5)
    found = values(observed(plan=plan, events=(begun, ended)))
    assert (found["cost_estimate"], found["publish_duration_seconds"]) == (1.5, 3)
    assert "cost_estimate" not in values(observed(plan=None))


def test_what_an_older_run_caused_has_its_mode_although_it_has_no_label_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "CLOSED_RUNS", 0)
    monkeypatch.setattr(metrics, "freshness_of", lambda *_: NOON)
    found = context(lake())
    run = published_run(found)
    samples = metrics.collect_metrics(found)
    modes = {one.name: one.labels[-1] for one in samples}
    assert run not in {label for one in samples for label in one.labels}
    assert modes["backfill_product_freshness_seconds"] == "backfill"
    assert modes["backfill_pinned_bytes"] == "backfill"


def test_the_number_of_runs_with_labels_is_bounded() -> None:
    over = [status(run_id=f"bf-{n}", at=NOON + timedelta(hours=n)) for n in range(50)]
    still = [status(S.STAGING, run_id="bf-old", at=NOON - timedelta(days=400))]
    found = [one.run_id for one in metrics.labelled_runs((*over, *still))]
    assert found == ["bf-old", *(f"bf-{49 - n}" for n in range(metrics.CLOSED_RUNS))]


def test_open_runs_are_counted_by_product_state_and_mode() -> None:
    runs = (status(S.STAGING), status(S.STAGING, run_id="bf-2"), status(S.PLANNED, run_id="bf-3"))
    found = metrics.open_run_samples((*runs, status(run_id="bf-4")), {"bf-1": "replay"})
    assert {one.labels: one.value for one in found} == {
        ("silver.a", "staging", "replay"): 1,
        ("silver.a", "staging", "none"): 1,
        ("silver.a", "planned", "none"): 1,
    }
