"""Small runs in one lake that nobody maintains: files, memory and audits after hundreds of them.

    python -m benchmarks.many_runs [--runs 500]

One long-lived process plans, approves, stages, validates, accepts and publishes each run by the
Python API, over an embedded catalog in a temporary folder. PyIceberg stands in for Spark. The gates
are those of the issue: at most 2,000 files of control tables, `audit verify` in 5 seconds, and a
memory of the process that grows by at most 50 MB after its first run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.ratios import Ratio, report, seconds
from lakehouse_backfill.project import Project
from tests.chaos.lab import DAYS, Lab
from tests.chaos.worker import LabWiring

FILES, AUDIT_S, GROWTH_MB = 2_000, 5, 50
BY = "ana"


def main() -> int:
    """Measure, print the curve and the gates, and fail when one does not hold."""
    parser = argparse.ArgumentParser(description="Many small runs without maintenance.")
    parser.add_argument("--runs", type=int, default=500)
    options = parser.parse_args()
    raw: dict[str, list[float]] = {"run": [], "audit verify": [], "memory MB": []}
    with tempfile.TemporaryDirectory(prefix="lhb-runs-") as folder:
        lab = Lab(Path(folder))
        lab.make()
        files = _measure(lab, options.runs, raw)
    memory = raw["memory MB"]
    ratios = [
        Ratio(f"files of control tables after {options.runs} runs / {FILES}", files / FILES, 1),
        Ratio(f"audit verify / {AUDIT_S} s", raw["audit verify"][-1] / AUDIT_S, 1),
        Ratio(f"growth of memory / {GROWTH_MB} MB", (memory[-1] - memory[0]) / GROWTH_MB, 1),
    ]
    return report("many_runs", ratios, raw, vars(options))


def _measure(lab: Lab, runs: int, raw: dict[str, list[float]]) -> int:
    opened = Project.open(lab.folder).wiring
    wiring = LabWiring(opened.folder, opened.profile, opened.progress, opened.profile_name)
    project = Project(wiring)
    looks = {1, 25, *range(50, runs, 50), runs}
    files = 0
    sys.stdout.write("   runs  run s  audit s  memory MB  control files\n")
    for number in range(1, runs + 1):
        raw["run"].append(seconds(lambda number=number: _restate(lab, project, number)))  # type: ignore[misc]
        if number in looks:
            raw["audit verify"].append(seconds(project.audit_verify))
            raw["memory MB"].append(_memory_mb())
            files = sum(
                1
                for path in (lab.folder / "lake" / "warehouse" / "lakehouse_backfill").rglob("*")
                if path.is_file()
            )
            sys.stdout.write(
                f"{number:7d}  {raw['run'][-1]:5.2f}  {raw['audit verify'][-1]:7.2f}"
                f"  {raw['memory MB'][-1]:9.0f}  {files:13d}\n"
            )
            sys.stdout.flush()
    return files


def _restate(lab: Lab, project: Project, number: int) -> None:
    first = number % (len(DAYS) - 1)
    manifest = lab.manifest(f"run-{number}.yaml", DAYS[first], DAYS[first + 1])
    run = str(project.plan(manifest, by=BY).run_id)
    project.approve(run, BY)
    project.run(run, BY)
    project.accept(run, BY)
    published = project.publish(run, BY)
    assert published.state == "published", published


def _memory_mb() -> float:
    """Read the resident memory of this process, as Linux counts it."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
