"""Spark's own Connect server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

from lakehouse_backfill.adapters.spark.session import settings
from lakehouse_backfill.adapters.spark.session.java import require_java
from lakehouse_backfill.adapters.spark.session.settings import find_local_jars
from tests.stack.servers import HOST, MAKE, ROOT, Server, free_port, missing
from tests.support.spark.declared import QUICK_JAVA

_LOGGING = Path(settings.__file__).with_name("log4j2.properties")


class SparkConnect:
    """Spark's own Connect server, of the installed PySpark, with Iceberg: by the template.

    Its log is kept, against the template: a test is of a server that keeps one.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import grpc  # noqa: F401 (the client needs it)
        except ImportError:
            missing("the client of Spark Connect", f"run `{MAKE}`")
        home, port = Path(pyspark.__file__).parent, free_port()
        own = {
            "spark.connect.grpc.binding.port": port, "spark.connect.grpc.binding.address": HOST,
            "spark.sql.shuffle.partitions": 2, "spark.log.level": "WARN",
            "spark.driver.memory": "1g", "spark.driver.extraJavaOptions": _QUICK,
            "spark.driver.extraClassPath": os.pathsep.join(map(str, find_local_jars(folder))),
        }  # fmt: skip
        options = [text for key, value in own.items() for text in ("--conf", f"{key}={value}")]
        command = [str(ROOT / "docker/clusters/spark-submit.sh"), *options]
        env = {
            "JAVA_HOME": str(require_java().home), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable, "MASTER": "local[2]",
        }  # fmt: skip
        self.server = Server(command, (port,), folder / "log", env)
        self.server.start()
        self.uri = f"sc://{HOST}:{port}"

    def stop(self) -> None:
        self.server.stop()


_QUICK = f"{QUICK_JAVA} -Dlog4j2.configurationFile={_LOGGING.as_uri()}"
