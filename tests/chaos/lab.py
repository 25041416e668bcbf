"""A small project, saved in each state of a run's life, and processes that work on it."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from tests.chaos import worker
from tests.chaos.oracle import Oracle

TIMEOUT_S = 180
DAYS = tuple(f"2024-01-0{number}" for number in range(1, 9))
#: The days that the run of the saved states restates.
SCOPE = DAYS[1:4]
TARGET, SOURCE = "silver.t", "bronze.s"
BY = ("--by", "ana")

PROFILES = """\
api_version: lakehouse-backfill/v1
default: lab
profiles:
  lab:
    environment: dev
    lease_seconds: 300
    catalog:
      name: lake
      type: sql
      uri: sqlite:///${project}/lake/catalog.db
      warehouse: file://${project}/lake/warehouse
"""
CONTRACT = """\
api_version: lakehouse-backfill/v1
product: silver.t
table: silver.t
description: Amounts per day.
owner: ana
key: [d, k]
partitioning: [{column: d}]
columns:
  - {name: d, type: date}
  - {name: k, type: long}
  - {name: v, type: long}
consumers: []
classification: internal
retention_days: unlimited
lineage_columns: false
roles: {approve: [ana], accept: [ana], publish: [ana]}
"""
MANIFEST = """\
api_version: lakehouse-backfill/v1
run: {{requested_by: ana, reason: wrong rate, reason_code: bug_fix}}
product: silver.t
transform: {{name: tenfold, version: 1.0.0, file: jobs/tenfold.py}}
sources:
  s: {{table: bronze.s, range: {{column: d, from: 2024-01-01, to: 2024-02-01}}}}
target:
  partitions: {{column: d, from: {first}, to: {stop}}}
limits: {{partitions_per_chunk: 1}}
validation: {{edge_partitions: 0}}
"""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.chaos.warm", "tests.chaos.lived"])
#: Starting a child also asks for the ends of all others, and an end can be read only once: of two
#: threads that ask at once, one would take a child that was killed for one that ended with 255.
_asking = threading.Lock()


@atexit.register
def _kill_children() -> None:
    """Kill what a failed test left: a stopped child never ends when it is only asked to."""
    for child in multiprocessing.active_children():
        child.kill()


def shared_event() -> Any:
    """An event that this process and its children share."""
    return _processes.Event()


def shared_barrier(parties: int) -> Any:
    """A barrier at which children meet."""
    return _processes.Barrier(parties)


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (negative: the signal that killed it), what it said."""

    code: int
    said: str

    @property
    def data(self) -> dict[str, Any]:
        return self._answer("data")

    @property
    def error(self) -> dict[str, Any]:
        return self._answer("error")

    def _answer(self, part: str) -> dict[str, Any]:
        # What libraries log comes before.
        found: dict[str, Any] = json.loads(self.said.splitlines()[-1])[part]
        return found


class Child:
    """One command in a process of its own."""

    def __init__(self, folder: Path, said: Path, arguments: tuple[str, ...], **fault: Any) -> None:
        self._said = said
        work = (arguments, folder, said, fault.get("hook"), fault.get("outage"))
        self._process = _processes.Process(target=worker.run, args=work, daemon=True)
        with _asking:
            self._process.start()

    def end(self) -> Ended:
        deadline = time.monotonic() + TIMEOUT_S
        while (code := self._exit_code()) is None:
            if time.monotonic() > deadline:
                self._process.kill()
                raise TimeoutError(self._said.read_text(encoding="utf-8"))
            time.sleep(0.005)
        return Ended(code, self._said.read_text(encoding="utf-8"))

    def _exit_code(self) -> int | None:
        with _asking:
            return self._process.exitcode

    def wait_until_stopped(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while _state(self._process.pid) != "T":
            assert self._exit_code() is None, self._said.read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def go_on(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)


class Lab:
    """The project, with states of it that tests begin from."""

    #: The run that all saved states are about, and one that is accepted beside it.
    run: str
    second: str

    def __init__(self, root: Path, isolation: str = "clone") -> None:
        """Lie under `root`; runs write to a clone of their target, or to a branch of it."""
        self.folder = root / "project"
        self.isolation = isolation
        self.oracle = Oracle(self.folder)
        self._states = root / "states"
        self._said = root / "said"
        self._said.mkdir(parents=True)
        self._numbers = count()

    def start(self, *arguments: str, **fault: Any) -> Child:
        """Begin a command; its fault is `hook` or `outage`."""
        said = self._said / f"{next(self._numbers)}.json"
        return Child(self.folder, said, arguments, **fault)

    def do(self, *arguments: str, **fault: Any) -> Ended:
        """Run a command to its end."""
        return self.start(*arguments, **fault).end()

    def must(self, *arguments: str) -> Ended:
        """Run a command that has to succeed."""
        ended = self.do(*arguments)
        assert ended.code == 0, (arguments, ended)
        return ended

    def killed(self, *arguments: str, hook: Any) -> Ended:
        """Run a command that its hook has to kill."""
        ended = self.do(*arguments, hook=hook)
        assert ended.code == -signal.SIGKILL, (arguments, hook, ended)
        return ended

    def typed(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """A command about the run of the saved states, with who gives it."""
        return (*(self.run if word == "RUN" else word for word in command), *BY)

    def save(self, state: str) -> None:
        """Keep the folder as it is under a name."""
        shutil.copytree(self.folder, self._states / state)

    def forget(self, state: str) -> None:
        """Drop a saved state."""
        shutil.rmtree(self._states / state)

    def restore(self, state: str) -> None:
        """Begin again from a saved state: at the same place, as metadata holds absolute paths."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._states / state, self.folder)

    def manifest(self, name: str, first: str, stop: str) -> str:
        """Write a run manifest; give its path in the project."""
        text = MANIFEST.format(first=first, stop=stop)
        (self.folder / "jobs" / name).write_text(text, encoding="utf-8")
        return f"jobs/{name}"

    def make(self) -> None:
        """Write the declarations and the tables: three rows a day, all of them wrong."""
        for name, text in {
            "catalog/profiles.yaml": self.profiles(),
            f"catalog/contracts/{TARGET}.yaml": CONTRACT,
            "jobs/tenfold.py": "# The lab's engine multiplies; see engine.py.\n",
        }.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (self.folder / "lake").mkdir()
        catalog = self.catalog()
        rows = [(date.fromisoformat(day), k, k) for day in DAYS for k in range(1, 4)]
        for table, factor in ((SOURCE, 1), (TARGET, 100)):
            catalog.create_namespace_if_not_exists(table.partition(".")[0])
            made = catalog.create_table(table, _SCHEMA, partition_spec=_SPEC)
            made.append(_arrow([(d, k, v * factor) for d, k, v in rows]))
        if isinstance(catalog, SqlCatalog):
            catalog.engine.dispose()

    def profiles(self) -> str:
        """Say where the lake is, and where runs write."""
        if self.isolation == "clone":
            return PROFILES
        asked = f"environment: dev\n    isolation: {self.isolation}"
        return PROFILES.replace("environment: dev", asked)

    def catalog(self) -> Any:
        """Open the lake beside the product, as anybody may."""
        lake = self.folder / "lake"
        return SqlCatalog(
            "lake", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse"
        )

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the lake for as long as the block runs."""
        catalog = self.catalog()
        try:
            yield catalog
        finally:
            if isinstance(catalog, SqlCatalog):
                catalog.engine.dispose()


def expected_rows(*restated: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Give all rows of the target as they are when these days, and no others, are restated."""
    right = {day for days in restated for day in days}
    return [(day, k, k * (10 if day in right else 100)) for day in DAYS for k in (1, 2, 3)]


def tables_of(lab: Lab) -> list[str]:
    """Name all tables of the lab's lake."""
    catalog = lab.catalog()
    spaces = catalog.list_namespaces()
    return [".".join(name) for space in spaces for name in catalog.list_tables(space)]


_SCHEMA = Schema(
    NestedField(1, "d", DateType()),
    NestedField(2, "k", LongType()),
    NestedField(3, "v", LongType()),
)
_SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "d"))


def _arrow(rows: list[tuple[date, int, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    return pa.table(
        {
            "d": pa.array(columns[0], pa.date32()),
            "k": pa.array(columns[1], pa.int64()),
            "v": pa.array(columns[2], pa.int64()),
        }
    )


def _state(pid: int | None) -> str:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return text.rpartition(")")[2].split()[0]
