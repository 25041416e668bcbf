"""Processes beside the product's own: live writers and readers; and a lab with four products."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

from tests.chaos.lab import (
    _SCHEMA,
    _SPEC,
    CONTRACT,
    DAYS,
    MANIFEST,
    SOURCE,
    Lab,
    _arrow,
    _processes,
)
from tests.chaos.oracle import Oracle

PRODUCTS = tuple(f"silver.p{number}" for number in range(4))
Row = tuple[str, int, int]


class ManyLab(Lab):
    """Four products like the lab's own one, from one source."""

    def make(self) -> None:
        files = {"catalog/profiles.yaml": self.profiles(), "jobs/tenfold.py": "# See engine.py.\n"}
        for product in PRODUCTS:
            text = CONTRACT.replace("silver.t", product)
            files[f"catalog/contracts/{product}.yaml"] = text
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (self.folder / "lake").mkdir()
        catalog = self.catalog()
        for space in ("bronze", "silver"):
            catalog.create_namespace(space)
        for table in (SOURCE, *PRODUCTS):
            made = catalog.create_table(table, _SCHEMA, partition_spec=_SPEC)
            made.append(_arrow(first_rows(1 if table == SOURCE else 100)))
        catalog.engine.dispose()

    def manifest_of(self, product: str, first: str, stop: str, target: str = "") -> str:
        name = f"{product}-{first}-{stop}.yaml"
        text = MANIFEST.format(first=first, stop=stop).replace("silver.t", product)
        text = text.replace("target:\n", f"target:\n{target}")
        (self.folder / "jobs" / name).write_text(text, encoding="utf-8")
        return f"jobs/{name}"

    def accepted_run(self, product: str, first: str, stop: str, target: str = "") -> str:
        """Bring a run, with more lines under `target:`, to where it can be published."""
        file = self.manifest_of(product, first, stop, target)
        run = str(self.must("plan", file, "--by", "ana").data["run_id"])
        for verb in ("approve", "stage", "validate", "accept"):
            self.must(verb, run, "--by", "ana")
        return run


def first_rows(factor: int) -> list[tuple[date, int, int]]:
    return [(date.fromisoformat(day), k, k * factor) for day in DAYS for k in range(1, 4)]


@dataclass
class Beside:
    """A process that does `work(folder, file, stop, *what)` until it is told to stop."""

    folder: Path
    file: Path
    work: Any
    what: tuple[Any, ...] = ()

    def __enter__(self) -> Beside:
        self._go_on = _processes.Event()
        self._stop = _processes.Event()
        target = (self.work, self.folder, self.file, self._go_on, self._stop, self.what)
        self._process = _processes.Process(target=_beside, args=target, daemon=True)
        self._process.start()
        assert self._go_on.wait(60), "the process does not come up"
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join(60)
        assert self._process.exitcode == 0, self.file.read_text(encoding="utf-8")

    @property
    def said(self) -> list[Any]:
        """What it wrote down, one JSON value a line."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def _beside(work: Any, folder: Path, file: Path, go_on: Any, stop: Any, what: Any) -> None:
    with file.open("w", encoding="utf-8", buffering=1) as lines:

        def say(value: Any) -> None:
            lines.write(json.dumps(value) + "\n")
            go_on.set()

        work(folder, say, stop, *what)


def catalog_of(folder: Path) -> SqlCatalog:
    lake = folder / "lake"
    return SqlCatalog(
        "lake", uri=f"sqlite:///{lake}/catalog.db?timeout=60", warehouse=f"file://{lake}/warehouse"
    )


def append_rows(
    folder: Path, say: Any, stop: Any, table: str, days: tuple[str, ...], writer: int
) -> None:
    """Append one row after the other as a live job does; say which landed."""
    catalog, chance = catalog_of(folder), random.Random(writer)
    number = 0
    while number == 0 or not stop.is_set():
        number += 1
        row = (chance.choice(days), 1000 * (writer + 1) + number, 7)
        while True:
            try:
                catalog.load_table(table).append(
                    _arrow([(date.fromisoformat(row[0]), row[1], row[2])])
                )
                break
            except (CommitFailedException, OperationalError):
                time.sleep(0.01 * chance.random())
        say(row)
        # Others want the processor too.
        time.sleep(0.05 + 0.1 * chance.random())


def read_by_pyiceberg(folder: Path, say: Any, stop: Any, table: str) -> None:
    """Read the whole table again and again; say what is seen."""
    catalog = catalog_of(folder)

    def read() -> list[Row]:
        rows = catalog.load_table(table).scan().to_arrow().to_pylist()
        return sorted((str(row["d"]), row["k"], row["v"]) for row in rows)

    _say_changes(read, say, stop)


def read_by_duckdb(folder: Path, say: Any, stop: Any, table: str) -> None:
    """The same by DuckDB over the files that the metadata lists."""
    _say_changes(lambda: Oracle(folder).rows(table), say, stop)


def read_accepted(folder: Path, say: Any, stop: Any, table: str) -> None:
    """The same by the product's own reader, which refuses rows that nobody accepted."""
    from lakehouse_backfill.project import accepted

    def read() -> list[Row]:
        rows = accepted(table, "arrow", folder=folder).to_pylist()
        return sorted((str(row["d"]), row["k"], row["v"]) for row in rows)

    _say_changes(read, say, stop)


def _say_changes(read: Any, say: Any, stop: Any) -> None:
    seen: list[Row] | None = None
    while not stop.is_set():
        rows = read()
        if rows != seen:
            say(rows)
        seen = rows
