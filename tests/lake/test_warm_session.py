"""Commands in a warm session: what they share, what they do not, and how the session ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse_backfill.adapters.spark.session.warm_jvm import _remove_leftovers
from tests.lake.test_interrupt import Terminal, children, wait_until_ended

#: Each row gets the number of the process that its Python worker comes from.
JOB = """
import os
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

@transform(name="tenfold", version="1.0.0", inputs=("s",))
def tenfold(context, s):
    return s.select("d", "k", F.udf(lambda v: os.getppid(), LongType())("v").alias("v"))
"""


def ran(terminal: Terminal, day: int) -> tuple[str, set[int]]:
    """Run one day; return what was said, and the processes of its workers."""
    manifest = terminal.lab.manifest(f"{day}.yaml", f"2024-01-0{day}", f"2024-01-0{day + 1}")
    run_id = terminal.planned(manifest)
    code, text = terminal.do("run", run_id, "--by", "ana")
    assert code == 0, text
    found = terminal.lab.must("diff", run_id, "--engine", "local").data
    return text, {sample["new"]["v"] for sample in found["samples"]}


@pytest.mark.req("E7")
def test_nothing_that_a_command_left_in_the_jvm_is_there_for_the_next(spark: SparkSession) -> None:
    """`attach` takes it away, before the next command gets its session."""
    other = spark.newSession()
    frame = other.range(3).selectExpr("id", "'of an earlier command' AS note")
    frame.createOrReplaceGlobalTempView("left_view")
    frame.createOrReplaceTempView("own_view")
    other.catalog.cacheTable("own_view")
    assert other.table("own_view").count() == 3
    numbers = spark.sparkContext.parallelize([1, 2, 3]).cache()
    assert numbers.count() == 3
    java = spark.sparkContext._jsc
    assert java.getPersistentRDDs().size() == 2
    assert spark.catalog.tableExists("global_temp.left_view")
    _remove_leftovers(SparkContext._gateway, spark._jsparkSession)
    assert java.getPersistentRDDs().size() == 0
    assert not spark.catalog.tableExists("global_temp.left_view")
    assert not other.catalog.isCached("own_view")
    # A session of its own sees no views of another one.
    assert not spark.newSession().catalog.tableExists("own_view")
    assert spark.range(3).mapInArrow(lambda batches: batches, "id long").count() == 3


@pytest.mark.long
def test_commands_share_the_jvm_of_a_session_and_nothing_of_jobs_until_it_is_killed(
    tmp_path: Path,
) -> None:
    terminal = Terminal(tmp_path)
    (terminal.lab.folder / "jobs" / "tenfold.py").write_text(JOB, encoding="utf-8")
    code, text = terminal.do("session", "start", "--idle", "5")
    assert (code, "warm session: ready" in text) == (0, True), text
    host = json.loads(terminal.do("--json", "session", "status")[1])["data"]["pid"]
    (jvm,) = [pid for pid, line in children(host).items() if "/bin/java " in line]
    (server,) = [pid for pid, line in children(host).items() if ".command_server" in line]
    commands = terminal.lab.folder / ".lakehouse-backfill" / "session" / "commands.json"
    began = commands.stat().st_mtime_ns

    (first, own), (second, other) = ran(terminal, 2), ran(terminal, 3)
    for said in (first, second):
        assert "using the warm session" in said
        assert "starting Spark" not in said
    assert len(own) == len(other) == 1
    assert own != other
    assert commands.stat().st_mtime_ns > began

    os.kill(host, signal.SIGKILL)
    wait_until_ended(jvm)
    wait_until_ended(server)
    assert not commands.exists()
    third, _ = ran(terminal, 4)
    assert "the warm session is not used: its process was killed" in third
    assert "starting Spark" in third
    assert "warm session: none" in terminal.do("session", "status")[1]
