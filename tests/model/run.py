"""Run sequences of the state machine in parallel processes and write down what was done.

python -m tests.model.run N SEED [--jobs 2] [--out tests/model/results/SEED.json]

The same N and SEED are the same sequences, however many processes share them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: Sequences that are made one after the other from one seed.
SHARD = 50
STEPS = 8
#: Asked for once there are so many sequences that the share means something.
LEAST_SHARE, MEANINGFUL = 0.05, 1000
ACTIONS = (
    "plan", "approve", "stage", "validate", "accept", "cancel", "publish", "rollback_last",
    "rollback_to", "rollback_some", "recover", "append", "delete", "compact", "expire_metadata",
    "expire_files", "land",
)  # fmt: skip
PACKAGES = ("pyiceberg", "pyarrow", "hypothesis", "duckdb", "sqlalchemy", "pydantic")
RESULTS = Path(__file__).parent / "results"


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

    def add(self, other: Result) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def share(self, action: str) -> float:
        return self.after_crash[action] / max(self.sequences, 1)

    def rare(self) -> dict[str, float]:
        """Actions that came right after a crash in too few sequences."""
        shares = {action: self.share(action) for action in ACTIONS}
        return {action: share for action, share in shares.items() if share < LEAST_SHARE}


def run(sequences: int, seed: int, jobs: int = 2) -> Result:
    """Run the sequences; a failing one is among the failures, with the fewest steps that fail."""
    shards = [
        (seed * 100_000 + number, min(SHARD, sequences - number * SHARD))
        for number in range((sequences + SHARD - 1) // SHARD)
    ]
    total = Result()
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(dir=_memory()) as root,
        context.Pool(jobs, _begin, (root,)) as pool,
    ):
        for done in pool.imap_unordered(_shard, shards, chunksize=1):
            total.add(done)
    return total


def _memory() -> str | None:
    """A folder in memory, where there is one: every commit is a handful of small files."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _begin(root: str) -> None:
    from tests.model.machine import Machine

    Machine.prepare(Path(tempfile.mkdtemp(dir=root)))


def _shard(shard: tuple[int, int]) -> Result:
    from hypothesis import HealthCheck, settings
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    from tests.model.machine import Counts, Machine

    number, sequences = shard
    counts = Machine.counts = Counts()
    quiet = settings(
        max_examples=sequences,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    failures = []
    try:
        run_state_machine_as_test(seeded(number)(Machine), settings=quiet)
    except Exception:  # noqa: BLE001 (whatever it was, it is reported)
        failures.append(f"shard {number}:\n{traceback.format_exc()}")
    return Result(
        counts.sequences,
        counts.steps,
        counts.done,
        counts.refused,
        counts.crashed,
        counts.after_crash,
        failures,
    )


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
    options = parser.parse_args()
    started = time.monotonic()
    result = run(options.sequences, options.seed, options.jobs)
    found = document(result, options.sequences, options.seed, time.monotonic() - started)
    out = options.out or RESULTS / f"{options.seed}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(report(result))  # noqa: T201 (what the command is for)
    too_rare = result.rare() if options.sequences >= MEANINGFUL else {}
    if too_rare:
        print(f"too seldom after a crash: {too_rare}")  # noqa: T201
    return 1 if result.failures or too_rare else 0


if __name__ == "__main__":
    raise SystemExit(main())
