"""A topic on a real broker, whose records the tests know."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lakehouse_backfill.project import Project
from tests.support.sources.case import Row, new_project

_log = logging.getLogger("tests.kafka")
_log.propagate = False
_log.addHandler(logging.NullHandler())
DECLARATION = """\
api_version: lakehouse-backfill/v1
source: trips
kind: kafka
table: bronze.trips
{columns}kafka:
  bootstrap_servers: "{address}"
  topic: {topic}
  timeout_s: 20
{more}"""
COLUMNS = """\
columns:
  - {name: id, type: long}
  - {name: city, type: string}
  - {name: fare, type: "decimal(10, 2)"}
"""
JSON = "  format: json\n  rows_per_commit: 2\n"


class Topic:
    """A topic of its own, and a producer to it."""

    def __init__(self, address: str, partitions: int = 2, **settings: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.address, self.name = address, f"t-{uuid.uuid4().hex[:12]}"
        self.admin = AdminClient({"bootstrap.servers": address}, logger=_log)
        self.producer = Producer({"bootstrap.servers": address, "linger.ms": 0}, logger=_log)
        self.create(partitions, settings)

    def create(self, partitions: int, settings: dict[str, str] | None = None) -> None:
        """Make the topic."""
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(self.name, partitions, 1, config=settings or {})
        self.admin.create_topics([wanted])[self.name].result(20)

    def delete(self) -> None:
        """Delete the topic, and wait until it is gone."""
        self.admin.delete_topics([self.name])[self.name].result(20)
        while self.name in self.admin.list_topics(timeout=20).topics:
            pass

    def grow(self, partitions: int) -> None:
        """Add partitions."""
        from confluent_kafka.admin import NewPartitions

        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(20)

    def send(self, value: bytes | None, partition: int = 0, **more: Any) -> None:
        """Send a record; `flush` waits for all. A new partition is known after a while."""
        from confluent_kafka import KafkaException

        end = time.monotonic() + 20
        while True:
            try:
                return self.producer.produce(self.name, value, partition=partition, **more)
            except KafkaException as error:
                if error.args[0].name() != "_UNKNOWN_PARTITION" or time.monotonic() > end:
                    raise
                self.producer.list_topics(self.name, timeout=20)

    def flush(self) -> None:
        """Wait until all records that were sent are there."""
        assert self.producer.flush(20) == 0

    def settle(self) -> None:
        """Wait until no transaction is open: brokers end one a moment after they acknowledge it."""
        from lakehouse_backfill.adapters.sources.kafka.transactions import open_client
        from lakehouse_backfill.core.landing.offsets import OffsetWindow
        from lakehouse_backfill.domain.sources.topics import TopicAddress

        client = open_client(TopicAddress(name=self.name, bootstrap_servers=self.address))
        end = time.monotonic() + 20
        while any(one.stop < one.high for one in client.look(OffsetWindow()).partitions.values()):
            assert time.monotonic() < end
            time.sleep(0.05)

    def values(self) -> list[bytes]:
        """Read the values of partition 0, as another consumer than the product's."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": self.address, "group.id": "judge"}
        settings |= {"enable.partition.eof": "true", "enable.auto.commit": "false"}
        consumer = Consumer(settings, logger=_log)
        consumer.assign([TopicPartition(self.name, 0, 0)])
        found: list[bytes] = []
        while (message := consumer.poll(20)) is not None and message.error() is None:
            found.append(message.value() or b"")
        consumer.close()
        return found

    def cut(self, partition: int, before: int) -> None:
        """Remove the records before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        place = TopicPartition(self.name, partition, before)
        for done in self.admin.delete_records([place]).values():
            done.result(20)

    def transaction(self, values: Sequence[bytes], *, commits: bool, partition: int = 0) -> None:
        """Send records in a transaction that is committed, or aborted."""
        producer = self.transactional()
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition)
        producer.flush(20)
        if commits:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)

    def transactional(self) -> Any:
        """Make a producer with transactions."""
        from confluent_kafka import Producer

        name = uuid.uuid4().hex
        settings = {"bootstrap.servers": self.address, "transactional.id": name}
        made = Producer(settings, logger=_log)
        made.init_transactions(20)
        return made


class KafkaCase:
    """A project whose source is a topic."""

    name, table = "trips", "bronze.trips"

    def __init__(self, folder: Path, topic: Topic, more: str = JSON) -> None:
        self.project = new_project(folder)
        self.topic = topic
        self.declare(more)
        self._records: list[Row] = []

    def declare(self, more: str) -> None:
        """Write the declaration; `more` are further fields of `kafka`."""
        columns = COLUMNS if "json" in more else ""
        text = DECLARATION.format(
            address=self.topic.address, topic=self.topic.name, columns=columns, more=more
        )
        (self.project / "catalog/sources/trips.yaml").write_text(text)

    def deliver(self, records: Sequence[Row]) -> None:
        """Send records, in turns to two partitions; some values have line breaks."""
        for row in records:
            fields = {**row, "fare": float(row["fare"]), "more": [1.5]}
            text = json.dumps(fields, indent=row["id"] % 2 or None)
            self.topic.send(text.encode(), row["id"] % 2, key=str(row["id"]))
        self.topic.flush()
        self._records += records

    def expected(self) -> list[Row]:
        """Return what must have been landed."""
        return self._records

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of the raw table, in the order of partitions and offsets."""
        table = Project.open(self.project).wiring.catalog.load_table(self.table)
        order = [("kafka_partition", "ascending"), ("kafka_offset", "ascending")]
        found = table.scan().to_arrow().sort_by(order)
        return [tuple(row[name] for name in columns) for row in found.to_pylist()]

    def position(self) -> dict[str, Any]:
        """Return the position of the newest landing."""
        from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables

        state = IcebergRawTables(Project.open(self.project).wiring.catalog).state(self.table)
        assert state is not None
        return state.position

    def require_settled(self) -> None:
        """Check that all offsets that were asked for are landed: each is a record or a gap."""
        found = self.position()
        asked = {
            number: sum(stop - first for first, stop in spans)
            for number, spans in found["asked"].items()
        }
        held = {
            number: found["records"].get(number, 0) + found["gaps"].get(number, 0)
            for number in asked
        }
        assert asked == held
