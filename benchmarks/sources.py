"""Landing a topic of Kafka against a bare loop, and a bare Spark job, over the same records.

    .venv/bin/python -m benchmarks.sources --records 500000
    .venv/bin/python -m benchmarks.sources --spark-jars DIR     # also against Spark

A broker is started (`make servers` installs it), and its topic filled once. Then the ways are
timed in turns, each into a new table: `land`; a bare loop, confluent-kafka and PyIceberg's append
with the same columns and commits of the same size; and, with DIR, Spark's batch source into an
Iceberg table, in a warm session. DIR holds spark-sql-kafka-0-10, spark-token-provider-kafka-0-10,
kafka-clients and commons-pool2.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio, medians, report
from tests.stack.servers import ROOT, Kafka
from tests.support.sources.kafka import KafkaCase, Topic

#: A landing must reach this share of the other way's throughput.
GATE = 0.85
AT_ONCE = 200_000


def main() -> int:
    """Measure, print the ratios, and return 1 for a missed gate."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=500_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--spark-jars", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="lhb-bench-") as name:
        folder = Path(name)
        (folder / "kafka").mkdir()
        broker = Kafka(folder / "kafka")
        try:
            topic = Topic(broker.address)
            fill(topic, asked.records)
            acts = {"land": Landings(folder, topic, asked.records).load}
            acts["bare loop"] = BareLoops(folder, topic, asked.records).load
            if asked.spark_jars is not None:
                acts["bare Spark"] = BareSpark(folder, topic, asked).load
            found, raw = medians(acts, asked.rounds, warm_ups=1)
        finally:
            broker.stop()
    for way, taken in found.items():
        sys.stdout.write(f"{way}: {asked.records / taken:,.0f} records a second\n")
    # The gate is against Spark; where it was not measured, against the loop.
    gated = "bare Spark" if "bare Spark" in acts else "bare loop"
    ratios = [
        Ratio(
            f"seconds of land / {way}",
            found["land"] / found[way],
            1 / GATE if way == gated else None,
            1 / GATE if way != gated else None,
        )
        for way in acts
        if way != "land"
    ]
    return report("sources", ratios, raw, {"records": asked.records, "rounds": asked.rounds})


def fill(topic: Topic, records: int) -> None:
    """Send records of about 100 bytes to two partitions."""
    text = "x" * 60
    for number in range(records):
        value = f'{{"id": {number}, "city": "city {number % 100}", "note": "{text}"}}'
        while True:
            try:
                topic.send(value.encode(), number % 2, key=str(number))
                break
            except BufferError:
                topic.producer.poll(0.1)
    topic.flush()


class Landings:
    """The product's own command, each time in a new project."""

    def __init__(self, folder: Path, topic: Topic, records: int) -> None:
        self._folder, self._topic, self._records = folder, topic, records
        self._numbers = itertools.count()

    def load(self) -> None:
        """Land the whole topic."""
        from tests.support.sources.case import land

        folder = self._folder / f"land{next(self._numbers)}"
        done = land(KafkaCase(folder, self._topic, f"  rows_per_commit: {AT_ONCE}\n"))
        assert done.rows == self._records, done


class BareLoops:
    """The loop that one writes by hand: consume, make columns, append."""

    def __init__(self, folder: Path, topic: Topic, records: int) -> None:
        self._folder, self._topic, self._records = folder, topic, records
        self._numbers = itertools.count()

    def load(self) -> None:
        """Read the whole topic into a new table."""
        from confluent_kafka import Consumer, TopicPartition
        from pyiceberg.catalog.sql import SqlCatalog

        lake = self._folder / f"bare{next(self._numbers)}"
        lake.mkdir()
        catalog = SqlCatalog("lake", uri=f"sqlite:///{lake}/c.db", warehouse=f"file://{lake}")
        catalog.create_namespace("bronze")
        settings = {
            "bootstrap.servers": self._topic.address, "group.id": "bare",
            "enable.auto.commit": False, "isolation.level": "read_committed",
        }  # fmt: skip
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(self._topic.name, number, 0) for number in range(2)])
        table, rows, held = None, 0, list[Any]()
        while rows < self._records:
            found = consumer.consume(5000, 0.1)
            rows += len(found)
            held += found
            if len(held) >= AT_ONCE or rows == self._records:
                made = _columns(held)
                table = table or catalog.create_table("bronze.trips", made.schema)
                table.append(made)
                held = []
        consumer.close()
        catalog.engine.dispose()


def _columns(messages: list[Any]) -> Any:
    import pyarrow as pa

    return pa.table(
        {
            "topic": pa.array([one.topic() for one in messages]),
            "partition": pa.array([one.partition() for one in messages], pa.int32()),
            "offset": pa.array([one.offset() for one in messages], pa.int64()),
            "timestamp": pa.array(
                [one.timestamp()[1] for one in messages], pa.timestamp("ms", "UTC")
            ).cast(pa.timestamp("us", "UTC")),
            "timestamp_type": pa.array([one.timestamp()[0] for one in messages], pa.int32()),
            "key": pa.array([one.key() for one in messages], pa.binary()),
            "value": pa.array([one.value() for one in messages], pa.binary()),
            "headers": pa.array(
                [
                    [{"key": name, "value": value} for name, value in one.headers() or ()]
                    for one in messages
                ],
                pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
            ),
        }
    )


class BareSpark:
    """Spark's batch source, written into an Iceberg table; the session is warm."""

    def __init__(self, folder: Path, topic: Topic, asked: argparse.Namespace) -> None:
        from lakehouse_backfill.adapters.spark.session.session import open_session
        from lakehouse_backfill.domain.profile import Profile

        lake = folder / "spark lake"
        lake.mkdir()
        catalog = {
            "name": "lake", "type": "sql", "uri": "sqlite:///${project}/catalog.db?timeout=30",
            "warehouse": "file://${project}/warehouse",
        }  # fmt: skip
        found = [*asked.spark_jars.glob("*.jar"), *(ROOT / ".tools" / "jars").glob("*.jar")]
        jars = ",".join(str(jar) for jar in sorted(found))
        settings = {"spark.master": "local[2]", "spark.jars": jars}
        self._spark = open_session(Profile(catalog=catalog, spark=settings), lake)
        self._spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bronze")
        self._topic, self._records = topic, asked.records
        self._numbers = itertools.count()

    def load(self) -> None:
        """Read the whole topic into a new table."""
        name = f"lake.bronze.trips{next(self._numbers)}"
        options = {
            "kafka.bootstrap.servers": self._topic.address, "subscribe": self._topic.name,
            "startingOffsets": "earliest", "endingOffsets": "latest", "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
        }  # fmt: skip
        self._spark.read.format("kafka").options(**options).load().writeTo(name).using(
            "iceberg"
        ).create()
        assert self._spark.table(name).count() == self._records


if __name__ == "__main__":
    sys.exit(main())
