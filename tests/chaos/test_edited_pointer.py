"""Whoever edits the pointer of a product by hand stops publications until it is rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.damages import edit_pointer
from tests.chaos.lab import BY, TARGET, Lab

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
EDITS: dict[str, Edit] = {
    "another snapshot": lambda held: held | {"accepted": held["accepted"] | {"snapshot_id": 7}},
    "another version": lambda held: held | {"accepted": held["accepted"] | {"version": 5}},
    "a version less": lambda held: held | {"last_version": 0},
    "no pointer": lambda held: {"odd": held},
    "removed": lambda _: None,
}


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
