"""A restatement on YARN and on Kubernetes: by the profile alone, to the same checksums."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from lakehouse_backfill.adapters.spark.session.java import require_java
from tests.stack.clusters.kubernetes import ApiServer, Cluster
from tests.stack.clusters.yarn import Yarn
from tests.stack.servers import HOST, ROOT
from tests.support.spark.restating import expected_checksums

pytestmark = pytest.mark.in_turn(2, of="file")

SPARK_HOME = Path(pyspark.__file__).parent
#: What is another in a test on a small machine than in the templates.
SMALL = {
    "spark.driver.host": HOST, "spark.driver.memory": "1g", "spark.executor.memory": "512m",
    "spark.executor.instances": "1", "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}  # fmt: skip


def restate(profile: str, folder: Path, spark: dict[str, str], **env: str) -> dict[str, Any]:
    """Restate in a process of its own; give its checksums and the executors it has killed."""
    log = folder / "driver.log"
    done = subprocess.run(
        [sys.executable, "-m", "tests.stack.clusters.restated", profile, str(folder / "lake"),
         json.dumps({**SMALL, **spark})],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={
            **os.environ, "LAKEHOUSE_BACKFILL_SPARK_LOG": str(log), "SPARK_LOCAL_IP": HOST,
            **env,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text("utf-8")[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["checksums"] == expected_checksums(2)
    # Killed while it computed the chunk, and replaced.
    assert len(told["lost"]) == 1, done.stderr[-3000:] + log.read_text("utf-8")[-3000:]
    return told


@pytest.mark.req("X7")
def test_yarn_gives_the_same_checksums_also_without_its_executor(tmp_path: Path) -> None:
    cluster = Yarn(tmp_path / "yarn")
    try:
        # Without them, Spark copies all its jars to the cluster at each start.
        spark = {"spark.yarn.jars": f"local:{SPARK_HOME}/jars/*", "spark.yarn.am.memory": "384m"}
        staging = {"spark.yarn.stagingDir": str(tmp_path / "staging")}
        restate("yarn", tmp_path, {**spark, **staging}, HADOOP_CONF_DIR=str(cluster.conf))
    finally:
        cluster.stop()
    containers = {path.name for path in (tmp_path / "yarn/logs").glob("application_*/container_*")}
    # The application's master, the first executor and the one in its place.
    assert len(containers) >= 3


@pytest.mark.req("X7")
def test_kubernetes_gives_the_same_checksums_also_without_its_executor(tmp_path: Path) -> None:
    """The API server is a stand-in; the backend and the executors are Spark's own."""
    java = require_java().home / "bin" / "java"
    (tmp_path / "pods").mkdir()
    server = ApiServer(Cluster(tmp_path / "pods", java, SPARK_HOME))
    try:
        spark = {"spark.master": f"k8s://{server.address}", "spark.driver.port": "0"}
        restate("kubernetes", tmp_path, spark)
    finally:
        server.stop()
    pods = server.cluster.made
    assert len(pods) == 2
    assert {pod["metadata"]["namespace"] for pod in pods} == {"backfill"}
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"spark"}
    containers = [pod["spec"]["containers"][0] for pod in pods]
    assert {one["image"] for one in containers} == {"lakehouse-backfill:0.1.0"}
    assert server.cluster.items == {}, "Spark takes away what it has made"
