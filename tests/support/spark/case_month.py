"""A month of the case study, by the session that is open, against rules in plain Python."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import yaml

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.case_histories import LEAST_CASES, CaseHistory
from lakehouse_backfill.demo.case_lake import CASE_FILES, CaseLake, calendar_table
from lakehouse_backfill.demo.lake import copy_project
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.oracles.case_sla import case_days
from tests.support.spark.declared import CATALOG

FIRST, STOP = date(2025, 3, 1), date(2025, 4, 1)
Rows = set[tuple[object, ...]]
_COLUMNS = ("case_id", "as_of", "state", "opened_on", "due_on", "due_at", "paused_days")


def stage_month(lake_folder: Path, spark: dict[str, str]) -> tuple[Rows, Rows]:
    """Make the sources, stage March 2025 by Spark; return its rows, and what they must be."""
    folder = lake_folder / "cases"
    copy_project(folder, CASE_FILES)
    catalog = {key: text.replace("${project}", str(lake_folder)) for key, text in CATALOG.items()}
    profile = Profile(catalog=catalog, spark=spark, control_namespace="case_control")
    project = Project(Adapters(folder, profile, NullProgress(), "dev"))
    lake = CaseLake(project, LEAST_CASES)
    lake.build_bronze()
    lake.create_products()
    manifest = yaml.safe_load((folder / "jobs/case_sla/1-publish-2025.yaml").read_text("utf-8"))
    manifest["target"]["partitions"] |= {"from": FIRST, "to": STOP}
    (folder / "jobs/march.yaml").write_text(yaml.safe_dump(manifest), "utf-8")
    run = project.plan("jobs/march.yaml", by="ana").run_id
    project.approve(run, "ana")
    project.stage(run, "ana")
    shadow = project.wiring.context.runs.plan(run).shadow_table
    found = lake.catalog.load_table(shadow).scan(selected_fields=_COLUMNS).to_arrow().to_pylist()
    events = CaseHistory(LEAST_CASES).events().to_pylist()
    calendar = calendar_table(corrected=False).to_pylist()
    expected = list(case_days(events, calendar, FIRST, STOP, "utc"))
    assert len(found) == len(expected)
    return _plain(found), _plain(expected)


def _plain(rows: list[dict[str, object]]) -> Rows:
    return {tuple(row[name] for name in _COLUMNS) for row in rows}
