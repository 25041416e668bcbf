"""Whether a product's pointer is where the rows of its versions lead."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.publication import (
    Pointer,
    Publication,
    apply_to_pointer,
    pointer_fault,
)
from tests.support.examples.plans import a_publication

pytestmark = pytest.mark.req("V4")
PRODUCT = "silver.t"


def an_act(version: int, action: Any, **changes: Any) -> Publication:
    known = {"product": PRODUCT, "run_id": "bf-1", "snapshot_id": 100 + version}
    return a_publication(version, action, **(known | changes))


ROWS = (
    an_act(0, "baseline"), an_act(1, "reserve"), an_act(1, "publish"), an_act(2, "reserve"),
    an_act(2, "release"), an_act(3, "reserve"), an_act(3, "publish"),
    an_act(1, "rollback", token="t4"), an_act(4, "reserve"),
)  # fmt: skip


def pointer() -> Pointer:
    found = Pointer()
    for row in ROWS:
        found = apply_to_pointer(found, row)
    return found


def test_a_pointer_that_its_rows_lead_to_has_no_fault():
    assert pointer_fault(PRODUCT, ROWS, pointer()) is None
    assert pointer_fault(PRODUCT, (), Pointer()) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"accepted": an_act(1, "rollback", token="t4", snapshot_id=7, approved_by=("eve",))},
            "accepted in its pointer is not that of its rows: version 1 (rollback by ann) "
            "differs in approved_by, snapshot_id",
        ),
        (
            {"accepted": None},
            "accepted in its pointer is not that of its rows: none, and version 1 (rollback by "
            "ann) by its rows",
        ),
        ({"pending": None}, "pending in its pointer is not that of its rows: none, and version 4"),
        ({"last_version": 3}, "its pointer counts 3 versions, its rows 4"),
    ],
    ids=["accepted", "accepted gone", "pending gone", "count"],
)
def test_a_pointer_that_was_edited_is_found_and_named(change: dict[str, Any], says: str):
    found = pointer_fault(PRODUCT, ROWS, pointer().model_copy(update=change))
    assert found.startswith(f"{PRODUCT}: {says}")


def test_a_pointer_that_is_gone_is_found():
    assert pointer_fault(PRODUCT, ROWS, None) == (
        f"{PRODUCT}: its pointer is gone, or was edited: it cannot be read"
    )


def test_who_is_at_work_is_no_fault():
    held = pointer()
    pending = held.pending.model_copy(update={"driver": "here:1"})
    assert pointer_fault(PRODUCT, ROWS, held.model_copy(update={"pending": pending})) is None


@pytest.mark.parametrize("index", [7, 8], ids=["accepted", "pending"])
def test_a_row_that_was_edited_or_deleted_is_found(index: int):
    for field, value in (("by", "eve"), ("snapshot_id", 7), ("version", 9), ("action", "odd")):
        edited = ROWS[index].model_copy(update={field: value})
        rows = (*ROWS[:index], edited, *ROWS[index + 1 :])
        assert pointer_fault(PRODUCT, rows, pointer()), field
    assert pointer_fault(PRODUCT, ROWS[:index] + ROWS[index + 1 :], pointer())
    forged = an_act(5, "publish", by="eve")
    assert pointer_fault(PRODUCT, (*ROWS, forged), pointer())


def test_the_verdict_names_the_first_product_and_then_the_first_plan():
    good = (ROWS, pointer())
    bad = (ROWS, Pointer())
    plans = {"bf-9": "the plan of bf-9 was edited"}
    assert event_log.verify_logs({}, None, (), {"a": good, "b": good}).products == 2
    found = event_log.verify_logs({}, None, (), {"c": bad, "b": bad, "a": good}, plans)
    assert str(found.first_bad).startswith("b: accepted in its pointer")
    assert event_log.verify_logs({}, None, (), {"a": good}, plans).first_bad == plans["bf-9"]
