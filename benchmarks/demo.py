"""What the parts of the demo cost: its steps, the checks of chunks, and Great Expectations.

    python -m benchmarks.demo

The demo runs in this process. Shares are of processor time, Spark's JVM and its Python workers
included: a busy machine changes them little, where seconds say nothing. Great Expectations judges
in a thread of its own, beside the measuring: counted is what that thread computes (the rows are in
this process), and, by the clock, how long the commands still wait for it when all else is measured.
The seconds of the steps from `plan` to `published`, and of all steps, have gates for two quiet
cores.
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

from benchmarks.ratios import Ratio, processor_seconds, report
from lakehouse_backfill.adapters.quality.judge import ExpectationsJudge
from lakehouse_backfill.core.staging.checks import ChunkChecks
from lakehouse_backfill.core.validation import validate
from lakehouse_backfill.demo.story import run_demo
from lakehouse_backfill.project import Project

CHUNK_CHECKS, EXPECTATIONS, PUBLISHED_S = 0.15, 0.25, 25.0
WHOLE_S = 90.0
#: The steps from `plan` to `published`, by their place in the demo.
_FIRST, _LAST = 5, 9


@dataclass
class Spent:
    """Processor time of methods, by the name of their part."""

    seconds: dict[str, float] = field(default_factory=dict)

    def watch(
        self, owner: Any, method: str, part: str, clock: Callable[[], float] | None = None
    ) -> None:
        """Count a method as a part; parts may lie in others, and in none twice."""
        act: Callable[..., Any] = getattr(owner, method)
        read = clock or processor_seconds

        @wraps(act)
        def watched(*arguments: Any, **named: Any) -> Any:
            began = read()
            try:
                return act(*arguments, **named)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + read() - began

        setattr(owner, method, watched)


def main() -> int:
    """Run the demo, print the ratios and fail when a gate does not hold."""
    parser = argparse.ArgumentParser(description="What the parts of the demo cost.")
    parser.parse_args()
    spent = Spent()
    for verb in ("stage", "validate"):
        spent.watch(Project, verb, verb)
        spent.watch(Project, verb, "stage and validate", time.perf_counter)
    spent.watch(ChunkChecks, "judge", "checks of chunks")
    for name in ("entries", "judge_all", "judge_entries"):
        spent.watch(ExpectationsJudge, name, "Great Expectations", time.thread_time)
    spent.watch(validate, "_measure_beside_suites", "measuring and suites", time.perf_counter)
    spent.watch(validate, "_measure", "measuring", time.perf_counter)
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
        Ratio(
            "seconds waited for Great Expectations / staging and validation",
            (took["measuring and suites"] - took["measuring"]) / took["stage and validate"],
            EXPECTATIONS,
        ),
        Ratio(f"seconds from plan to published / {PUBLISHED_S:g}", published_s / PUBLISHED_S, 1),
        Ratio(f"seconds of the whole demo / {WHOLE_S:g}", whole_s / WHOLE_S, 1),
    ]
    raw = {f"time, {part}": [seconds] for part, seconds in took.items()}
    raw |= {f"{step['name']}": [float(step["seconds"])] for step in steps}
    load: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    return report("demo", ratios, raw | {"whole": [whole_s]}, load)


if __name__ == "__main__":
    sys.exit(main())
