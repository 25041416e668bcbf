"""What a rival is asked for, and how its answer is timed; knows the standard library only."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Counts = tuple[int, int, int]


def asked() -> dict[str, Any]:
    """Read the question: files of both sides, the key, rounds, a scratch folder."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def answer(count: Callable[[], Counts], rounds: int) -> None:
    """Count added, removed and changed rows in each round, and print them with the seconds."""
    seconds, counts = [], (0, 0, 0)
    for _ in range(rounds):
        started = time.perf_counter()
        counts = count()
        seconds.append(time.perf_counter() - started)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"counts": list(counts), "seconds": seconds, "peak_mib": peak_mib}
    sys.stdout.write(f"\n{json.dumps(found)}\n")
