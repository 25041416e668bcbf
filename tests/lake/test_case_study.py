"""The case study from the first publication to the corrections, against rules in plain Python.

All tests share one run of the program, of the fewest cases that hold the disputed ones.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from lakehouse_backfill.case_histories import LEAST_CASES, YEAR_START, YEAR_STOP, CaseHistory
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.demo.case_lake import (
    BREACHES_PRODUCT,
    CASCADE_PRODUCTS,
    CASES_PRODUCT,
    CORRECTIONS_TABLE,
    FEED_PRODUCT,
    REPORT_PRODUCT,
    calendar_table,
)
from lakehouse_backfill.demo.case_study import OWNER, main
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.project import Project
from tests.support.oracles.case_sla import case_days

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.lake, pytest.mark.long]
LINEAGE = {
    "produced_by_run_id", "produced_by_transform", "transform_version", "input_snapshot_id",
    "input_range_start", "input_range_end", "processing_mode", "reference_data_version",
    "restatement_reason", "produced_at",
}  # fmt: skip
PROFILE = "tutorial"
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
Rows = dict[tuple[date, int], dict[str, Any]]


@dataclass
class Told:
    """The story, when it has been told."""

    folder: Path
    transcript: str

    @cached_property
    def project(self) -> Project:
        """The project of the story."""
        return Project.open(self.folder, PROFILE)

    @cached_property
    def cascade(self) -> str:
        """The restatement, as step 8 names it."""
        told = self.transcript.split("\n8. ")[1]
        (found,) = set(re.findall(r"^   undo:   .* rollback .*(cx-\w+)", told, re.MULTILINE))
        return str(found)

    @cached_property
    def runs(self) -> dict[str, str]:
        """The runs of the restatement, and that of the corrections."""
        found = {one.product: str(one.run_id) for one in self.project.cascade(self.cascade).members}
        (feed,) = [
            one.run_id for one in self.project.versions(FEED_PRODUCT).versions
            if one.action == "publish"
        ]  # fmt: skip
        return {**found, FEED_PRODUCT: str(feed)}

    def load_table(self, name: str) -> Any:
        """Load a table of the lake."""
        return self.project.wiring.catalog.load_table(name)

    def version(self, number: int, product: str = CASES_PRODUCT) -> pa.Table:
        """Read a publication, of the case table: 0 is the first one, -1 the last."""
        acts = [
            row
            for row in self.project.versions(product).versions
            if row.action == "publish"
        ]  # fmt: skip
        row = sorted(acts, key=lambda one: one.version)[number]
        table = self.load_table(row.table)
        return table.scan(snapshot_id=row.snapshot_id).to_arrow()

    @cached_property
    def old(self) -> Rows:
        """What release 2.4.1 means, by the oracle."""
        return _expected(corrected=False, counted_from="utc")

    @cached_property
    def new(self) -> Rows:
        """What release 3.1.0 means, by the oracle."""
        return _expected(corrected=True, counted_from="local")


def _expected(*, corrected: bool, counted_from: str) -> Rows:
    events = CaseHistory(LEAST_CASES).events().to_pylist()
    calendar = calendar_table(corrected=corrected).to_pylist()
    found: Rows = {}
    for row in case_days(events, calendar, YEAR_START, YEAR_STOP, counted_from):
        breached = row["jurisdiction"] if row.pop("is_breached") else None
        found[row["as_of"], row["case_id"]] = {**row, "breached": breached}
    return found


def _rows(table: pa.Table) -> Rows:
    plain = table.drop_columns([name for name in table.column_names if name in LINEAGE])
    found = {(row["as_of"], row["case_id"]): row for row in plain.to_pylist()}
    assert len(found) == table.num_rows
    return found


@pytest.fixture(scope="module")
def told(
    spark: SparkSession,  # which the story takes
    profile: Profile,
    lake_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Told:
    where, own = str(lake_folder), profile.catalog
    declared = {
        "environment": "dev", "spark": dict(profile.spark), "control_namespace": "case_control",
        "catalog": {name: text.replace("${project}", where) for name, text in own.items()},
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("case study")
    (folder / "profiles.yaml").write_text(
        yaml.safe_dump({
            "api_version": "lakehouse-backfill/v1", "default": PROFILE,
            "profiles": {PROFILE: declared},
        }),
        encoding="utf-8",
    )  # fmt: skip
    place = ("--dir", f"{folder}/project", "--profiles", f"{folder}/profiles.yaml")
    with redirect_stdout(StringIO()) as printed:
        code = main([*place, "--profile", PROFILE, "--cases", str(LEAST_CASES)])
    assert code == 0, printed.getvalue()
    return Told(folder / "project", printed.getvalue())


@pytest.mark.req("T9")
def test_every_case_on_every_day_is_what_the_rules_say_before_and_after(told: Told) -> None:
    assert _rows(told.version(0)) == told.old
    assert _rows(told.version(-1)) == told.new
    assert _rows(told.project.accepted(CASES_PRODUCT)) == told.new


@pytest.mark.req("T9", "P4")
@pytest.mark.parametrize(("number", "meaning"), [(0, "old"), (-1, "new")])
def test_what_follows_from_the_cases_is_restated_with_them(
    told: Told, number: int, meaning: str
) -> None:
    days: dict[tuple[date, str], Counter[str]] = {}
    months: dict[tuple[date, str], Counter[str]] = {}
    breached = set[tuple[date, str, int]]()
    for (day, case), row in getattr(told, meaning).items():
        is_decided, is_late = row["state"] == "decided", row["breached"] is not None
        month = day.replace(day=1), row["jurisdiction"]
        of_day = days.setdefault((day, row["jurisdiction"]), Counter())
        of_day.update(open_cases=not is_decided, open_breaches=not is_decided and is_late)
        of_month = months.setdefault(month, Counter())
        of_month.update(decided=is_decided, decided_late=is_decided and is_late)
        of_month["breaches"] += is_late and (*month, case) not in breached
        breached |= {(*month, case)} if is_late else set()
        is_last = (day + timedelta(days=1)).day == 1
        of_month["open_at_end"] += is_last and not is_decided and is_late
    for product, keys, expected in (
        (BREACHES_PRODUCT, ("as_of", "jurisdiction"), days),
        (REPORT_PRODUCT, ("month", "jurisdiction"), months),
    ):
        rows = told.version(number, product).to_pylist()
        found = {
            tuple(row[key] for key in keys): {
                name: row[name] for name in row.keys() - LINEAGE - set(keys)
            }
            for row in rows
        }
        assert len(found) == len(rows)
        assert found == {key: dict(counts) for key, counts in expected.items()}


@pytest.mark.req("T9", "P4")
def test_a_commit_moves_all_products_of_the_cascade_or_none(told: Told) -> None:
    """Read what the pointer table still keeps of its commits: the last publication at least."""
    table = told.load_table("case_control.accepted_output_version")
    states = []
    for entry in table.history():
        rows = table.scan(snapshot_id=entry.snapshot_id).to_arrow().to_pylist()
        states.append({(row["data_product"], row["action"], row["token"]) for row in rows})
    acts = []
    for before, after in pairwise(states):
        new = {one for one in after - before if one[1] in ("publish", "rollback")}
        if moved := sorted((act, name) for name, act, _ in new if name in CASCADE_PRODUCTS):
            acts.append(moved)
    assert acts[-1] == [("publish", name) for name in sorted(CASCADE_PRODUCTS)]
    assert all([name for _, name in act] == sorted(CASCADE_PRODUCTS) for act in acts)


@pytest.mark.req("T9", "Q6")
def test_the_seven_checks_are_part_of_the_evidence_and_the_owner_reviewed_one(told: Told) -> None:
    run = told.runs[CASES_PRODUCT]
    document = told.project.evidence_document(run)
    checks = document["validation"]["checks"]
    failed = [one["name"] for one in checks if not one["passed"]]
    assert failed == ["breaches changes by at most 2.0% in each partition"]
    assert [(one["gate"], one["by"]) for one in document["waivers"]] == [(failed[0], OWNER)]
    passed = " | ".join(one["name"] for one in checks if one["passed"])
    for part in (
        "cases changes by at most 0.0% in each partition",
        "cases of each partition equals rows by jurisdiction of census",
        "expect_column_values_to_be_between(age_days)",
        "unexpected_rows_expectation()",
        "jobs/case_sla/disputed_cases.csv",
        "lineage is complete",
    ):
        assert part in passed
    page = Path(str(told.project.evidence(run).report)).read_text(encoding="utf-8")
    assert "reviewed with compliance" in page


@pytest.mark.req("T9")
def test_every_changed_row_is_counted_and_explained(told: Told) -> None:
    line = re.search(
        r"number: ([\d,]+) of ([\d,]+) changed rows, in 12 months: (.*), none unexplained",
        told.transcript,
    )
    assert line is not None
    by_calendar = _expected(corrected=True, counted_from="utc")
    by_code = _expected(corrected=False, counted_from="local")
    causes = Counter[str]()
    for key, new in told.new.items():
        old = told.old[key]
        if new == old:
            continue
        alone = {"reference": by_calendar[key], "code": by_code[key]}
        enough = [cause for cause, row in alone.items() if row == new]
        causes[enough[0] if len(enough) == 1 else "several"] += 1
    found = {
        cause: int(n.replace(",", "")) for n, cause in re.findall(r"([\d,]+) by (\w+)", line[3])
    }
    assert [int(text.replace(",", "")) for text in line.groups()[:2]] == [causes.total()] * 2
    assert found == causes


@pytest.mark.req("D3")
def test_rows_say_what_made_them(told: Told) -> None:
    for product in CASCADE_PRODUCTS:
        table = told.version(-1, product)
        # What follows from the case table reads no reference data.
        filled = LINEAGE - ({"reference_data_version"} if product != CASES_PRODUCT else set())
        assert {name for name in filled if table[name].null_count} == set()
        single = {name: set(table[name].to_pylist()) for name in LINEAGE}
        assert single["produced_by_run_id"] == {told.runs[product]}
        assert single["produced_by_transform"] == {product.partition(".")[2]}
    first, last = told.version(0), told.version(-1)
    assert set(first["transform_version"].to_pylist()) == {"2.4.1"}
    assert set(last["transform_version"].to_pylist()) == {"3.1.0"}
    for table, tag in ((first, "v2025-12"), (last, "v2026-06")):
        (text,) = set(table["reference_data_version"].to_pylist())
        assert text.startswith(f"calendar={tag}@")


@pytest.mark.req("T9")
def test_december_is_read_and_the_calendar_is_corrected_truth(told: Told) -> None:
    plan = told.project.wiring.context.runs.plan(told.runs[CASES_PRODUCT])
    pins = {pin.name: pin for pin in plan.resolved.sources}
    for name in ("events", "carried"):
        pin = pins[name]
        assert pin.range is not None
        assert (str(pin.range.from_)[:10], pin.warm_up_days) == ("2024-12-01", 31)
    assert plan.resolved.manifest.reference_data["calendar"].semantics == "corrected_truth"
    assert {key[0].year for key in _rows(told.version(-1))} == {2025}


@pytest.mark.req("T9")
def test_the_rule_of_due_dates_finds_one_that_is_an_hour_off(
    told: Told, spark: SparkSession
) -> None:
    suite = json.loads((told.folder / "expectations" / "silver.case_sla.json").read_text())
    (rule,) = [
        one["kwargs"]["unexpected_rows_query"]
        for one in suite["expectations"]
        if one["type"] == "unexpected_rows_expectation"
    ]
    spark.createDataFrame(told.version(-1)).createOrReplaceTempView("right_rows")
    moved = "SELECT jurisdiction, due_on, due_at + INTERVAL 1 HOUR AS due_at FROM right_rows"
    assert spark.sql(rule.format(batch="right_rows")).count() == 0
    wrong = spark.sql(rule.format(batch=f"({moved})")).count()
    assert wrong == len(told.new)


@pytest.mark.req("U9")
def test_each_filed_decision_that_changes_is_corrected_once(told: Told) -> None:
    def filed(rows: Rows) -> dict[tuple[str, int], tuple[str, bool]]:
        return {
            (str(day), case): (str(row["due_on"]), row["breached"] is not None)
            for (day, case), row in rows.items()
            if row["state"] == "decided"
        }

    old, new = filed(told.old), filed(told.new)
    events = told.load_table(CORRECTIONS_TABLE).scan().to_arrow().to_pylist()
    found = {}
    for event in events:
        key = json.loads(event["key"])
        before, after = json.loads(event["old"]), json.loads(event["new"])
        found[key["decided_on"], key["case_id"]] = tuple(
            (one["due_on"], one["is_late"]) for one in (before, after)
        )
    assert len(found) == len(events)
    assert found == {key: (old[key], new[key]) for key in old if old[key] != new[key]}
    assert {
        (one["event_type"], one["product"], one["reason_code"], one["produced_by_run_id"])
        for one in events
    } == {("correction", FEED_PRODUCT, "bug_fix", told.runs[FEED_PRODUCT])}


@pytest.mark.req("O3")
def test_why_tells_the_story_of_a_month(told: Told) -> None:
    story = told.project.why(CASES_PRODUCT, "2025-05")
    assert story.run_id == told.runs[CASES_PRODUCT]
    assert (story.reason_code, story.approved_by, story.accepted_by) == (
        "bug_fix", ("ana",), ("ana",),
    )  # fmt: skip
    assert story.reason is not None
    assert "UTC dates" in story.reason
    assert {line.input for line in story.inputs} >= {"events", "carried", "calendar"}


@pytest.mark.req("T9", "T10")
def test_the_commands_of_the_tutorial_do_what_it_says(told: Told) -> None:
    """Run them as they are printed, with the ids of this story. They roll back: the last test."""
    text = TUTORIAL.read_text(encoding="utf-8")
    shown = text.partition("```\n5. ")[2].partition("\n```")[0]
    assert re.search(re.sub(r"\d[\d,]*", "[0-9,]+", re.escape(f"5. {shown}")), told.transcript)
    assert re.findall(r"^(\d+)\. ", told.transcript, re.MULTILINE) == list("123456789")
    lines = re.findall(r"^\.\./\.venv/bin/lakehouse-backfill (.+)$", text, re.MULTILINE)
    assert len(lines) == 8
    printed = []
    for line in lines:
        words = line.replace("RUN", told.runs[CASES_PRODUCT]).replace("cx-…", told.cascade)
        found = CliRunner().invoke(
            app,
            ["--project", str(told.folder), "--quiet", *shlex.split(words)],
            prog_name="lakehouse-backfill",
            env={"LAKEHOUSE_BACKFILL_PROFILE": None, "COLUMNS": "200"},
        )
        assert found.exit_code == 0, f"{words}\n{found.output}"
        printed.append(found.output)
    acts = re.findall(r"\b(publish|rollback)\b", printed[0])
    assert sorted(acts) == ["publish", "publish", "publish", "rollback"]
    assert all(part in printed[1] for part in ("UTC dates", "ana", "calendar"))
    assert all(run in printed[2] for run in told.runs.values())
    actions = [row.action for row in told.project.versions(CASES_PRODUCT).versions]
    acts = [one for one in reversed(actions) if one in ("publish", "rollback")]
    assert acts == ["publish", "publish", "rollback", "publish", "rollback"]
    assert _rows(told.project.accepted(CASES_PRODUCT)) == told.old
    events = told.load_table(CORRECTIONS_TABLE).scan().to_arrow().to_pylist()
    reversed_ids = {one["corrects_event_id"] for one in events} - {None}
    assert reversed_ids == {one["event_id"] for one in events if one["corrects_event_id"] is None}
    assert len(events) == 2 * len(reversed_ids) > 0
