"""A projection by Spark, by a replay, and by one thread: the same states."""

from __future__ import annotations

import json

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import BucketTransform

from lakehouse_backfill.adapters.iceberg.control.replays import IcebergReplayLedger
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.landing.handler_tables import IcebergHandlerTables
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.local.event_reader import IcebergEventReader
from lakehouse_backfill.adapters.system.journal import JsonJournal
from lakehouse_backfill.adapters.system.process import NullProgress, SystemClock
from lakehouse_backfill.core.replay.replay import ReplayHandler, ReplayPorts, replay
from lakehouse_backfill.domain.sources.events import (
    EventStoreDeclaration,
    HandlerDeclaration,
    ReplayRequest,
)
from lakehouse_backfill.events import Upcasters, fold_aggregates
from tests.support.sources.history_events import HISTORY, as_events, balance, expected
from tests.support.spark.lake import Lake

pytestmark = pytest.mark.lake


@pytest.mark.req("S6", "E2")
def test_spark_and_a_replay_make_the_states_of_one_thread(lake: Lake) -> None:
    rows = as_events(HISTORY.table())
    wanted = expected(rows)
    assert rows.num_rows > HISTORY.events
    table = lake.catalog.create_table(
        lake.table("events"), rows.schema, location=None, partition_spec=PartitionSpec()
    )
    with table.update_spec() as update:
        update.add_field("aggregate_id", BucketTransform(2), "aggregate_bucket")
    half = rows.num_rows // 2
    table.append(rows.slice(half))
    table.append(rows.slice(0, half))
    frame = lake.spark.read.table(f"lake.{lake.table('events')}")
    folded = fold_aggregates(frame, balance).collect()
    assert {row["aggregate_id"]: json.loads(row["state"]) for row in folded} == wanted
    assert sum(row["events"] for row in folded) == HISTORY.events
    handler = HandlerDeclaration(
        function="handlers:balance", version="1.0.0", table=lake.table("balances"),
        checkpoint_events=700, buckets=2,
    )  # fmt: skip
    store = EventStoreDeclaration(
        api_version="lakehouse-backfill/v1", events="events", table=lake.table("events"),
        handlers={"balances": handler},
    )  # fmt: skip
    tables = IcebergHandlerTables(lake.catalog)
    ports = ReplayPorts(
        reader=IcebergEventReader(lake.catalog, {}),
        tables=tables,
        ledger=IcebergReplayLedger(ControlTables(lake.catalog, f"{lake.namespace}_control")),
        pins=IcebergPins(lake.catalog),
        clock=SystemClock(),
        journal=JsonJournal(lake.project),
        progress=NullProgress(),
    )
    loaded = ReplayHandler("balances", handler, balance, Upcasters((), {}))
    done = replay(ports, store, loaded, ReplayRequest())
    assert done.handled == HISTORY.events
    assert done.findings.duplicates == rows.num_rows - HISTORY.events
    kept = {name: tables.newest_state(handler.table, "1.0.0", name) for name in wanted}
    assert {name: one and json.loads(one.state) for name, one in kept.items()} == wanted
