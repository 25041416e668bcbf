"""Everything that compares A with a variant: ours, the same engines bare, and other tools.

Each peer gives (added, removed, changed), or None when it only reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ratios import environment
from benchmarks.tpch import KEY, TABLE, Lake, Truth
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.cli.session import keep_freed_memory
from lakehouse_backfill.ports.comparison import DiffRequest

Counts = tuple[int, int, int] | None
ROOT = Path(__file__).resolve().parents[1]
THREADS = 2


@dataclass
class Setting:
    """A lake, a variant of it, and the files of both sides."""

    lake: Lake
    variant: str
    old_all: list[str] = field(default_factory=list)
    new_all: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """List the files of both sides once: planning is part of what is measured."""
        table = self.lake.catalog().load_table(TABLE)
        for snapshot_id, files in ((self.lake.a, self.old_all), (self.new, self.new_all)):
            tasks = table.scan(snapshot_id=snapshot_id).plan_files()
            files += sorted(task.file.file_path.removeprefix("file://") for task in tasks)

    @property
    def new(self) -> int:
        """The variant's snapshot."""
        return self.lake.variant(self.variant)[0]

    @property
    def truth(self) -> Truth:
        """The variant's counts."""
        return self.lake.variant(self.variant)[1]

    @property
    def old_files(self) -> list[str]:
        """Files that only A has."""
        return sorted(set(self.old_all) - set(self.new_all))

    @property
    def new_files(self) -> list[str]:
        """Files that only the variant has."""
        return sorted(set(self.new_all) - set(self.old_all))

    def request(self, **options: Any) -> DiffRequest:
        """Ask for the diff."""
        return DiffRequest(TABLE, self.lake.a, TABLE, self.new, KEY, **options)


def local(setting: Setting, **options: Any) -> Callable[[], Counts]:
    """Compare with our engine in this process, planning included; one differ serves all rounds.

    The process keeps freed memory, as the command line's does.
    """
    keep_freed_memory()
    differ = LocalDiffer(setting.lake.catalog())

    def compare() -> Counts:
        found = differ.diff(setting.request(**options)).summary
        return found.added, found.removed, found.changed

    return compare


def duckdb_scan(setting: Setting) -> Callable[[], Counts]:
    """Read all columns of the changed files: the count, sums of numbers, greatest of others."""
    db = _duckdb()
    files = f"read_parquet({setting.old_files + setting.new_files}, hive_partitioning = false)"
    sample = db.sql(f"SELECT * FROM {files} LIMIT 0")
    pairs = zip(sample.columns, map(str, sample.types), strict=True)
    parts = [f"{'max' if kind in ('VARCHAR', 'DATE') else 'sum'}({name})" for name, kind in pairs]
    query = f"SELECT count(*), {', '.join(parts)} FROM {files}"

    def scan() -> Counts:
        db.execute(query).fetchall()
        return None

    return scan


def duckdb_join(setting: Setting, *, whole: bool = False) -> Callable[[], Counts]:
    """Join the changed files, or both snapshots whole, in one statement."""
    db = _duckdb()
    sides = (setting.old_all, setting.new_all) if whole else (setting.old_files, setting.new_files)
    old, new = (f"read_parquet({side}, hive_partitioning = false)" for side in sides)
    names = [name for name in db.sql(f"SELECT * FROM {old} LIMIT 0").columns if name not in KEY]
    differs = " OR ".join(f"o.{name} IS DISTINCT FROM n.{name}" for name in names)
    query = (
        "SELECT count(*) FILTER (o.l_orderkey IS NULL), count(*) FILTER (n.l_orderkey IS NULL), "
        f"count(*) FILTER (o.l_orderkey IS NOT NULL AND n.l_orderkey IS NOT NULL AND ({differs})) "
        f"FROM {old} o FULL JOIN {new} n USING (l_orderkey, l_linenumber)"
    )
    return lambda: _three(db.execute(query).fetchall()[0])


def duckdb_except(setting: Setting) -> Callable[[], Counts]:
    """EXCEPT ALL both ways on the changed files; keys on both sides are changed rows."""
    db = _duckdb()
    old, new = (
        f"read_parquet({side}, hive_partitioning = false)"
        for side in (setting.old_files, setting.new_files)
    )
    return lambda: _three(db.execute(_except_all(old, new)).fetchall()[0])


def rival(setting: Setting, name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Run a rival in its own environment; gives counts, seconds and peak memory."""
    question = {
        "old": setting.old_files, "new": setting.new_files,
        "old_all": setting.old_all, "new_all": setting.new_all,
        "key": list(KEY), "rounds": rounds, "threads": THREADS, "scratch": str(setting.lake.folder),
    }  # fmt: skip
    script = ROOT / "benchmarks" / "rivals" / f"run_{name.replace('-', '_')}.py"
    command = [str(folder / name / "bin" / "python"), str(script), json.dumps(question)]
    return _last_line(_run(command))


def lake_sift(setting: Setting, folder: Path) -> dict[str, Any]:
    """Run lake-sift's command, from process start to counts."""
    from benchmarks.tpch import properties

    settings = {
        f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value
        for key, value in properties(setting.lake.folder).items()
    }
    command = [
        str(folder / "lake-sift" / "bin" / "lake-sift"),
        f"iceberg:lake/{TABLE}@{setting.lake.a}", f"iceberg:lake/{TABLE}@{setting.new}",
        "--key", ",".join(KEY), "--json", "--summary",
    ]  # fmt: skip
    return timed(command, settings)


def timed(command: list[str], settings: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a process; gives what it printed, its seconds and its peak memory."""
    wrapper = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], check=False); "
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024; "
        "sys.stderr.write(f'\\npeak_mib={peak}\\n'); sys.exit(done.returncode)"
    )
    started = time.perf_counter()
    done = _run([sys.executable, "-c", wrapper, *command], settings)
    took = time.perf_counter() - started
    peak = float(done.stderr.rpartition("peak_mib=")[2])
    return {"output": done.stdout, "seconds": [took], "peak_mib": peak}


def _run(
    command: list[str], settings: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = environment() | (settings or {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command[:3]} failed: {done.stderr[-2000:]}")
    return done


def _last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{done.args[:2]} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _except_all(old: str, new: str) -> str:
    keys = ", ".join(KEY)
    return (
        f"WITH gone AS (SELECT * FROM {old} EXCEPT ALL SELECT * FROM {new}), "
        f"come AS (SELECT * FROM {new} EXCEPT ALL SELECT * FROM {old}), "
        f"twice AS (SELECT {keys} FROM gone INTERSECT SELECT {keys} FROM come) "
        "SELECT (SELECT count(*) FROM come) - (SELECT count(*) FROM twice), "
        "(SELECT count(*) FROM gone) - (SELECT count(*) FROM twice), (SELECT count(*) FROM twice)"
    )


def _duckdb() -> Any:
    import duckdb

    return duckdb.connect(config={"threads": THREADS, "memory_limit": "8GB"})


def _three(row: Any) -> tuple[int, int, int]:
    added, removed, changed = row
    return int(added), int(removed), int(changed)
