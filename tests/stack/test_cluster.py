"""Executors that are processes of their own: a standalone cluster of the installed PySpark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from lakehouse_backfill.adapters.spark.session.java import require_java
from tests.stack.servers import HOST, ROOT, Server, free_port
from tests.support.spark import arrivals, private_tasks
from tests.support.spark.restating import expected_checksums

#: What a cluster may say of its logs: the level of the class that writes errors of tasks.
_LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
logger.executor.name = org.apache.spark.executor
logger.executor.level = info
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master with two workers, whose applications keep their logs in `work`."""
    home, port = Path(pyspark.__file__).parent, free_port()
    for name in ("conf", "scratch", "warehouse"):
        (tmp_path / name).mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    env = {
        "JAVA_HOME": str(require_java().home), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_LOCAL_DIRS": str(tmp_path / "scratch"),
    }  # fmt: skip

    def server(name: str, *words: str) -> Server:
        own = ("--host", HOST, "--webui-port", "0", *words)
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *own]
        log = name.lower() if name.startswith("master") else f"{name.lower()}-{words[1]}"
        found = Server(command, (int(words[1]),), tmp_path / "logs" / log, env)
        found.start()
        return found

    head = server("master.Master", "--port", str(port))
    place = ("--work-dir", str(tmp_path / "work"), "--cores", "1", "--memory", "1g")
    workers = [
        server("worker.Worker", "--port", str(free_port()), *place, f"spark://{HOST}:{port}")
        for _ in range(2)
    ]
    yield f"spark://{HOST}:{port}"
    for worker in workers:
        worker.stop()
    head.stop()


@pytest.mark.req("E7", "X7", "T8", "T9")
def test_a_cluster_gives_the_same_rows_also_without_its_executors_and_tells_no_value(
    master: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.private_tasks", master, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={
            **os.environ, "LAKEHOUSE_BACKFILL_SPARK_LOG": str(tmp_path / "driver.log"),
            "SPARK_LOCAL_DIRS": str(tmp_path / "scratch"), "SPARK_LOCAL_IP": HOST,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["checksums"] == expected_checksums(2)
    # Both were killed while they computed the chunk, which was committed once.
    assert len(told["lost"]) == 2
    # By those that the workers have started since.
    assert told["executors"] >= 1
    assert (told["case days"], told["wrong case days"]) == (2_230, 0)
    # Over Spark Connect as well: connect/test_connect_demo.py.
    assert told["demo"] == arrivals.expected_checksums()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"stderr", "driver.log", "master.master"} <= {file.name for file in files}
    mark = private_tasks.MARK.encode()
    assert [file for file in files if mark in file.read_bytes()] == []
