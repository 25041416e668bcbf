"""Values with schemas on a real broker: landed by a registry, replayed without one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.errors import SourceDown
from lakehouse_backfill.project import Project
from tests.contract.test_event_payloads import FACTS, LANDED, STEPS, UPCASTERS
from tests.stack.servers import Kafka
from tests.support.sources.case import land
from tests.support.sources.events import HANDLERS, START
from tests.support.sources.kafka import KafkaCase, Topic
from tests.support.sources.registry import Registry, avro, avro_bytes, serve

SCHEMAS = [avro(*FACTS, (name, "long")) for name in ("millis", "euros", "cents")]
COLUMNS = """\
columns:
  - {name: id, type: string}
  - {name: account, type: string}
  - {name: kind, type: string}
  - {name: number, type: long}
  - {name: at, type: timestamptz}
"""


def record(number: int) -> bytes:
    """Return the event of a number: versions 1 to 3 in turns, each worth 100 cents times it."""
    version = (number - 1) % 3
    name, value = (("millis", number * 1000), ("euros", number), ("cents", number * 100))[version]
    fields: dict[str, Any] = {
        "id": f"e{number}", "account": "A", "kind": "paid", "number": number, name: value,
        "at": START + timedelta(seconds=number),
    }  # fmt: skip
    return avro_bytes(11 + version, SCHEMAS[version], fields)


@pytest.mark.req("S2", "S6", "S7")
def test_three_versions_of_a_topic_are_landed_by_a_registry_and_replayed_in_one_run(
    kafka: Kafka, tmp_path: Path
) -> None:
    with serve(Registry()) as registry:
        for version, schema in enumerate(SCHEMAS, start=1):
            registry.add(10 + version, "orders-value", version, schema)
        more = "  format: json\n  rows_per_commit: 2\n  schemas: {url: URL, retries: 0}\n"
        topic = Topic(kafka.address, 1)
        case = KafkaCase(tmp_path / "project", topic, more.replace("URL", f"'{registry.url}'"))
        path = case.project / "catalog/sources/trips.yaml"
        text = path.read_text()
        begin, _, rest = text.partition("columns:\n")
        path.write_text(begin + COLUMNS + rest[rest.index("kafka:") :])
        for number in range(1, 8):
            topic.send(record(number))
        topic.flush()
        commits: list[str] = []

        def fail(point: str) -> None:
            if point == "RawTables.commit:after":
                commits.append(point)
                # The registry goes away between two checkpoints.
                registry.failures = [503] * 9 if len(commits) == 1 else []

        fault_points.install_hook(fail)
        try:
            with pytest.raises(SourceDown, match="it answers 503"):
                land(case)
        finally:
            fault_points.install_hook(None)
        registry.failures = []
        # Continued: what was kept with the first commit is asked for no more.
        registry.asked.clear()
        assert land(case).rows == 7
        assert {one.split("/")[3] for one in registry.asked} == {"13"}
    assert [row[0] for row in case.rows("id")] == [f"e{number}" for number in range(1, 8)]
    (case.project / "handlers").mkdir()
    text = HANDLERS.partition("def to_cents")[0] + STEPS.lstrip("\n")
    (case.project / "handlers/money.py").write_text(text)
    (case.project / "catalog/events").mkdir()
    declared = LANDED.replace("bronze.landed", case.table) + UPCASTERS
    (case.project / "catalog/events/orders.yaml").write_text(declared)
    project = Project.open(case.project)
    assert project.replay("orders", "balances").done == 7
    assert project.rebuild("orders", "balances", "A").state["cents"] == 100 * sum(range(1, 8))
