"""From an event store to a published partition, and the same states by a replay."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
import yaml

from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from tests.support.spark.lake import Lake
from tests.support.spark.modes import LakeProject

pytestmark = pytest.mark.lake

JOB = """
from lakehouse_backfill.events import fold_aggregates
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F


def total(state, event, context):
    return {"v": (state or {"v": 0})["v"] + event.payload["v"]}


@transform(name="event_totals", version="1.0.0", inputs=("src",))
def job(context, src):
    folded = fold_aggregates(src, total)
    parts = F.split("aggregate_id", "/")
    value = F.get_json_object("state", "$.v").cast("long")
    return folded.select(
        parts[0].cast("date").alias("d"), parts[1].cast("long").alias("k"), value.alias("v")
    )
"""
HANDLER = """
def total(state, event, context):
    return {"v": (state or {"v": 0})["v"] + event.payload["v"]}
"""
COLUMNS = (("d", "date"), ("k", "long"), ("v", "long"))


class EventTotals(LakeProject):
    """A product that holds the state of each aggregate of an event store."""

    transform = "event_totals"


@pytest.mark.req("S6", "V1")
def test_events_become_a_published_partition_that_equals_what_a_replay_makes_of_them(
    lake: Lake,
) -> None:
    product = EventTotals(lake, JOB, COLUMNS)
    lake.create("out", (*COLUMNS, *LINEAGE_COLUMNS))
    day, other = "2024-01-02", "2024-01-03"
    given = [(day, 1, 1, 10), (day, 1, 2, -3), (other, 2, 1, 5), (day, 3, 1, 1), (day, 1, 3, 100)]
    table = lake.catalog.create_table(lake.table("src"), events_of(given).schema)
    # Out of order, and one of them twice.
    table.append(events_of([*given[3:], given[0]]))
    table.append(events_of(given[:3]))
    run = product.plan()
    done = product.project.run(run, "ann").to_dict()
    assert done["state"] == "validated", [one for one in done["checks"] if not one["passed"]]
    product.project.accept(run, by="lead")
    product.project.publish(run, by="lead")
    rows = product.project.accepted(product.product).select(["d", "k", "v"]).to_pylist()
    published = {(str(row["d"]), row["k"]): row["v"] for row in rows}
    assert published == {(day, 1): 107, (other, 2): 5, (day, 3): 1}
    store = {
        "api_version": "lakehouse-backfill/v1", "events": "totals", "table": lake.table("src"),
        "handlers": {"totals": {
            "function": "handlers.totals:total", "version": "1.0.0",
            "table": lake.table("states"), "checkpoint_events": 2, "buckets": 1,
        }},
    }  # fmt: skip
    lake.job(yaml.safe_dump(store), "catalog/events/totals.yaml")
    lake.job(HANDLER, "handlers/totals.py")
    assert product.project.replay("totals", "totals").done == len(given)
    found = lake.catalog.load_table(lake.table("states")).scan().to_arrow().to_pylist()
    states: dict[Any, Any] = {}
    for row in sorted(found, key=lambda one: int(one["sequence_num"])):
        name, _, key = row["aggregate_id"].partition("/")
        if row["state"] is not None:
            states[name, int(key)] = json.loads(row["state"])["v"]
    assert states == published


def events_of(given: list[tuple[str, int, int, int]]) -> pa.Table:
    """Return events, each of the day, key and number of its aggregate, with a value."""
    kinds = {
        "d": pa.date32(), "event_id": pa.string(), "aggregate_id": pa.string(),
        "event_type": pa.string(), "payload": pa.string(), "sequence_num": pa.int64(),
        "occurred_at": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    rows = [
        {
            "d": date.fromisoformat(day), "event_id": f"{day}-{key}-{number}",
            "aggregate_id": f"{day}/{key}", "event_type": "added",
            "payload": json.dumps({"v": value}), "sequence_num": number,
            "occurred_at": datetime.fromisoformat(f"{day}T00:00:0{number}").replace(
                tzinfo=timezone.utc
            ),
        }
        for day, key, number, value in given
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))
