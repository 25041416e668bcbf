"""Checks of pinned inputs and single chunks on Spark, and whole runs that they stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.local.inspecting import (
    InspectingBySize,
    LocalInspector,
)
from lakehouse_backfill.adapters.spark.measuring.inspecting import SparkInspecting
from lakehouse_backfill.adapters.spark.session.write_guard import forbid_job_writes
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.run import ChunkFacts
from lakehouse_backfill.errors import ChecksFailed, ConfigError, WriteForbidden
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job
from tests.support.spark.modes import BY_PARTITION, LakeProject

pytestmark = pytest.mark.lake

Daily = Callable[..., PlanMaker]
Inspector = LocalInspector | SparkInspecting


@pytest.fixture(params=["spark", "local"])
def inspecting(request: Any, lake: Lake) -> Inspector:
    if request.param == "local":
        return LocalInspector(lake.catalog)
    return SparkInspecting(lake.tables)


@pytest.mark.req("Q0")
def test_the_days_of_an_input_are_those_with_a_row_where_the_run_reads_it(
    lake: Lake, daily: Daily, inspecting: Inspector
) -> None:
    maker = daily(partitions=DAYS[3:6], warm_up_days=1)
    lake.sql("DELETE FROM {ns}.src WHERE d = date'2024-01-05'")
    plan = maker.make()
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-05', 1, 1)")  # after the pin
    assert inspecting.periods(plan, "src", "day") == ("2024-01-03", "2024-01-04", "2024-01-06")
    assert inspecting.periods(plan, "src", "month") == ("2024-01",)


@pytest.mark.req("Q0")
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_the_hours_of_an_input_are_utc_whatever_the_column(
    lake: Lake,
    daily: Daily,
    inspecting: Inspector,
    kind: str,
) -> None:
    maker = daily(source_column="at", partitions=DAYS[4:5])
    lake.sql("DROP TABLE {ns}.src")
    lake.sql(f"CREATE TABLE {{ns}}.src (at {kind}, d date, k bigint, v bigint)")
    lake.sql(
        f"INSERT INTO {{ns}}.src SELECT CAST(t AS {kind}), date'2024-01-05', 1, 1 FROM VALUES "
        "('2024-01-04 23:59:59'), ('2024-01-05 00:00:00'), ('2024-01-05 07:30:00'), "
        "('2024-01-06 00:00:00') AS x(t)"
    )
    found = inspecting.periods(maker.make(), "src", "hour")
    assert found == ("2024-01-05T00", "2024-01-05T07")


@pytest.mark.req("Q0")
def test_dates_have_no_hours(lake: Lake, daily: Daily) -> None:
    spark = SparkInspecting(lake.tables)
    with pytest.raises(ConfigError, match="holds dates"):
        InspectingBySize(LocalInspector(lake.catalog), spark).periods(daily().make(), "src", "hour")


CHUNK = Chunk(chunk_id="c1", partitions=DAYS[4:7])
KEYS = [
    pytest.param(["d", "k"], ChunkFacts(
        rows={DAYS[4]: 5, DAYS[5]: 4, DAYS[6]: 4}, null_keys={"k": 1}, duplicate_keys=1,
    ), id="the partition is in the key"),
    pytest.param(["k"], ChunkFacts(
        rows={DAYS[4]: 5, DAYS[5]: 4, DAYS[6]: 4}, null_keys={"k": 1}, duplicate_keys=2,
    ), id="a key may stand in two partitions"),
    pytest.param([], ChunkFacts(
        rows={DAYS[4]: 5, DAYS[5]: 4, DAYS[6]: 4}, null_keys={}, duplicate_keys=0,
    ), id="no key"),
]  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.req("Q9")
@pytest.mark.parametrize(("key", "facts"), KEYS)
def test_one_look_at_a_chunk_counts_rows_null_keys_and_keys_that_stand_twice(
    lake: Lake,
    daily: Daily,
    inspecting: Inspector,
    key: list[str],
    facts: ChunkFacts,
) -> None:
    plan = daily(contract={"key": key}, partitions=DAYS[4:7]).make()
    # Day 5 gets the key of its own row 4 again, day 6 one of day 7, and one row loses its key.
    lake.sql("INSERT INTO {ns}.shadow VALUES (date'2024-01-05', 4, 0)")
    lake.sql("UPDATE {ns}.shadow SET k = 6 WHERE d = date'2024-01-06' AND k = 5")
    lake.sql("UPDATE {ns}.shadow SET k = NULL WHERE d = date'2024-01-07' AND k = 16")
    assert inspecting.chunk(plan, CHUNK, lake.head("shadow")) == facts


@pytest.mark.req("Q9")
def test_a_chunk_is_looked_at_as_it_was_committed(
    lake: Lake, daily: Daily, inspecting: Inspector
) -> None:
    plan, head = daily().make(), lake.head("shadow")
    lake.sql("DELETE FROM {ns}.shadow WHERE d = date'2024-01-05'")
    chunk = Chunk(chunk_id="c1", partitions=DAYS[4:5])
    assert inspecting.chunk(plan, chunk, head).rows == {DAYS[4]: 4}
    assert inspecting.chunk(plan, chunk, lake.head("shadow")).rows == {}


JOB = copy_job(
    "twice = src.limit(0)",
    "if context.config.get('twice'):",
    """    twice = src.where("d = date'2024-01-06'")""",
    'return src.unionAll(twice).selectExpr("d", "k", "v + 1 AS v")',
)
SUITE = {
    "name": "out",
    "expectations": [
        {"type": "expect_column_values_to_be_between",
         "kwargs": {"column": "v", "min_value": 0, "max_value": 1000}},
        {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 8}},
    ],
}  # fmt: skip


class Runs(LakeProject):
    """Runs from manifest to validation, over the tables of `daily`."""

    def __init__(self, lake: Lake) -> None:
        columns = (("d", "date"), ("k", "long"), ("v", "long"))
        suites = [{"file": "expectations/out.json", "on": "output"}]
        super().__init__(lake, JOB, columns, suites=suites)
        lake.job(json.dumps(SUITE), "expectations/out.json")

    def approved(self, **changes: Any) -> str:
        """Plan and approve a restatement of two days in two chunks."""
        days = {"column": "d", "from": "2024-01-05", "to": "2024-01-07"}
        return self.plan(target={"partitions": days}, **BY_PARTITION, **changes)

    def failed(self, run_id: str) -> list[str]:
        """Name the gates that stopped the run."""
        return [gate.name for gate in self.project.waive(run_id).gates]

    def golden(self, *rows: str) -> dict[str, Any]:
        """Write expected rows; gives what the manifest says of them."""
        self.lake.job("\n".join(["d,k,v", *rows]) + "\n", "golden/out.csv")
        return {"golden": "golden/out.csv"}


@pytest.fixture
def runs(lake: Lake, daily: Daily) -> Runs:
    daily()
    lake.sql("DROP TABLE {ns}.shadow")
    return Runs(lake)


@pytest.mark.req("X1", "X3")
def test_a_suite_is_judged_while_the_code_of_another_chunk_may_not_write(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from great_expectations.compatibility import pyspark as of_great_expectations

    asked: list[str] = []

    def create() -> None:
        # Where Connect can be imported, a session of it is asked for first.
        runs.lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
        asked.append("a session")
        raise ValueError("there is no Connect session")

    connect = SimpleNamespace(builder=SimpleNamespace(getOrCreate=create))
    monkeypatch.setattr(of_great_expectations, "SparkConnectSession", connect)
    monkeypatch.setattr("lakehouse_backfill.adapters.quality.few_rows.MAX_ROWS", 0)
    frame = runs.lake.spark.table(f"lake.{runs.lake.table('src')}")
    judge = runs.project.wiring.context.compute().judge
    with forbid_job_writes():
        found = judge.judge(frame, "expectations/out.json", {}, "quality")
        with pytest.raises(WriteForbidden):
            create()
    assert [check.passed for check in found] == [True, True]
    assert asked


@pytest.mark.req("T7", "Q5")
def test_a_result_is_reconciled_with_golden_rows_and_named_records(runs: Runs) -> None:
    spots = [{"key": {"d": "2024-01-06", "k": 15}, "expect": {"v": 16}}]
    # 2024-01-05 holds the keys 4, 14, 24, 34; the job adds one to each value.
    expected = runs.golden("2024-01-05,4,5", "2024-01-06,35,36")
    run_id = runs.approved(validation=expected | {"spot_checks": spots})
    assert runs.project.run(run_id, "ann").state == "validated"
    checks = runs.project.evidence_document(run_id)["validation"]["checks"]
    told = {check["name"]: check["detail"] for check in checks if check["group"] == "golden"}
    assert told == {
        "golden/out.csv": "2 expected rows found as expected",
        "spot checks": "1 expected rows found as expected",
    }


@pytest.mark.req("T7", "Q8")
def test_a_result_that_is_not_what_the_golden_rows_say_is_rejected_and_named(runs: Runs) -> None:
    spots = [{"key": {"d": "2024-01-06", "k": 15}, "expect": {"v": 15}}]
    expected = runs.golden("2024-01-05,4,6", "2024-01-06,99,1", "2024-01-06,35,36")
    run_id = runs.approved(validation=expected | {"spot_checks": spots})
    done = runs.project.run(run_id, "ann")
    assert done.state == "rejected"
    closed = [check for check in done.checks if check.blocking and not check.passed]
    told = {check.name: check.detail for check in closed}
    assert told == {
        "golden/out.csv": "d=2024-01-05, k=4: v is 5, expected 6; d=2024-01-06, k=99: no such row",
        "spot checks": "d=2024-01-06, k=15: v is 16, expected 15",
    }
    assert runs.failed(run_id) == ["golden/out.csv", "spot checks"]
    runs.project.waive(run_id, "golden/out.csv", "lead", "the file is old")
    passed = runs.project.waive(run_id, "spot checks", "lead", "so is the record")
    assert (passed.state, passed.gates) == ("validated", ())


@pytest.mark.req("Q9", "Q8")
def test_the_first_bad_chunk_stops_a_run_until_it_is_waived(runs: Runs) -> None:
    run_id = runs.approved(config={"twice": True})
    with pytest.raises(ChecksFailed) as stopped:
        runs.project.run(run_id, "ann")
    assert "(2024-01-06) failed 1 of its checks: Is every key unique? 4 duplicate keys" in (
        stopped.value.problem
    )
    ledger = runs.project.chunks(run_id).chunks
    assert [chunk.status for chunk in ledger] == ["done", "failed"]
    snapshots = [chunk.snapshot_id for chunk in ledger]
    line = runs.project.status(run_id).runs[0]
    assert [gate.name for gate in line.gates] == ["keys are unique"]
    told = runs.project.waive(run_id, "keys are unique", "lead", "to be put right by bf-2")
    assert told.next_command == f"lakehouse-backfill run {run_id}"
    done = runs.project.run(run_id, "ann")
    # The chunk was not computed again; the whole result needs a waiver of its own.
    ledger = runs.project.chunks(run_id).chunks
    assert [chunk.snapshot_id for chunk in ledger] == snapshots
    assert (done.state, runs.failed(run_id)) == ("rejected", ["keys are unique"])


@pytest.mark.req("Q9")
def test_a_chunk_with_a_bad_row_is_stopped_by_the_suite_of_the_output(runs: Runs) -> None:
    runs.lake.sql("UPDATE {ns}.src SET v = 5000 WHERE k = 14")
    run_id = runs.approved()
    with pytest.raises(ChecksFailed) as stopped:
        runs.project.run(run_id, "ann")
    assert "expect_column_values_to_be_between(v)? 1 of 4 rows unexpected (25 %), e.g. 5001" in (
        stopped.value.problem
    )
    assert [chunk.status for chunk in runs.project.chunks(run_id).chunks] == [
        "failed", "pending",
    ]  # fmt: skip


@pytest.mark.req("Q0", "Q8")
def test_a_day_without_rows_stops_a_run_before_it_stages_anything(runs: Runs) -> None:
    runs.lake.sql("DELETE FROM {ns}.src WHERE d = date'2024-01-05'")
    run_id = runs.approved(source={"complete": "day"})
    with pytest.raises(ChecksFailed, match="no row on 1 of 2 days: 2024-01-05"):
        runs.project.run(run_id, "ann")
    shadow = runs.project.evidence_document(run_id)["plan"]["shadow_table"]
    assert not runs.lake.catalog.table_exists(shadow)
    runs.project.waive(run_id, "src has rows in every day", "lead", "a holiday")
    with pytest.raises(ChecksFailed, match="Does every partition keep rows"):
        runs.project.run(run_id, "ann")
