"""What a plan reads and costs, its limits, and who is broken by a publication."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session.settings import configured_cores
from lakehouse_backfill.core.guards.streams import affected_consumers, is_position_key
from lakehouse_backfill.core.planning.estimates import (
    Inputs,
    Learned,
    Outputs,
    check_limits,
    estimate_from_files,
)
from lakehouse_backfill.core.planning.pace import learn
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import Estimate
from lakehouse_backfill.domain.profile import Prices
from lakehouse_backfill.domain.tables.files import ScanEstimate
from lakehouse_backfill.errors import LimitExceeded
from tests.support.examples.paces import a_sample
from tests.support.examples.plans import NOON, a_plan, with_fields
from tests.support.fakes.context import contract, declared
from tests.support.fakes.steps import published_run, world

INPUTS = Inputs.of([ScanEstimate(files=3, rows=10, size_bytes=2_000_000_000)])


def limited(**safety: Any) -> RunManifest:
    changes = {f"safety__{name}": value for name, value in safety.items()}
    return with_fields(a_plan().resolved.manifest, **changes)


@pytest.mark.parametrize(
    ("prices", "cost", "problem"),
    [
        (Prices(), None, "the cost of the plan is unknown"),
        (
            Prices(core_hour=3.0),
            None,
            "the cost of the plan is not complete: duration",
        ),
        (Prices(core_hour=3.0, read_gb=0.05), 0.1, "the cost of the plan is not complete"),
        (Prices(read_gb=0.05), 0.1, ""),
        (Prices(read_gb=0.05, write_gb=1.0), 0.1, "its partitions hold nothing yet"),
        (Prices(read_gb=5.0), 10.0, "the plan needs 10.0 cost in USD; safety.max_cost_usd allows"),
    ],
    ids=[
        "no prices",
        "only core-hours, unknown",
        "core-hours unknown",
        "within",
        "output unknown",
        "over",
    ],
)
def test_a_limit_of_the_cost_refuses_what_is_over_it_and_what_is_unknown(prices, cost, problem):
    found = estimate_from_files(INPUTS, Outputs(), prices)
    assert found.cost_usd == cost
    check_limits(limited(), found, NOON, prices)
    if not problem:
        check_limits(limited(max_cost_usd=1.0), found, NOON, prices)
        return
    with pytest.raises(LimitExceeded, match=problem) as refused:
        check_limits(limited(max_cost_usd=1.0), found, NOON, prices)
    assert refused.value.field == "safety.max_cost_usd"


@pytest.mark.parametrize(
    ("seconds", "rows", "cores", "hours", "cost", "basis"),
    [
        (720.0, 10, 4, 0.8, 2.4, "by 1 earlier run of this transform (2 chunks, the newest"),
        (720.0, 10, None, None, None, "core-hours: not estimated, the profile does not"),
        # Rows are not counted: half of the mean time of a chunk for each of three chunks.
        (720.0, 0, 4, 0.6, 1.8, "by 1 earlier run"),
    ],
    ids=["known", "no cores", "no rows"],
)
def test_core_hours_come_from_the_pace_of_earlier_runs(seconds, rows, cores, hours, cost, basis):
    prices = Prices(core_hour=3.0)
    history = learn([a_sample(rows=rows, chunks=2, chunk_s=seconds)], 10, 3, NOON, "local[4]")
    learned = Learned(history, None, "local[4]", cores)
    found = estimate_from_files(INPUTS, Outputs(), prices, learned)
    assert (found.core_hours, found.cost_usd) == (hours, cost)
    assert basis in found.basis
    if cost is not None:
        check_limits(limited(max_cost_usd=3.0), found, NOON, prices)
        with pytest.raises(LimitExceeded, match="allows 1"):
            check_limits(limited(max_cost_usd=1.0), found, NOON, prices)


def test_a_plan_reads_the_pace_of_runs_with_the_same_transform_only():
    _, found = world()
    found = replace(found, cores=lambda: 2)
    assert "no run has computed with this transform yet" in planned_estimate(found).basis
    published_run(found, declared())
    known = planned_estimate(found)
    assert known.duration_s is not None
    assert "earlier run of this transform" in known.basis
    other = {"name": "daily", "version": "2.0.0", "file": "jobs/daily.py"}
    assert planned_estimate(found, transform=other).duration_s is None


PARTIAL = {
    "a row predicate": {"row_predicate": {"id": 1}},
    "columns": {"columns": ["amount"]},
}


@pytest.mark.parametrize("target", PARTIAL.values(), ids=PARTIAL)
def test_a_run_that_carries_rows_over_is_estimated_to_read_what_it_replaces(target) -> None:
    _, found = world()
    whole, part = planned_estimate(found), planned_estimate(found, target=target)
    assert (part.input_files, part.input_rows) == (whole.input_files + 2, whole.input_rows + 20)
    assert part.input_bytes == whole.input_bytes + 200
    assert "the target's own files" in part.basis
    assert "own files" not in whole.basis


def test_the_rows_that_are_carried_over_are_no_input() -> None:
    where, found = world()
    where.add("bronze.raw", **{"2019-01-01": "raw-0"})
    plan = make_plan(found, declared(target={"columns": ["amount"]}), "bob", None)
    assert any("the pinned input holds no rows in the range" in one for one in plan.warnings)


def planned_estimate(found: Context, **changes: Any) -> Estimate:
    return make_plan(found, declared(**changes), "bob", None).estimate


@pytest.mark.parametrize(
    ("spark", "cores"),
    [
        ({"spark.master": "local[4]"}, 4),
        ({"spark.master": "local[3,2]"}, 3),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[*]"}, os.cpu_count()),
        ({}, os.cpu_count()),
        ({"spark.master": "yarn"}, None),
        ({"spark.remote": "sc://host:15002"}, None),
        (
            {"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "4"},
            20,
        ),
    ],
)
def test_the_cores_of_a_profile_are_those_of_its_settings(spark, cores):
    assert configured_cores(spark) == cores


STREAM = {"name": "alerts", "tolerates_restatement": True, "reads": "stream"}
BATCH = {"name": "report", "tolerates_restatement": True}


def test_a_streaming_reader_is_named_with_what_to_do() -> None:
    (text,) = affected_consumers(contract(consumers=[STREAM, BATCH]), "replace_partitions", {})
    assert text.startswith("alerts streams from silver.daily")
    assert "streaming-skip-overwrite-snapshots" in text


@pytest.mark.parametrize(
    ("mode", "publication", "says"),
    [
        ("append", "follow", ["as new ones"]),
        ("correction_events", "follow", []),
        ("pointer_swap", "pinned", ["resolve the pointer again"]),
    ],
)
def test_a_streaming_reader_is_named_where_it_meets_the_change(mode, publication, says) -> None:
    texts = affected_consumers(contract(consumers=[STREAM], publication=publication), mode, {})
    assert [word in text for word, text in zip(says, texts, strict=True)] == [True] * len(says)


@pytest.mark.parametrize(
    ("key", "writer"),
    [
        ("flink.max-committed-checkpoint-id", "a Flink job"),
        ("kafka.connect.offsets.control-x.1", "a Kafka Connect sink"),
    ],
)
def test_a_writer_that_keeps_its_position_in_summaries_is_named(key: str, writer: str) -> None:
    assert is_position_key(key)
    (text,) = affected_consumers(contract(), "replace_partitions", {key: "7"})
    assert text.startswith(f"{writer} keeps its position")
    assert "children of its head" in text


def test_batch_readers_and_plain_tables_need_no_word() -> None:
    assert affected_consumers(contract(consumers=[BATCH]), "replace_partitions", {}) == ()
    assert not is_position_key("added-records")
