"""What safety costs: a restatement against a bare overwrite, and commands against their imports.

python -m benchmarks.overhead [--scale 1] [--months 3] [--rounds 7] [--memory 4g]

A peer is the same safety by hand: see `benchmarks.by_hand`. Both hold the result to the same suite.
All share one session, which is the one that the commands start for a plan of so many rows.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import by_hand, workload
from benchmarks.ratios import Ratio, environment, medians, report, seconds
from benchmarks.workload import BARE, PRODUCT, SOURCE, WHO, name
from lakehouse_backfill.project import Project

#: Fixed costs weigh on few months of a small table; of many months at scale 5 they do not.
RESTATEMENT = {"gate": 3.0, "aim": 2.0}
LARGE_RESTATEMENT = {"gate": 1.7, "aim": 1.4}
BY_HAND = {"gate": 0.6, "aim": 0.4}
_MANY_MONTHS, _LARGE_SCALE = 24, 5
COMMAND = {"gate": 2.0, "aim": 1.3}
#: As the console scripts do.
PROGRAM = "from lakehouse_backfill.cli.entry import run; run()"
IMPORTS = "import pyiceberg.catalog.sql, pyiceberg.table"
Raw = dict[str, list[float]]


def main() -> int:
    """Measure both, print ratios beside gates, and fail when a gate does not hold."""
    options = _options()
    workload.restate(options.months)
    with tempfile.TemporaryDirectory(prefix="lhb-overhead-") as folder:
        workload.make_project(Path(folder), options.memory)
        project = workload.filled(Path(folder), options.scale, options.months)
        by_hand.write_suite(project)
        restatements, raw = _restatements(project, options)
        run_id = _accepted(project, edge_partitions=2)
        commands, more = _commands(Path(folder), run_id, options.rounds)
    settings = {
        "scale": options.scale, "months": options.months, "rounds": options.rounds,
    }  # fmt: skip
    return report("overhead", restatements + commands, raw | more, settings)


def _restatements(project: Project, options: argparse.Namespace) -> tuple[list[Ratio], Raw]:
    """Overwrite and restate in turns; each restatement is of a table that is wrong again."""
    raw: Raw = {}
    _restate(project, 2)  # Starts the session.
    for number in range(options.rounds + 1):
        found = {"bare overwrite": seconds(partial(_bare, project))}
        found["by hand"] = by_hand.restate(project)
        for edges in (2, 0):
            for step, value in _restate(project, edges).items():
                found[f"{step}, {edges} edge partitions"] = value
        found["with suite"] = sum(_restate(project, 0, suite=by_hand.SUITE).values())
        if number:  # The first round compiles.
            for act, value in found.items():
                raw.setdefault(act, []).append(value)
    bare = statistics.median(raw["bare overwrite"])
    whole = {edges: _sum(raw, edges) / bare for edges in (2, 0)}
    is_large = options.months >= _MANY_MONTHS and options.scale >= _LARGE_SCALE
    gates = LARGE_RESTATEMENT if is_large else RESTATEMENT
    peer = statistics.median(raw["with suite"]) / statistics.median(raw["by hand"])
    ratios = [
        Ratio("restatement / bare overwrite of the same result", whole[2], **gates),
        Ratio("restatement with a suite / the same safety by hand", peer, **BY_HAND),
        Ratio("  the same without the edge check", whole[0]),
    ]
    for step in ("stage", "validate", "publish"):
        value = statistics.median(raw[f"{step}, 2 edge partitions"]) / bare
        ratios.append(Ratio(f"  {step} / bare overwrite", value))
    return ratios, raw


def _sum(raw: Raw, edges: int) -> float:
    rounds = zip(*(raw[f"{step}, {edges} edge partitions"] for step in STEPS), strict=True)
    return float(statistics.median(sum(parts) for parts in rounds))


STEPS = ("stage", "validate", "publish")


def _bare(project: Project) -> None:
    rows = project.wiring.spark.table(name(SOURCE)).where(workload.MONTHS)
    rows.writeTo(name(BARE)).overwritePartitions()


def _restate(project: Project, edges: int, suite: str | None = None) -> dict[str, float]:
    run_id = _approved(project, edges, suite)
    took = {
        "stage": seconds(lambda: project.stage(run_id, WHO)),
        "validate": seconds(lambda: project.validate(run_id, WHO)),
    }
    project.accept(run_id, WHO)
    took["publish"] = seconds(lambda: workload.publish(project, run_id))
    workload.roll_back(project)
    return took


def _approved(project: Project, edges: int, suite: str | None = None) -> str:
    file = workload.manifest(project, edge_partitions=edges, suite=suite)
    run_id = str(project.plan(file, by=WHO).run_id)
    project.approve(run_id, WHO)
    return run_id


def _accepted(project: Project, edge_partitions: int) -> str:
    """Leave one published run to roll back, and one accepted run to publish."""
    run_id = ""
    for publish in (True, False):
        run_id = _approved(project, edge_partitions)
        project.stage(run_id, WHO)
        project.validate(run_id, WHO)
        project.accept(run_id, WHO)
        if publish:
            project.publish(run_id, WHO)
    return run_id


def _commands(folder: Path, run_id: str, rounds: int) -> tuple[list[Ratio], Raw]:
    arguments = {
        "status": ["status"],
        "status RUN": ["status", run_id],
        "versions": ["versions", PRODUCT],
        "plan --dry-run": ["plan", "jobs/run-2.yaml", "--dry-run"],
        "rollback --dry-run": ["rollback", PRODUCT, "--reason", "benchmark", "--dry-run"],
        "publish --dry-run": ["publish", run_id, "--dry-run", "--by", WHO],
    }
    acts = {"imports": partial(_process, [sys.executable, "-c", IMPORTS])}
    for title, words in arguments.items():
        program = [sys.executable, "-c", PROGRAM, "--project", str(folder), *words]
        acts[title] = partial(_process, program)
    middle, raw = medians(acts, rounds, warm_ups=1)
    ratios = [
        Ratio(f"{title} / imports of PyIceberg", middle[title] / middle["imports"], **COMMAND)
        for title in arguments
    ]
    return ratios, raw


def _process(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise SystemExit(f"{command[3:]} failed: {done.stderr[-2000:]}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What safety costs.")
    parser.add_argument("--scale", type=float, default=1.0, help="1: 6.0 million rows")
    parser.add_argument("--months", type=int, default=3, help="of 84")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", default="4g", help="of the Spark driver")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
