"""The lake as it is, without our code: catalog rows by sqlite3, data files by DuckDB."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Snapshot

CONTROL, SHADOWS = "lakehouse_backfill", "lakehouse_backfill_shadow"
MARK = "lakehouse-backfill."
_EPOCH = date(1970, 1, 1)
#: A run's branch of its target, by epoch.
_BRANCH = re.compile(r"lhb-(.+)-e(\d+)")
ACCEPTING = ("baseline", "publish", "rollback")


@dataclass(frozen=True)
class Oracle:
    """One lake; every look reads it afresh."""

    folder: Path
    lake: str = "lake"

    def catalog(self) -> list[tuple[Any, ...]]:
        """All that the catalog holds: each table with the metadata file that is its state."""
        with sqlite3.connect(
            f"file:{self.folder}/{self.lake}/catalog.db?mode=ro", uri=True
        ) as opened:
            tables = opened.execute("SELECT * FROM iceberg_tables ORDER BY 1, 2, 3").fetchall()
            spaces = opened.execute("SELECT * FROM iceberg_namespace_properties").fetchall()
        opened.close()
        return [*tables, *sorted(spaces, key=str)]

    def files(self) -> dict[str, int]:
        """Every file of the warehouse with its size."""
        root = self.folder / self.lake / "warehouse"
        return {
            str(file.relative_to(root)): file.stat().st_size
            for file in root.rglob("*")
            if file.is_file()
        }

    def names(self) -> list[str]:
        return [f"{row[1]}.{row[2]}" for row in self.catalog() if str(row[3]).endswith(".json")]

    def load(self, metadata_file: str) -> StaticTable:
        return StaticTable.from_metadata(metadata_file)

    def table(self, name: str) -> StaticTable:
        """Load a table; `TABLE@BRANCH` is one whose history is that of the branch."""
        found = {f"{row[1]}.{row[2]}": row[3] for row in self.catalog() if len(row) > 4}
        name, _, branch = name.partition("@")
        table = self.load(found[name])
        if branch:
            snapshots = {one.snapshot_id: one for one in table.metadata.snapshots}
            at, history = table.metadata.refs[branch].snapshot_id, list[Snapshot]()
            head = at
            while (one := snapshots.get(at)) is not None:
                history.insert(0, one)
                at = one.parent_snapshot_id or 0
            update = {"current_snapshot_id": head, "snapshots": history}
            table.metadata = table.metadata.model_copy(update=update)
        return table

    def paths(self, name: str, snapshot_id: int | None = None) -> dict[str, list[str]]:
        """The live data files of a snapshot by partition."""
        found: dict[str, list[str]] = {}
        table = self.table(name)
        if snapshot_id is None and table.current_snapshot() is None:
            return found
        for task in table.scan(snapshot_id=snapshot_id).plan_files():
            values = list(task.file.partition)  # type: ignore[call-overload]
            found.setdefault(_day(values[0]) if values else "", []).append(task.file.file_path)
        return {label: sorted(files) for label, files in sorted(found.items())}

    def rows(self, name: str, snapshot_id: int | None = None) -> list[tuple[str, int, int]]:
        """(day, k, v) of every row, sorted."""
        files = [file for part in self.paths(name, snapshot_id).values() for file in part]
        if not files:
            return []
        return sorted((str(d), k, v) for d, k, v in _read(files, "d, k, v").fetchall())

    def log(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Some columns of a control table's rows in their order; none when there is no table."""
        name = f"{CONTROL}.{table}"
        if name not in self.names():
            return []
        files = [file for part in self.paths(name).values() for file in part]
        if not files:
            return []
        found = _read(files, ", ".join(("log_seq", *columns))).fetchall()
        return [dict(zip(columns, row[1:], strict=True)) for row in sorted(found)]

    def summaries(self, name: str) -> list[dict[str, str]]:
        """The summaries of a table's snapshots, oldest first."""
        return [
            dict(snapshot.summary.additional_properties) if snapshot.summary else {}
            for snapshot in self.table(name).snapshots()
        ]

    def shadows(self) -> list[str]:
        """Name the shadow of each run: its clone, or the newest of its branches."""
        names = self.names()
        newest: dict[str, tuple[int, str]] = {}
        for name in names:
            refs = [] if name.startswith(CONTROL) else self.table(name).refs()
            for ref in refs:
                if found := _BRANCH.fullmatch(ref):
                    epoch = int(found[2]), f"{name}@{ref}"
                    newest[found[1]] = max(epoch, newest.get(found[1], epoch))
        clones = [name for name in names if name.startswith(SHADOWS)]
        return clones + [name for _, (_, name) in sorted(newest.items())]

    def shadow(self) -> str | None:
        """Name the first run's shadow."""
        return next(iter(self.shadows()), None)

    def attempts(self) -> list[str]:
        """The chunk of each commit on the shadow, once for each attempt, in their order."""
        shadow = self.shadow()
        if shadow is None:
            return []
        made = {
            found[f"{MARK}attempt-id"]: found[f"{MARK}chunk-id"]
            for found in self.summaries(shadow)
            if f"{MARK}attempt-id" in found
        }
        return list(made.values())

    def digests(self, columns: str) -> dict[str, str]:
        """A digest of the shadow's rows in each partition, whatever their order."""
        shadow = self.shadow()
        assert shadow is not None
        found = {
            label: sorted(map(repr, _read(files, columns).fetchall()))
            for label, files in self.paths(shadow).items()
        }
        return {
            label: hashlib.sha256("".join(rows).encode()).hexdigest()
            for label, rows in found.items()
        }

    def state(self) -> tuple[Any, ...]:
        """Catalog and files: equal states mean that nothing at all was written in between."""
        return self.catalog(), self.files()


def facts(lake: Oracle, target: str, run: str) -> dict[str, Any]:
    """What must be the same, whatever was killed on the way; the run is called RUN."""
    text = json.dumps(_facts(lake, target))
    found: dict[str, Any] = json.loads(
        text.replace(run, "RUN").replace(run.replace("-", "_"), "RUN")
    )
    return found


def _facts(lake: Oracle, target: str) -> dict[str, Any]:
    shadow = lake.shadow()
    events: dict[str, list[dict[str, Any]]] = {}
    for event in lake.log("run_event", "run_id", "seq", "to_state"):
        events.setdefault(event["run_id"], []).append(event)
    ledger = {
        row["chunk_id"]: row
        for row in lake.log("backfill_chunk_run", "chunk_id", "output_rows", "checksum")
    }
    pointer = lake.log("accepted_output_version", "output_version", "action")
    summaries = lake.summaries(target)
    return {
        "target": lake.rows(target),
        "publications": [
            (found.get(f"{MARK}output-version"), found.get(f"{MARK}rollback-to"))
            for found in summaries
            if f"{MARK}publication" in found
        ],
        "tokens are used once": _is_unique(
            [found.get(f"{MARK}publication") for found in summaries]
        ),
        "versions": [
            (row["output_version"], row["action"]) for row in pointer if row["action"] in ACCEPTING
        ],
        "reserved": bool(pointer) and pointer[-1]["action"] == "reserve",
        "shadow": lake.rows(shadow) if shadow else [],
        "ledger": {name: (row["output_rows"], row["checksum"]) for name, row in ledger.items()},
        "plans": [row["run_id"] for row in lake.log("pipeline_run", "run_id")],
        "runs": {run: log[-1]["to_state"] for run, log in events.items()},
        "events are numbered": all(
            [event["seq"] for event in log] == list(range(1, len(log) + 1))
            for log in events.values()
        ),
        "evidence": sorted({row["kind"] for row in lake.log("evidence", "kind")}),
        "tags": {
            name: sorted({ref.rpartition("-")[0] for ref in lake.table(name).metadata.refs})
            for name in lake.names()
            if not name.startswith(CONTROL)
        },
    }


def _is_unique(tokens: list[str | None]) -> bool:
    given = [token for token in tokens if token is not None]
    return len(given) == len(set(given))


def _day(value: Any) -> str:
    """Write the day whose number a partition tuple holds."""
    return "null" if value is None else str(_EPOCH + timedelta(days=value))


def _read(files: list[str], columns: str) -> Any:
    paths = [file.removeprefix("file://") for file in files]
    return _duckdb().cursor().execute(f"SELECT {columns} FROM read_parquet(?)", [paths])


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """One engine for all looks, as making one takes longer than a look; it keeps nothing read."""
    return duckdb.connect(config={"threads": 1, "enable_external_file_cache": False})
