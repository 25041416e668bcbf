"""Rules of what stops a replay: gaps as declared, versions, compatibility of schemas."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.replay.check import (
    missing_links,
    require_compatible,
    stopping_faults,
)
from lakehouse_backfill.core.replay.rebuild import is_whole
from lakehouse_backfill.domain.sources.events import (
    AggregateState,
    EventFindings,
    EventStoreDeclaration,
)
from lakehouse_backfill.domain.sources.schemas import WriterSchema
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.events import Upcasters, UpcastStep


def store(**more: Any) -> EventStoreDeclaration:
    fixed = {"api_version": "lakehouse-backfill/v1", "events": "orders", "table": "bronze.orders"}
    return EventStoreDeclaration(**{**fixed, **more})


def schema(version: int, required: list[str], **types: str) -> WriterSchema:
    fields = {name: {"type": kind} for name, kind in types.items()}
    body = {"required": required, "properties": fields}
    return WriterSchema(event_type="paid", version=version, schema=body)


UP = Upcasters([UpcastStep("paid", 1, 2, dict)], {"paid": 2})
NONE = Upcasters([], {"paid": 2})


@pytest.mark.req("S7")
@pytest.mark.parametrize(
    ("mode", "new", "upcasters", "fault"),
    [
        ("backward", schema(2, []), UP, None),
        ("backward", schema(2, ["a"]), NONE, "no upcasters lead from the older one"),
        ("forward", schema(2, ["a", "b"], a="string"), NONE, None),
        ("forward", schema(2, [], a="string"), UP, "the required field a is gone"),
        ("forward", schema(2, ["a"], a="integer"), UP, "the field a changes its type"),
        ("both", schema(2, ["a"], a="string"), NONE, "no upcasters lead"),
        ("none", schema(2, [], a="integer"), NONE, None),
    ],
)
def test_schemas_are_compatible_as_declared(
    mode: str, new: WriterSchema, upcasters: Upcasters, fault: str | None
) -> None:
    declared = store(version={"schemas": "s", "compatibility": mode})
    schemas = {9: schema(1, ["a"], a="string"), 4: new}
    if fault is None:
        require_compatible(declared, schemas, upcasters)
        return
    with pytest.raises(Unsupported, match=f"paid 1 to 2: {fault}"):
        require_compatible(declared, schemas, upcasters)


def test_hostile_schemas_have_no_fields() -> None:
    odd = WriterSchema(event_type="paid", version=2, schema={"required": 1, "properties": [3]})
    declared = store(version={"schemas": "s", "compatibility": "forward"})
    require_compatible(declared, {1: odd, 2: odd.model_copy(update={"version": 3})}, NONE)


@pytest.mark.req("S6")
def test_gaps_stop_a_replay_unless_they_are_allowed() -> None:
    found = EventFindings(faults=("f",), gaps=("g",))
    assert stopping_faults(store(), found) == ("f", "g")
    assert stopping_faults(store(gaps="allow"), found) == ("f",)


def test_versions_that_cannot_be_read_stop_no_replay() -> None:
    found = EventFindings(versions=(("paid", None, 1), ("paid", 1, 1), ("other", 7, 1)))
    assert missing_links(UP, found) == ()
    assert len(missing_links(NONE, found)) == 1


@pytest.mark.parametrize(
    ("first", "number", "handled", "whole"),
    [(1, 4, 4, True), (0, 4, 5, True), (1, 4, 3, False), (0, 4, 4, False)],
)
def test_a_kept_state_is_whole_when_it_was_made_of_all_events_up_to_it(
    first: int, number: int, handled: int, whole: bool
) -> None:
    assert is_whole(store(first_sequence=first), AggregateState(number, handled, "{}")) is whole


@pytest.mark.req("S7")
@pytest.mark.parametrize(
    ("current", "version", "fault"),
    [
        ({}, 2, "paid 1 to 2: nothing says which version of paid is current"),
        ({"paid": 2}, 3, "paid has events of version 3, and 2 is the newest known"),
    ],
)
def test_each_version_of_the_folder_needs_a_chain_to_a_declared_one(
    current: dict[str, int], version: int, fault: str
) -> None:
    declared = store(version={"schemas": "s", "compatibility": "backward"})
    upcasters = Upcasters([UpcastStep("paid", 1, 2, dict)], current)
    found = {number: schema(number, []) for number in (1, 2, version)}
    with pytest.raises(Unsupported, match=fault):
        require_compatible(declared, found, upcasters)
