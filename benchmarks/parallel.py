"""Chunks side by side: staging with two chunks at once against one at a time, in turns.

python -m benchmarks.parallel [--scale 0.02] [--chunks 24] [--rounds 3]

Both stage the same months of the same table, each month a chunk, in one process on two cores; no
limit applies, and the session is the one that commands start for so many rows. At `--scale 0.02`
chunks are small (1,430 rows), at 1 they are not (71,000 rows).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks import workload
from benchmarks.ratios import Ratio, report, seconds
from benchmarks.workload import WHO
from lakehouse_backfill.project import Project

#: Chunks of less than so many rows are small: there, what is not computing counts most.
SMALL_ROWS = 10_000
MONTHS = 84
_RIGHT_MONTHS = 3
GATE, SMALL_GATE = 1.0, 1 / 1.3


def main() -> int:
    """Measure, print the ratio beside its gate, and fail when it does not hold."""
    parser = argparse.ArgumentParser(description="Chunks side by side.")
    parser.add_argument("--scale", type=float, default=0.02, help="1: 6.0 million rows")
    parser.add_argument("--chunks", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="2g", help="of the Spark driver")
    options = parser.parse_args()
    raw: dict[str, list[float]] = {"one": [], "two": []}
    with tempfile.TemporaryDirectory(prefix="lhb-parallel-") as folder:
        workload.make_project(Path(folder), options.memory)
        project = workload.filled(Path(folder), options.scale, _RIGHT_MONTHS)
        # The first of each is not counted: it compiles.
        for number in range(options.rounds + 1):
            for name, parallel in (("one", 1), ("two", 2)):
                took = _stage(project, options.chunks, parallel)
                if number:
                    raw[name].append(took)
        sums = {_sums(project, options.chunks, parallel) for parallel in (1, 2)}
    rows = workload.ROWS * options.scale / MONTHS
    gate = SMALL_GATE if rows < SMALL_ROWS else GATE
    ratio = statistics.median(raw["two"]) / statistics.median(raw["one"])
    ratios = [
        Ratio(f"two chunks of {rows:,.0f} rows at once / one", ratio, gate),
        Ratio("0: both come to the same checksums", len(sums) - 1, 0),
    ]
    return report("parallel", ratios, raw, vars(options))


def _manifest(project: Project, chunks: int, parallel: int) -> Path:
    path = workload.manifest(project, edge_partitions=0)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    stop = f"{1992 + chunks // 12}-{chunks % 12 + 1:02d}-01"
    document["target"]["partitions"] |= {"from": "1992-01-01", "to": stop}
    document["sources"]["lines"]["range"] |= {"from": "1991-12-01", "to": "1999-01-01"}
    document["limits"] = {"partitions_per_chunk": 1, "parallel": parallel}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def _run(project: Project, chunks: int, parallel: int) -> str:
    run_id = str(project.plan(_manifest(project, chunks, parallel), by=WHO).run_id)
    project.approve(run_id, WHO)
    return run_id


def _stage(project: Project, chunks: int, parallel: int) -> float:
    run_id = _run(project, chunks, parallel)
    took = seconds(lambda: project.stage(run_id, WHO))
    project.cancel(run_id, WHO, "next round")
    return took


def _sums(project: Project, chunks: int, parallel: int) -> tuple[str | None, ...]:
    run_id = _run(project, chunks, parallel)
    project.stage(run_id, WHO)
    found = tuple(one.checksum for one in project.chunks(run_id).chunks)
    project.cancel(run_id, WHO, "next round")
    return found


if __name__ == "__main__":
    sys.exit(main())
