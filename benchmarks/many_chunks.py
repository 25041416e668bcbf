"""One run of 2,200 daily chunks: what a commit costs at its end and at its beginning, and kills.

    python -m benchmarks.many_chunks [--chunks 2200] [--kills 5]

The run is staged by the program itself, in processes that are killed on the way; PyIceberg stands
in for Spark. Each process notes, after each chunk, its processor time and its memory. The gates are
those of the issue: the last tenth of the commits costs at most 1.5 times the first tenth; memory
does not grow with the chunks; after the kills the checksums are those of a run without kills, and
at most the chunks in work were computed again.

What the stand-in engine measures is left out, and its commits are made in another process, as with
Spark: the memory is the program's own.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyiceberg.expressions import AlwaysTrue

from benchmarks.quick_engine import QuickEngine
from benchmarks.ratios import Ratio, report
from tests.chaos import lab as lab_of_tests
from tests.chaos import worker
from tests.chaos.lab import BY, SOURCE, TARGET, Lab
from tests.support.quick_pyiceberg import forget_metadata

LAST_FIRST, GROWTH_MB = 1.5, 50
_BEGIN = date(2018, 1, 1)


@dataclass
class Notes:
    """Notes processor time and memory at each chunk; kills the process at one of them."""

    file: Path
    kill_at: int | None = None
    began: float = field(default_factory=time.process_time)
    in_engine: float = 0.0
    #: Chunks that this process computed.
    chunks: int = 0
    entered: float = 0.0
    is_begun: bool = False

    def __call__(self, point: str) -> None:
        """Reach a fault point of the program."""
        if not self.is_begun:
            self.is_begun = True
            worker.PlainEngine = QuickEngine  # type: ignore[misc]
            forget_metadata()
        now = time.process_time()
        if point == "Staging.stage:before":
            self.entered = now
        elif point == "Staging.stage:after":
            self.in_engine += now - self.entered
        elif point == "Spark.overwrite:committed":
            self.chunks += 1
            if self.chunks == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        elif point == "Runs.record_chunk:after":
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(f"{now} {self.in_engine} {_memory_mb()}\n")


class ChunkLab(Lab):
    """A lab whose table has many days."""

    def __init__(self, root: Path, chunks: int) -> None:
        """Make a lab in the folder `root`; nothing is written yet."""
        super().__init__(root)
        self.days = tuple((_BEGIN + timedelta(days=n)).isoformat() for n in range(chunks))

    def prepare(self) -> str:
        """Write the tables and approve the run over all days; return its id."""
        known = lab_of_tests.DAYS
        lab_of_tests.DAYS = self.days
        try:
            self.make()
        finally:
            lab_of_tests.DAYS = known
        with self.opened() as catalog:
            # The stand-in appends.
            catalog.load_table(TARGET).delete(AlwaysTrue())
            for name in (SOURCE, TARGET):
                with catalog.load_table(name).transaction() as change:
                    # As Spark does by default; PyIceberg adds a manifest a commit without it.
                    change.set_properties({"commit.manifest-merge.enabled": "true"})
        stop = (_BEGIN + timedelta(days=len(self.days))).isoformat()
        manifest = self.manifest("all.yaml", self.days[0], stop)
        path = self.folder / manifest
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace("from: 2024-01-01, to: 2024-02-01", f"from: {self.days[0]}, to: {stop}"),
            encoding="utf-8",
        )
        run = str(self.must("plan", manifest, *BY).data["run_id"])
        self.must("approve", run, *BY)
        return run


def main() -> int:
    """Measure, print the ratios and fail when a gate does not hold."""
    parser = argparse.ArgumentParser(description="One run of many chunks.")
    parser.add_argument("--chunks", type=int, default=2_200)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lab_of_tests.TIMEOUT_S = 7_200
    with tempfile.TemporaryDirectory(prefix="lhb-chunks-") as folder:
        lab = ChunkLab(Path(folder), options.chunks)
        run = lab.prepare()
        lab.save("approved")
        notes = Path(folder) / "notes"
        _stage(lab, run, Notes(notes))
        whole = _sums(lab, run)
        rows = [tuple(map(float, line.split())) for line in notes.read_text().splitlines()]
        redone, converged = 0, True
        if options.kills:
            lab.restore("approved")
            redone, converged = _kill(lab, run, options, whole)
        shutil.rmtree(lab.folder)
    return _report(rows, redone, converged=converged, options=vars(options))


def _kill(lab: ChunkLab, run: str, options: Any, whole: list[str]) -> tuple[int, bool]:
    """Kill the run at random chunks; return how many were computed again, and if it converged."""
    chooser = random.Random(options.seed)
    share = options.chunks // (options.kills + 1)
    notes = lab.folder.parent / "killed"
    for _ in range(options.kills):
        hook = Notes(notes, kill_at=chooser.randint(max(2, share // 2), share))
        lab.killed("stage", run, *BY, hook=hook)
    _stage(lab, run, Notes(notes))
    attempts = lab.oracle.attempts()
    return len(attempts) - options.chunks, _sums(lab, run) == whole


def _stage(lab: Lab, run: str, hook: Notes) -> None:
    ended = lab.do("stage", run, *BY, hook=hook)
    assert ended.code == 0, ended


def _sums(lab: Lab, run: str) -> list[str]:
    return [str(one["checksum"]) for one in lab.must("chunks", run).data["chunks"]]


def _report(
    rows: list[tuple[float, ...]], redone: int, *, converged: bool, options: dict[str, object]
) -> int:
    tenth = max(2, len(rows) // 10)
    whole = [later[0] - one[0] for one, later in pairwise(rows)]
    engine = [later[1] - one[1] for one, later in pairwise(rows)]
    own = [one - other for one, other in zip(whole, engine, strict=True)]
    memory = [one[2] for one in rows]
    growth = memory[-1] - statistics.median(memory[tenth : 2 * tenth])
    ratios = [
        Ratio("last tenth of the chunks / first tenth", _ends(own, tenth), LAST_FIRST),
        Ratio(f"growth of memory after the first tenth / {GROWTH_MB} MB", growth / GROWTH_MB, 1),
        Ratio("chunks computed again after kills", redone, 0),
        Ratio("0: the checksums are those without kills", 0 if converged else 1, 0),
    ]
    raw = {"toolkit": own, "engine": engine, "memory MB": memory}
    return report("many_chunks", ratios, raw, options)


def _ends(cost: list[float], tenth: int) -> float:
    return statistics.fmean(cost[-tenth:]) / statistics.fmean(cost[:tenth])


def _memory_mb() -> float:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
