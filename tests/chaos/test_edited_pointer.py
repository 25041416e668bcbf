"""Whoever edits the pointer of a product by hand stops publications until it is rebuilt."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.damages import edit_pointer
from tests.chaos.lab import BY, TARGET, Lab
from tests.support.lakes.verified import edit_rows

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
EDITS: dict[str, Edit] = {
    "another snapshot": lambda held: held | {"accepted": held["accepted"] | {"snapshot_id": 7}},
    "another version": lambda held: held | {"accepted": held["accepted"] | {"version": 5}},
    "a version less": lambda held: held | {"last_version": 0},
    "no pointer": lambda held: {"odd": held},
    "removed": lambda _: None,
}


def _typed(command: str) -> tuple[str, ...]:
    """The words of a command as a person pastes it, after program and project."""
    words = shlex.split(command, comments=True)
    at = words.index("--project") + 2 if "--project" in words else 1
    return tuple(words[at:])


@pytest.mark.req("C2")
def test_an_open_run_whose_plan_was_edited_is_cancelled_and_planned_again(lab: Lab) -> None:
    lab.restore("staged")

    def edit(row: dict[str, Any]) -> bool:
        row["plan"] = row["plan"].replace("wrong rate", "right rate")
        return True

    assert edit_rows(lab, "pipeline_run", edit) == 1
    lab.manifest("other.yaml", "2024-01-07", "2024-01-08")
    freeing = set()
    for words in (("validate", lab.run), ("plan", "jobs/other.yaml"), ("recover", lab.run)):
        error = lab.do(*words, *BY).error
        assert f"the plan of {lab.run}" in error["problem"]
        assert "row in pipeline_run" in error["problem"]
        freeing.add(_typed(error["fix"]))
    (line,) = lab.must("status", lab.run).data["runs"]
    freeing.add(_typed(line["next_command"]))
    (command,) = freeing
    assert command == ("cancel", lab.run, "--reason", "TEXT")
    reason = "its plan was edited"  # What stands for TEXT.
    cancelled = lab.must(*(reason if word == "TEXT" else word for word in command), *BY)
    assert cancelled.data["state"] == "cancelled"
    assert f"the plan of {lab.run}" in cancelled.said
    assert lab.must("recover", "--all", *BY).data["actions"] == []
    file = lab.folder / lab.manifest("again.yaml", "2024-01-02", "2024-01-05")
    file.write_text(file.read_text().replace("wrong rate", "still the wrong rate"))
    again = lab.must("plan", "jobs/again.yaml", *BY).data["run_id"]
    for verb in ("approve", "stage", "validate", "accept", "publish"):
        lab.must(verb, again, *BY)


@pytest.mark.req("U12", "V4", "C2")
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("accepted again", ("publish", "RUN")),
        ("published", ("rollback", TARGET, "--to", "0", "--reason", "wrong")),
    ],
    ids=["publish", "rollback"],
)
def test_nothing_is_published_or_rolled_back_on_an_edited_pointer(
    lab: Lab, state: str, command: tuple[str, ...], edit: Edit
) -> None:
    lab.restore("published")
    if state == "accepted again":
        lab.must("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)
    edit_pointer(lab, edit)
    before = lab.oracle.rows(TARGET), lab.oracle.log("accepted_output_version", "log_seq")
    refused = lab.do(*lab.typed(command))
    assert (refused.code, refused.error["code"]) == (3, "tampered"), refused
    assert "recover --all" in refused.error["fix"]
    assert lab.do("audit", "verify").code == 3
    after = lab.oracle.rows(TARGET), lab.oracle.log("accepted_output_version", "log_seq")
    assert after == before

    actions = lab.must("recover", "--all", *BY).data["actions"]
    assert [(one["action"], one["is_done"]) for one in actions] == [("rebuild the pointer", True)]
    lab.must("audit", "verify")
    lab.must(*lab.typed(command))
    assert lab.oracle.rows(TARGET) != before[0]


@pytest.mark.req("C2")
def test_a_rollback_that_an_edited_plan_stops_names_a_program_that_puts_the_rows_back(
    lab: Lab,
) -> None:
    lab.restore("accepted")
    before = lab.oracle.rows(TARGET)
    lab.restore("published")
    edit_rows(lab, "pipeline_run", lambda row: row.update(plan="garbage") or True)
    assert lab.oracle.rows(TARGET) != before
    back = ("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)
    assert lab.do(*back, "--dry-run").code == 3
    error = lab.do(*back).error
    assert f"the plan of {lab.run}" in error["problem"]
    (file,) = (lab.folder / ".lakehouse-backfill").glob("way-back-*.py")
    assert f"run {file}, a program for PyIceberg" in error["fix"]
    with lab.opened() as catalog:
        program = file.read_text(encoding="utf-8").replace('load_catalog("NAME")', "own_catalog")
        exec(program, {"own_catalog": catalog})
    assert lab.oracle.rows(TARGET) == before
    # The product is free: nothing is reserved, and the repair that is advised can be planned.
    file = lab.folder / lab.manifest("repair.yaml", "2024-01-02", "2024-01-05")
    file.write_text(file.read_text().replace("wrong rate", "repair it"), encoding="utf-8")
    lab.must("plan", "jobs/repair.yaml", *BY)
