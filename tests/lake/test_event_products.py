"""From an event store to a published partition, and the same states by a replay."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from lakehouse_backfill.histories import EventHistory
from tests.support.sources.history_events import as_events
from tests.support.spark.lake import Lake
from tests.support.spark.modes import LakeProject

pytestmark = pytest.mark.lake

JOB = """
from lakehouse_backfill.events import fold_aggregates
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F


def total(state, event, context):
    return {"v": (state or {"v": 0})["v"] + event.payload["cents"]}


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
    return {"v": (state or {"v": 0})["v"] + event.payload["cents"]}
"""
COLUMNS = (("d", "date"), ("k", "long"), ("v", "long"))
DAY = "2024-01-02"
#: Late, twice, out of order, with wrong clocks; nothing is lost, so that no number is missing.
HISTORY = EventHistory(
    events=90, seed=4, days=3, accounts=5, late=0.1, twice=0.1, skewed=0.4, lost=0, gaps=0,
    schema_steps=(),
)  # fmt: skip


class EventTotals(LakeProject):
    """A product that holds the state of each aggregate of an event store."""

    transform = "event_totals"


@pytest.mark.req("S6", "V1", "T12")
def test_events_become_a_published_partition_that_equals_what_a_replay_makes_of_them(
    lake: Lake,
) -> None:
    product = EventTotals(lake, JOB, COLUMNS)
    lake.create("out", (*COLUMNS, *LINEAGE_COLUMNS))
    truth, delivered = HISTORY.truth().total, accounts_of(HISTORY.table())
    assert min(truth.late, truth.twice, truth.overtaken, truth.moved) > 0
    table = lake.catalog.create_table(lake.table("src"), delivered.schema)
    # What came last is stored first.
    table.append(delivered.slice(40))
    table.append(delivered.slice(0, 40))
    run = product.plan()
    done = product.project.run(run, "ann").to_dict()
    assert done["state"] == "validated", [one for one in done["checks"] if not one["passed"]]
    product.project.accept(run, by="lead")
    product.project.publish(run, by="lead")
    rows = product.project.accepted(product.product).select(["d", "k", "v"]).to_pylist()
    published = {(str(row["d"]), row["k"]): row["v"] for row in rows}
    assert sum(published.values()) == truth.amount_cents
    store = {
        "api_version": "lakehouse-backfill/v1", "events": "totals", "table": lake.table("src"),
        "handlers": {"totals": {
            "function": "handlers.totals:total", "version": "1.0.0",
            "table": lake.table("states"), "checkpoint_events": 40, "buckets": 1,
        }},
    }  # fmt: skip
    lake.job(yaml.safe_dump(store), "catalog/events/totals.yaml")
    lake.job(HANDLER, "handlers/totals.py")
    assert product.project.replay("totals", "totals").done == truth.delivered
    found = lake.catalog.load_table(lake.table("states")).scan().to_arrow().to_pylist()
    states: dict[Any, Any] = {}
    for row in sorted(found, key=lambda one: int(one["sequence_num"])):
        name, _, key = row["aggregate_id"].partition("/")
        if row["state"] is not None:
            states[name, int(key)] = json.loads(row["state"])["v"]
    assert states == published


def accounts_of(delivered: pa.Table) -> pa.Table:
    """Return delivered rows as events of accounts of the day, in the order in which they came."""
    events = as_events(delivered)
    day, names = pa.scalar(DAY), events["aggregate_id"]
    events = events.append_column("d", pa.repeat(pa.scalar(date.fromisoformat(DAY)), len(events)))
    place = events.column_names.index("aggregate_id")
    return events.set_column(place, "aggregate_id", pc.binary_join_element_wise(day, names, "/"))
