"""Printed commands can be copied into a shell as they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lakehouse_backfill import command_lines
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.command_lines import Invocation
from lakehouse_backfill.core.evidence.status import summarise_safety
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.project import Project
from tests.support.examples.declarations import PROFILES
from tests.support.examples.declarations import project as make_project
from tests.unit.test_pages_written import Case

FILE = "my jobs/o'brien; rm -rf $HOME.yaml"
PACKAGE = Path(command_lines.__file__).parent


def test_a_shell_reads_exactly_the_words_that_were_meant() -> None:
    line = command_lines.plan_command(FILE, "bf-1")
    assert shlex.split(line) == ["lakehouse-backfill", "plan", FILE, "--revise", "bf-1"]


def test_a_file_is_never_read_as_an_option() -> None:
    assert command_lines.plan_command("--x.yaml") == "lakehouse-backfill plan ./--x.yaml"


def test_a_run_whose_file_is_unknown_is_revised_by_its_id() -> None:
    assert command_lines.plan_command(revise="bf-1") == "lakehouse-backfill plan --revise bf-1"


@pytest.mark.parametrize("state", [RunState.HALTED, RunState.REJECTED, RunState.CANCELLED])
def test_what_to_type_next_names_the_run_manifest_of_the_run(state: RunState) -> None:
    line = summarise_safety(state, "bf-1", "silver.a", manifest_file=FILE).next_command
    assert shlex.split(line)[1:3] == ["plan", FILE]


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("file", ["", FILE])
def test_a_shell_reads_the_next_command_without_its_remark(state: RunState, file: str) -> None:
    for driver in (None, "here:1"):
        line = summarise_safety(
            state, "bf-1", "silver.a", manifest_file=file, driver=driver, is_driven=bool(driver)
        ).next_command
        words = shlex.split(line, comments=True)
        assert words[1] in command_lines.PROJECT_VERBS
        assert not {"MANIFEST", "RUN", "WHO"} & set(words)
        assert [word for word in words if word.startswith(("(", "#"))] == []


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("lakehouse-backfill status", "lakehouse-backfill --profile prod status"),
        (
            "lakehouse-backfill evidence bf-1, then lakehouse-backfill run bf-1",
            "lakehouse-backfill --profile prod evidence bf-1, then "
            "lakehouse-backfill --profile prod run bf-1",
        ),
        ("lakehouse-backfill init DIR", "lakehouse-backfill init DIR"),
        ("lakehouse-backfill --profile x status", "lakehouse-backfill --profile x status"),
        ("the lakehouse-backfill package", "the lakehouse-backfill package"),
        ("lakehouse-backfill statuses", "lakehouse-backfill statuses"),
    ],
    ids=["one", "two in a sentence", "no project", "named already", "prose", "no verb"],
)
def test_a_command_names_the_profile_that_was_named(text: str, completed: str) -> None:
    once = Invocation(profile="prod").complete(text)
    assert once == completed
    assert Invocation(profile="prod").complete(once) == once


def test_project_and_profile_are_quoted() -> None:
    line = Invocation(project="my lake", profile="p'1").complete("lakehouse-backfill status")
    assert shlex.split(line)[1:] == ["--project", "my lake", "--profile", "p'1", "status"]


def test_a_command_that_does_not_know_its_run_gets_that_of_the_call() -> None:
    fix = f"mend it, then: {command_lines.plan_command(revise=command_lines.RUN_PLACEHOLDER)}"
    assert Invocation().complete(fix, "bf-1") == (
        "mend it, then: lakehouse-backfill plan --revise bf-1"
    )
    assert Invocation().complete(fix) == "mend it, then: give the same command again"


@pytest.mark.parametrize(
    ("profile", "variable", "chosen"),
    [(None, "prod", "prod"), ("embedded", "prod", "embedded"), (None, "", "embedded")],
    ids=["variable", "argument wins", "default"],
)
def test_the_python_api_follows_the_variable_that_names_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str | None, variable: str, chosen: str
) -> None:
    monkeypatch.setenv(command_lines.PROFILE_VARIABLE, variable)
    (make_project(tmp_path) / "catalog/profiles.yaml").write_text(PROFILES)
    assert Project.open(tmp_path, profile).wiring.profile_name == chosen


def test_results_and_errors_of_the_python_api_name_project_and_profile(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.wiring.invocation = Invocation(project="lake", profile="test")
    options = "--project lake --profile test"
    assert case.project.plan("m.yaml", by="bob").undo.startswith(
        f"lakehouse-backfill {options} cancel {case.run}; "
    )
    line = case.project.status(case.run).runs[0]
    assert line.next_command == f"lakehouse-backfill {options} approve {case.run}"
    with pytest.raises(NotFound) as missing:
        case.project.approve("bf-none", "ana")
    assert missing.value.fix == f"lakehouse-backfill {options} status"


def test_planning_a_rejected_intent_again_offers_its_revision_and_no_approval(
    tmp_path: Path,
) -> None:
    case = Case(tmp_path)
    case.project.reject(case.run, "ana", "no")
    again = case.project.plan("m.yaml", by="bob")
    assert (again.run_id, again.state) == (case.run, "rejected")
    assert again.next_command == (
        f"lakehouse-backfill plan m.yaml --revise {case.run}   # once manifest or code is corrected"
    )
    with pytest.raises(ConfigError, match="there is nothing to revise"):
        case.project.plan("m.yaml", case.run, by="bob", dry_run=True)


def test_a_dry_run_of_a_plan_is_followed_by_the_plan(tmp_path: Path) -> None:
    case = Case(tmp_path)
    dry = case.project.plan("m.yaml", by="bob", dry_run=True)
    assert dry.next_command == "lakehouse-backfill plan m.yaml"


def test_a_run_is_revised_from_its_own_file(tmp_path: Path) -> None:
    case = Case(tmp_path)
    asked: list[Path] = []
    declare = case.wiring.load_declaration
    case.wiring.load_declaration = lambda file: asked.append(file) or declare(file)  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(ConfigError, match="there is nothing to revise"):
        case.project.plan(revise=case.run, by="bob")
    assert asked == [Path(case.context.runs.plan(case.run).manifest_file)]
    with pytest.raises(ConfigError, match="no run manifest is named"):
        case.project.plan()


def test_the_verbs_that_open_a_project_are_those_of_the_program() -> None:
    commands = {str(item.name or item.callback) for item in app.registered_commands}
    groups = {str(item.name) for item in app.registered_groups}
    without_project = {"init", "demo", "schema"}
    assert set(command_lines.PROJECT_VERBS) == (commands | groups) - without_project


def test_no_printed_command_holds_a_word_that_stands_for_another() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"lakehouse-backfill [^\n]*\b(MANIFEST|RUN)\b", line)
    ]
    assert found == []


def test_no_printed_command_names_a_person_for_the_reader() -> None:
    """Who is logged in acts; another name is for people to give."""
    files = PACKAGE.rglob("*.py")
    assert [str(file) for file in files if re.search(r"--by\W+WHO", file.read_text())] == []
