"""Publish modes from plan to readers, over fakes: what each does, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkCounts
from lakehouse_backfill.errors import (
    ChecksFailed,
    Conflict,
    TargetChanged,
    Unsupported,
)
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake

LATER = {"column": "day", "from": "2020-02-01", "to": "2020-02-03"}
WIDE = {"raw": {"range": {"column": "day", "from": "2019-12-01", "to": "2020-03-01"}}}
MERGE = {"publish_mode": "merge", "merge": {"version": "amount"}}


def planned(found: Context, **changes: Any) -> Plan:
    return found.runs.plan(steps.planned_run(found, declared(**changes)))


def validated(found: Context, **changes: Any) -> tuple[str, dict[str, tuple[bool, str]]]:
    run_id = steps.staged_run(found, declared(**changes))
    checks = validate(found, run_id, "bob")[1].checks
    return run_id, {check.name: (check.passed, check.detail) for check in checks}


def published(found: Context, **changes: Any) -> str:
    return steps.published_run(found, declared(**changes))


@pytest.mark.req("U3")
def test_an_append_to_empty_partitions_is_published_as_one() -> None:
    where = lake()
    target = {"publish_mode": "append", "partitions": LATER}
    published(context(where), target=target, sources=WIDE)
    table = where.tables[PRODUCT]
    assert table.summaries[-1]["operation"] == "append"
    assert {"2020-02-01", "2020-02-02"} <= set(table.content(table.head))


@pytest.mark.req("U3")
def test_an_append_is_refused_when_rows_came_before_it_was_published() -> None:
    where, found = steps.world()
    target = {"publish_mode": "append", "partitions": LATER}
    run_id = steps.accepted_run(found, declared(target=target, sources=WIDE))
    where.write(PRODUCT, "2020-02-01", "live")
    with pytest.raises(TargetChanged):
        publish(found, run_id, "bob")
    assert steps.content_of(where)["2020-02-01"] == frozenset({"live"})


@pytest.mark.req("U1b")
def test_a_row_repair_proves_that_other_rows_are_unchanged() -> None:
    target = {"row_predicate": {"id": [1, 2]}}
    _, gates = validated(context(lake()), target=target)
    assert gates["other rows are unchanged"] == (
        True, "20 rows carried over, counts and checksums equal",
    )  # fmt: skip


@pytest.mark.req("U1b")
def test_a_row_repair_that_changed_other_rows_is_rejected_for_good() -> None:
    _, found = steps.world(touched={"2020-01-03"})
    target = {"row_predicate": {"id": [1, 2]}}
    run_id, gates = validated(found, target=target)
    assert gates["other rows are unchanged"] == (False, "1 partitions differ, first 2020-01-03")
    assert found.runs.status(run_id).state.value == "rejected"


STRAYS = {"without a warm-up": (0, True), "with one": (1, False)}


@pytest.mark.req("U1b")
@pytest.mark.parametrize(("days", "stops"), STRAYS.values(), ids=STRAYS)
def test_rows_that_are_not_named_stop_a_run_unless_a_warm_up_explains_them(days, stops) -> None:
    _, found = steps.world(strays=3)
    sources = {"raw": {"warm_up_days": days}}
    target = {"row_predicate": {"id": 1}}
    run_id = steps.approved_run(found, declared(target=target, sources=sources))
    if stops:
        with pytest.raises(ChecksFailed, match="3 rows of the partitions are others"):
            stage(found, run_id, "bob")
    else:
        stage(found, run_id, "bob")
    assert {record.stray_rows for record in found.runs.chunks(run_id)} == {3}


@pytest.mark.req("U4")
def test_a_merge_whose_rows_do_not_add_up_is_rejected() -> None:
    _, found = steps.world(merged=ChunkCounts(inserted_rows=1, updated_rows=9))
    _, gates = validated(found, target=MERGE)
    assert gates["changes add up"] == (
        False,
        "20 rows, 2 keys inserted, 18 updated, 0 deleted: 20 rows; 0 change rows were older or "
        "known",
    )
    assert gates["edges are closed"] == (
        True, "not looked at: change rows do not say what the partitions beyond would hold",
    )  # fmt: skip


@pytest.mark.req("U4")
def test_partitions_between_which_keys_may_move_are_planned_as_one_chunk() -> None:
    by_id = contract(key=["id"])
    plan = planned(context(lake()), contract=by_id, target=MERGE)
    assert [chunk.partitions for chunk in plan.resolved.chunks] == [("2020-01-02", "2020-01-03")]
    assert any("all partitions are one chunk" in note for note in plan.notes)


@pytest.mark.req("U5", "U12")
def test_each_version_gets_a_table_of_its_name_and_the_pointer_moves_between_them() -> None:
    where = lake()
    found, pinned = context(where), contract(publication="pinned", view="silver.daily_accepted")
    target = {"publish_mode": "versioned"}
    first = published(found, contract=pinned, target=target)
    accepted = resolve_accepted(found, pinned, strict=True)
    assert accepted.table == f"{PRODUCT}_v1"
    # The shadow goes, the version stays.
    where.retire(found.runs.plan(first).shadow_table)
    assert resolve_accepted(found, pinned, strict=True).table in where.tables
    published(found, contract=pinned, target=target)
    assert found.views.views["silver.daily_accepted"][0] == f"{PRODUCT}_v2"
    steps.roll_back(found, 1, of=pinned)
    assert resolve_accepted(found, pinned, strict=True) == accepted
    assert where.calls.count("adopt") == 0


@pytest.mark.req("U5")
def test_a_version_is_not_accepted_while_its_name_is_somebody_elses() -> None:
    where = lake()
    where.add(f"{PRODUCT}_v1", **{"2020-01-01": "theirs"})
    found, pinned = context(where), contract(publication="pinned")
    target = {"publish_mode": "versioned"}
    run_id = steps.accepted_run(found, declared(contract=pinned, target=target))
    with pytest.raises(Conflict, match=r"silver\.daily_v1 is already there"):
        publish(found, run_id, "bob")
    assert found.runs.status(run_id).state.value == "accepted"
    # The number is not used again: the next attempt takes the next name.
    publish(found, run_id, "bob")
    assert resolve_accepted(found, pinned, strict=True).table == f"{PRODUCT}_v2"


FITTING = {
    "append": "follow", "replace_partitions": "follow", "merge": "follow",
    "pointer_swap": "pinned", "versioned": "pinned",
}  # fmt: skip


@pytest.mark.req("U1", "U2", "U3", "U4", "U5")
@pytest.mark.parametrize(("mode", "kind"), FITTING.items(), ids=FITTING)
def test_a_mode_is_refused_for_a_product_of_the_other_kind(mode: str, kind: str) -> None:
    other = {"follow": "pinned", "pinned": "follow"}[kind]
    target = {"publish_mode": mode}
    with pytest.raises(Unsupported, match=f"{mode} does not fit a product that is {other}"):
        planned(context(lake()), contract=contract(publication=other), target=target)


@pytest.mark.parametrize("mode", ["append", "merge", "versioned", "shadow_only"])
def test_the_plan_says_what_its_mode_does(mode: str) -> None:
    pinned = {"contract": contract(publication="pinned")} if mode == "versioned" else {}
    target: dict[str, Any] = {"publish_mode": mode, "partitions": LATER}
    if mode == "merge":
        target["merge"] = {"version": "amount", "deleted": "gone"}
    plan = planned(context(lake()), target=target, sources=WIDE, **pinned)
    (note,) = [note for note in plan.notes if note.startswith(f"{mode}: ")]
    assert len(note) > 40
    if mode == "merge":
        assert "day, id: the highest amount wins; gone = true removes a key" in plan.notes


def test_what_may_change_names_the_rows_of_a_repair() -> None:
    target = {"row_predicate": {"id": [1, 2]}}
    plan = planned(context(lake()), target=target)
    answer = plan.checklist[1].answer
    assert answer.endswith("of day, rows with id in 1, 2; no other row")


@pytest.mark.req("M4")
def test_a_manifest_that_says_nothing_of_modes_keeps_its_hash() -> None:
    """Plans that were stored before these fields came must still be the approved ones."""
    plan = planned(context(lake()))
    dumped = plan.resolved.manifest.target.model_dump(mode="json")
    assert dumped["row_predicate"] is None
    assert "merge" not in dumped
