"""A candidate is there for validators, and nothing that readers use leads to it (U7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.errors import NotAllowed, NotFound
from lakehouse_backfill.project import Project
from tests.chaos.lab import BY, SCOPE, TARGET, Lab

pytestmark = pytest.mark.req("U7")


def _values(rows: object) -> set[int]:
    return set(rows["v"].to_pylist())  # type: ignore[index]


def test_a_candidate_is_read_by_its_run_and_seen_by_no_reader(lab: Lab) -> None:
    lab.restore("accepted")
    project = Project.open(lab.folder)
    new = project.candidate(lab.run)
    assert _values(new) == {10, 20, 30, 100, 200, 300}
    count = project.candidate(lab.run, "duckdb").filter("v < 100").count("v").fetchall()
    assert count == [(3 * len(SCOPE),)]

    assert _values(project.accepted(TARGET)) == {100, 200, 300}
    context = project.wiring.context
    plan = context.runs.plan(lab.run)
    shadow = context.tables.describe(plan.shadow_table)
    target = context.tables.describe(TARGET)
    assert shadow is not None
    assert target is not None
    assert shadow.snapshot_id not in {target.snapshot_id, *target.refs.values()}
    assert context.versions.pointer(TARGET).accepted is None
    summaries = lab.oracle.summaries(TARGET)
    assert not any("lakehouse-backfill.publication" in summary for summary in summaries)
    assert lab.oracle.rows(TARGET) == [(d, k, v) for d, k, v in lab.oracle.rows(TARGET) if v >= 100]


def test_there_is_no_candidate_before_staging(lab: Lab) -> None:
    lab.restore("approved")
    with pytest.raises(NotFound, match="no staged candidate"):
        Project.open(lab.folder).candidate(lab.run)


def test_a_shadow_only_run_stays_dark_for_ever(lab: Lab) -> None:
    lab.restore("new")
    path = lab.folder / lab.manifest("dark.yaml", SCOPE[0], "2024-01-03")
    text = path.read_text(encoding="utf-8")
    text = text.replace("target:\n", "target:\n  publish_mode: shadow_only\n")
    path.write_text(text, encoding="utf-8")
    run = lab.must("plan", "jobs/dark.yaml", *BY).data["run_id"]
    for words in (("approve",), ("stage",), ("validate",), ("accept",)):
        lab.must(*words, run, *BY)
    refused = lab.do("publish", run, *BY)
    assert (refused.code, refused.error["code"]) == (3, "blocked")
    assert "can never be published: it is a shadow_only run" in refused.error["problem"]
    assert _values(Project.open(lab.folder).candidate(run)) >= {10, 20, 30}
    assert lab.oracle.rows(TARGET) == [(d, k, v) for d, k, v in lab.oracle.rows(TARGET) if v >= 100]


def test_only_validators_that_the_contract_names_see_it(lab: Lab) -> None:
    lab.restore("new")
    contract = Path(lab.folder) / f"catalog/contracts/{TARGET}.yaml"
    text = contract.read_text(encoding="utf-8")
    contract.write_text(text.replace("roles: {", "roles: {validators: [eve], "), encoding="utf-8")
    run = lab.must("plan", "jobs/a.yaml", *BY).data["run_id"]
    lab.must("approve", run, *BY)
    lab.must("stage", run, *BY)
    project = Project.open(lab.folder)
    assert project.candidate(run, by="eve").num_rows
    for who in ("ana", None):
        with pytest.raises(NotAllowed, match="may not read a candidate"):
            project.candidate(run, by=who)
    refused = lab.do("diff", run, *BY)
    assert (refused.code, refused.error["code"]) == (3, "not-allowed")
    assert lab.do("diff", run, "--by", "eve").code == 0
