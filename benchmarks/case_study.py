"""Ten times the cases of the case study: time and memory of the Python driver, without its JVM.

    .venv/bin/python -m benchmarks.case_study --cases 50000

Each size runs in a process of its own: the lake is built by Spark, 2025 is published with release
2.4.1, and restated with 3.1.0, without the explanation of rows. The smaller size counts as one.
Memory is the highest of each step, as Linux counts it; Arrow takes small pages, as in a command.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GATE_TIME = 11.0
GATE_MEMORY = 1.25


def peak_mib() -> int:
    """Return the highest resident memory since the last call, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # begins to count again
    return int(found[1]) // 1024 if found else 0


def measure(cases: int) -> dict[str, Any]:
    """Run one size in this process; return seconds, and peak memory in MiB, in all and by step."""
    from lakehouse_backfill.cli.session import use_system_memory

    use_system_memory()
    from lakehouse_backfill.config.profiles import EMBEDDED_PROFILE
    from lakehouse_backfill.demo.case_lake import CASE_FILES, CaseLake
    from lakehouse_backfill.demo.case_study import CaseStudy
    from lakehouse_backfill.demo.lake import copy_project
    from lakehouse_backfill.demo.story import Narrator
    from lakehouse_backfill.project import Project

    with tempfile.TemporaryDirectory() as folder:
        copy_project(Path(folder) / "project", CASE_FILES)
        project = Project.open(Path(folder) / "project", EMBEDDED_PROFILE)
        lake = CaseLake(project, cases, small_cases=0)
        lake.require_free_names()
        study = CaseStudy(project, lake, Narrator([].append))
        lake.project.wiring.spark.range(1).count()  # the start of Spark is no part of either size
        begun, steps = time.monotonic(), {"start": peak_mib()}
        study.build()
        steps["build"] = peak_mib()
        study.publish_first()
        steps["publish first"] = peak_mib()
        cascade = study.plan_restatement()
        steps["plan"] = peak_mib()
        study.stage_and_review(cascade)
        steps["stage and review"] = peak_mib()
        study.publish(cascade)
        steps["publish"] = peak_mib()
        seconds = time.monotonic() - begun
    peak = max(steps.values())
    return {"cases": cases, "seconds": round(seconds, 1), "peak_mib": peak, "steps": steps}


def main() -> int:
    """Compare two sizes; return 1 where a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000, help="of the smaller size")
    parser.add_argument("--one", action="store_true", help="measure one size, print JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.cases)))
        return 0
    found = []
    for cases in (given.cases, 10 * given.cases):
        command = [sys.executable, "-m", "benchmarks.case_study", "--one", "--cases", str(cases)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1])
    time_ratio = found[1]["seconds"] / found[0]["seconds"]
    memory_ratio = found[1]["peak_mib"] / found[0]["peak_mib"]
    print(f"time: {time_ratio:.2f} (gate {GATE_TIME}); driver memory: {memory_ratio:.2f}"
          f" (gate {GATE_MEMORY})")  # fmt: skip
    return int(time_ratio > GATE_TIME or memory_ratio > GATE_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
