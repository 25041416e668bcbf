"""Live commits in the run's own partitions: named, followed by a revision, or too many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence import document
from lakehouse_backfill.core.planning.target import catch_up as rules
from lakehouse_backfill.core.publication.catch_up import carry_over_approval, newest_revision
from lakehouse_backfill.core.publication.publish import (
    PublishOutcome,
    publish_with_catch_up,
    run_until_decision,
)
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback
from lakehouse_backfill.core.publication.rollback_content import exclude_deleted_rows
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import _chunk_work
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes.catch_up import FakeRowReader
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import content_of, roll_back, state_of, validated_run

DAYS = tuple(f"2020-01-0{number}" for number in (2, 3, 4))
FOLLOWS = {"safety": {"on_conflict": "catch_up"}}


class World:
    """A lake with an accepted run over three days, one chunk each."""

    def __init__(self, people: dict[str, set[str]] | None = None, **changes: Any) -> None:
        """`people`: the rows of some days, the same before and after, with other values."""
        self.lake: FakeLake = lake()
        self.lake.add("privacy.gone", all="nobody")
        self.compute = FakeCompute(self.lake)
        for label, names in (people or {}).items():
            self.lake.write(PRODUCT, label, *(f"{name}@old" for name in names))
            self.compute.keys[label] = {f"{name}@new" for name in names}
        self.context: Context = context(self.lake, self.compute)
        wanted = declared("2020-01-02", "2020-01-05", **changes)
        self.run = validated_run(self.context, wanted)
        decisions.accept(self.context, self.run, "eve", "")
        self.compute.staged.clear()

    @property
    def content(self) -> dict[str, frozenset[str]]:
        return content_of(self.lake)

    def live(self, label: str, *files: str) -> int:
        return self.lake.write(PRODUCT, label, *files)

    def state(self, run: str) -> RunState:
        return state_of(self.context, run)

    def publish(self) -> PublishOutcome:
        return publish_with_catch_up(self.context, self.run, "bob")

    def judged(self) -> ValidationResult:
        """The validation that the newest decision on the run is about."""
        events = self.context.runs.events(self.run)
        found = decisions.logged_validation(self.context, events, self.run)
        return found[1]

    def carried(self) -> list[str]:
        found = self.context.publisher
        assert isinstance(found, FakeLake)
        return found.carried


def _drifted() -> World:
    """A run that follows live commits, one of which changed its second day."""
    world = World(**FOLLOWS)
    world.live(DAYS[1], "old-3@live")
    return world


@pytest.mark.req("U11")
def test_a_conflict_names_its_commits_in_data_too() -> None:
    world = World()
    number = world.live(DAYS[1], "old-3@live")
    with pytest.raises(errors.TargetChanged) as raised:
        world.publish()
    (conflict,) = raised.value.data["conflicts"]
    told = {name: conflict[name] for name in ("snapshot_id", "operation", "writer", "partitions")}
    assert told == {
        "snapshot_id": number, "operation": "overwrite", "writer": "live",
        "partitions": [DAYS[1]],
    }  # fmt: skip
    assert world.state(world.run) is RunState.ACCEPTED


@pytest.mark.req("U11")
def test_only_the_changed_partition_is_made_again_and_the_rest_carried_over() -> None:
    world = World(**FOLLOWS)
    world.lake.write("bronze.raw", "2020-01-01", "raw-2")
    world.live(DAYS[1], "old-3@live")
    done = world.publish()
    run = str(done.publication.run_id)
    assert run != world.run
    assert world.compute.staged == ["load", f"c0003-{DAYS[1]}"]
    assert world.carried() == [f"c0001-{DAYS[0]}", f"c0002-{DAYS[2]}"]
    assert [world.content[label] for label in DAYS] == [
        {f"{world.run}/{DAYS[0]}"}, {f"{run}/{DAYS[1]}"}, {f"{world.run}/{DAYS[2]}"},
    ]  # fmt: skip
    assert (world.state(world.run), world.state(run)) == (RunState.SUPERSEDED, RunState.PUBLISHED)
    plan = world.context.runs.plan(run)
    assert {pin.name: pin.snapshot_id for pin in plan.resolved.sources} == {"raw": 2}
    catch_up = plan.resolved.catch_up
    origins = {chunk.partitions: catch_up.origin(chunk.chunk_id) for chunk in plan.resolved.chunks}
    assert {labels: origin and origin.inputs for labels, origin in origins.items()} == {
        (DAYS[0],): {"raw": 1},
        (DAYS[1],): None,
        (DAYS[2],): {"raw": 1},
    }
    ledger = {item.chunk_id: item.carried_from for item in world.context.runs.chunks(run)}
    assert ledger == {
        f"c0001-{DAYS[0]}": world.run, f"c0002-{DAYS[2]}": world.run, f"c0003-{DAYS[1]}": "",
    }  # fmt: skip


@pytest.mark.req("X3")
def test_what_is_carried_over_counts_as_a_commit_once_and_not_when_a_driver_goes_on() -> None:
    world = _drifted()
    run = str(world.publish().publication.run_id)
    plan = world.context.runs.plan(run)
    found = {one.chunk_id: one for one in world.context.shadows.chunks(plan.shadow_table)}
    none: Any = None
    for committed, is_new in (({}, True), (found, False)):
        work = _chunk_work(world.context, plan, none, tuple, committed, {})
        assert [one.is_new for one in work] == [is_new] * 3


@pytest.mark.req("U11")
def test_decisions_carry_over_in_the_name_of_those_who_made_them() -> None:
    world = _drifted()
    done = world.publish()
    row = done.publication
    assert (row.approved_by, row.accepted_by, row.by) == (("ana",), ("eve",), "bob")
    events = world.context.runs.events(str(row.run_id))
    said = {event.verb: event.actor for event in events if event.verb.startswith("carry")}
    assert said == {"carry approval": "bob", "carry acceptance": "bob"}
    found = decisions.logged_validation(world.context, events, str(row.run_id))
    shown = document.approval_records(events, world.context.runs.plan(str(row.run_id)), found[0])
    assert [(item["decision"], item["by"]) for item in shown] == [
        ("approve", "ana"), ("accept", "eve"),
    ]  # fmt: skip


@pytest.mark.req("U11")
def test_a_second_conflict_is_followed_too_and_keeps_who_computed_what() -> None:
    world = _drifted()
    through, seen = world.lake.adopt, []

    def adopt(request: Any) -> Any:
        seen.append(request)
        if len(seen) == 2:
            world.live(DAYS[2], "old-4@live")
        return through(request)

    world.lake.adopt = adopt  # type: ignore[method-assign]
    done = world.publish()
    plan = world.context.runs.plan(str(done.publication.run_id))
    assert plan.resolved.catch_up.attempt == 2
    runs = {item.chunk_id: item.run_id for item in plan.resolved.catch_up.carried}
    middle = str(plan.revises)
    assert runs == {f"c0001-{DAYS[0]}": world.run, f"c0002-{DAYS[1]}": middle}


@pytest.mark.req("U11")
def test_a_writer_that_never_stops_makes_it_too_busy_after_the_declared_attempts() -> None:
    world = World(safety={"on_conflict": "catch_up", "catch_up_attempts": 2})
    adopt = world.lake.adopt
    numbers = iter(range(100))

    def always(request: Any) -> Any:
        world.live(DAYS[1], f"old-3@live-{next(numbers)}")
        return adopt(request)

    world.lake.adopt = always  # type: ignore[method-assign]
    with pytest.raises(errors.TooBusy, match="caught up 2 times") as raised:
        world.publish()
    assert "pause the writer" in raised.value.fix
    newest = newest_revision(world.context, world.run)
    assert world.state(newest) is RunState.ACCEPTED
    world.lake.adopt = adopt  # type: ignore[method-assign]
    with pytest.raises(errors.TooBusy):
        world.publish()


@pytest.mark.req("U11")
def test_a_person_looks_when_more_than_the_changed_partitions_differs() -> None:
    world = _drifted()
    world.compute.open_edges = {"2020-01-01"}
    with pytest.raises(errors.ChecksFailed, match="did not pass"):
        world.publish()
    run = newest_revision(world.context, world.run)
    assert world.state(run) is RunState.REJECTED
    world.compute.open_edges = set()
    validate(world.context, run, "bob")
    found = world.publish()
    assert found.publication.run_id == run


@pytest.mark.req("U11")
def test_objections_name_what_a_person_must_look_at() -> None:
    world = World(**FOLLOWS)
    old = world.judged()
    other = old.balances[0].model_copy(update={"new_count": 11})
    new = old.model_copy(update={"balances": (other, *old.balances[1:])})
    plan = world.context.runs.plan(world.run)
    world.live(DAYS[1], "old-3@live")
    world.publish()
    revised = world.context.runs.plan(newest_revision(world.context, world.run))
    assert revised.resolved.catch_up is not None
    assert rules.reasons_for_review(old, old, revised.resolved.catch_up, ()) == ()
    assert rules.reasons_for_review(old, new, revised.resolved.catch_up, ()) == (
        f"{DAYS[0]} is not what was accepted, and no live commit changed it",
    )
    assert plan.resolved.catch_up is None


@pytest.mark.req("E3")
@pytest.mark.parametrize("follows", [{}, FOLLOWS], ids=["fail", "catch up"])
def test_deleted_rows_block_and_are_counted(follows: dict[str, Any]) -> None:
    world = World(**follows)
    world.live(DAYS[1])
    with pytest.raises(errors.TargetChanged, match=r"1 rows of .* were deleted") as raised:
        world.publish()
    assert raised.value.data["deletions"]["rows"] == 1
    assert world.state(world.run) is RunState.ACCEPTED


@pytest.mark.req("E3")
def test_deleted_keys_are_hashed_where_rows_are_confidential() -> None:
    world = World(contract=contract(classification="confidential"))
    world.live(DAYS[1])
    with pytest.raises(errors.TargetChanged) as raised:
        world.publish()
    (key,) = raised.value.data["deletions"]["keys"]
    assert key.startswith("sha256:")
    assert "old-3" not in str(raised.value) + str(raised.value.data)


def _with_people(**changes: Any) -> World:
    """A product whose second day holds p1 and p2, before and after the restatement."""
    return World({DAYS[1]: {"p1", "p2"}}, **changes)


@pytest.mark.req("E3")
def test_deleted_rows_are_taken_out_of_the_result_and_nothing_else_changes() -> None:
    world = _with_people(contract=contract(deletions="reapply"))
    world.live(DAYS[1], "p2@old")
    done = world.publish()
    run = str(done.publication.run_id)
    assert world.content[DAYS[1]] == {"p2@new"}
    assert world.content[DAYS[0]] == {f"{world.run}/{DAYS[0]}"}
    catch_up = world.context.runs.plan(run).resolved.catch_up
    assert [item.chunk_id for item in catch_up.erased] == [f"c0002-{DAYS[1]}"]
    assert catch_up.erasures[0].partitions == (DAYS[1],)
    assert done.publication.accepted_by == ("eve",)


@pytest.mark.req("E3")
def test_rows_deleted_live_do_not_come_back_from_the_source_when_catching_up() -> None:
    world = _with_people(contract=contract(deletions="reapply"), **FOLLOWS)
    world.live(DAYS[1], "p2@live")
    world.publish()
    assert world.content[DAYS[1]] == {"p2@new"}
    assert f"c0003-{DAYS[1]}" in world.compute.staged


@pytest.mark.req("E3")
def test_without_a_key_deletions_block() -> None:
    world = _with_people(contract=contract(deletions="reapply", key=[]))
    world.live(DAYS[1], "p2@old")
    with pytest.raises(errors.TargetChanged, match="no key"):
        world.publish()


TOMBSTONES = [{"table": "privacy.gone", "columns": {"id": "id"}}]


def _named(world: World, *people: str) -> None:
    """Let somebody ask for the erasure of people."""
    world.lake.write("privacy.gone", "all", *people)


@pytest.mark.req("E3")
def test_people_that_tombstones_name_are_not_staged_and_counted_in_the_gate() -> None:
    world = _with_people(contract=contract(tombstones=TOMBSTONES))
    assert [c.passed for c in world.judged().checks if c.name == "no deleted row is written"] == [
        True
    ]
    assert world.context.runs.plan(world.run).resolved.tombstones[0].snapshot_id == 1


@pytest.mark.req("E3")
def test_a_tombstone_that_came_after_staging_blocks_the_publication() -> None:
    world = _with_people(contract=contract(tombstones=TOMBSTONES))
    _named(world, "p2")
    with pytest.raises(errors.TargetChanged, match="tombstones name 10 rows of") as raised:
        world.publish()
    assert raised.value.data["tombstones"] == {"rows": 10, "partitions": (DAYS[1],)}
    assert world.content[DAYS[1]] == {"p1@old", "p2@old"}


@pytest.mark.req("E3")
def test_a_tombstone_that_came_after_staging_is_reapplied_if_the_contract_says_so() -> None:
    wanted = contract(tombstones=TOMBSTONES, deletions="reapply")
    world = _with_people(contract=wanted)
    _named(world, "p2")
    done = world.publish()
    assert world.content[DAYS[1]] == {"p1@new"}
    assert done.publication.accepted_by == ("eve",)
    assert world.compute.staged == ["load", f"c0002-{DAYS[1]}"]


@pytest.mark.req("E3")
def test_a_tombstone_that_names_nobody_of_the_result_stops_nothing() -> None:
    world = _with_people(contract=contract(tombstones=TOMBSTONES))
    _named(world, "p9")
    assert world.publish().publication.run_id == world.run


@pytest.mark.req("E3")
def test_a_way_back_over_deleted_rows_is_named_and_refused() -> None:
    world = _with_people()
    world.publish()
    world.live(DAYS[1], "p1@new")
    with pytest.raises(errors.TargetChanged, match="cannot be rolled back: 1 rows of") as raised:
        roll_back(world.context, 0)
    assert [one["writer"] for one in raised.value.data["conflicts"]] == ["live"]
    assert world.content[DAYS[1]] == {"p1@new"}


@pytest.mark.req("E3")
def test_a_way_back_over_deleted_rows_rewrites_their_partitions_without_them() -> None:
    wanted = contract(deletions="reapply")
    world = _with_people(contract=wanted)
    world.publish()
    world.live(DAYS[1], "p1@new")
    found = exclude_deleted_rows(
        world.context, wanted, plan_rollback(world.context, PRODUCT, 0, ())
    )
    assert [item.partitions for item in found.rewrites] == [(DAYS[1],)]
    assert found.excluded_rows is not None
    assert FakeRowReader(world.lake).names(found.excluded_rows) == {"p2"}
    since = {label: one.since_snapshot_id for one in found.restores for label in one.partitions}
    head = world.lake.tables[PRODUCT].head
    assert since[DAYS[1]] == head
    assert since[DAYS[0]] != head


@pytest.mark.req("E3")
def test_a_way_back_to_rows_that_tombstones_name_is_refused() -> None:
    wanted = contract(tombstones=TOMBSTONES)
    world = _with_people(contract=wanted)
    world.publish()
    _named(world, "p2")
    with pytest.raises(
        errors.TargetChanged, match="cannot be rolled back: tombstones name 10 rows"
    ):
        roll_back(world.context, 0, of=wanted)


@pytest.mark.req("U11")
def test_outside_its_window_a_run_is_not_published_and_hears_when_it_opens() -> None:
    # The clock of the fakes stands at 03:04.
    world = World(safety={"publish_window": {"from": "22:00", "to": "02:00"}})
    with pytest.raises(errors.Blocked, match=r"opens at 2026-01-02T22:00\+00:00") as raised:
        world.publish()
    assert raised.value.data == {"opens_at": "2026-01-02T22:00+00:00"}
    assert world.state(world.run) is RunState.ACCEPTED


@pytest.mark.req("U11", "U10")
def test_the_same_command_goes_on_after_a_staging_that_failed() -> None:
    world = _drifted()
    world.compute.dies_at = f"c0003-{DAYS[1]}"
    with pytest.raises(errors.EnvironmentDown):
        world.publish()
    done = world.publish()
    assert done.publication.run_id == newest_revision(world.context, world.run)
    assert len(world.carried()) == 2


@pytest.mark.req("U11", "U10")
def test_recovery_carries_the_approval_over_that_was_cut_off() -> None:
    world = _drifted()
    runs, append = world.context.runs, world.context.runs.append

    def cut_off(event: Any, lease: Any = None) -> Any:
        if event.verb == "carry approval":
            raise errors.EnvironmentDown("cut off")
        return append(event, lease)

    runs.append = cut_off  # type: ignore[method-assign]
    with pytest.raises(errors.EnvironmentDown):
        world.publish()
    runs.append = append  # type: ignore[method-assign]
    run = newest_revision(world.context, world.run)
    done = {item.subject: item.result for item in recover(world.context, None, "bob")}
    assert done == {run: f"approved; next: lakehouse-backfill publish {run}"}
    assert publish_with_catch_up(world.context, run, "bob").publication.run_id == run


@pytest.mark.req("U11")
def test_run_goes_on_with_the_revision_of_a_run() -> None:
    world = World(safety={"on_conflict": "catch_up", "manual_publish": False})
    world.live(DAYS[1], "old-3@live")
    done = run_until_decision(world.context, world.run, "bob")
    assert done["state"] == "published"
    assert done["run_id"] != world.run


@pytest.mark.req("U11")
def test_an_approval_does_not_carry_over_to_another_intent() -> None:
    world = _drifted()
    world.compute.dies_at = f"c0003-{DAYS[1]}"
    with pytest.raises(errors.EnvironmentDown):
        world.publish()
    run = newest_revision(world.context, world.run)
    plan = world.context.runs.plan(run)
    other = plan.resolved.model_copy(update={"code_hash": "other"})
    status = world.context.runs.status(run).model_copy(update={"state": RunState.PLANNED})
    world.context.runs.status = lambda run_id: (  # type: ignore[method-assign]
        status if run_id == run else type(world.context.runs).status(world.context.runs, run_id)
    )
    with pytest.raises(errors.ApprovalMissing, match=r"differs from .* in code_hash"):
        carry_over_approval(world.context, plan.model_copy(update={"resolved": other}), "bob")


@pytest.mark.req("E3")
def test_who_publishes_needs_no_permission_to_replay_and_who_planned_still_does() -> None:
    private = {"purposes": {"repair": ["bob"]}}
    asked = {"run": {"purpose": "repair", "requested_by": "bob"}, **FOLLOWS}
    world = World(**asked, contract=contract(privacy=private))
    world.live(DAYS[1], "old-3@live")
    withdrawn = contract(privacy={"purposes": {"repair": ["eve"]}})
    found = replace(world.context, contract=lambda _: withdrawn)
    with pytest.raises(errors.NotAllowed, match=r"bob may not replay .*; who may: eve"):
        publish_with_catch_up(found, world.run, "eve")
    found = replace(world.context, contract=lambda _: contract(privacy=private))
    with pytest.raises(errors.NotAllowed, match=r"eve may not replay .*; who may: bob"):
        run_until_decision(found, newest_revision(found, world.run), "eve")
    done = publish_with_catch_up(found, newest_revision(found, world.run), "eve")
    assert world.state(str(done.publication.run_id)) is RunState.PUBLISHED
