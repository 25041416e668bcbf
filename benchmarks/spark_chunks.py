"""One run of 2,200 daily chunks on Spark, whose driver and JVM are killed on the way.

    python -m benchmarks.spark_chunks [--chunks 2200] [--kills 5]

Each day has four rows, so that what a chunk costs beside its rows is seen. A driver notes after
each chunk the processor time (its JVM's included), the time and its memory, and after every 50th
the heap of its JVM that a collection leaves. The kills fall in the first half at random chunks,
each a SIGKILL to Python, whose JVM ends by itself then; the last driver stages what is left. The
gates are those of `many_chunks`; the checksums have to be those that the row hash in plain Python
gives for the rows that DuckDB reads from the source.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa

from benchmarks.ratios import Ratio, environment, processor_seconds, report
from lakehouse_backfill import fault_points
from lakehouse_backfill.project import Project
from tests.chaos.oracle import MARK
from tests.support.oracles.row_hash import checksum
from tests.support.spark.reading import rows_of
from tests.support.spark.restating import RestateLab

LAST_FIRST, GROWTH_MB = 1.5, 50
WHO = "ana"
_BEGIN = date(2018, 1, 1)
_ROWS_A_DAY = 4
#: The first chunks of a driver are compiled, which is not what grows with the chunks.
_WARM_UP = 20
_HEAP_EVERY = 50
#: Before and after the commit of a chunk, and before and after that of its ledger row.
_POINTS = (
    "Spark.overwrite:committing", "Spark.overwrite:committed",
    "ControlLog.backfill_chunk_run:committing", "ControlLog.backfill_chunk_run:committed",
)  # fmt: skip


@dataclass
class Notes:
    """Notes time and memory after each chunk, and kills the driver at one of them."""

    file: Path
    point: str
    kill_at: int
    seen: int = 0
    chunks: int = 0
    is_computing: bool = False

    def __call__(self, point: str) -> None:
        """Reach a fault point of the program."""
        self.is_computing |= point == "Spark.overwrite:committing"
        # What the last driver left is looked at first.
        self.seen += self.is_computing and point == self.point
        if point == self.point and self.seen == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if point != "Runs.record_chunk:after" or not self.is_computing:
            return
        used, ended = processor_seconds(), time.time()
        self.chunks += 1
        heap = _heap_mb() if self.chunks % _HEAP_EVERY == 0 else 0.0
        with self.file.open("a", encoding="utf-8") as lines:
            noted = (used, ended, _memory_mb(), heap, processor_seconds(), time.time())
            lines.write(" ".join(map(str, (os.getpid(), *noted))) + "\n")


@dataclass(frozen=True)
class Chunk:
    """What one driver noted after one chunk; of its first one neither time is known."""

    driver: int
    number: int
    processor_s: float | None
    seconds: float | None
    memory_mb: float
    heap_mb: float


def main() -> int:
    """Measure, print the ratios and fail when a gate does not hold."""
    parser = argparse.ArgumentParser(description="One run of many chunks on Spark.")
    parser.add_argument("--chunks", type=int, default=2_200)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stage", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        folder, run, notes, point, kill_at = options.stage
        fault_points.install_hook(Notes(Path(notes), point, int(kill_at)))
        Project.open(Path(folder)).stage(run, WHO)
        return 0
    with tempfile.TemporaryDirectory(prefix="lhb-chunks-") as folder:
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    lab = RestateLab(folder / "lake", {"spark.master": "local[2]"})
    lab.folder.mkdir()
    _declare(lab, options.chunks)
    plan = lab.project.plan("jobs/run.yaml", by=WHO)
    run = str(plan.run_id)
    lab.project.approve(run, WHO)
    lab.spark.stop()
    sys.stdout.write(f"planned {run}\n")
    sys.stdout.flush()
    notes = folder / "notes"
    notes.touch()
    chooser = random.Random(options.seed)
    share = options.chunks // (2 * options.kills) if options.kills else 0
    for number in range(options.kills):
        at = chooser.randint(max(2, share // 2), share)
        point = _POINTS[number % len(_POINTS)]
        code = _stage(lab, run, notes, point, at)
        assert code == -signal.SIGKILL, code
        sys.stdout.write(f"killed at {point}, chunk {at} of this driver\n")
        sys.stdout.flush()
    assert _stage(lab, run, notes, "nowhere", 0) == 0
    redone, wrong = _compare(lab, run, options.chunks)
    return _report(_chunks(notes), redone, wrong, options)


def _declare(lab: RestateLab, chunks: int) -> None:
    lab.declare("plain.py")
    stop = (_BEGIN + timedelta(days=chunks)).isoformat()
    whole = {"column": "d", "from": _BEGIN.isoformat(), "to": stop}
    lab.amend(
        sources={"src": {"table": lab.table("src"), "range": whole}},
        target={"partitions": dict(whole)},
        limits={"partitions_per_chunk": 1},
        validation={"edge_partitions": 0},
    )
    lab.sql("CREATE NAMESPACE {ns}")
    keys = range(chunks * _ROWS_A_DAY)
    for short, factor in (("src", 1), ("out", 100)):
        lab.sql(
            f"CREATE TABLE {{ns}}.{short} (id bigint, d date, v bigint) PARTITIONED BY (d) "
            "TBLPROPERTIES ('format-version' = '2')"
        )
        columns = {
            "id": list(keys), "d": [_BEGIN + timedelta(days=key % chunks) for key in keys],
            "v": [key * factor for key in keys],
        }  # fmt: skip
        lab.catalog.load_table(lab.table(short)).append(pa.table(columns))


def _stage(lab: RestateLab, run: str, notes: Path, point: str, kill_at: int) -> int:
    """Stage in a process of its own; give its exit code."""
    words = ("--stage", str(lab.folder), run, str(notes), point, str(kill_at))
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.spark_chunks", *words],
        env=environment(), check=False,
    ).returncode  # fmt: skip


def _compare(lab: RestateLab, run: str, chunks: int) -> tuple[int, int]:
    """Count the chunks that were computed again, and those whose checksum is not the oracle's."""
    days: dict[str, list[dict[str, object]]] = {}
    for day, key, value in rows_of(lab.catalog.load_table(lab.table("src"))):
        row = {"id": key, "d": date.fromisoformat(day), "v": value * 10}
        days.setdefault(day, []).append(row)
    types = {"id": "long", "d": "date", "v": "long"}
    expected = {}
    for day, rows in days.items():
        count, xor, total = checksum(types, rows)
        expected[day] = f"{count}:{xor:016x}{total:016x}"
    found = lab.checksums(run)
    wrong = sum(found.get(day) != text for day, text in expected.items())
    assert len(found) == len(expected) == chunks
    shadow = lab.project.wiring.catalog.load_table(_shadow(lab))
    summaries = [one.summary.additional_properties for one in shadow.snapshots() if one.summary]
    commits = [one for one in summaries if f"{MARK}attempt-id" in one]
    assert len(rows_of(shadow)) == chunks * _ROWS_A_DAY
    return len(commits) - chunks, wrong


def _shadow(lab: RestateLab) -> str:
    ((*space, name),) = lab.catalog.list_tables(f"{lab.namespace}_shadow")
    return ".".join((*space, name))


def _chunks(notes: Path) -> list[Chunk]:
    """Read what the drivers noted; of a driver's chunk before another's, no time is known."""
    rows = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    found: list[Chunk] = []
    before: list[float] | None = None
    number = 0
    for driver, *texts in rows:
        row = [float(driver), *map(float, texts)]
        is_same = before is not None and before[0] == row[0]
        number = number + 1 if is_same else 1
        # What the noting took, a collection of garbage with it, is not the chunk's.
        used = row[1] - before[5] if is_same and before is not None else None
        took = row[2] - before[6] if is_same and before is not None else None
        found.append(Chunk(int(driver), number, used, took, row[3], row[4]))
        before = row
    return found


def _report(chunks: list[Chunk], redone: int, wrong: int, options: argparse.Namespace) -> int:
    tenth = max(2, len(chunks) // 10)
    warm = [one for one in chunks if one.number > _WARM_UP]
    costs = [one.processor_s for one in warm if one.processor_s is not None]
    last = [one for one in chunks if one.driver == chunks[-1].driver]
    memory = [one.memory_mb for one in last]
    heaps = [one.heap_mb for one in last if one.heap_mb]
    share = max(1, len(last) // 10)
    ratios = [
        Ratio(
            "processor time of a chunk: median of the last tenth / of the first",
            statistics.median(costs[-tenth:]) / statistics.median(costs[:tenth]), LAST_FIRST,
        ),
        Ratio(
            f"growth of Python's memory in the last driver after a tenth of its chunks / "
            f"{GROWTH_MB} MB", (memory[-1] - memory[share]) / GROWTH_MB, 1,
        ),
        Ratio("JVM's heap after a collection, last / third one of the last driver",
              heaps[-1] / heaps[min(2, len(heaps) - 1)], 1.5),
        Ratio("chunks computed again after kills / kills", redone / max(1, options.kills), 1),
        Ratio("chunks whose checksum is not the oracle's", wrong, 0),
    ]  # fmt: skip
    raw = {
        "chunk": [one.seconds or 0.0 for one in chunks],
        "processor time of a chunk": [one.processor_s or 0.0 for one in chunks],
        "memory MB": [one.memory_mb for one in chunks],
        "heap MB": [one.heap_mb for one in chunks if one.heap_mb],
    }
    settings = {name: value for name, value in vars(options).items() if name != "stage"}
    return report("spark_chunks", ratios, raw, settings)


def _heap_mb() -> float:
    from pyspark import SparkContext

    java = SparkContext._jvm.java.lang  # type: ignore[union-attr]
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1024**2


def _memory_mb() -> float:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
