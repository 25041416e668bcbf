"""Plans in the control tables of a real lake: what is recorded, and what an edit of them does."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse_backfill.domain.tables.table import Column
from lakehouse_backfill.project import Project
from tests.support.lakes.bad_inputs import BadInputLake, make_lake

PLANS = "lakehouse_backfill.pipeline_run"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> BadInputLake:
    return make_lake(tmp_path_factory.mktemp("stored plans"))


@pytest.mark.req("M1")
def test_a_source_is_recorded_with_the_schema_of_its_snapshot(lake: BadInputLake) -> None:
    plan = Project.open(lake.folder).wiring.context.runs.plan(lake.runs["planned"])
    (pin,) = plan.resolved.sources
    assert (pin.schema_id, pin.columns[0]) == (0, Column(field_id=1, name="day", type="date"))
    assert [column.name for column in pin.columns] == ["day", "ts", "id", "amount"]


@pytest.mark.req("M4")
def test_a_plan_binds_the_job_what_it_imports_and_its_suites(lake: BadInputLake) -> None:
    plan = Project.open(lake.folder).wiring.context.runs.plan(lake.runs["planned"])
    assert list(plan.resolved.files) == [
        "expectations/daily.json", "jobs/daily/rates.py", "jobs/daily/transform.py",
    ]  # fmt: skip


@pytest.mark.req("M4")
def test_a_plan_edited_in_the_control_table_is_found_by_every_verb(lake: BadInputLake) -> None:
    run = lake.runs["approved"]
    table = Project.open(lake.folder).wiring.catalog.load_table(PLANS)
    rows = table.scan().to_arrow()
    table.overwrite(
        pa.Table.from_pylist([_edited(row, run) for row in rows.to_pylist()], rows.schema)
    )
    for words in (["stage", run], ["approve", run, "--by", "ana"], ["publish", run, "--by", "ana"]):
        exit_code, answer = lake.run(*words)
        error = answer["error"]
        assert (exit_code, error["code"]) == (3, "tampered"), words
        assert f"the plan of {run} was edited" in error["problem"]
        assert error["state"].startswith("nothing was computed or published")
        assert "put the row" in error["fix"]


def _edited(row: dict[str, object], run: str) -> dict[str, object]:
    if row["run_id"] != run:
        return row
    plan = json.loads(str(row["plan"]))
    plan["resolved"]["scope"]["partitions"].append("2024-01-12")
    return {**row, "plan": json.dumps(plan)}


def test_the_folder_of_the_lake_may_hold_a_space(lake: BadInputLake) -> None:
    assert " " in str(Path(lake.folder).name)
