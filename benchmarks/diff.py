"""What a diff costs, beside a bare scan, other ways of comparing, and other tools.

python -m benchmarks.diff --generator BIN/tpchgen-cli [--scale 1] [--variants B,C] [--rounds 5]
    [--only local,duckdb,spark,process,rivals] [--rivals DIR] [--folder DIR]

Every peer must give the counts that are true by construction; one that does not ends the run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import diff_peers, diff_processes, diff_spark
from benchmarks.diff_peers import Counts, Setting
from benchmarks.ratios import Ratio, report, seconds
from benchmarks.tpch import Lake, make

GROUPS = ("local", "duckdb", "spark", "process", "rivals")
RIVALS = ("datacompy", "sqlmesh", "reladiff", "reble")
Raw = dict[str, list[float]]


def main() -> int:
    """Measure what was asked for, print ratios beside gates, and fail when one does not hold."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="lhb-diff-") as temporary:
        folder = Path(options.folder or temporary) / f"sf{options.scale:g}"
        lake = make(folder, Path(options.generator), options.scale)
        ratios: list[Ratio] = []
        raw: Raw = {}
        missing: list[str] = []
        for variant in options.variants.split(","):
            measured = Measured(Setting(lake, variant), options)
            measured.run()
            ratios += measured.ratios()
            raw |= {f"{variant}: {name}": found for name, found in measured.raw.items()}
            missing += measured.missing
    for name in dict.fromkeys(missing):
        sys.stdout.write(f"MISSING: {name}\n")
    settings = {
        "scale": options.scale, "rounds": options.rounds, "only": options.only,
        "missing": list(dict.fromkeys(missing)), "truth": _truths(lake),
    }  # fmt: skip
    return report(f"diff-sf{options.scale:g}{options.suffix}", ratios, raw, settings)


class Measured:
    """One variant: the seconds of all peers, and MiB of some."""

    def __init__(self, setting: Setting, options: argparse.Namespace) -> None:
        self.setting = setting
        self.raw: Raw = {}
        self.missing: list[str] = []
        self._options = options
        self._only = set(options.only.split(","))

    def run(self) -> None:
        """Measure in turns what runs in this process, then each process alone."""
        acts: dict[str, Callable[[], Counts]] = {}
        if "local" in self._only:
            acts["local"] = diff_peers.local(self.setting)
            acts["local, counts only"] = diff_peers.local(self.setting, distributions=False)
        if {"local", "duckdb"} & self._only:
            acts["DuckDB scan"] = diff_peers.duckdb_scan(self.setting)
        if "duckdb" in self._only:
            acts["DuckDB join of the changed files"] = diff_peers.duckdb_join(self.setting)
            if self.setting.variant == "B":
                acts["DuckDB EXCEPT ALL of the changed files"] = diff_peers.duckdb_except(
                    self.setting
                )
        self._in_turns(acts, self._options.rounds)
        if "process" in self._only:
            self.raw |= diff_processes.measured(self.setting, self._options.rounds)
        if "spark" in self._only:
            self._spark()
        if "rivals" in self._only:
            self._rivals()

    def ratios(self) -> list[Ratio]:
        """Give what can be said of what was measured."""
        variant = self.setting.variant
        # The gates of variant C against one join depend on the scale.
        scaled = _RATIOS if self._options.scale >= _LARGE else (*_RATIOS, *_SMALL)
        left_out = _OF_LARGE if self._options.scale < _LARGE else frozenset()
        return [
            Ratio(
                f"{variant}: {name}",
                self._middle(one) / self._middle(other),
                *gates.get(variant, (None, None)),
            )
            for name, one, other, gates in scaled
            if name not in left_out
            if one in self.raw and other in self.raw and (not gates or variant in gates)
        ]

    def _spark(self) -> None:
        spark = diff_spark.session(self.setting.lake.folder, self._options.memory)
        acts: dict[str, Callable[[], Counts]] = {
            "Spark scan of the changed months": diff_spark.scan(spark, self.setting),
            "Spark": diff_spark.differ(spark, self.setting, "tasks"),
            "Iceberg changelog view": diff_spark.changelog(spark, self.setting),
        }
        if self.setting.variant == "B":
            acts |= {
                "Spark, grouped by key": diff_spark.differ(spark, self.setting, "groups"),
                "Spark scan": diff_spark.scan_whole(spark, self.setting),
                "Spark checksum by month": diff_spark.checksum(spark, self.setting),
                "Spark EXCEPT ALL of the changed months": diff_spark.except_all(
                    spark, self.setting
                ),
            }
        if "local" in self._only:
            acts["local beside Spark"] = diff_peers.local(self.setting)
        self._in_turns(acts, self._options.spark_rounds)

    def _rivals(self) -> None:
        folder, rounds = Path(self._options.rivals), self._options.rival_rounds
        if (folder / "lake-sift").is_dir():
            found = [diff_peers.lake_sift(self.setting, folder) for _ in range(rounds)]
            for one in found:
                self._require("lake-sift", diff_processes.lake_sift_counts(one["output"]))
            self.raw["lake-sift, process"] = [one["seconds"][0] for one in found]
            self.raw["lake-sift, process MiB"] = [one["peak_mib"] for one in found]
        else:
            self.missing.append("lake-sift")
        for name in RIVALS:
            if not (folder / name).is_dir():
                self.missing.append(name)
                continue
            answer = diff_peers.rival(self.setting, name, folder, rounds + 1)
            self._require(name, tuple(answer["counts"]))
            self.raw[name] = answer["seconds"][1:]
            self.raw[f"{name} MiB"] = [answer["peak_mib"]]

    def _in_turns(self, acts: Mapping[str, Callable[[], Counts]], rounds: int) -> None:
        for number in range(rounds + _WARM_UPS):
            for name, act in acts.items():
                found: list[Counts] = []
                took = seconds(lambda act=act, found=found: found.append(act()))  # type: ignore[misc]
                self._require(name, found[0])
                if number >= _WARM_UPS:
                    self.raw.setdefault(name, []).append(took)

    def _require(self, name: str, counts: Any) -> None:
        truth = self.setting.truth
        wanted = truth.added, truth.removed, truth.changed
        if counts is not None and tuple(counts) != wanted:
            raise SystemExit(f"{name} counts {counts}, true is {wanted}")

    def _middle(self, name: str) -> float:
        return statistics.median(self.raw[name])


_LARGE = 5
#: Rounds before times count: threads, allocators and the JVM's compiler settle by then.
_WARM_UPS = 2
_JOIN = ("local diff, process", "DuckDB join, process")
_OF_LARGE = frozenset({"local / one DuckDB join, process", "  memory of that"})
#: Name, what, of what, and by variant (gate, aim).
_Row = tuple[str, str, str, dict[str, tuple[float, float]]]
_SMALL: tuple[_Row, ...] = (
    ("small: local / one DuckDB join, process", *_JOIN, {"C": (1.2, 1.0)}),
    ("  memory of the small one", f"{_JOIN[0]} MiB", f"{_JOIN[1]} MiB", {}),
)
_RATIOS: tuple[_Row, ...] = (
    ("local / DuckDB scan of the changed files", "local", "DuckDB scan", {"B": (3.0, 2.0)}),
    ("  counts only", "local, counts only", "DuckDB scan", {}),
    ("  local / DuckDB join of them", "local", "DuckDB join of the changed files", {}),
    ("local / one DuckDB join, process", *_JOIN, {"C": (0.8, 0.6)}),
    ("  memory of that", f"{_JOIN[0]} MiB", f"{_JOIN[1]} MiB", {"C": (1 / 8, 1 / 20)}),
    ("diff --json / imports of PyIceberg", "diff --json, process", "imports, process",
     {"B": (2.5, 2.0)}),
    ("Spark / Spark scan of the changed months", "Spark", "Spark scan of the changed months",
     {"B": (1.8, 1.3)}),
    ("  grouped by key", "Spark, grouped by key", "Spark scan of the changed months", {}),
    ("Spark checksum by month / Spark scan", "Spark checksum by month", "Spark scan",
     {"B": (0.6, 0.45)}),
    ("local / Iceberg changelog view", "local beside Spark", "Iceberg changelog view",
     {"B": (1 / 10, 1 / 20), "C": (1 / 4, 1 / 8)}),
    ("local / Spark EXCEPT ALL", "local beside Spark", "Spark EXCEPT ALL of the changed months",
     {}),
    ("diff --json / lake-sift", "diff --json, process", "lake-sift, process",
     {"B": (1 / 3, 1 / 5)}),
    ("  memory of the two", "diff --json, process MiB", "lake-sift, process MiB",
     {"B": (1 / 10, 1 / 10)}),
    *((f"local / {name}", "local", name, {}) for name in RIVALS),
)  # fmt: skip


def _truths(lake: Lake) -> dict[str, list[int]]:
    return {
        name: [truth.added, truth.removed, truth.changed]
        for name, truth in (("B", lake.truth_b), ("C", lake.truth_c))
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a diff costs.")
    parser.add_argument("--generator", required=True, help="the program tpchgen-cli")
    parser.add_argument("--scale", type=float, default=1.0, help="1: 6.0 million rows")
    parser.add_argument("--variants", default="B,C")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rival-rounds", type=int, default=3)
    parser.add_argument("--spark-rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(GROUPS), help="what is measured")
    parser.add_argument("--rivals", default="", help="what benchmarks.rivals.setup made")
    parser.add_argument("--folder", default="", help="keeps the tables for the next time")
    parser.add_argument("--memory", default="6g", help="of the Spark driver")
    parser.add_argument("--suffix", default="", help="of the result's name")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
