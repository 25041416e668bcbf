"""Tasks whose errors and shuffles hold planted values, on the cluster of MASTER; searches scratch.

Then a restatement whose executors are killed, a month of the case study, and the demonstration's
restatement.

python -m tests.support.spark.private_tasks MASTER FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark import SparkContext

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.spark.session.session import hide_values, open_session
from lakehouse_backfill.domain.profile import Profile
from tests.support.spark import arrivals
from tests.support.spark.case_month import stage_month
from tests.support.spark.declared import CATALOG, template_settings
from tests.support.spark.restating import DAYS, RestateLab

MARK = "qzx7"
_IN_WORK_S = 0.5
#: The programs of executors: of Spark's own cluster and of YARN, and of Kubernetes.
_BACKENDS = (b"CoarseGrainedExecutorBackend", b"KubernetesExecutorBackend")


def main(master: str, folder: Path) -> None:
    spark = {
        **template_settings("standalone"),
        "spark.master": master, "spark.executor.memory": "512m", "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1", "spark.task.maxFailures": "2",
        # What is not compressed would be readable, if it were not encrypted.
        "spark.shuffle.compress": "false", "spark.sql.shuffle.partitions": "1",
        "spark.pyspark.python": sys.executable, "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.hadoop.fs.s3a.secret.key": f"{MARK}-secret",
    }  # fmt: skip
    profile = Profile(catalog=CATALOG, spark=spark)
    session = open_session(profile, folder, hides_values=True)
    hide_values()
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    def quote(number: int) -> str:
        raise ValueError(f"{MARK}-udf-{number}")

    numbers = session.range(100)
    text = F.concat(F.lit(f"{MARK}-"), "id")
    failing = (F.udf(quote)("id"), text.cast("int"), F.raise_error(text))
    for column in failing:
        with pytest.raises(PySparkException, match=MARK):  # each fails in a task
            numbers.select(column).collect()
    assert numbers.select(text.alias("person")).repartition(1, "person").distinct().count() == 100
    shuffled = list((folder / "scratch").rglob("shuffle_*.data"))
    assert any(file.stat().st_size > 100 for file in shuffled)
    assert [file for file in shuffled if MARK.encode() in file.read_bytes()] == []
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline")]
    assert [each for each in commands if MARK.encode() in each] == []
    watch = LostExecutors(session.sparkContext)
    fault_points.install_hook(watch)
    # Its profile is a file, which is written here and not by the toolkit.
    plain = {key: text for key, text in spark.items() if MARK not in text}
    sums = restate(folder, plain)
    month, expected = stage_month(folder, plain)
    demo = arrivals.found_checksums(*arrivals.stage_arrivals(folder, plain))
    sys.stdout.write(
        json.dumps({
            "checksums": sums, "lost": watch.lost, "executors": len(executors()),
            "case days": len(month), "wrong case days": len(month ^ expected), "demo": demo,
        })
    )  # fmt: skip
    session.stop()


class LostExecutors:
    """Kills all executors of the application while tasks of the first chunk work."""

    def __init__(self, context: SparkContext) -> None:
        self.lost: list[int] = []
        self._context = context
        self._thread = threading.Thread(target=self._kill_in_work, daemon=True)
        self._is_committing = threading.Event()

    def __call__(self, point: str) -> None:
        if point == "Staging.stage:before" and not self._thread.ident:
            self._thread.start()
        if point == "Spark.overwrite:committed":
            self._is_committing.set()

    def _kill_in_work(self) -> None:
        tracker, seen = self._context.statusTracker(), dict[int, float]()
        while not self._is_committing.is_set():
            for stage in tracker.getActiveStageIds():
                found = tracker.getStageInfo(stage)
                is_in_work = found is not None and found.numActiveTasks > 0
                since = seen.setdefault(stage, time.monotonic()) if is_in_work else None
                # Only the function of the job takes so long.
                if since is not None and time.monotonic() - since > _IN_WORK_S:
                    self.lost += [pid for pid in executors() if _kill(pid)]
                    if self.lost:
                        return
            time.sleep(0.02)


def executors() -> list[int]:
    """List the processes that compute for this application."""
    wanted, found = str(SparkContext.getOrCreate().applicationId).encode(), []
    # Of a process that ends meanwhile nothing can be read; a glob would end with its error.
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0") if place.name.isdigit() else []
            is_executor = any(word.endswith(_BACKENDS) for word in words)
            if is_executor and wanted in words:
                found.append(int(place.name))
    return found


def _kill(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def restate(folder: Path, spark: dict[str, str]) -> dict[str, str]:
    """Restate two days in the same session, from plan to publication, by a function of Python.

    Return the checksums of its chunks.
    """
    lab = RestateLab(folder, spark)
    project = lab.declare("slow.py")
    lab.fill(2)
    run = str(project.plan("jobs/run.yaml", by="ana").run_id)
    project.approve(run, "ana")
    project.run(run, "ana")
    project.accept(run, "ana")
    project.publish(run, "ana")
    days = {(DAYS[n % 5], n, n * 10) for n in range(50)}
    assert lab.rows() == days
    assert [one.status for one in project.chunks(run).chunks] == ["done"]
    assert project.verify(run, deep=True).intact
    return lab.checksums(run)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
