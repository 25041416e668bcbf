"""Features that were built apart keep each other's promises, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.publication.groups.rollbacks import rollback_together
from lakehouse_backfill.core.publication.publish import (
    publish,
    publish_together,
    publish_with_catch_up,
)
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ChecksFailed, PointerMoved, TargetChanged
from tests.support.fakes import steps
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.lake import FakeLake

DAYS = ("2020-01-02", "2020-01-03")
SUITE = "after.json"
RESUME = {"name": "resume", "on": "after_publish", "command": ["resume"]}
EVENTS = {"publish_mode": "correction_events", "corrections": {"table": "silver.events"}}
ROLLS_BACK = {"suites": [{"file": SUITE}], "on_failed": "rollback"}


def _called(found: Context) -> list[tuple[str, str]]:
    assert isinstance(found.hooks, FakeHooks)
    return [(name, str(message.get("outcome", ""))) for name, message in found.hooks.calls]


def _stepwise(**terms: Any) -> Any:
    target = {"progressive": {"suites": [{"file": "step.json"}]}}
    return declared(target=target, contract=contract(**terms))


@pytest.mark.req("U6", "U14")
def test_a_failed_check_after_a_rollout_takes_all_its_steps_back() -> None:
    where, found = steps.world(bad_suites={SUITE})
    before = steps.content_of(where)
    run_id = steps.accepted_run(found, _stepwise(after_publish=ROLLS_BACK))
    with pytest.raises(ChecksFailed, match="checks after publish failed"):
        publish(found, run_id, "bob")
    assert steps.content_of(where) == before
    assert steps.state_of(found, run_id) is RunState.ROLLED_BACK


@pytest.mark.req("U6", "U14")
def test_the_checks_after_a_rollout_look_at_all_its_steps() -> None:
    _, found = steps.world()
    run_id = steps.accepted_run(found, _stepwise(after_publish={}))
    asked = steps.note_calls(found.compute(), "diff")
    publish(found, run_id, "bob")
    assert [request.scope.partitions for (request,) in asked] == [DAYS]


@pytest.mark.req("U6", "U15")
def test_a_halted_rollout_calls_on_halt_and_tells_nobody_that_it_is_published() -> None:
    _, found = steps.world(bad_suites={"step.json"})
    page = {"name": "page", "on": "on_halt", "command": ["page"]}
    run_id = steps.accepted_run(found, _stepwise(hooks=[page, RESUME]))
    with pytest.raises(ChecksFailed):
        publish(found, run_id, "bob")
    assert recover(found, None, "ana") == ()
    assert _called(found) == [("page", "")]
    found.compute().bad_suites.clear()
    publish(found, run_id, "bob")
    assert _called(found) == [("page", ""), ("resume", "published")]


@pytest.mark.req("U11", "U14")
def test_a_rollback_after_publish_that_is_refused_is_told_and_plans_no_revision() -> None:
    """A live commit lands between the publication and the rollback that its checks ask for."""

    class Late(FakeCompute):
        def frame(self, *arguments: Any) -> Any:
            self.lake.write(PRODUCT, DAYS[0], "live")
            return super().frame(*arguments)

    compute = Late(lake(), bad_suites={SUITE})
    found = context(compute.lake, compute)
    terms = contract(after_publish=ROLLS_BACK, hooks=[RESUME])
    run_id = steps.accepted_run(found, declared(contract=terms, safety={"on_conflict": "catch_up"}))
    with pytest.raises(ChecksFailed) as failed:
        publish_with_catch_up(found, run_id, "bob")
    assert "could not be rolled back" in failed.value.state
    assert [status.run_id for status in found.runs.list(open_only=False)] == [run_id]
    assert steps.state_of(found, run_id) is RunState.PUBLISHED
    assert _called(found) == [("resume", "published")]


def _pinned(found: Context, product: str, mode: str = "pointer_swap", **terms: Any) -> str:
    """Accept a run of one of the pinned products."""
    terms = {"product": product, "table": product, "publication": "pinned", **terms}
    target = {"publish_mode": mode}
    return steps.accepted_run(
        found, declared(contract=contract(**terms), product=product, target=target)
    )


def _products(**engine: Any) -> tuple[FakeLake, Context]:
    """A lake with two more products, gold.a and gold.b."""
    where, found = steps.world(**engine)
    for product in ("gold.a", "gold.b"):
        where.add(product, **dict.fromkeys(DAYS, "old"))
    return where, found


@pytest.mark.req("U2")
def test_versions_that_become_visible_together_are_named_by_their_numbers() -> None:
    _, found = _products()
    publish(found, _pinned(found, "gold.a", "versioned"), "bob")
    runs = [_pinned(found, product, "versioned") for product in ("gold.a", "gold.b")]
    done = publish_together(found, tuple(runs), "bob")
    rows = [item.publication for item in done.values()]
    assert [(row.table, row.version) for row in rows] == [("gold.a_v2", 2), ("gold.b_v1", 1)]


@pytest.mark.req("U2", "U14")
def test_a_failed_check_of_one_product_leaves_no_other_untold() -> None:
    _, found = _products(bad_suites={SUITE})
    after = {"suites": [{"file": SUITE}]}
    runs = (_pinned(found, "gold.a", hooks=[RESUME], after_publish=after),
            _pinned(found, "gold.b", hooks=[RESUME]))  # fmt: skip
    with pytest.raises(ChecksFailed):
        publish_together(found, runs, "bob")
    assert _called(found) == [("resume", "published")] * 2


@pytest.mark.req("U2")
def test_pointers_never_go_back_together_to_a_version_that_was_let_go_meanwhile() -> None:
    from lakehouse_backfill.core.versions import retention

    _, found = _products()
    run_id = _pinned(found, "gold.a")
    publish(found, run_id, "bob")
    terms = found.runs.plan(run_id).resolved.contract
    way = plan_rollback(found, "gold.a", None, ())
    gone = retention.expiration_rows("gold.a", {0: "old"}, found.clock.now(), "ana")
    found.versions.move("gold.a", lambda pointer: gone)
    with pytest.raises(PointerMoved, match="have expired meanwhile"):
        rollback_together(found, ((terms, way),), "wrong", "ana")


@pytest.mark.req("U10")
def test_recover_finishes_a_rollback_of_a_rollback() -> None:
    where, found = steps.world()
    steps.published_run(found, declared())
    published = steps.content_of(where)
    steps.roll_back(found, None, (DAYS[0],))

    class Dies(FakeLake):
        def revert(self, request: Any) -> Any:
            raise KeyboardInterrupt

    dying = dataclasses.replace(found, publisher=Dies(where.tables), driver="here:dead")
    with pytest.raises(KeyboardInterrupt):
        steps.roll_back(dying, 1)
    (done,) = recover(found, None, "ana")
    assert (done.action, done.is_done) == ("finish the rollback", True), done.result
    assert steps.content_of(where) == published


def _people(**terms: Any) -> tuple[FakeLake, Context, Any]:
    """A run that gives one day a person whom it did not have before."""
    compute = FakeCompute(lake())
    compute.lake.write(PRODUCT, DAYS[0], "eva@old")
    compute.keys[DAYS[0]] = {"eva@new", "max@new"}
    return compute.lake, context(compute.lake, compute), contract(**terms)


@pytest.mark.req("E3")
def test_a_row_deleted_while_a_run_was_visible_stays_deleted_when_it_is_published_again() -> None:
    where, found, terms = _people(deletions="reapply")
    run_id = steps.published_run(found, declared(contract=terms))
    where.write(PRODUCT, DAYS[0], "eva@new")
    steps.roll_back(found, of=terms)
    with pytest.raises(TargetChanged, match="deleted"):
        publish(found, run_id, "bob")
    assert not any("max" in name for name in steps.content_of(where)[DAYS[0]])
    assert steps.pending_of(found) is None


def test_a_run_that_was_rolled_back_is_published_again_when_nobody_deleted_rows_of_it() -> None:
    where, found, terms = _people(deletions="reapply")
    run_id = steps.published_run(found, declared(contract=terms))
    seen = steps.content_of(where)
    steps.roll_back(found, of=terms)
    publish(found, run_id, "bob")
    assert steps.content_of(where) == seen


@pytest.mark.req("E3")
def test_a_pinned_product_does_not_go_back_to_rows_that_tombstones_name() -> None:
    where = lake()
    where.write(PRODUCT, DAYS[0], "eva@old", "max@old")
    where.add("privacy.gone", all="nobody")
    compute = FakeCompute(where)
    compute.keys[DAYS[0]] = {"eva@new"}
    found = context(where, compute)
    tombstones = [{"table": "privacy.gone", "columns": {"id": "id"}}]
    terms = contract(publication="pinned", tombstones=tombstones)
    target = {"publish_mode": "pointer_swap"}
    run_id = steps.published_run(found, declared(contract=terms, target=target))
    where.write("privacy.gone", "all", "nobody", "max")
    with pytest.raises(TargetChanged, match="tombstones name"):
        steps.roll_back(found, of=terms)
    assert steps.pending_of(found) is None
    assert steps.state_of(found, run_id) is RunState.PUBLISHED


@pytest.mark.req("U9")
def test_a_rollback_past_corrections_that_were_taken_back_looks_at_the_products_table_alone():
    where, found = steps.world()
    before = steps.content_of(where)
    found.corrections.tables["silver.events"] = [(f"t-{n}", []) for n in range(10)]  # type: ignore[attr-defined]
    steps.published_run(found, declared())
    steps.published_run(found, declared(target=EVENTS))
    steps.roll_back(found, 1)
    asked = steps.note_calls(found.row_reader, "deleted_rows")
    where.write(PRODUCT, "2020-01-05", "live")
    way = plan_rollback(found, PRODUCT, 0, ())
    looked = steps.note_calls(where, "find")
    rollback(found, contract(), way, "wrong", "ana")
    assert steps.content_of(where) == before | {"2020-01-05": frozenset({"live"})}
    assert [(old.snapshot_id, new.snapshot_id) for old, new, *_ in asked] == [(2, 3)]
    assert {table for table, *_ in looked} == {PRODUCT}
    pending = [row for row in found.versions.history(PRODUCT) if row.action == "reserve"]
    assert pending[0].table == PRODUCT


@pytest.mark.req("U9", "U14")
def test_correction_events_are_not_compared_with_the_candidate_as_if_they_were_its_rows() -> None:
    _, found = steps.world()
    run_id = steps.accepted_run(found, declared(target=EVENTS, contract=contract(after_publish={})))
    asked = steps.note_calls(found.compute(), "diff")
    publish(found, run_id, "bob")
    assert "silver.events" not in {one.old_table for (one,) in asked} | {
        one.new_table for (one,) in asked
    }


@pytest.mark.req("U11", "E3")
def test_a_partition_taken_over_by_a_revision_does_not_bring_deleted_rows_back() -> None:
    """They were deleted from another run's output, which was rolled back since."""
    where, found, terms = _people(deletions="reapply")
    follows = {"contract": terms, "safety": {"on_conflict": "catch_up"}}
    mine = steps.published_run(found, declared(**follows))
    steps.roll_back(found, of=terms)
    steps.published_run(found, declared(**follows, run={"reason": "another"}))
    where.write(PRODUCT, DAYS[0], "eva@new")
    steps.roll_back(found, of=terms)
    where.write(PRODUCT, DAYS[1], "live")
    with pytest.raises(TargetChanged, match="deleted"):
        publish_with_catch_up(found, mine, "bob")
    assert not any("max" in name for name in steps.content_of(where)[DAYS[0]])


@pytest.mark.req("U13")
def test_what_readers_get_is_resolved_without_listing_the_whole_table() -> None:
    """A live append elsewhere must not make every reader pay for a million files."""
    where, found = steps.world()
    steps.published_run(found, declared())
    where.write(PRODUCT, "2020-01-05", "live")
    listed = steps.note_calls(where, "files")
    assert resolve_accepted(found, contract(), strict=True).drifted == ()
    where.write(PRODUCT, DAYS[1], "live too")
    assert resolve_accepted(found, contract(), strict=False).drifted == (DAYS[1],)
    with pytest.raises(TargetChanged):
        resolve_accepted(found, contract(), strict=True)
    assert listed == []


@pytest.mark.req("U2", "U14")
def test_what_became_visible_together_goes_back_together_when_a_check_after_it_fails() -> None:
    _, found = _products(bad_suites={SUITE})
    runs = (_pinned(found, "gold.a"), _pinned(found, "gold.b", after_publish=ROLLS_BACK))
    with pytest.raises(ChecksFailed, match="checks after publish failed"):
        publish_together(found, runs, "bob")
    pointers = found.versions.pointers(("gold.a", "gold.b"))
    seen = {name: row.accepted.version for name, row in pointers.items() if row.accepted}
    assert seen == {"gold.a": 0, "gold.b": 0}
    assert [steps.state_of(found, run) for run in runs] == [RunState.ROLLED_BACK] * 2
