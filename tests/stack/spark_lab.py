"""The lab of `rest_lab` with Spark itself: commands are forks of a driver that has one session."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.forked_driver import ForkedDrivers
from tests.chaos.lab import Ended
from tests.stack.rest_lab import RestLab
from tests.support.spark.declared import QUICK_JAVA

SPARK = {
    "spark.master": "local[2]", "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false", "spark.driver.extraJavaOptions": QUICK_JAVA,
}  # fmt: skip
JOB = """\
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="tenfold", version="1.0.0", inputs=("s",))
def tenfold(context, s):
    return s.select("d", "k", (F.col("v") * 10).alias("v"))
"""


class SparkRestLab(RestLab):
    """A project on a REST catalog; nothing stands in for Spark."""

    drivers: ForkedDrivers

    def begin(self) -> None:
        """Make the lake and the job, and start the driver."""
        self.make()
        (self.folder / "jobs" / "tenfold.py").write_text(JOB, encoding="utf-8")
        self.drivers = ForkedDrivers(self.folder)

    def stop(self) -> None:
        self.drivers.stop()

    def profiles(self) -> str:
        return f"{super().profiles()}    spark: {json.dumps(SPARK)}\n"

    def isolate(self, isolation: str) -> None:
        """Let the commands from now on stage on a clone, or on a branch."""
        self._isolation = isolation
        self.log_in(**self.login)

    def do(self, *arguments: str, **fault: object) -> Ended:
        assert not fault
        before = len(self.drivers.log())
        code = self.drivers.command("--json", *arguments)
        said = self.drivers.log()[before:]
        self._note(said)
        return Ended(code, said)

    def _note(self, said: str) -> None:
        file: Path = self._said / f"{next(self._numbers)}.json"
        file.write_text(said, encoding="utf-8")
