"""A real cluster of YARN: Hadoop's resource manager and one node manager, on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark

from lakehouse_backfill.adapters.spark.session.java import require_java
from tests.stack.servers import HOST, MAKE, TOOLS, Server, free_ports, missing

#: As in the template of a profile.
QUEUE = "backfill"
#: Of the installed PySpark: what Hadoop's jar for small clusters leaves to its user.
_OF_SPARK = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j", "log4j-")


class Yarn:
    """The cluster; `conf` is the folder that HADOOP_CONF_DIR names."""

    def __init__(self, folder: Path) -> None:
        classes, jars = TOOLS / "classes", TOOLS / "yarn"
        if not (classes / "YarnServer.class").is_file():
            missing("YARN", f"run `{MAKE}`")
        java = require_java()
        self.conf = folder / "conf"
        self.conf.mkdir(parents=True)
        ports = free_ports(("address", "scheduler", "resource-tracker", "admin", "webapp"))
        self._write("core-site", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": folder / "tmp"})
        self._write("yarn-site", _settings(folder, ports))
        self._write("capacity-scheduler", _queues())
        spark = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
        path = [self.conf, classes, *sorted(jars.glob("*.jar"))]
        path += [jar for jar in spark if jar.name.startswith(_OF_SPARK)]
        command = [str(java.home / "bin" / "java"), *java.options, "-Xmx256m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", "-Dlog4j2.level=info"]
        command += ["--add-opens=java.base/java.lang=ALL-UNNAMED"]
        command += ["-cp", os.pathsep.join(map(str, path)), "YarnServer"]
        # Containers find Java by it.
        env = {"JAVA_HOME": str(java.home)}
        self.server = Server(command, (ports["address"],), folder / "log", env)
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def _write(self, name: str, settings: Mapping[str, object]) -> None:
        lines = [
            f"<property><name>{key}</name><value>{escape(str(text))}</value></property>"
            for key, text in settings.items()
        ]
        text = "\n".join(("<configuration>", *lines, "</configuration>", ""))
        (self.conf / f"{name}.xml").write_text(text, encoding="utf-8")


def _settings(folder: Path, ports: Mapping[str, int]) -> dict[str, object]:
    manager, node = "yarn.resourcemanager", "yarn.nodemanager"
    own = {
        f"{manager}.{name}.address".replace("address.address", "address"): f"{HOST}:{port}"
        for name, port in ports.items()
    }
    return {
        **own, f"{manager}.bind-host": HOST, f"{node}.bind-host": HOST,
        f"{node}.address": f"{HOST}:0", f"{node}.localizer.address": f"{HOST}:0",
        f"{node}.webapp.address": f"{HOST}:0",
        f"{node}.local-dirs": folder / "local", f"{node}.log-dirs": folder / "logs",
        # Of a small machine, whose disk may be nearly full.
        f"{node}.vmem-check-enabled": "false", f"{node}.resource.memory-mb": 3072,
        f"{node}.resource.cpu-vcores": 4, "yarn.scheduler.minimum-allocation-mb": 128,
        f"{node}.disk-health-checker.enable": "false",
        f"{manager}.nodemanagers.heartbeat-interval-ms": 100,
    }  # fmt: skip


def _queues() -> dict[str, object]:
    queues = "yarn.scheduler.capacity"
    return {
        f"{queues}.root.queues": QUEUE, f"{queues}.root.{QUEUE}.capacity": 100,
        f"{queues}.maximum-am-resource-percent": 1,
    }  # fmt: skip
