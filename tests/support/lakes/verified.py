"""What somebody may do to a lake after a run was published, and what `verify` then says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.chaos.lab import BY, TARGET, Lab

CONTROL = "lakehouse_backfill"


def published(root: Path, before_accept: Callable[[Lab], None] | None = None) -> Lab:
    """A lab whose run is published; its state is saved under that name."""
    lab = Lab(root)
    lab.make()
    planned = lab.must("plan", lab.manifest("run.yaml", "2024-01-02", "2024-01-05"), *BY)
    lab.run = planned.data["run_id"]
    for verb in ("approve", "stage", "validate", "accept", "publish"):
        if verb == "accept" and before_accept is not None:
            before_accept(lab)
        lab.must(verb, lab.run, *BY)
    lab.must("evidence", lab.run)
    lab.save("published")
    return lab


@dataclass
class Found:
    """An answer of `verify`: exit code, data, and the checks that failed."""

    code: int
    data: dict[str, Any]

    @property
    def bad(self) -> dict[str, str]:
        return {one["name"]: one["because"] for one in self.data["checks"] if one["ok"] is False}

    @property
    def unknown(self) -> set[str]:
        return {one["name"] for one in self.data["checks"] if one["ok"] is None}


def verify(lab: Lab, *options: str) -> Found:
    """Type `verify` in a process of its own."""
    ended = lab.do("verify", lab.run, *options)
    return Found(ended.code, json.loads(ended.said)["data"])


def data_file(lab: Lab, day: str = "2024-01-03") -> Path:
    """The data file of a day that was published."""
    with lab.opened() as catalog:
        task = next(iter(catalog.load_table(TARGET).scan(f"d = '{day}'").plan_files()))
    return Path(task.file.file_path.removeprefix("file://"))


def control_files(lab: Lab, table: str) -> list[Path]:
    """The data files of a control table."""
    with lab.opened() as catalog:
        tasks = catalog.load_table(f"{CONTROL}.{table}").scan().plan_files()
    return [Path(task.file.file_path.removeprefix("file://")) for task in tasks]


def edit_rows(lab: Lab, table: str, change: Any) -> int:
    """Edit rows where they lie: no commit tells of it. Gives how many `change` said it changed."""
    changed = 0
    for path in control_files(lab, table):
        held = pq.read_table(path)
        rows = held.to_pylist()
        here = sum(bool(change(row)) for row in rows)
        if here:
            changed += here
            pq.write_table(held.from_pylist(rows, held.schema), path)
    return changed


def empty_control_table(lab: Lab, name: str) -> None:
    """Drop a control table, and create it again without rows."""
    with lab.opened() as catalog:
        old = catalog.load_table((CONTROL, name))
        catalog.drop_table((CONTROL, name))
        catalog.create_table((CONTROL, name), old.schema(), properties=old.properties)
