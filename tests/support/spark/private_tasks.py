"""Tasks whose errors and shuffles hold planted values, on the cluster of MASTER; searches scratch.

python -m tests.support.spark.private_tasks MASTER FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.session.session import hide_values, open_session
from lakehouse_backfill.domain.contract import Profile

MARK = "qzx7"


def main(master: str, folder: Path) -> None:
    spark = {
        "spark.master": master, "spark.executor.memory": "512m", "spark.cores.max": "1",
        "spark.driver.host": "127.0.0.1", "spark.task.maxFailures": "2",
        # What is not compressed would be readable, if it were not encrypted.
        "spark.shuffle.compress": "false", "spark.sql.shuffle.partitions": "1",
        "spark.pyspark.python": sys.executable,
        "spark.hadoop.fs.s3a.secret.key": f"{MARK}-secret",
    }  # fmt: skip
    catalog = {"name": "lake", "type": "sql", "uri": f"sqlite:///{folder}/c.db"}
    profile = Profile(catalog={**catalog, "warehouse": f"file://{folder}/warehouse"}, spark=spark)
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
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
