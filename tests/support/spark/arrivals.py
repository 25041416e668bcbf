"""The demonstration's restatement by the session that is open, and its oracle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.demo.lake import BAD_FROM, BAD_TO, PRODUCT, DemoLake, copy_project
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.oracles import arrivals as oracle
from tests.support.oracles.row_hash import checksum
from tests.support.spark.declared import CATALOG

CHUNK_DAYS = 15
_MANIFEST = "jobs/arrivals_daily/3-restate.yaml"
_BESIDE = timedelta(days=3)
_TYPES = {
    **dict.fromkeys(oracle.COLUMNS, "long"),
    "arrival_date": "date", "dest": "string", "carrier": "string",
    "mean_delay": "decimal18:2",
}  # fmt: skip
Rows = list[dict[str, Any]]


def stage_arrivals(lake_folder: Path, spark: dict[str, str]) -> tuple[Project, str]:
    """Make the lake with the wrong release in it, and stage its restatement: project and run.

    Days that are far from the wrong ones are left out, and so are the suites.
    """
    folder = lake_folder / "demo"
    copy_project(folder)
    file = folder / "catalog" / "contracts" / f"{PRODUCT}.yaml"
    contract = yaml.safe_load(file.read_text("utf-8"))
    del contract["suites"]
    file.write_text(yaml.safe_dump(contract), "utf-8")
    catalog = {key: text.replace("${project}", str(lake_folder)) for key, text in CATALOG.items()}
    profile = Profile(catalog=catalog, spark=spark, control_namespace="demo_control")
    project = Project(Adapters(folder, profile, NullProgress(), "dev"))
    lake = DemoLake(project)
    lake.build_bronze()
    project.wiring.context.tables.create(project.wiring.contract(PRODUCT))
    table = lake.catalog.load_table(PRODUCT)
    schema = table.scan(selected_fields=oracle.COLUMNS).to_arrow().schema
    table.append(pa.Table.from_pylist(wrong_rows(), schema=schema))
    run = str(project.plan(_MANIFEST, by="ana").run_id)
    project.approve(run, "ana")
    project.stage(run, "ana")
    return project, run


def wrong_rows() -> Rows:
    """Give what the table holds before: rows of the wrong release, and those around them."""
    return _around(oracle.history().to_dict("records"))


def right_rows() -> Rows:
    """Give what the table holds once the restatement is published."""
    return _around(oracle.restated().to_dict("records"))


def found_rows(project: Project) -> Rows:
    """Give what readers of the table see."""
    table = DemoLake(project).catalog.load_table(PRODUCT)
    rows = table.scan(selected_fields=oracle.COLUMNS).to_arrow().to_pylist()
    return sorted(rows, key=lambda row: [row[name] for name in oracle.KEY])


def expected_checksums() -> list[str]:
    """Give the checksums of the chunks as any engine must compute them."""
    starts = range(0, (BAD_TO - BAD_FROM).days, CHUNK_DAYS)
    return [_checksum(BAD_FROM + timedelta(days=start)) for start in starts]


def found_checksums(project: Project, run: str) -> list[str]:
    """Give the checksums of the ledger, without the shape of the columns."""
    chunks = sorted(project.chunks(run).chunks, key=lambda one: one.partitions)
    return [str(one.checksum).split(":", 2)[2] for one in chunks]


def _checksum(first: date) -> str:
    stop = first + timedelta(days=CHUNK_DAYS)
    rows = [row for row in right_rows() if first <= row["arrival_date"] < stop]
    count, xor, total = checksum(_TYPES, rows)
    return f"{count}:{xor:016x}{total:016x}"


def _around(rows: Sequence[dict[Any, Any]]) -> Rows:
    first, stop = BAD_FROM - _BESIDE, BAD_TO + _BESIDE
    return [
        row
        for row in rows if first <= row["arrival_date"] < stop
    ]  # fmt: skip
