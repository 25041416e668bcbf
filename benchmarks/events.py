"""A projection rebuilt by Spark: `fold_aggregates` against a hand-written applyInPandas.

    .venv/bin/python -m benchmarks.events --events 1000000

A history with duplicates, late events and events out of order is written once, as Parquet. Then
both ways fold it in turns, in one warm session, with the same handler; their states must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ratios import Ratio, medians, report
from lakehouse_backfill.events import AggregateEvent, fold_aggregates
from lakehouse_backfill.histories import EventHistory

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

#: The fold must reach this share of the hand-written one's throughput.
GATE = 0.9
EVENTS_OF_AN_ACCOUNT = 100
COLUMNS = "aggregate_id string, sequence_num long, state string"


def main() -> int:
    """Measure, print the ratio, and return 1 for a missed gate."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="lhb-bench-") as name:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
        try:
            events = write_events(spark, asked.events, Path(name) / "events")
            require_equal(events)
            ways = {"fold_aggregates": folded, "by hand": by_hand}
            acts = {way: _counted(make, events) for way, make in ways.items()}
            found, raw = medians(acts, asked.rounds, warm_ups=1)
        finally:
            spark.stop()
    ratio = Ratio(
        "seconds of fold_aggregates / by hand",
        found["fold_aggregates"] / found["by hand"],
        1 / GATE,
    )
    return report("events", [ratio], raw, {"events": asked.events, "rounds": asked.rounds})


def write_events(spark: SparkSession, count: int, folder: Path) -> DataFrame:
    """Write a history as events, and return what reads them."""
    from pyspark.sql import functions as F

    accounts = max(1, count // EVENTS_OF_AN_ACCOUNT)
    history = EventHistory(events=count, seed=5, accounts=accounts, schema_steps=())
    frame = history.frame(spark, partitions=4)
    payload = F.to_json(F.struct(F.col("amount_cents").alias("cents")))
    frame.select(
        F.col("event_id").cast("string"),
        F.col("account").cast("string").alias("aggregate_id"),
        F.col("kind").alias("event_type"),
        payload.alias("payload"),
        F.col("sequence_num").cast("long"),
        "occurred_at",
    ).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def balance(state: Any, event: AggregateEvent, _: Any) -> Any:
    """Sum up the amounts."""
    cents = state["cents"] if state else 0
    return {"cents": cents + event.payload["cents"], "kind": event.event_type}


def folded(events: DataFrame) -> DataFrame:
    """Return the states as the package folds them."""
    return fold_aggregates(events, balance).select("aggregate_id", "sequence_num", "state")


def by_hand(events: DataFrame) -> DataFrame:
    """Return the states as a job would fold them without the package."""
    from pyspark.sql import functions as F

    instants = F.unix_micros("occurred_at").alias("occurred_at")
    rows = events.select(*(instants if name == "occurred_at" else name for name in events.columns))
    grouped = rows.groupBy("aggregate_id")
    return grouped.applyInPandas(_fold_by_hand, COLUMNS)  # type: ignore[no-any-return]


def _fold_by_hand(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    frame = frame.drop_duplicates("event_id").sort_values("sequence_num")
    state, row = None, None
    for row in frame.itertuples(index=False):
        cents = state["cents"] if state else 0
        payload = json.loads(row.payload)
        state = {"cents": cents + payload["cents"], "kind": row.event_type}
    text = json.dumps(state, separators=(",", ":"), sort_keys=True)
    made: pd.DataFrame = pd.DataFrame(
        [(row.aggregate_id, row.sequence_num, text)] if row is not None else [],
        columns=["aggregate_id", "sequence_num", "state"],
    )
    return made


def require_equal(events: DataFrame) -> None:
    """Stop unless both ways make the same states."""
    # Each way is computed once: a comparison in Spark would fold all events four times.
    ours, theirs = (sorted(map(tuple, way(events).collect())) for way in (folded, by_hand))
    if ours != theirs:
        raise SystemExit("the two ways make different states")


def _counted(make: Any, events: DataFrame) -> Any:
    return lambda: make(events).write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    raise SystemExit(main())
