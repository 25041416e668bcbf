"""Run sequences of the state machine in parallel processes and write down what was done.

python -m tests.model.run N SEED [--jobs 2] [--out tests/model/results/SEED.json] [--report]

The same N and SEED are the same sequences, however many processes share them. What is done is kept
beside the result, in SEED.part: the same command again goes on from there, `--report` writes the
result of what there is. Code that changed in between starts anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.model.picks import ACTIONS

#: Sequences that are made one after the other from one seed.
SHARD = 50
STEPS = 7
#: Of more than 9 sequences hypothesis makes most by repeating parts of those before.
GROUP = 8
#: Asked for once there are so many sequences that the share means something.
LEAST_SHARE, MEANINGFUL = 0.05, 1000
PACKAGES = ("pyiceberg", "pyarrow", "hypothesis", "duckdb", "sqlalchemy", "pydantic")
RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
#: Bytes that the lakes of a run need at most.
ROOM = 2 * 1024**3


@dataclass
class Result:
    """What a number of sequences did; in `after_crash`, how many had an action after a crash."""

    sequences: int = 0
    steps: int = 0
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    after_crash: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    #: Time of processors.
    cpu_s: float = 0.0

    @classmethod
    def parse(cls, found: dict[str, Any]) -> Result:
        counted = ("done", "refused", "crashed", "after_crash")
        return cls(**{**found, **{name: Counter(found[name]) for name in counted}})

    def add(self, other: Result) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def share(self, action: str) -> float:
        return self.after_crash[action] / max(self.sequences, 1)

    def rare(self) -> dict[str, float]:
        """Actions that came right after a crash in too few sequences."""
        shares = {action: self.share(action) for action in ACTIONS}
        return {action: share for action, share in shares.items() if share < LEAST_SHARE}


@dataclass
class Progress:
    """What is done of a run, also after a run that was interrupted."""

    sequences: int
    seed: int
    file: Path | None
    done: dict[int, Result] = field(default_factory=dict)
    seconds: float = 0.0

    def open(self) -> None:
        """Go on with what the file holds, if the same code did it; else begin anew."""
        if self.file is None:
            return
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else [""]
        if lines[0] != self._header():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(self._header() + "\n", encoding="utf-8")
            return
        for line in lines[1:]:
            found = json.loads(line)
            self.done[found["shard"]] = Result.parse(found["result"])
            self.seconds = found["seconds"]

    def add(self, shard: int, result: Result, seconds: float) -> None:
        self.done[shard] = result
        if self.file is not None:
            line = {"shard": shard, "seconds": round(seconds, 1), "result": vars(result)}
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")

    def total(self) -> Result:
        total = Result()
        for shard in sorted(self.done):
            total.add(self.done[shard])
        return total

    def left(self) -> list[tuple[int, int]]:
        """The seeds of the shards that are not done yet, with how many sequences they have."""
        shards = range((self.sequences + SHARD - 1) // SHARD)
        sizes = {self.seed * 100_000 + n: min(SHARD, self.sequences - n * SHARD) for n in shards}
        return [(shard, size) for shard, size in sizes.items() if shard not in self.done]

    def _header(self) -> str:
        return json.dumps([self.sequences, self.seed, SHARD, STEPS, _code()])


def _code() -> str:
    """A digest of the product's and this test's code."""
    found = hashlib.sha256()
    for folder in ("lakehouse_backfill", "tests/model", "tests/chaos"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


def run(progress: Progress, jobs: int = 2, say: Callable[[str], None] = lambda _: None) -> Progress:
    """Run what is left; a failing sequence is kept with the fewest steps that fail."""
    progress.open()
    left = progress.left()
    context = multiprocessing.get_context("spawn")
    started, before, made = time.monotonic(), progress.seconds, 0
    with (
        tempfile.TemporaryDirectory(dir=_memory()) as root,
        context.Pool(jobs, _begin, (root,)) as pool,
    ):
        for shard, done in pool.imap_unordered(_shard, left, chunksize=1):
            passed = time.monotonic() - started
            progress.seconds = before + passed
            progress.add(shard, done, progress.seconds)
            made += 1
            ahead = passed / made * (len(left) - made)
            total = progress.total()
            say(
                f"{total.sequences} of {progress.sequences} sequences, "
                f"{len(total.failures)} failures, {passed / made / SHARD:.2f} s each, "
                f"{ahead / 60:.0f} min left"
            )
    return progress


def _memory() -> str | None:
    """A folder in memory, where there is room: every commit is a handful of small files."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > ROOM
    return str(memory) if has_room else None


def _begin(root: str) -> None:
    from tests.model import quick
    from tests.model.machine import Machine

    quick.set_up()
    Machine.prepare(Path(tempfile.mkdtemp(dir=root)))
    quick.freeze()


def _shard(shard: tuple[int, int]) -> tuple[int, Result]:
    from tests.model.machine import Counts, Machine

    number, sequences = shard
    started = time.process_time()
    counts = Machine.counts = Counts()
    failures = []
    for group, first in enumerate(range(0, sequences, GROUP)):
        try:
            _group(number * 100 + group, min(GROUP, sequences - first))
        except Exception:  # noqa: BLE001 (whatever it was, it is reported)
            failures.append(f"shard {number}, group {group}:\n{traceback.format_exc()}")
    return number, Result(
        counts.sequences,
        counts.steps,
        counts.done,
        counts.refused,
        counts.crashed,
        counts.after_crash,
        failures,
        round(time.process_time() - started, 1),
    )


def _group(number: int, sequences: int) -> None:
    from hypothesis import HealthCheck, settings
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    from tests.model.machine import Machine

    quiet = settings(
        max_examples=sequences,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seeded(number)(Machine), settings=quiet)


def document(result: Result, sequences: int, seed: int, seconds: float) -> dict[str, Any]:
    """The result as it is stored."""
    found = vars(result)
    return {
        "seed": seed,
        "asked_for": sequences,
        **{name: found[name] for name in ("sequences", "steps")},
        "failures": len(result.failures),
        **{
            name: dict(sorted(found[name].items()))
            for name in ("done", "refused", "crashed", "after_crash")
        },
        "after_crash_share": {name: round(result.share(name), 4) for name in ACTIONS},
        "duration_s": round(seconds, 1),
        "cpu_s": round(result.cpu_s, 1),
        "commit": _commit(),
        "versions": {
            "python": sys.version.split()[0],
            **{package: version(package) for package in PACKAGES},
        },
    }


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _lines(result: Result) -> Iterator[str]:
    yield f"{result.sequences} sequences, {result.steps} actions"
    yield f"{'action':18}{'done':>8}{'refused':>9}{'killed':>8}{'after a crash':>15}"
    for name in ACTIONS:
        counted = (result.done, result.refused, result.crashed)
        numbers = "".join(f"{one[name]:>{w}}" for one, w in zip(counted, (8, 9, 8), strict=True))
        yield f"{name:18}{numbers}{result.share(name):>15.1%}"
    yield from result.failures


def report(result: Result) -> str:
    """Statistics and failures as text."""
    return "\n".join(_lines(result))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sequences", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", action="store_true", help="write the result of what there is")
    options = parser.parse_args()
    out = options.out or RESULTS / f"{options.seed}.json"
    progress = Progress(options.sequences, options.seed, out.with_suffix(".part"))
    if options.report:
        progress.open()
    else:
        run(progress, options.jobs, lambda line: print(line, flush=True))  # noqa: T201
    result = progress.total()
    found = document(result, options.sequences, options.seed, progress.seconds)
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(report(result))  # noqa: T201 (what the command is for)
    too_rare = result.rare() if options.sequences >= MEANINGFUL else {}
    if too_rare:
        print(f"too seldom after a crash: {too_rare}")  # noqa: T201
    return 1 if result.failures or too_rare else 0


if __name__ == "__main__":
    raise SystemExit(main())
