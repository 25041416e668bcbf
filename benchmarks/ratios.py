"""Ratios beside their gates: the only numbers that mean something on another machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
_TICKS = os.sysconf("SC_CLK_TCK")
PACKAGES = ("lakehouse-backfill", "pyspark", "pyiceberg", "pyarrow", "duckdb")


@dataclass(frozen=True)
class Ratio:
    """One measured ratio; `gate` must hold, `aim` is where it goes next. None: only shown."""

    name: str
    value: float
    gate: float | None = None
    aim: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the gate holds."""
        return self.gate is None or self.value <= self.gate


def seconds(act: Callable[[], object]) -> float:
    """Time one call by the wall clock."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def processor_seconds() -> float:
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


def medians(
    acts: Mapping[str, Callable[[], object]], rounds: int, warm_ups: int = 0
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Time the acts in turns, so that what slows the machine slows all of them; give medians."""
    raw: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(warm_ups + rounds):
        for name, act in acts.items():
            took = seconds(act)
            if number >= warm_ups:
                raw[name].append(took)
    return {name: statistics.median(found) for name, found in raw.items()}, raw


def report(
    name: str, ratios: list[Ratio], raw: dict[str, list[float]], settings: dict[str, object]
) -> int:
    """Print the ratios, keep them with the raw seconds, and give the exit status: 1 for a miss."""
    lines = [f"{'ratio':>8}  {'gate':>6}  {'aim':>6}  "]
    for ratio in ratios:
        word = "" if ratio.gate is None else ("ok  " if ratio.holds else "MISS")
        lines.append(
            f"{ratio.value:8.3f}  {_limit(ratio.gate)}  {_limit(ratio.aim)}  {word:4}  {ratio.name}"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    document = {
        "benchmark": name,
        "settings": settings,
        "versions": {"python": platform.python_version()}
        | {key: _version(key) for key in PACKAGES},
        "ratios": [asdict(ratio) | {"holds": ratio.holds} for ratio in ratios],
        "seconds": {key: [round(value, 4) for value in found] for key, found in raw.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"raw: {path.relative_to(RESULTS.parent.parent)}\n")
    return 0 if all(ratio.holds for ratio in ratios) else 1


def _limit(value: float | None) -> str:
    return f"{value:6.3f}" if value is not None else "     –"  # noqa: RUF001 (a dash)


def _version(package: str) -> str:
    try:
        return version(package)
    except ImportError:
        return "not installed"


def environment() -> dict[str, str]:
    """Give the variables of a process that is measured as its users have it: modules compiled."""
    root = str(Path(__file__).resolve().parents[1])
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": root}
