"""A project with one source, a judge of what was landed, and kills in the middle of a landing."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from lakehouse_backfill import fault_points
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.sources import LandResult
from tests.support.forks import FORKS

PROFILES = """\
api_version: lakehouse-backfill/v1
default: embedded
profiles:
  embedded:
    environment: dev
    catalog:
      name: lake
      type: sql
      uri: sqlite:///${project}/.lakehouse/catalog.db
      warehouse: file://${project}/.lakehouse/warehouse
"""
Row = dict[str, Any]


class SourceCase(Protocol):
    """One kind of source: how records get into it, and what must be landed of them."""

    project: Path
    name: str
    table: str

    def deliver(self, records: Sequence[Row]) -> None:
        """Put records into the source."""
        ...

    def expected(self) -> list[Row]:
        """Return the records that the raw table must hold by now."""
        ...

    def require_settled(self) -> None:
        """Check what must be true beside the raw table once a landing is complete."""
        ...


def new_project(folder: Path) -> Path:
    """Make a project without contracts."""
    (folder / "catalog/sources").mkdir(parents=True)
    (folder / "catalog/profiles.yaml").write_text(PROFILES)
    return folder


def land(case: SourceCase, **range_: str) -> LandResult:
    """Land the source in this process."""
    return Project.open(case.project).land(case.name, **range_)


def landed_rows(case: SourceCase, columns: str = "id, city, fare") -> list[tuple[Any, ...]]:
    """Return the rows of the raw table as DuckDB reads its live data files."""
    table = Project.open(case.project).wiring.catalog.load_table(case.table)
    import duckdb  # not in the processes that are killed

    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    if not files:
        return []
    with duckdb.connect() as connection:
        text = f"SELECT {columns} FROM read_parquet(?, union_by_name=true)"
        return connection.execute(text, [files]).fetchall()


def require_each_row_once(case: SourceCase) -> None:
    """Compare the raw table with the truth, as multisets."""
    wanted = Counter((row["id"], row["city"], row["fare"]) for row in case.expected())
    assert Counter(landed_rows(case)) == wanted


def points_of(case: SourceCase) -> list[str]:
    """Land, and return the fault points that were reached, in order."""
    seen: list[str] = []
    fault_points.install_hook(seen.append)
    try:
        land(case)
    finally:
        fault_points.install_hook(None)
    return seen


def _land_until(folder: str, name: str, moment: str, environment: dict[str, str]) -> None:
    # The process is forked from one that may be older than a variable of the test.
    os.environ.update(environment)
    seen: Counter[str] = Counter()

    def kill(point: str) -> None:
        seen[point] += 1
        if f"{point} {seen[point]}" == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.install_hook(kill)
    Project.open(Path(folder)).land(name)


def kill_while_landing(case: SourceCase, moment: str) -> None:
    """Land in a process of its own that dies at a moment, `POINT COUNT`."""
    child: multiprocessing.process.BaseProcess = FORKS.Process(
        target=_land_until, args=(str(case.project), case.name, moment, dict(os.environ))
    )
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL, moment
