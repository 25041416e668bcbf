"""What safety costs: a restatement against a bare overwrite, and commands against their imports.

python -m benchmarks.overhead [--scale 1] [--rounds 7] [--memory 4g]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import workload
from benchmarks.ratios import Ratio, environment, medians, report, seconds
from benchmarks.workload import BARE, MONTHS, PRODUCT, SOURCE, WHO, name
from lakehouse_backfill.project import Project

RESTATEMENT = {"gate": 1.5, "aim": 1.25}
COMMAND = {"gate": 2.0, "aim": 1.3}
PROGRAM = "from lakehouse_backfill.cli.main import run; run()"
IMPORTS = "import pyiceberg.catalog.sql, pyiceberg.table"
Raw = dict[str, list[float]]


def main() -> int:
    """Measure both, print ratios beside gates, and fail when a gate does not hold."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="lhb-overhead-") as folder:
        project = workload.make_project(Path(folder), options.memory)
        workload.fill(project, options.scale)
        restatements, raw = _restatements(project, options.rounds)
        run_id = _accepted(project, edge_partitions=2)
        commands, more = _commands(Path(folder), run_id, options.rounds)
    settings = {"scale": options.scale, "rounds": options.rounds}
    return report("overhead", restatements + commands, raw | more, settings)


def _restatements(project: Project, rounds: int) -> tuple[list[Ratio], Raw]:
    """Overwrite and restate in turns; each restatement is of a table that is wrong again."""
    raw: Raw = {"bare overwrite": []}
    for number in range(rounds + 1):
        is_warm = number > 0
        took = seconds(partial(_bare, project))
        if is_warm:
            raw["bare overwrite"].append(took)
        for edges in (2, 0):
            steps = _restate(project, edges)
            for step, value in steps.items():
                if is_warm:
                    raw.setdefault(f"{step}, {edges} edge partitions", []).append(value)
    bare = statistics.median(raw["bare overwrite"])
    whole = {edges: _sum(raw, edges) / bare for edges in (2, 0)}
    ratios = [
        Ratio("restatement / bare overwrite of the same result", whole[2], **RESTATEMENT),
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
    rows = project.wiring.spark.table(name(SOURCE)).where(MONTHS)
    rows.writeTo(name(BARE)).overwritePartitions()


def _restate(project: Project, edges: int) -> dict[str, float]:
    run_id = _approved(project, edges)
    took = {
        "stage": seconds(lambda: project.stage(run_id, WHO)),
        "validate": seconds(lambda: project.validate(run_id, WHO)),
    }
    project.accept(run_id, WHO)
    took["publish"] = seconds(lambda: workload.publish(project, run_id))
    workload.roll_back(project)
    return took


def _approved(project: Project, edges: int) -> str:
    file = workload.manifest(project, edge_partitions=edges)
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
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", default="4g", help="of the Spark driver")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
