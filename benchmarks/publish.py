"""Publication and rollback against Spark's INSERT OVERWRITE of the same 3 of 84 partitions.

    python -m benchmarks.publish [--scale 1] [--growth 5] [--rounds 5] [--memory 4g]

`--growth N` repeats it on a table N times as large, and prints how publication grows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.ratios import Ratio, medians, report
from benchmarks.workload import BARE, MONTHS, PRODUCT, WHO, name
from lakehouse_backfill.project import Project

PUBLISH = {"gate": 1 / 8, "aim": 1 / 15}
PUBLISH_LARGE = {"gate": 1 / 20, "aim": 1 / 40}
ROLLBACK = {"gate": 1 / 8, "aim": 1 / 15}
GROWTH = {"gate": 1.3}
LARGE = 5.0
Raw = dict[str, list[float]]


def main() -> int:
    """Measure, print ratios beside gates, and fail when a gate does not hold."""
    options = _options()
    ratios, raw, publish = _measure(options.scale, options)
    if options.growth > 1:
        more, extra, larger = _measure(options.scale * options.growth, options)
        ratios += more
        ratios.append(
            Ratio(f"publish, {options.growth:g} x rows / 1 x", larger / publish, **GROWTH)
        )
        raw |= extra
    settings = {name: getattr(options, name) for name in ("scale", "growth", "rounds")}
    return report("publish", ratios, raw, settings)


def _measure(scale: float, options: argparse.Namespace) -> tuple[list[Ratio], Raw, float]:
    with tempfile.TemporaryDirectory(prefix="lhb-publish-") as folder:
        project = workload.make_project(Path(folder), options.memory)
        workload.fill(project, scale)
        run_id, before, shadow = _accepted(project)
        spark = project.wiring.spark
        old = spark.read.option("snapshot-id", before).table(name(PRODUCT)).where(MONTHS)
        new = spark.table(name(shadow)).where(MONTHS)
        acts = {
            "publish": lambda: project.publish(run_id, WHO),
            "rollback": lambda: project.rollback(PRODUCT, reason="next round", by=WHO),
            "overwrite with new rows": lambda: _overwrite(new),
            "overwrite with old rows": lambda: _overwrite(old),
        }
        middle, raw = medians(acts, options.rounds, warm_ups=2)
        spark.stop()
    limits = PUBLISH_LARGE if scale >= LARGE else PUBLISH
    at = f"scale {scale:g}: "
    ratios = [
        Ratio(
            f"{at}publish / INSERT OVERWRITE",
            middle["publish"] / middle["overwrite with new rows"],
            **limits,
        ),
        Ratio(
            f"{at}rollback / INSERT OVERWRITE of the old rows",
            middle["rollback"] / middle["overwrite with old rows"],
            **ROLLBACK,
        ),
    ]
    return ratios, {f"{at}{key}": found for key, found in raw.items()}, middle["publish"]


def _accepted(project: Project) -> tuple[str, int, str]:
    """Stage, validate and accept one run; give it, the old snapshot and the shadow table."""
    planned = project.plan(workload.manifest(project, edge_partitions=0), by=WHO)
    run_id = str(planned["run_id"])
    project.approve(run_id, WHO)
    project.stage(run_id, WHO)
    project.validate(run_id, WHO)
    project.accept(run_id, WHO)
    before = next(pin["snapshot_id"] for pin in planned["pins"] if pin["role"] == "target")
    return run_id, before, str(planned["shadow_table"])


def _overwrite(rows: Any) -> None:
    rows.writeTo(name(BARE)).overwritePartitions()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Publication against INSERT OVERWRITE.")
    parser.add_argument("--scale", type=float, default=1.0, help="1: 6.0 million rows")
    parser.add_argument("--growth", type=float, default=5.0, help="1: measure one size only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="4g", help="of the Spark driver")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
