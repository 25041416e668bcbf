"""What the parts of the demo cost: its steps, the checks of chunks, and Great Expectations.

    python -m benchmarks.demo

The demo runs in this process. Shares are of processor time, Spark's JVM and its Python workers
included: a busy machine changes them little, where seconds say nothing. The seconds of the steps
from `plan` to `published` have a gate for two quiet cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio, report
from lakehouse_backfill.adapters.quality.judge import ExpectationsJudge
from lakehouse_backfill.core.staging.checks import ChunkChecks
from lakehouse_backfill.demo.story import run_demo
from lakehouse_backfill.project import Project

CHUNK_CHECKS, EXPECTATIONS, PUBLISHED_S = 0.15, 0.25, 25.0
#: The steps from `plan` to `published`, by their place in the demo.
_FIRST, _LAST = 5, 9
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Spent:
    """Processor time of methods, by the name of their part."""

    seconds: dict[str, float] = field(default_factory=dict)

    def watch(self, owner: type, method: str, part: str) -> None:
        """Count a method as a part; parts may lie in others, and in none twice."""
        act: Callable[..., Any] = getattr(owner, method)

        @wraps(act)
        def watched(*arguments: Any, **named: Any) -> Any:
            began = _processor_seconds()
            try:
                return act(*arguments, **named)
            finally:
                took = _processor_seconds() - began
                self.seconds[part] = self.seconds.get(part, 0.0) + took

        setattr(owner, method, watched)


def main() -> int:
    """Run the demo, print the ratios and fail when a gate does not hold."""
    parser = argparse.ArgumentParser(description="What the parts of the demo cost.")
    parser.parse_args()
    spent = Spent()
    for verb in ("stage", "validate"):
        spent.watch(Project, verb, verb)
    spent.watch(ChunkChecks, "judge", "checks of chunks")
    for name in ("entries", "judge_all", "judge_entries"):
        spent.watch(ExpectationsJudge, name, "Great Expectations")
    with tempfile.TemporaryDirectory(prefix="lhb-demo-") as folder:
        began = time.perf_counter()
        steps = run_demo(Path(folder) / "lake", lambda _: None).steps
        whole_s = time.perf_counter() - began
    took = spent.seconds
    published_s = sum(float(step["seconds"]) for step in steps[_FIRST - 1 : _LAST])
    ratios = [
        Ratio("checks of chunks / staging", took["checks of chunks"] / took["stage"], CHUNK_CHECKS),
        Ratio(
            "Great Expectations / staging and validation",
            took["Great Expectations"] / (took["stage"] + took["validate"]),
            EXPECTATIONS,
        ),
        Ratio(f"seconds from plan to published / {PUBLISHED_S:g}", published_s / PUBLISHED_S, 1),
    ]
    raw = {f"processor time, {part}": [seconds] for part, seconds in took.items()}
    raw |= {f"{step['name']}": [float(step["seconds"])] for step in steps}
    load: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    return report("demo", ratios, raw | {"whole": [whole_s]}, load)


def _processor_seconds() -> float:
    """Return the processor time until now of this process and all that it has started."""
    parents, times = dict[str, str](), dict[str, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        parents[path.parent.name] = fields[1]
        # User and system time, each of the process and of children that have ended.
        times[path.parent.name] = sum(map(int, fields[11:15]))
    own = str(os.getpid())

    def is_ours(process: str | None) -> bool:
        while process is not None and process != own:
            process = parents.get(process)
        return process == own

    return sum(ticks for process, ticks in times.items() if is_ours(process)) / _TICKS


if __name__ == "__main__":
    sys.exit(main())
