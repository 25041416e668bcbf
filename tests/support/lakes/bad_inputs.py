"""A project over a real SQLite lake in which everything is right, and a look at its bytes."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, MonthTransform
from pyiceberg.types import DateType, LongType, NestedField, TimestamptzType
from typer.testing import CliRunner

from lakehouse_backfill.cli.main import app
from lakehouse_backfill.project import Project

RUN = "jobs/daily/run.yaml"
LEASED = "jobs/daily/leased.yaml"
MONTHLY = "jobs/daily/monthly.yaml"
OPEN = "jobs/daily/open.yaml"
JOB = "jobs/daily/transform.py"
HELPER = "jobs/daily/rates.py"
SUITE = "expectations/daily.json"
CONTRACT = "catalog/contracts/silver.daily.yaml"
PROFILES = "catalog/profiles.yaml"

MANIFEST = """\
api_version: lakehouse-backfill/v1
run:
  requested_by: bob
  reason: rates were wrong
  reason_code: bug_fix
product: silver.daily
transform:
  name: daily
  version: 1.0.0
  file: jobs/daily/transform.py
sources:
  events:
    table: bronze.events
    range: {column: day, from: 2024-01-01, to: 2024-01-20}
    warm_up_days: 2
target:
  partitions:
    column: day
    from: 2024-01-05
    to: 2024-01-08
validation:
  edge_partitions: 1
  suites:
    - {file: expectations/daily.json}
"""
_CONTRACT = """\
api_version: lakehouse-backfill/v1
product: {name}
table: {name}
description: amounts
owner: ana
key: [id]
partitioning:
  - {{column: {column}, transform: {transform}}}
columns:
  - {{name: day, type: date}}
  - {{name: ts, type: timestamptz}}
  - {{name: id, type: long}}
  - {{name: amount, type: long}}
roles: {{approve: [ana], accept: [ana], publish: [ana]}}
"""
_ANSWERS = "consumers: []\nclassification: internal\nretention_days: unlimited\n"
FILES = {
    PROFILES: """\
api_version: lakehouse-backfill/v1
default: embedded
profiles:
  embedded:
    environment: dev
    catalog:
      name: lake
      type: sql
      uri: sqlite:///${project}/.lakehouse/catalog.db?timeout=1
      warehouse: file://${project}/.lakehouse/warehouse
  prod:
    environment: prod
    catalog: {name: lake, type: rest, uri: "https://lake.example.com"}
""",
    CONTRACT: _CONTRACT.format(name="silver.daily", column="day", transform="identity") + _ANSWERS,
    "catalog/contracts/silver.monthly.yaml": _CONTRACT.format(
        name="silver.monthly", column="ts", transform="month"
    )
    + _ANSWERS,
    "catalog/contracts/silver.open.yaml": _CONTRACT.format(
        name="silver.open", column="day", transform="identity"
    ),
    JOB: """\
from jobs.daily.rates import RATE
from lakehouse_backfill import transform

@transform(name="daily", version="1.0.0", inputs=("events",))
def daily(context, events):
    return events
""",
    HELPER: "RATE = 2\n",
    SUITE: json.dumps(
        {
            "name": "daily",
            "expectations": [
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
            ],
        },
        indent=1,
    ),
    RUN: MANIFEST,
    MONTHLY: MANIFEST.replace("product: silver.daily", "product: silver.monthly")
    .replace(
        "    column: day\n    from: 2024-01-05\n    to: 2024-01-08\n",
        "    column: ts\n    from: 2024-01-01\n    to: 2024-02-01\n",
    )
    .replace("from: 2024-01-01, to: 2024-01-20", "from: 2023-11-01, to: 2024-04-01"),
    OPEN: MANIFEST.replace("product: silver.daily", "product: silver.open"),
}
_SCHEMA = Schema(
    NestedField(1, "day", DateType()),
    NestedField(2, "ts", TimestamptzType()),
    NestedField(3, "id", LongType()),
    NestedField(4, "amount", LongType()),
)


@dataclass
class BadInputLake:
    """The project, the runs that are registered in it, and the snapshot that has expired."""

    folder: Path
    runs: dict[str, str] = field(default_factory=dict)
    expired: int = 0

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Give the exit code of a command, and the JSON object that it prints."""
        found = CliRunner().invoke(
            app,
            ["--project", str(self.folder), "--json", *words],
            prog_name="lakehouse-backfill",
        )
        return found.exit_code, json.loads(found.stdout)

    def digests(self) -> dict[str, str]:
        """Give the SHA-256 of every file of the lake: catalog, metadata, manifests, data."""
        root = self.folder / ".lakehouse"
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    def rows(self) -> list[Any]:
        """Give what the catalog's own tables hold."""
        with sqlite3.connect(self.folder / ".lakehouse/catalog.db") as connection:
            return sorted(connection.execute("SELECT * FROM iceberg_tables").fetchall())

    @contextmanager
    def holding(self, files: dict[str, str | bytes | None]) -> Iterator[None]:
        """Let files of the project hold other text (None: be absent) while the block runs."""
        before = {name: self._content(name) for name in files}
        try:
            for name, text in files.items():
                self._put(name, text.encode() if isinstance(text, str) else text)
            yield
        finally:
            for name, content in before.items():
                self._put(name, content)

    def _content(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.is_file() else None

    def _put(self, name: str, content: bytes | None) -> None:
        path = self.folder / name
        if content is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def make_lake(folder: Path) -> BadInputLake:
    """Make the lake with PyIceberg, and register runs in it: planned, approved, leased, open."""
    found = BadInputLake(folder)
    for name, text in FILES.items():
        found._put(name, text.encode())
    project = Project.open(folder)
    project.wiring.create_lake()
    catalog: Catalog = project.wiring.catalog
    for namespace in ("bronze", "silver"):
        catalog.create_namespace(namespace)
    day, month = (1, IdentityTransform(), "day"), (2, MonthTransform(), "ts_month")
    for name, of in {
        "bronze.events": None,
        "bronze.leased": None,
        "silver.daily": day,
        "silver.open": day,
        "silver.monthly": month,
    }.items():
        spec = PartitionSpec(*([PartitionField(of[0], 1000, of[1], of[2])] if of else []))
        table = catalog.create_table(name, _SCHEMA, partition_spec=spec)
        table.append(_rows())
    _lease(found, project)
    for name, manifest in (("planned", RUN), ("open", OPEN)):
        found.runs[name] = project.plan(manifest, by="bob").run_id
    with found.holding({"jobs/daily/b.yaml": _later()}):
        approved = project.plan("jobs/daily/b.yaml", by="bob").run_id
    project.approve(approved, "ana")
    found.runs["approved"] = approved
    return found


def _later() -> str:
    return MANIFEST.replace("2024-01-05", "2024-01-10").replace("2024-01-08", "2024-01-12")


def _lease(found: BadInputLake, project: Project) -> None:
    """Approve a run that only leases its source, then let the source's snapshot expire."""
    catalog: Catalog = project.wiring.catalog
    table = catalog.load_table("bronze.leased")
    first = table.current_snapshot()
    assert first is not None
    found.expired = first.snapshot_id
    text = MANIFEST.replace("table: bronze.events", "table: bronze.leased\n    pin: lease_only")
    text = text.replace("2024-01-05", "2024-01-14").replace("2024-01-08", "2024-01-15")
    with found.holding({LEASED: text}):
        found.runs["leased"] = project.plan(LEASED, by="bob").run_id
    project.approve(found.runs["leased"], "ana")
    table.append(_rows())
    table.refresh()
    table.maintenance.expire_snapshots().by_id(found.expired).commit()


def _rows() -> pa.Table:
    days = range(1, 20)
    columns = {
        "day": [date(2024, 1, day) for day in days],
        "ts": [datetime(2024, 1, day, 6, tzinfo=timezone.utc) for day in days],
        "id": list(days),
        "amount": [10 * day for day in days],
    }
    kinds = [pa.date32(), pa.timestamp("us", tz="UTC"), pa.int64(), pa.int64()]
    return pa.table(
        {
            name: pa.array(values, kind)
            for (name, values), kind in zip(columns.items(), kinds, strict=True)
        }
    )


def environment(**changes: str) -> dict[str, str]:
    """Give the environment of a child process."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LAKEHOUSE_")}
    return {**kept, **changes}
