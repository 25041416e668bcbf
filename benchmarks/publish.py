"""Publication and rollback against Spark's INSERT OVERWRITE of the same 3 of 84 partitions.

    python -m benchmarks.publish [--scale 1] [--growth 5] [--rounds 5] [--memory 4g]

`--growth N` repeats it on a table N times as large, and prints how publication grows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.ratios import Ratio, medians, report
from benchmarks.workload import BARE, MONTHS, PRODUCT, WHO, name
from lakehouse_backfill.adapters.spark.session.session import close_session
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
    # One catalog a session: the second size starts its own.
    close_session()
    with tempfile.TemporaryDirectory(prefix="lhb-publish-") as folder:
        project = workload.make_project(Path(folder), options.memory)
        workload.fill(project, scale)
        run_id, before, shadow = _accepted(project)
        watch = Stopwatch()
        watch.wear(project)
        spark = project.wiring.spark
        old = spark.read.option("versionAsOf", before).table(name(PRODUCT)).where(MONTHS)
        new = spark.table(name(shadow)).where(MONTHS)
        acts = {
            "publish verb": lambda: watch.lap("publish", lambda: workload.publish(project, run_id)),
            "rollback verb": lambda: watch.lap("rollback", lambda: workload.roll_back(project)),
            "overwrite with new rows": lambda: _overwrite(new),
            "overwrite with old rows": lambda: _overwrite(old),
        }
        middle, raw = medians(acts, options.rounds, warm_ups=2)
        spark.stop()
    raw |= {key: found[-options.rounds :] for key, found in watch.laps.items()}
    middle |= {key: statistics.median(raw[key]) for key in watch.laps}
    at = f"scale {scale:g}: "
    found = {f"{at}{key}": values for key, values in raw.items()}
    return _ratios(at, middle, scale), found, middle["publish"]


def _ratios(at: str, middle: dict[str, float], scale: float) -> list[Ratio]:
    new, old = middle["overwrite with new rows"], middle["overwrite with old rows"]
    limits = PUBLISH_LARGE if scale >= LARGE else PUBLISH
    return [
        Ratio(f"{at}publish / INSERT OVERWRITE", middle["publish"] / new, **limits),
        Ratio(f"{at}  the whole verb but for the page", middle["publish verb"] / new),
        Ratio(
            f"{at}rollback / INSERT OVERWRITE of the old rows", middle["rollback"] / old, **ROLLBACK
        ),
        Ratio(f"{at}  the whole verb but for the pages", middle["rollback verb"] / old),
    ]


class Stopwatch:
    """Adds up the seconds inside the ports that swap files and move the pointer."""

    TIMED = frozenset({"adopt", "revert", "move"})

    def __init__(self) -> None:
        self.total = 0.0
        self.laps: dict[str, list[float]] = {}

    def wear(self, project: Project) -> None:
        """Put itself around the two ports of the project."""
        context = project.wiring.context
        worn = replace(
            context,
            publisher=_Worn(context.publisher, self),
            versions=_Worn(context.versions, self),
        )
        vars(project.wiring)["context"] = worn

    def lap(self, title: str, act: Callable[[], object]) -> None:
        """Note the seconds inside the ports during one act."""
        self.total = 0.0
        act()
        self.laps.setdefault(title, []).append(self.total)


class _Worn:
    def __init__(self, port: Any, watch: Stopwatch) -> None:
        self._port, self._watch = port, watch

    def __getattr__(self, title: str) -> Any:
        found = getattr(self._port, title)
        return partial(self._timed, found) if title in Stopwatch.TIMED else found

    def _timed(self, call: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*args)
        finally:
            self._watch.total += time.perf_counter() - started


def _accepted(project: Project) -> tuple[str, int, str]:
    """Stage, validate and accept one run; give it, the old snapshot and the shadow table."""
    planned = project.plan(workload.manifest(project, edge_partitions=0), by=WHO)
    run_id = str(planned.run_id)
    project.approve(run_id, WHO)
    project.stage(run_id, WHO)
    project.validate(run_id, WHO)
    project.accept(run_id, WHO)
    before = next(pin.snapshot_id for pin in planned.pins if pin.role == "target")
    return run_id, before, str(planned.shadow_table)


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
