"""Staging is refused by what the engine makes of the code, before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.staging.determinism import DETERMINISM, UNREAD_INPUTS
from lakehouse_backfill.errors import Blocked, ChecksFailed, NonDeterministic
from tests.support.spark.modes import Make, Modes

#: Types decide, which no source shows: the sum of a double.
FLOATS = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

def halves(rows):
    return rows.withColumn("h", F.col("v") / 2)

@transform(name="{name}", version="1.0.0", inputs=("src",))
def job(context, src):
    rows = halves(src).groupBy("d", "k", "tenant").agg(
        F.max("ver").alias("ver"),
        F.sum("h").cast("bigint").alias("v"),
    )
    return rows.select("d", "k", "tenant", "v", "ver")
"""
#: A name that is put together, and an unpinned table.
HIDDEN = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="{name}", version="1.0.0", inputs=("src",))
def job(context, src):
    moved = src.repartition(4, getattr(F, "ra" + "nd")())
    other = moved.sparkSession.table("{table}") if context.config.get("live") else moved
    return other.select("d", "k", "tenant", "v", "ver")
"""


def prepared(make: Make, job: str, name: str, **changes: Any) -> tuple[Modes, str]:
    modes = make()
    modes.source("2, 1, A, 20, 1", "3, 1, A, 30, 1")
    modes.transform = name
    modes.lake.job(job.replace("{name}", name), "jobs/job.py")
    return modes, modes.plan(**changes)


def refused(modes: Modes, run_id: str) -> NonDeterministic:
    context = modes.project.wiring.context
    with pytest.raises(NonDeterministic) as caught:
        modes.project.stage(run_id, "ann")
    shadow = context.runs.plan(run_id).shadow_table
    assert context.tables.describe(shadow) is None
    assert caught.value.state == "no row was written; readers see what they saw before"
    return caught.value


@pytest.mark.req("D1")
def test_a_sum_of_doubles_is_refused_with_its_line_before_a_shadow_exists(make: Make) -> None:
    modes, run_id = prepared(make, FLOATS, "floats")
    (fault,) = refused(modes, run_id).faults
    assert (fault.file, fault.line, fault.field) == ("jobs/job.py", 12, "float_sum")
    assert "sum(h)" in fault.problem
    assert "money(" in fault.fix


@pytest.mark.req("D1")
def test_what_is_allowed_is_evidence_with_its_reason(make: Make) -> None:
    allowed = {"kind": "float_sum", "reason": "halves of small numbers are exact"}
    safety = {"allow_nondeterminism": [allowed]}
    modes, run_id = prepared(make, FLOATS, "floats", safety=safety)
    modes.project.stage(run_id, "ann")
    kept = modes.project.wiring.context.evidence.newest(run_id, DETERMINISM)
    assert kept is not None
    (finding,) = kept[1]["findings"]
    assert (finding["line"], finding["allowed"]) == (12, "halves of small numbers are exact")


@pytest.mark.req("D1")
def test_a_shuffle_by_a_hidden_random_key_is_refused_whatever_is_allowed(make: Make) -> None:
    safety = {"allow_nondeterminism": [{"kind": "random_value", "reason": "a test"}]}
    pinned = HIDDEN.replace('moved.sparkSession.table("{table}")', "moved")
    modes, run_id = prepared(make, pinned, "hidden", safety=safety)
    (fault,) = refused(modes, run_id).faults
    assert (fault.line, fault.field) == (7, "random_shuffle")


@pytest.mark.req("D1")
def test_a_read_that_is_put_together_at_run_time_is_refused(make: Make) -> None:
    modes = make()
    modes.source("2, 1, A, 20, 1", "3, 1, A, 30, 1")
    modes.transform = "unpinned"
    text = HIDDEN.replace("{name}", "unpinned").replace('"ra" + "nd"', '"co" + "l"')
    text = text.replace(")()", ')("k")').replace(".table(", '.__getattribute__("ta" + "ble")(')
    modes.lake.job(text.replace("{table}", f"lake.{modes.lake.table('src')}"), "jobs/job.py")
    run_id = modes.plan(config={"live": True})
    (fault,) = refused(modes, run_id).faults
    assert fault.field == "unpinned_read"


#: Reads a table at a fixed version, in a subquery, beside its input.
BESIDE = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="{name}", version="1.0.0", inputs=("src",))
def job(context, src):
    reader = src.sparkSession.read.option("versionAsOf", context.config["at"])
    other = reader.__getattribute__("ta" + "ble")(context.config["table"])
    rows = src.join(other.where("false").select("k"), "k", "left_anti")
    return rows.select("d", "k", "tenant", "v", "ver")
"""


@pytest.mark.req("P4")
def test_a_read_at_a_fixed_version_that_is_not_declared_is_refused(make: Make) -> None:
    modes = make()
    modes.source("2, 1, A, 20, 1")
    old = modes.lake.head("src")
    modes.source("3, 1, A, 30, 1")
    modes.transform = "beside"
    modes.lake.job(BESIDE.replace("{name}", "beside"), "jobs/job.py")
    run_id = modes.plan(config={"at": str(old), "table": f"lake.{modes.lake.table('src')}"})
    with pytest.raises(Blocked, match=f"does not declare: {modes.lake.table('src')} at {old}"):
        modes.project.stage(run_id, "ann")
    context = modes.project.wiring.context
    assert context.tables.describe(context.runs.plan(run_id).shadow_table) is None


def test_an_honest_run_leaves_no_evidence_of_non_determinism_or_of_unread_inputs(
    make: Make,
) -> None:
    modes = make()
    modes.source("2, 1, A, 20, 1", "3, 1, A, 30, 1")
    run_id, _ = modes.validated()
    evidence = modes.project.wiring.context.evidence
    assert evidence.newest(run_id, DETERMINISM) is None
    assert evidence.newest(run_id, UNREAD_INPUTS) is None


#: What Python functions do with the order of rows, no plan shows.
FIRST_ROW = """
from lakehouse_backfill.transforms import transform

@transform(name="first_row", version="1.0.0", inputs=("src",))
def job(context, src):
    rows = src.select("d", "k", "tenant", "v", "ver")
    return rows.groupBy("d").applyInPandas(lambda group: group.head(1), rows.schema)
"""


@pytest.mark.long
@pytest.mark.req("D1")
def test_a_partition_that_comes_out_otherwise_in_another_order_is_refused(make: Make) -> None:
    modes = make()
    modes.source(*(f"2, {number}, A, {number}0, 1" for number in range(1, 30)))
    modes.project.cancel(modes.plan(), by="lead")
    again: dict[str, Any] = {"dry_run": True, "prove_determinism": True, "by": "ann"}
    proof = modes.project.plan("jobs/run.yaml", **again).determinism_proof
    assert proof is not None
    assert (proof["partition"], proof["equal"]) == ("2024-01-02", True)

    modes.transform = "first_row"
    modes.lake.job(FIRST_ROW, "jobs/job.py")
    modes.plan()
    with pytest.raises(ChecksFailed, match="in another order: columns k, v differ; 1 rows"):
        modes.project.plan("jobs/run.yaml", **again)
