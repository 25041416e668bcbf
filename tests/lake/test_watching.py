"""A restatement beside earlier partitions, its sources by partition, and its suites' one read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.distributed.key_groups import GroupedDiffer
from lakehouse_backfill.adapters.quality.judge import ExpectationsJudge
from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
from lakehouse_backfill.adapters.spark.workers import SparkWorkers
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.ports.comparison import DiffRequest
from tests.support.spark.lake import DAYS, Lake, PlanMaker
from tests.support.spark.modes import LakeProject

pytestmark = pytest.mark.lake

JOB = """
from lakehouse_backfill.transforms import transform

@transform(name="orders", version="1.0.0", inputs=("src",))
def orders(context, src):
    found = src.select("d", "k", "state", "v")
    if context.config.get("twice"):
        found = found.unionAll(found.selectExpr("d", "k + 1000 AS k", "state", "v"))
    return found
"""
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "v"}}
STATES = {
    "type": "expect_column_values_to_be_in_set",
    "kwargs": {"column": "state", "value_set": ["open", "paid"]},
}


COLUMNS = (("d", "date"), ("k", "long"), ("state", "string"), ("v", "double"))


class Orders(LakeProject):
    transform = "orders"


@pytest.fixture
def orders(lake: Lake) -> Callable[..., dict[str, Any]]:
    """Restate Friday, 2024-03-29, of a product with 12 weeks of history; gives the validation."""
    for table in ("src", "out"):
        lake.create(table, COLUMNS)
        lake.append(table, *_history())
    return lambda config=None, **contract: _restated(lake, config or {}, contract)


def _history() -> Iterator[tuple[Any, ...]]:
    """Give 40 orders of each weekday and 10 of others, a few more or less; a quarter is open."""
    for number in range(85):
        day = date(2024, 1, 5) + timedelta(days=number)
        for k in range(1, (40 if day.weekday() < 5 else 10) + number * 7 % 3 + 1):
            yield day, k, "paid" if k % 4 else "open", 1.0 * k


def _restated(lake: Lake, config: dict[str, Any], contract: dict[str, Any]) -> dict[str, Any]:
    lake.job(json.dumps({"expectations": [NOT_NULL]}), "expectations/a.json")
    lake.job(json.dumps({"expectations": [STATES]}), "expectations/b.json")
    declared = {
        "measures": [{"name": "amount", "sum": "v"}, {"name": "orders", "counts_by": "state"}],
        "source_totals": [
            {"measure": "amount", "source": "src", "sum": "v", "partition": "d"},
            {"measure": "orders", "source": "src", "counts_by": "state", "partition": "d"},
        ],
        "suites": [{"file": f"expectations/{name}.json", "on": "output"} for name in "ab"],
    } | contract
    made = Orders(lake, JOB, COLUMNS, **declared)
    run_id = made.plan(
        config=config,
        source={"range": {"column": "d", "from": "2024-03-01", "to": "2024-04-10"}},
        target={"partitions": {"column": "d", "from": "2024-03-29", "to": "2024-03-30"}},
        validation={"chunk_checks": "counts"},
    )
    made.project.stage(run_id, "ann")
    return made.project.validate(run_id, "ann").to_dict() | {"project": made.project}


def _failed(found: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["detail"] for check in found["checks"] if not check["passed"]}


@pytest.mark.req("Q4", "Q6", "Q3")
def test_a_usual_result_is_quiet_and_says_what_its_suites_cost(
    orders: Callable[..., dict[str, Any]],
) -> None:
    found = orders()
    assert (found["state"], _failed(found)) == ("validated", {})
    judged = {report["measure"]: report["judged"] for report in found["anomalies"]}
    assert judged == {"rows": 1, "amount": 1, "orders: open": 1, "orders: paid": 1}
    spent = found["spent"]
    assert 0 < spent["suites_s"] < spent["validate_s"] < spent["run_s"]
    assert spent["suites_share"] == pytest.approx(spent["suites_s"] / spent["run_s"], abs=1e-3)
    names = [check["name"] for check in found["checks"]]
    assert "amount of each partition equals v of src" in names
    assert "orders of each partition equals rows by state of src" in names


# In every turn: no other test shows the gate of source totals closed.
@pytest.mark.in_turn(1)
@pytest.mark.req("Q4", "Q6", "Q5", "Q8")
def test_rows_that_stand_twice_are_an_anomaly_and_no_partition_equals_its_source(
    orders: Callable[..., dict[str, Any]],
) -> None:
    found = orders({"twice": True}, watch={"anomalies": "block"})
    assert found["state"] == "rejected"
    said = _failed(found)
    assert said["rows is like that of earlier partitions"].startswith(
        "1 of 1 partitions far from earlier partitions of the same weekday; 2024-03-29: 80, median "
    )
    assert said["amount of each partition equals v of src"].startswith(
        "1 partitions compared, 1 differ; 2024-03-29, amount: candidate 1,640"
    )
    assert said["orders of each partition equals rows by state of src"] == (
        "1 partitions compared, 1 differ; "
        "2024-03-29, orders: open: candidate 20, source 10; "
        "2024-03-29, orders: paid: candidate 60, source 30"
    )
    project, run_id = found["project"], found["run_id"]
    for gate in [gate.name for gate in project.waive(run_id).gates]:
        passed = project.waive(run_id, gate, "lead", "orders really doubled that day")
    assert passed.state == "validated"


@pytest.mark.req("Q3")
def test_all_suites_share_one_read_of_the_columns_that_they_name(
    lake: Lake, tmp_path: Path
) -> None:
    rows = lake.spark.createDataFrame([(1, "open"), (2, "paid")], "v int, state string")
    frame = rows.selectExpr("v", "state", "assert_true(v IS NULL) AS never_read")
    files = []
    for name, entry in (("a", NOT_NULL), ("b", STATES)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"expectations": [entry]}))
        files.append((f"{name}.json", {}))
    found = ExpectationsJudge(tmp_path).judge_all(frame, tuple(files), "quality")
    assert [check.passed for check in found] == [True, True]
    assert not frame.select("v", "state").is_cached


@pytest.mark.req("Q6")
def test_earlier_partitions_are_read_in_the_same_pass(
    lake: Lake, daily: Callable[..., PlanMaker]
) -> None:
    plan = daily().make()
    measures = (Measure(name="total", sum="v"), Measure(name="by_k", counts_by="k"))
    side = (lake.table("out"), lake.head("out"))
    found = SparkMeasuring(lake.tables).measure(
        side, side, plan.resolved.scope, measures, earlier=DAYS[0:2]
    )
    values = {day: [row for row in lake.rows("out") if str(row[0]) == day] for day in DAYS[0:2]}
    keys = {str(row[1]) for rows in values.values() for row in rows}
    assert found.earlier == {
        day: {
            "rows": len(rows),
            "total": sum(row[2] for row in rows),
            **{f"by_k: {key}": sum(str(row[1]) == key for row in rows) for key in keys},
        }
        for day, rows in values.items()
    }


@pytest.mark.req("Q4")
def test_a_counted_column_of_too_many_values_is_refused(
    lake: Lake, daily: Callable[..., PlanMaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_backfill.adapters.spark.measuring.partition_sums.MAX_GROUPS", 3)
    plan = daily().make()
    side = (lake.table("out"), lake.head("out"))
    with pytest.raises(ConfigError, match="counts by k: more than 3 groups"):
        SparkMeasuring(lake.tables).measure(
            side, side, plan.resolved.scope, (Measure(name="n", counts_by="k"),)
        )


@pytest.mark.req("Q4")
def test_a_partition_column_of_another_type_is_refused(
    lake: Lake, daily: Callable[..., PlanMaker]
) -> None:
    plan = daily().make()
    total = SourceTotal(measure="total", source="src", sum="v", partition="k")
    with pytest.raises(ConfigError, match=r"src\.k is bigint, and partitions are of d"):
        SparkMeasuring(lake.tables).source_totals(plan, (total,), (Measure(name="total", sum="v"),))


@pytest.mark.req("Q5")
def test_both_engines_report_the_same_distributions(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE {ns}.t (d date, k bigint, n int, x double, m decimal(12, 2), s string, "
        "b boolean, p double) USING iceberg PARTITIONED BY (d)"
    )
    rows = (
        "SELECT date_add(date'2024-01-01', CAST(id % 3 AS int)), id, CAST(id * {f} % 97 AS int), "
        "CASE WHEN id % 50 = 0 THEN double('NaN') WHEN id % 51 = 0 THEN double('-inf') "
        "ELSE id * {f} / 7.0 - 300 END, CAST(id * {f} / 3 AS decimal(12, 2)), "
        "if(id % 11 = 0, NULL, concat('s', id * {f} % 30)), id % {f} = 0, "
        "CASE WHEN id = 5 THEN 999999999D WHEN id % 7 = 0 THEN -1 ELSE 1 END "
        "* pow(2D, id * {f} % 140 - 70) * if(id % 2 = 0, 1D, 0.9999999999999999D) "
        "FROM range(900)"
    )
    lake.sql("INSERT INTO {ns}.t " + rows.replace("{f}", "2"))
    old = lake.head("t")
    lake.sql("INSERT OVERWRITE {ns}.t " + rows.replace("{f}", "3"))
    table = lake.table("t")
    request = DiffRequest(table, old, table, lake.head("t"), ("d", "k"))
    groups = SparkWorkers(lake.tables)
    spark = GroupedDiffer(LocalDiffer(lake.catalog), groups, 2).diff(request).columns
    local = LocalDiffer(lake.catalog, batch_rows=1).diff(request).columns
    assert [c.distribution for c in spark] == [c.distribution for c in local]
    tests = {c.name: c.distribution and c.distribution.test for c in spark}
    assert tests == {"n": "ks", "x": "ks", "m": "ks", "s": "psi", "b": "psi", "p": "ks"}


@pytest.mark.req("Q4", "Q6")
def test_the_toolkits_own_numbers_of_both_sides_come_from_one_query(
    lake: Lake, daily: Callable[..., PlanMaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = daily().make()
    side = (lake.table("out"), lake.head("out"))
    asked = []
    frame = type(lake.spark.range(1))
    collect = frame.collect
    monkeypatch.setattr(frame, "collect", lambda self: asked.append(1) or collect(self))
    SparkMeasuring(lake.tables).measure(
        side, side, plan.resolved.scope,
        (Measure(name="total", sum="v"), Measure(name="by_k", counts_by="k")),
        earlier=DAYS[0:3],
    )  # fmt: skip
    assert len(asked) == 1
