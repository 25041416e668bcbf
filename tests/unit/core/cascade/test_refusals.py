"""What a cascade refuses, and what it says of products that were taken back alone or half way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.cascade import steps
from lakehouse_backfill.core.cascade.plan import Cascade
from lakehouse_backfill.core.cascade.visibility import require_whole_rollback
from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.publication import rollback
from lakehouse_backfill.core.publication.groups import rollbacks
from lakehouse_backfill.core.publication.publish import publish, publish_with_catch_up
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.retention.maintain import gather_facts
from lakehouse_backfill.core.retention.policy import decide_retention
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.results.cascades import CascadeResult
from tests.unit.core.cascade.test_cascades import GRAPH, World

pytestmark = pytest.mark.req("P4")
S = RunState


class KilledError(BaseException):
    """The process ends here."""


def told(world: World, found: Cascade) -> tuple[str, str, str | None]:
    """What `status` says: state, what readers see, next command."""
    result = CascadeResult.of(found, steps.cascade_members(world.context, found), {})
    return result.state, result.readers_see, result.next_command


def ways(world: World, *products: str) -> dict[str, RollbackTarget]:
    return {one: rollback.plan_rollback(world.context, one, None, ()) for one in products}


def roll_back(world: World, *products: str) -> None:
    contracts = ((world.contracts[one], way) for one, way in ways(world, *products).items())
    rollbacks.rollback_together(world.context, tuple(contracts), "wrong", "ana")


def published() -> tuple[World, Cascade]:
    world = World()
    found = world.accepted()
    steps.publish_cascade(world.context, found, "bob")
    return world, found


@pytest.mark.req("U2")
def test_no_pinned_product_is_rolled_back_alone() -> None:
    world, found = published()
    for products in (["s.a"], ["s.r", "s.b"]):
        with pytest.raises(errors.Blocked, match=r"readers would see a mix with s\.") as refused:
            require_whole_rollback(world.context, ways(world, *products))
        assert refused.value.fix.startswith(f"lakehouse-backfill rollback {found.cascade_id}")
    require_whole_rollback(world.context, ways(world, "s.r", "s.a", "s.b"))


def test_a_run_of_no_cascade_and_a_followed_one_are_rolled_back_alone() -> None:
    world = World("follow")
    found = world.accepted()
    steps.publish_cascade(world.context, found, "bob")
    require_whole_rollback(world.context, ways(world, "s.a"))


def test_a_run_whose_plan_was_edited_keeps_nothing_at_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = published()
    found = ways(world, "s.a")

    def edited(run_id: str) -> Any:
        raise errors.Tampered(f"the plan of {run_id} was edited")

    monkeypatch.setattr(world.context.runs, "plan", edited)
    require_whole_rollback(world.context, found)


@pytest.mark.req("U2")
def test_what_was_rolled_back_in_part_goes_back_as_a_whole_before_it_is_published() -> None:
    world, found = published()
    roll_back(world, "s.a")
    state, seen, command = told(world, found)
    assert (state, seen) == ("rolled back in part", "the new versions of 2 of 3 products")
    assert command == f"lakehouse-backfill rollback {found.cascade_id} --reason TEXT"
    with pytest.raises(errors.Blocked, match="some pinned products"):
        steps.publish_cascade(world.context, found, "bob")
    (left,) = steps.products_to_roll_back(world.context, found)
    roll_back(world, *left)
    steps.publish_cascade(world.context, found, "bob")
    assert world.states(found) == [S.PUBLISHED] * 3


def test_a_rollback_that_was_cut_off_is_told_and_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    world, found = published()

    def die(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(rollback, "show_and_align", die)
        with pytest.raises(KilledError):
            roll_back(world, "s.r", "s.a", "s.b")
    assert told(world, found) == (
        "rollback cut off", "the accepted versions as before", "lakehouse-backfill recover --all",
    )  # fmt: skip
    with pytest.raises(errors.Conflict, match="a rollback was cut off") as refused:
        steps.products_to_roll_back(world.context, found)
    assert "recover --all" in refused.value.fix
    recover(world.context, None, "bob")
    assert world.states(found) == [S.ROLLED_BACK] * 3
    assert steps.products_to_roll_back(world.context, found) == ()


def test_what_readers_see_follows_the_pointers_not_the_states_of_the_runs() -> None:
    world, found = published()
    for run in found.run_ids:
        status = world.context.runs.status(run)
        plan = world.context.runs.plan(run)
        world.context.move(status, plan, "roll back", "bob", reason="a state that is behind")
    assert told(world, found)[1] == "the new versions of all products"


@pytest.mark.req("U11")
def test_a_shadow_that_an_open_run_of_the_cascade_reads_is_kept() -> None:
    world = World("follow")
    found = world.accepted()
    root, reader, _ = found.plans
    publish(world.context, root.run_id, "bob")
    for closed, gone in (([], []), (found.run_ids[1:], [root.shadow_table])):
        for run in closed:
            publish(world.context, run, "bob")
        facts = gather_facts(world.context, world.contracts, "s.r", "rows to be erased")
        decision = decide_retention(facts)
        kept = {item.name: item.because for item in decision.kept}
        retired = [item.name for item in decision.retired if item.kind == "shadow"]
        assert [name for name in retired if name == root.shadow_table] == gone
        if not closed:
            assert kept[root.shadow_table] == f"{reader.run_id}, which is accepted, reads it"


def test_a_cascade_that_is_cancelled_half_way_names_no_command_that_does_nothing() -> None:
    world = World("follow")
    found = world.accepted()
    publish(world.context, found.run_ids[0], "bob")
    steps.cancel_cascade(world.context, found, "ana", "no")
    assert told(world, found) == ("cancelled in part", "the new versions of 1 of 3 products", None)
    with pytest.raises(errors.Conflict, match="is cancelled") as refused:
        steps.publish_cascade(world.context, found, "bob")
    assert refused.value.fix.startswith("lakehouse-backfill cancel")
    assert steps.products_to_roll_back(world.context, found) == (("s.r",),)


def _declares(world: World, product: str, **changes: Any) -> None:
    """Let the run of a product differ by `changes` from what it is."""
    plain = world.run_of

    def run_of(one: str, *reads: str, **given: Any) -> Any:
        return plain(one, *reads, **given | (changes if one == product else {}))

    world.run_of = run_of  # type: ignore[method-assign]


@pytest.mark.parametrize("product", ["s.r", "s.b"])
def test_a_run_that_is_never_published_is_refused(product: str) -> None:
    world = World("follow")
    _declares(world, product, run={"mode": "dry_run"})
    with pytest.raises(errors.Unsupported, match=rf"of {product} asks for a run that is never"):
        world.make()


def test_the_first_run_reads_nothing_downstream_of_itself() -> None:
    world = World()
    plain = world.run_of
    world.run_of = lambda one, *reads, **given: plain(  # type: ignore[method-assign]
        one, *(reads or ("s.b",) * (one == "s.r")), **given
    )
    with pytest.raises(errors.ConfigError, match=r"s\.r reads s\.b as b"):
        world.make()


@pytest.mark.req("D4")
def test_a_version_that_the_old_rows_name_is_not_replaced_by_a_candidate() -> None:
    world = World(a={"mapping": "all"})
    reference = {"rates": {"table": "s.r", "semantics": "as_recorded"}}
    _declares(world, "s.a", reference_data=reference)
    with pytest.raises(errors.ConfigError, match="a fixed state of it would not change") as refused:
        world.make()
    assert refused.value.field == "reference_data.rates.semantics"


@pytest.mark.req("D4")
def test_a_version_that_the_old_rows_name_is_not_replaced_by_the_accepted_one() -> None:
    world = World()
    times = world.lake.tables["s.other"].times
    times[0] -= timedelta(days=1)
    other = world.accepted_version_of("s.other")
    pins = {}
    for semantics in ("as_recorded", "corrected_truth"):
        world.run_of = World.run_of.__get__(world)  # type: ignore[method-assign]
        reference = {"rates": {"table": "s.other", "semantics": semantics}}
        _declares(world, "s.b", reference_data=reference)
        (pin,) = (one for one in world.make().plans[2].resolved.sources if one.name == "rates")
        pins[semantics] = (pin.table, pin.snapshot_id)
    assert pins == {"as_recorded": ("s.other", 1), "corrected_truth": other}


def test_what_a_person_rejected_is_cancelled_and_not_judged_again() -> None:
    world = World()
    found = world.accepted()
    decisions.reject(world.context, found.run_ids[0], "ana", "no")
    with pytest.raises(errors.ChecksFailed, match="is rejected") as refused:
        steps.run_cascade(world.context, found, "bob")
    assert refused.value.fix == (
        f"a person rejected it: lakehouse-backfill cancel {found.cascade_id}, then plan the "
        "cascade again"
    )


def test_a_run_names_the_command_of_its_cascade_where_its_own_would_be_refused() -> None:
    world = World("follow")
    found = world.accepted()
    run = found.run_ids[1]

    def named() -> str | None:
        status = world.context.runs.status(run)
        return summarise_run_safety(world.context, status, look=True).next_command

    assert named() == f"lakehouse-backfill publish {found.cascade_id}"
    world.lake.write("s.a", "2020-01-02", "live")
    assert named() == (
        f"lakehouse-backfill cancel {found.cascade_id}   # its partitions changed since it was "
        "planned; then plan it again"
    )


def test_a_run_of_a_cascade_is_never_told_to_be_published_revised_or_planned_alone() -> None:
    world = World()
    found = world.accepted()
    cascade = found.cascade_id

    def named(*, look: bool) -> set[str]:
        context = world.context
        statuses = [context.runs.status(run) for run in found.run_ids]
        lines = {summarise_run_safety(context, one, look=look).next_command for one in statuses}
        return {line.removeprefix("lakehouse-backfill ") for line in lines}

    corrected = "once manifest or code is corrected; then plan it again"
    assert named(look=False) == named(look=True) == {f"publish {cascade}"}
    steps.reject_cascade(world.context, found, "ana", "no")
    assert named(look=False) == named(look=True) == {f"cancel {cascade}   # {corrected}"}
    steps.cancel_cascade(world.context, found, "ana", "no")
    assert named(look=False) == named(look=True) == {f"status {cascade}"}


@pytest.mark.parametrize("place", [0, 1])
def test_a_run_that_meets_live_commits_is_not_revised_alone(place: int) -> None:
    world = World("follow")
    for product in GRAPH:
        _declares(world, product, safety={"on_conflict": "catch_up"})
    found = world.accepted()
    for run in found.run_ids[:place]:
        publish(world.context, run, "bob")
    product, run = found.plans[place].product, found.run_ids[place]
    world.lake.write(product, "2020-01-02", "live")
    for act in (
        lambda: publish_with_catch_up(world.context, run, "bob"),
        lambda: steps.publish_cascade(world.context, found, "bob"),
    ):
        with pytest.raises(errors.TargetChanged) as refused:
            act()
        assert refused.value.fix == (
            f"lakehouse-backfill cancel {found.cascade_id}, then plan the cascade again"
        )
    assert state_is_open(world, run)


def state_is_open(world: World, run: str) -> bool:
    return world.context.runs.status(run).state is S.ACCEPTED
