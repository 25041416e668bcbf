"""A product whose runs restate some columns, and what readers must see of it then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.spark.lake import Lake
from tests.support.spark.modes import Modes

JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="restated", version="1.0.0", inputs=("src",))
def job(context, src):
    give = [name for name in context.config["give"] if name != "note"]
    rows = src.where(~F.col("gone"))
    if "note" in context.config["give"]:
        rows = rows.withColumn("note", F.concat(F.lit("n"), F.col("k")))
        give.append("note")
    return rows.select("d", "k", *give)
"""
TENANTS = {1: "A", 2: "B", 3: "null"}
OTHERS = "other columns are unchanged"
KEYS = "the same keys are there"
DIFF = "only named columns differ"
Row = tuple[Any, ...]
Give = Callable[..., Modes]


def seeded(lake: Lake, version: int = 2, **contract: Any) -> Modes:
    """Make a product of five days with three keys each; the source says v + 1000, and ver 2."""
    modes = Modes(lake, version, **contract)
    keys = [(d, k) for d in range(1, 6) for k in (1, 2, 3)]
    modes.holds(*(f"{d}, {k}, {TENANTS[k]}, {10 * d + k}, 1" for d, k in keys))
    modes.source(*(f"{d}, {k}, {TENANTS[k]}, {1000 + 10 * d + k}, 2" for d, k in keys))
    lake.job(JOB)
    modes.transform = "restated"
    return modes


def asked(*columns: str, gives: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """What a manifest says that restates these columns, and what its job gives beside the key."""
    target = {"columns": list(columns)} | changes.pop("target", {})
    return {"config": {"give": list(gives or columns)}, "target": target} | changes


def expected(days: tuple[int, ...] = (2, 3), without: tuple[Row, ...] = ()) -> list[Row]:
    """What readers must see once `v` of these days is restated, and nothing else."""
    found = [
        (d, k, None if k == 3 else TENANTS[k], 10 * d + k + (1000 if d in days else 0), 1)
        for d in range(1, 6)
        for k in (1, 2, 3)
        if (d, k) not in without
    ]
    return sorted(found, key=repr)
