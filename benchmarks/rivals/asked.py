"""What a rival is asked for, and how its answer is timed; knows the standard library only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
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
    found = {"counts": list(counts), "seconds": seconds, "peak_mib": _peak_mib()}
    sys.stdout.write(f"\n{json.dumps(found)}\n")


def _peak_mib() -> float:
    """Read the peak from /proc: what the resource module says includes the process that forked."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024
