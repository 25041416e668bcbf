"""Change logs: the state as of a point on Spark, and from raw records to a repaired product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from py4j.protocol import Py4JJavaError

from lakehouse_backfill.change_log import arrow_state_as_of, state_as_of
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from tests.support.sources.changes import Change, envelope, lines, oracle
from tests.support.sources.history_events import as_delivered
from tests.support.spark.lake import Lake
from tests.support.spark.modes import LakeProject
from tests.unit.test_change_log import SCHEMA, raw

pytestmark = pytest.mark.lake

JOB = """
from lakehouse_backfill.change_log import state_as_of
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="current_rows", version="1.0.0", inputs=("src", "changes"))
def job(context, src, changes):
    found = state_as_of(changes, ["d", "k"], context.config["position"], keep_deleted=True)
    return found.select("d", "k", "v", F.col("change_position").cast("long").alias("ver"),
                        (F.col("change_op") == "d").alias("gone"))
"""
COLUMNS = (("d", "date"), ("k", "long"), ("v", "long"), ("ver", "long"))
DAY = "2024-01-02"


@pytest.mark.req("S3", "T12")
def test_spark_gives_the_state_that_the_log_gives_in_order(lake: Lake) -> None:
    log = [Change(n, "c", n, n) for n in range(1, 40)]
    log += [Change(40 + n, "d", n, n) for n in range(1, 10)]
    marks = ["first", *["true"] * 18, "last"]
    log += [Change(60, "r", n, -n, mark) for n, mark in zip(range(20, 40), marks, strict=True)]
    log += [Change(70 + n, "u", n, 1000 + n) for n in range(20, 25)]
    arrow = raw(as_delivered(log))
    # A table of a database may have columns of any name.
    spark = lake.spark.createDataFrame(arrow).withColumnsRenamed({"id": "at", "v": "rank"})
    for as_of in (45, None):
        found = state_as_of(spark, ["at"], as_of).collect()
        assert {row["at"]: row["rank"] for row in found} == oracle(log, as_of)
        assert len(found) == len(oracle(log, as_of))
    kept = state_as_of(spark, ["at"], keep_deleted=True)
    assert kept.columns == ["at", "rank", *SCHEMA.names[2:]]
    own = arrow_state_as_of(arrow, ["id"], keep_deleted=True).to_pylist()
    names = ("change_op", "change_position")
    assert sorted((row["at"], *(row[n] for n in names)) for row in kept.collect()) == sorted(
        (row["id"], *(row[n] for n in names)) for row in own
    )
    clashing = lake.spark.createDataFrame(raw([*log, Change(1, "c", 1, 9), Change(2, "d", 2)]))
    with pytest.raises(Py4JJavaError, match=r"2 key\(s\) have two changes at one position"):
        state_as_of(clashing, ["id"]).collect()


class CurrentRows(LakeProject):
    """A product that holds the newest row of each key of a change log."""

    transform = "current_rows"

    def merged(self, position: int, kind: str) -> list[Any]:
        run = self.plan(
            run={"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix", "kind": kind},
            config={"position": position},
            reference_data={"changes": {"table": self.lake.table("src")}},
            target={"publish_mode": "merge", "merge": {"version": "ver", "deleted": "gone"}},
        )  # fmt: skip
        found = self.project.run(run, "ann").to_dict()
        assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
        self.project.accept(run, by="lead")
        self.project.publish(run, by="lead")
        rows = self.project.accepted(self.product).select(["k", "v", "ver"]).to_pylist()
        return sorted((row["k"], row["v"], int(row["ver"])) for row in rows)


@pytest.mark.req("S3", "V1")
def test_records_become_a_product_and_a_repair_with_a_longer_range_resurrects_nothing(
    lake: Lake,
) -> None:
    product = CurrentRows(lake, JOB, COLUMNS)
    lake.create("out", (*COLUMNS, *LINEAGE_COLUMNS))
    inbox = lake.project / "inbox"
    inbox.mkdir()
    declared = {
        "api_version": "lakehouse-backfill/v1", "source": "changes", "table": lake.table("src"),
        "columns": [{"name": name, "type": kind} for name, kind in COLUMNS[:3]],
        "kind": "files", "change_log": {"key": ["d", "k"], "position": ["lsn"]},
        "files": {"location": "inbox", "format": "debezium"},
    }  # fmt: skip
    lake.job(yaml.safe_dump(declared), "catalog/sources/changes.yaml")
    log = [
        Change(10, "r", 1, 1, "first"), Change(10, "r", 2, 2, "true"),
        Change(10, "r", 3, 3, "last"), Change(20, "u", 1, 11), Change(21, "d", 2, 2),
        Change(30, "c", 4, 4),
    ]  # fmt: skip
    deliver(inbox / "1.jsonl", log)
    assert product.project.land("changes").rows == 7
    assert product.merged(25, "restatement") == [(1, 11, 20), (3, 3, 10)]
    # Late records: an older change of a deleted key, copies, and what came behind.
    deliver(inbox / "2.jsonl", [Change(15, "u", 2, 99), log[1], Change(40, "d", 3, 3), log[5]])
    assert product.project.land("changes").rows == 5
    assert product.merged(50, "repair") == [(1, 11, 20), (4, 4, 30)]


def deliver(path: Path, log: list[Change]) -> None:
    path.write_bytes(
        lines([*(envelope(one, {"d": DAY, "k": one.id, "v": one.value}) for one in log), None])
    )
