"""What was approved is what runs: files, plans, revisions (M4); and what planning settles (M8)."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning import plan
from lakehouse_backfill.core.planning.job_code import changed_code_files
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import open_plan
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.contract import Consumer
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS, RunState
from lakehouse_backfill.domain.tables.table import Column
from lakehouse_backfill.errors import (
    ApprovalMissing,
    Blocked,
    ConfigError,
    NotFound,
    Tampered,
    Unsupported,
)
from tests.support.examples.plans import a_plan, with_fields
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.steps import accepted_run, approved_run, planned_run, state_of, world

M4, M8 = pytest.mark.req("M4"), pytest.mark.req("M8")
HASHES = {"jobs/daily.py": "c0de", "jobs/rates.py": "aa", "expectations/daily.json": "bb"}


def planned(found: Context, wanted: Any = None, revise: str | None = None) -> str:
    wanted = wanted or dataclasses.replace(declared(), files=HASHES)
    return planned_run(found, wanted, revise)


def with_files(hashes: dict[str, str]) -> Context:
    def code_hash(file: str) -> str:
        if file not in hashes:
            raise NotFound(f"{file} does not exist")
        return hashes[file]

    return context(lake(), code_hash=code_hash)


@M4
def test_every_file_that_decides_is_part_of_the_manifest_hash() -> None:
    found, one = context(lake()), dataclasses.replace(declared(), files=HASHES)
    other = dataclasses.replace(one, files={**HASHES, "jobs/rates.py": "ab"})
    first, second = (make_plan(found, wanted, "bob", None) for wanted in (one, other))
    assert first.manifest_hash != second.manifest_hash


@pytest.mark.req("M4", "D6")
@pytest.mark.parametrize("file", ["jobs/daily.py", "jobs/rates.py"])
def test_code_that_was_planned_is_executed_whatever_its_file_says_by_now(file: str) -> None:
    hashes = dict(HASHES)
    found = with_files(hashes)
    run_id = planned(found)
    decisions.approve(found, run_id, "ana", "")
    hashes[file] = "0ther"
    stage(found, run_id, "bob")
    assert changed_code_files(found, found.runs.plan(run_id)) == (file,)


@pytest.mark.req("D6")
def test_one_transform_version_is_one_code_over_all_runs() -> None:
    found = with_files(dict(HASHES))
    first = planned(found)
    other = dataclasses.replace(declared(), files={**HASHES, "jobs/rates.py": "ab"})
    with pytest.raises(ConfigError) as caught:
        make_plan(found, other, "bob", None)
    said = (caught.value.problem, caught.value.field)
    assert said == (
        f"daily 1.0.0 is other code than in {first}: jobs/rates.py differs", "transform.version"
    )  # fmt: skip
    assert caught.value.fix.startswith("raise the version")
    raised = dataclasses.replace(declared(transform={"version": "1.1.0"}), files=other.files)
    make_plan(found, raised, "bob", None)


@pytest.mark.req("D6")
def test_changes_that_are_in_no_commit_are_recorded_and_block_prod() -> None:
    dirty = dataclasses.replace(declared(), git_commit=f"{'a' * 40}-dirty")
    dev = context(lake())
    run_id = planned_run(dev, dirty)
    assert dev.runs.plan(run_id).resolved.git_commit == dirty.git_commit
    profile = Profile(catalog={"name": "lake"}, environment="prod")
    with pytest.raises(Blocked, match="not committed"):
        make_plan(dataclasses.replace(dev, profile=profile), dirty, "bob", None)
    with pytest.raises(Blocked, match="not committed"):
        decisions.approve(dataclasses.replace(dev, profile=profile), run_id, "ana", "")


@M4
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_file_that_is_not_what_was_approved_is_named_before_anything_is_computed(how):
    file, hashes = "expectations/daily.json", dict(HASHES)
    found = with_files(hashes)
    run_id = planned(found)
    decisions.approve(found, run_id, "ana", "")
    if how == "changed":
        hashes[file] = "0ther"
    else:
        del hashes[file]
    with pytest.raises(ApprovalMissing, match=rf"{file} (changed|is gone) since") as caught:
        stage(found, run_id, "bob")
    assert caught.value.fix.startswith(f"put {file} back, or lakehouse-backfill plan m.yaml")
    assert state_of(found, run_id) is RunState.APPROVED
    hashes.update(HASHES)
    stage(found, run_id, "bob")
    hashes[file] = "0ther"
    with pytest.raises(ApprovalMissing, match=file):
        validate(found, run_id, "bob")


@M4
@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: plan["resolved"]["scope"]["partitions"].append("2013-02-17"),
        lambda plan: plan["resolved"]["manifest"]["safety"].update(manual_publish=False),
        lambda plan: plan["resolved"]["contract"].update(four_eyes=False),
        lambda plan: plan.update(manifest_hash="0" * 64),
        lambda plan: plan.update(run_id="bf-2"),
    ],
    ids=["scope", "safety", "contract", "hash", "run"],
)
def test_a_stored_plan_that_was_edited_is_not_read(edit: Any) -> None:
    plan = a_plan()
    text = plan.model_dump_json()
    assert open_plan(plan.run_id, text, plan.manifest_hash) == plan
    document = json.loads(text)
    edit(document)
    with pytest.raises(Tampered, match="was edited after it was made") as caught:
        open_plan(plan.run_id, json.dumps(document), plan.manifest_hash)
    assert (caught.value.code, caught.value.exit_code) == ("tampered", 3)
    assert "its row in pipeline_run" in caught.value.problem
    assert caught.value.fix.startswith(
        f"lakehouse-backfill cancel {plan.run_id} --reason TEXT   # "
    )


@M4
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *(
            (text, "the plan of bf-1 was edited")
            for text in ("", "no JSON", "[]", "7", "{}", '{"resolved": {}}')
        ),
        ('{"resolved": 1, "manifest_hash": []}', "the plan of bf-1 was edited"),
        (
            a_plan().model_dump_json().replace('"created_by"', '"created_byx"'),
            "its field created_by",
        ),
    ],
)
def test_a_stored_plan_that_is_no_plan_any_more_is_tampered(text: str, problem: str) -> None:
    plan = a_plan()
    with pytest.raises(Tampered, match=problem):
        open_plan(plan.run_id, text, plan.manifest_hash)


@M4
def test_a_plan_and_its_hash_that_were_both_edited_are_not_what_was_approved() -> None:
    plan = a_plan()
    document = json.loads(plan.model_dump_json())
    document["resolved"]["scope"]["partitions"] = ["2013-02-15"]
    with pytest.raises(Tampered):
        open_plan(plan.run_id, json.dumps(document), a_plan(reason="other").manifest_hash)


@M4
def test_a_plan_of_an_earlier_release_keeps_its_hash() -> None:
    """It lacks fields that this release knows: their defaults must not change its hash."""
    document = json.loads(a_plan().model_dump_json())
    del document["resolved"]["files"], document["resolved"]["config_hash"]
    from lakehouse_backfill.domain.serialization import digest

    document["manifest_hash"] = digest(document["resolved"])
    found = open_plan("bf-1", json.dumps(document), document["manifest_hash"])
    assert found.resolved.files == {}


@pytest.mark.req("M4", "E5")
def test_a_revision_names_what_it_replaces_and_needs_approval_again() -> None:
    where, found = world()
    first = approved_run(found)
    second = planned(found, declared("2020-01-02", "2020-01-05"), revise=first)
    assert second != first
    assert found.runs.plan(second).revises == first
    assert state_of(found, first) is RunState.SUPERSEDED
    with pytest.raises(ApprovalMissing, match="nobody made the decision"):
        stage(found, second, "bob")
    assert "open shadow" not in where.calls


@M4
def test_the_approval_of_a_closed_run_does_not_count_for_the_same_intent_planned_again() -> None:
    _, found = world()
    first = approved_run(found)
    decisions.cancel(found, first, "ana", "")
    again = planned_run(found)
    assert found.runs.plan(again).manifest_hash == found.runs.plan(first).manifest_hash
    with pytest.raises(ApprovalMissing, match="nobody made the decision"):
        stage(found, again, "bob")


@M8
@pytest.mark.parametrize(
    ("wanted", "exists", "has_them", "expected"),
    [
        (None, False, False, True),
        (None, True, False, False),
        (None, True, True, True),
        (True, False, False, True),
        (True, True, True, True),
        (False, False, False, False),
        (False, True, True, False),
    ],
)
def test_lineage_columns_are_on_for_new_tables_and_off_for_existing_ones(
    wanted: bool | None, exists: bool, has_them: bool, expected: bool
) -> None:
    info = lake().describe(PRODUCT) if exists else None
    if info is not None and has_them:
        extra = tuple(
            Column(field_id=10 + number, name=name, type=kind)
            for number, (name, kind) in enumerate(LINEAGE_COLUMNS)
        )
        info = info.model_copy(update={"columns": info.columns + extra})
    assert (
        plan.resolve_lineage_columns(contract(lineage_columns=wanted), info).lineage_columns
        is expected
    )


@M8
@pytest.mark.req("M1")
@pytest.mark.parametrize(
    "changes",
    [
        {"safety": {"side_effects": True}},
        {"safety": {"on_deletions": "allow"}},
    ],
    ids=["side effects", "deletions"],
)
def test_what_is_not_built_is_refused_when_planned_also_without_a_file(changes: Any) -> None:
    where = lake()
    with pytest.raises(Unsupported) as caught:
        make_plan(context(where), declared(**changes), "bob", None)
    assert caught.value.field
    assert caught.value.fix
    assert where.calls == []


@pytest.mark.req("M1")
def test_what_planning_resolved_is_recorded() -> None:
    plan = make_plan(context(lake()), declared(transform={"config": {"rate": 2}}), "bob", None)
    assert len(plan.resolved.config_hash) == 64
    assert "pinned snapshots are kept until 30 days after acceptance" in plan.notes


@pytest.mark.req("P1")
def test_a_consumer_that_does_not_tolerate_restatement_is_a_warning() -> None:
    consumer = Consumer(name="finance", tolerates_restatement=False)
    plan = make_plan(
        context(lake()), declared(contract=contract(consumers=[consumer])), "bob", None
    )
    assert plan.warnings == ("finance does not tolerate restatement",)


def forge_events(found: Any, run_id: str) -> None:
    found.runs.log[run_id] = [with_fields(event, actor="x") for event in found.runs.log[run_id]]


def cut_the_log(found: Any, run_id: str) -> None:
    del found.runs.log[run_id][-1]


def edit_validation(found: Any, run_id: str) -> None:
    found.evidence.rows = [
        (run, kind, mark, text.replace('"passed":true', '"passed":false'))
        for run, kind, mark, text in found.evidence.rows
    ]


@pytest.mark.req("V4", "E5")
@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (forge_events, "event 1"), (cut_the_log, "newest events"), (edit_validation, "validation"),
    ],
)  # fmt: skip
def test_a_log_or_a_validation_that_was_edited_publishes_nothing(edit: Any, problem: str) -> None:
    _, found = world()
    run_id = accepted_run(found)
    edit(found, run_id)
    with pytest.raises(Tampered, match=problem):
        publish(found, run_id, "bob")
    assert found.versions.history(PRODUCT) == ()
