"""Pages fit the screen, show data and never obey it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from lakehouse_backfill.cli.group import clean_text
from lakehouse_backfill.cli.render import VIEWS
from lakehouse_backfill.cli.render.page import format_moment, format_partitions, format_size
from lakehouse_backfill.project import Project
from tests.support.fakes.project import ANSWERS, PLAN, VERBS, result_of
from tests.support.fakes.screen import Screen, drawn


def test_every_result_has_a_page() -> None:
    assert {result_of(verb).__name__ for verb in VERBS} == set(VIEWS)
    returned = [
        each
        for _, method in inspect.getmembers(Project, inspect.isfunction)
        for each in re.findall(
            r"\b(?:comparison|migrations|origins|plans|proof|publications|runs|sources)\.(\w+)",
            str(inspect.signature(method).return_annotation),
        )
    ]  # fmt: skip
    assert set(returned) <= set(VIEWS)
    assert len(returned) > 20


@pytest.mark.parametrize("verb", ANSWERS)
def test_a_page_fits_a_narrow_screen(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = drawn(verb).splitlines()
    # The command to type next stays on one line, so that it can be copied.
    assert [line for line in lines if len(line) > 60 and "lakehouse-backfill" not in line] == []
    assert all(line == line.rstrip() for line in lines)


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in drawn("versions", stream=Screen())
    assert "\x1b[" not in drawn("versions")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in drawn("reconcile", stream=Screen())


def test_values_are_shown_and_not_obeyed() -> None:
    text = drawn("diff")
    assert "dest=[red]\\x1b[31m" in text


def test_the_status_of_a_run_answers_three_questions_first() -> None:
    lines = drawn("status").splitlines()
    assert [line.split("?")[0] for line in lines[:3]] == [
        "is my data safe",
        "what do readers see",
        "what to type next",
    ]
    assert "lakehouse-backfill accept bf-1" in lines[2]


def test_a_draft_is_named_as_it_can_be_typed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = drawn("new_manifest", {"file": str(tmp_path / "jobs/a/run.yaml")})
    contract = drawn("add_product", {"file": "/p/catalog/contracts/silver.a.yaml"})
    assert "lakehouse-backfill plan jobs/a/run.yaml --dry-run" in manifest
    assert "lakehouse-backfill new silver.a --from P --to P --reason TEXT" in contract


def test_a_long_list_says_how_much_more_there_is() -> None:
    text = drawn("diff")
    assert "2013-02-20" in text
    assert "2013-02-21" not in text
    assert "… 8 more (--json shows all)" in text


def test_a_plan_fits_a_screen_whatever_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    question = {"number": 1, "question": "Which side effects does it have?", "answer": None}
    overlap = {"run_id": "bf-0", "state": "staged", "partitions": ["2013-02-15"]}
    finding = {"file": "jobs/a.py", "line": 3, "found": "rand()", "kind": "random"}
    consumer = {"name": "finance", "tolerates_restatement": True, "contact": "f@example.org"}
    many = {
        **PLAN, "checklist": [question] * 16, "conflicts": [overlap] * 9,
        "findings": [finding] * 9, "consumers": [consumer] * 40, "notes": ["a note"] * 30,
        "pins": PLAN["pins"] * 4, "publishing": "the partitions are replaced by one commit",
    }  # fmt: skip
    assert len(drawn("plan", PLAN).splitlines()) <= 24
    assert len(drawn("plan", many).splitlines()) <= 40
    assert len(drawn("show", many).splitlines()) > 80


def test_run_ends_with_rows_totals_checks_and_the_next_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line for line in drawn("run").splitlines() if line]
    assert lines[-3:] == [
        "6 of 31 rows change (1 added, 2 removed, 3 changed); share -20.00 %, flights +1.50 %, "
        "delay ±0 %; 1 of 2 checks failed",
        "next:",
        "  lakehouse-backfill accept bf-1",
    ]
    assert not any("keys_unique" in line for line in lines)


def test_run_that_validated_nothing_now_says_nothing_of_changes() -> None:
    assert "change" not in drawn("run", {**ANSWERS["run"], "changes": None})


OPEN_EDGE = {"is_closed": False, "closing_from": "2013-02-14", "closing_to": "2013-04-02"}
FAILED_HOOK = {"hook": "resume", "on": "after_publish", "is_ok": False, "detail": "exit code 1"}
MOVED = {"name": "amount", "changed": 3, "shift": 0.381736, "old": {"mean": 1.0}, "new": {}}
SORTS = {"name": "kind", "changed": 3, "shift": 0.1, "old": {"distinct": 3}, "new": {}}


@pytest.mark.parametrize(
    ("verb", "changes", "parts"),
    [
        pytest.param(
            "plan", {},
            (
                "4 partitions of arrival_date, and nothing else: 2013-02-15, 2013-02-16",
                "pinned  flights", "finance DOES NOT tolerate a restatement",
                "1 of 2 questions answered", "NOT ANSWERED, blocks approval: Which side effects?",
                "bf-0 (staged) is open on 2013-02-15", "no history", "lakehouse-backfill show bf-1",
                "lakehouse-backfill approve bf-1",
            ),
            id="a plan shows what blocks it",
        ),
        pytest.param(
            "show", {},
            (
                "4 partitions of arrival_date, and nothing else: 2013-02-15, 2013-02-16",
                "7420231112223334445", "DOES NOT tolerate", "NOT ANSWERED: blocks approval",
                "no history", "bf-0", "- each chunk is one commit",
                "lakehouse-backfill approve bf-1",
            ),
            id="the whole plan of a run has everything",
        ),
        pytest.param(
            "validate", {"edge": OPEN_EDGE},
            ("this range closes it: from: 2013-02-14, to: 2013-04-02",),
            id="an open edge names the range that closes it",
        ),
        pytest.param(
            "publish", {"hooks": [FAILED_HOOK]},
            ("hook after_publish   resume   FAILED   exit code 1",),
            id="a publication names its hooks and how they ended",
        ),
        pytest.param(
            "diff", {"columns": [MOVED, SORTS]},
            ("0.38 standard deviations", "0.10 stability index"),
            id="a shift says in what it is measured",
        ),
        pytest.param(
            "preview_rollback", {},
            ("\nrewritten: 2013-02-15, because delete files hid rows of it\n",),
            id="a rollback says what is rewritten and why",
        ),
        pytest.param(
            "waive", {"state": "validated", "gates": []}, ("no gate keeps this run where it is",),
            id="a run that no gate stopped says so", marks=pytest.mark.req("Q8"),
        ),
        pytest.param(
            "init", {"project": "my lake; ls", "files": []},
            ("  cd 'my lake; ls' && lakehouse-backfill doctor",),
            id="the way into a new project can be copied",
        ),
    ],
)  # fmt: skip
def test_a_page_says(verb: str, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    text = drawn(verb, ANSWERS.get(verb, {}) | changes)
    assert [part for part in parts if part not in text] == []


def test_a_dry_run_of_a_plan_says_that_nothing_was_registered() -> None:
    text = drawn("plan", {**ANSWERS["plan"], "state": None})
    assert text.startswith("bf-1  not registered (dry run)")
    assert "approve" not in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("verb", "data", "expected"),
    [
        ("publish", {}, "published version 2"),
        ("preview_publish", {}, "would be published version 2; nothing was changed"),
        ("preview_publish", {"was_published": True}, "is published version 2 already; nothing"),
        ("publish", {"was_published": True}, "was published version 2 before; nothing was changed"),
    ],
)
def test_a_publication_says_what_happened(verb: str, data: dict[str, Any], expected: str) -> None:
    assert drawn(verb, ANSWERS[verb] | data).startswith(expected)


def test_a_publication_that_swapped_no_files_shows_no_zeros() -> None:
    swapped, pointed = (
        drawn("publish", ANSWERS["publish"] | {"attempts": attempts}) for attempts in (1, 0)
    )
    assert "files in" in swapped
    assert not re.search("files|rows|seconds", pointed)
    assert "snapshot" in pointed


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (clean_text("a\x1b[2Jb\tc\nd"), "a\\x1b[2Jb\\tc\nd"),
        (str(format_moment("2026-03-01T12:00:00.123456+00:00")), "2026-03-01 12:00:00Z"),
        (str(format_moment("2026-03-01T12:00:00Z")), "2026-03-01 12:00:00Z"),
        (str(format_moment(None)), "-"),
        (format_size(999), "999 B"),
        (format_size(1_500_000), "1.5 MB"),
        (format_size(None), None),
        (format_partitions([]), "none"),
        (format_partitions(["a", "b"]), "a, b"),
        (format_partitions(list("abcd")), "4 partitions, a to d"),
    ],
)
def test_a_value_is_drawn_as_people_write_it(found: object, expected: object) -> None:
    assert found == expected


def test_ids_that_are_typed_again_are_not_broken_on_a_narrow_screen(monkeypatch) -> None:
    row = ANSWERS["versions"]["versions"][0] | {"snapshot_id": 7420231112223334445}
    data = {"product": "silver.a", "versions": [row]}
    monkeypatch.setenv("COLUMNS", "50")
    assert "snapshot     7420231112223334445" in drawn("versions", data)
    monkeypatch.setenv("COLUMNS", "200")
    assert "partitions" in drawn("versions", data).splitlines()[2]


def test_versions_are_one_table_with_a_mark_on_what_readers_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    wide = {"run_id": "bf-4f1c09a2d7", "snapshot_id": 7420231112223334445, "action": "rollback"}
    rows = [row | wide for row in ANSWERS["versions"]["versions"]]
    lines = drawn("versions", {"product": "silver.a", "versions": rows}).splitlines()
    assert [line.split()[0] for line in lines if " 2026-0" in line] == ["now", "0"]
    assert sum("version" in line for line in lines) == 1


def test_a_resumed_run_says_how_much_was_done_before() -> None:
    assert "done before this call  3" in drawn("stage", {**ANSWERS["stage"], "chunks_before": 3})
    assert "before" not in drawn("stage")
