"""Features that were built apart keep each other's promises, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication import rollback
from lakehouse_backfill.core.publication.publish import (
    publish,
    publish_together,
    publish_with_catch_up,
)
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback_together
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.core.versions.accepted import resolve_accepted
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ChecksFailed, PointerMoved, TargetChanged
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.rollout import accepted_run

DAYS = ("2020-01-02", "2020-01-03")
SUITE = "after.json"
SCOPE = {"column": "day", "from": DAYS[0], "to": "2020-01-04"}
ROLLS_BACK = {"suites": [{"file": SUITE}], "on_failed": "rollback"}


def _content(where: FakeLake) -> dict[str, frozenset[str]]:
    table = where.tables[PRODUCT]
    return table.content(table.head)


def _state(found: Context, run_id: str) -> RunState:
    return found.runs.status(run_id).state


def _called(found: Context) -> list[tuple[str, str]]:
    assert isinstance(found.hooks, FakeHooks)
    return [(name, str(message.get("outcome", ""))) for name, message in found.hooks.calls]


def _stepwise(**terms: Any) -> Any:
    target = {"partitions": SCOPE, "progressive": {"suites": [{"file": "step.json"}]}}
    return declared(target=target, contract=contract(**terms))


def _back(found: Context, to: int | None, only: tuple[str, ...] = (), **terms: Any) -> None:
    terms_ = contract(**terms)
    rollback.rollback(found, terms_, plan_rollback(found, PRODUCT, to, only), "wrong", "ana")


@pytest.mark.req("U6", "U14")
def test_a_failed_check_after_a_rollout_takes_all_its_steps_back() -> None:
    compute = FakeCompute(lake(), bad_suites={SUITE})
    found = context(compute.lake, compute)
    before = _content(compute.lake)
    run_id = accepted_run(found, _stepwise(after_publish=ROLLS_BACK))
    with pytest.raises(ChecksFailed, match="checks after publish failed"):
        publish(found, run_id, "bob")
    assert _content(compute.lake) == before
    assert _state(found, run_id) is RunState.ROLLED_BACK


@pytest.mark.req("U6", "U14")
def test_the_checks_after_a_rollout_look_at_all_its_steps() -> None:
    compute = FakeCompute(lake())
    asked: list[tuple[str, ...]] = []
    through = compute.diff

    def diff(request: Any) -> Any:
        asked.append(request.scope.partitions)
        return through(request)

    compute.diff = diff  # type: ignore[method-assign]
    found = context(compute.lake, compute)
    run_id = accepted_run(found, _stepwise(after_publish={}))
    asked.clear()
    publish(found, run_id, "bob")
    assert asked == [DAYS]


@pytest.mark.req("U6", "U15")
def test_a_rollout_that_a_check_halts_calls_on_halt_at_once() -> None:
    compute = FakeCompute(lake(), bad_suites={"step.json"})
    found = context(compute.lake, compute)
    hooks = [{"name": "page", "on": "on_halt", "command": ["page"]}]
    run_id = accepted_run(found, _stepwise(hooks=hooks))
    with pytest.raises(ChecksFailed):
        publish(found, run_id, "bob")
    assert _called(found) == [("page", "")]


@pytest.mark.req("U6", "U15")
def test_nobody_is_told_that_a_halted_rollout_is_published() -> None:
    compute = FakeCompute(lake(), bad_suites={"step.json"})
    found = context(compute.lake, compute)
    hooks = [{"name": "resume", "on": "after_publish", "command": ["resume"]}]
    run_id = accepted_run(found, _stepwise(hooks=hooks))
    with pytest.raises(ChecksFailed):
        publish(found, run_id, "bob")
    assert recover(found, None, "ana") == ()
    assert _called(found) == []
    compute.bad_suites.clear()
    publish(found, run_id, "bob")
    assert _called(found) == [("resume", "published")]


@pytest.mark.req("U11", "U14")
def test_a_rollback_after_publish_that_is_refused_is_told_and_plans_no_revision() -> None:
    """A live commit lands between the publication and the rollback that its checks ask for."""

    class Late(FakeCompute):
        def snapshot(self, *arguments: Any) -> Any:
            self.lake.write(PRODUCT, DAYS[0], "live")
            return super().snapshot(*arguments)

    compute = Late(lake(), bad_suites={SUITE})
    found = context(compute.lake, compute)
    hooks = [{"name": "resume", "on": "after_publish", "command": ["resume"]}]
    terms = contract(after_publish=ROLLS_BACK, hooks=hooks)
    run_id = accepted_run(found, declared(contract=terms, safety={"on_conflict": "catch_up"}))
    with pytest.raises(ChecksFailed) as failed:
        publish_with_catch_up(found, run_id, "bob")
    assert "could not be rolled back" in failed.value.state
    assert [status.run_id for status in found.runs.list(open_only=False)] == [run_id]
    assert _state(found, run_id) is RunState.PUBLISHED
    assert _called(found) == [("resume", "published")]


def _versioned(found: Context, product: str) -> str:
    target = {"publish_mode": "versioned", "partitions": SCOPE}
    terms = contract(product=product, table=product, publication="pinned")
    return accepted_run(found, declared(contract=terms, product=product, target=target))


@pytest.mark.req("U2", "U7")
def test_versions_that_become_visible_together_are_named_by_their_numbers() -> None:
    where = lake()
    for product in ("gold.a", "gold.b"):
        where.add(product, **dict.fromkeys(DAYS, "old"))
    found = context(where)
    first = _versioned(found, "gold.a")
    publish(found, first, "bob")
    again = register_plan(found, make_plan(found, _declared_again(), "bob", None), "bob")[0].run_id
    _accept(found, again)
    done = publish_together(found, (again, _versioned(found, "gold.b")), "bob")
    rows = [item.publication for item in done.values()]
    assert [(row.table, row.version) for row in rows] == [("gold.a_v2", 2), ("gold.b_v1", 1)]


def _declared_again() -> Any:
    target = {"publish_mode": "versioned", "partitions": SCOPE}
    terms = contract(product="gold.a", table="gold.a", publication="pinned")
    return declared(contract=terms, product="gold.a", target=target)


def _accept(found: Context, run_id: str) -> None:
    decisions.approve(found, run_id, "ana", "")
    stage(found, run_id, "bob")
    validate(found, run_id, "bob")
    decisions.accept(found, run_id, "ana", "")


@pytest.mark.req("U2", "U14")
def test_a_failed_check_of_one_product_leaves_no_other_untold() -> None:
    compute = FakeCompute(lake(), bad_suites={SUITE})
    for product in ("gold.a", "gold.b"):
        compute.lake.add(product, **dict.fromkeys(DAYS, "old"))
    found = context(compute.lake, compute)
    hooks = [{"name": "resume", "on": "after_publish", "command": ["resume"]}]
    runs = []
    for product, more in (
        ("gold.a", {"after_publish": {"suites": [{"file": SUITE}]}}),
        ("gold.b", {}),
    ):
        terms = contract(product=product, table=product, publication="pinned", hooks=hooks, **more)
        target = {"publish_mode": "pointer_swap", "partitions": SCOPE}
        runs.append(accepted_run(found, declared(contract=terms, product=product, target=target)))
    with pytest.raises(ChecksFailed):
        publish_together(found, tuple(runs), "bob")
    assert _called(found) == [("resume", "published")] * 2


@pytest.mark.req("U2", "U13")
def test_pointers_never_go_back_together_to_a_version_that_was_let_go_meanwhile() -> None:
    from lakehouse_backfill.core.versions import retention

    where = lake()
    where.add("gold.a", **dict.fromkeys(DAYS, "old"))
    found = context(where)
    terms = contract(product="gold.a", table="gold.a", publication="pinned")
    target = {"publish_mode": "pointer_swap", "partitions": SCOPE}
    run_id = accepted_run(found, declared(contract=terms, product="gold.a", target=target))
    publish(found, run_id, "bob")
    way = plan_rollback(found, "gold.a", None, ())
    gone = retention.expiration_rows("gold.a", {0: "old"}, found.clock.now(), "ana")
    found.versions.move("gold.a", lambda pointer: gone)
    with pytest.raises(PointerMoved, match="have expired meanwhile"):
        rollback_together(found, ((terms, way),), "wrong", "ana")


@pytest.mark.req("U10", "U13")
def test_recover_finishes_a_rollback_of_a_rollback() -> None:
    where = lake()
    found = context(where)
    run_id = accepted_run(found, declared())
    publish(found, run_id, "bob")
    published = _content(where)
    _back(found, None, (DAYS[0],))

    class Dies(FakeLake):
        def revert(self, request: Any) -> Any:
            raise KeyboardInterrupt

    dying = dataclasses.replace(found, publisher=Dies(where.tables), driver="here:dead")
    with pytest.raises(KeyboardInterrupt):
        _back(dying, 1)
    (done,) = recover(found, None, "ana")
    assert (done.action, done.is_done) == ("finish the rollback", True), done.result
    assert _content(where) == published


def _people(**terms: Any) -> tuple[FakeLake, Context, Any]:
    """A run that gives one day a person whom it did not have before."""
    compute = FakeCompute(lake())
    compute.lake.write(PRODUCT, DAYS[0], "eva@old")
    compute.keys[DAYS[0]] = {"eva@new", "max@new"}
    return compute.lake, context(compute.lake, compute), contract(**terms)


@pytest.mark.req("E3")
def test_a_row_deleted_while_a_run_was_visible_stays_deleted_when_it_is_published_again() -> None:
    where, found, terms = _people(deletions="reapply")
    run_id = accepted_run(found, declared(contract=terms))
    publish(found, run_id, "bob")
    where.write(PRODUCT, DAYS[0], "eva@new")
    _back(found, None, deletions="reapply")
    with pytest.raises(TargetChanged, match="deleted"):
        publish(found, run_id, "bob")
    assert not any("max" in name for name in _content(where)[DAYS[0]])
    assert found.versions.pointer(PRODUCT).pending is None


@pytest.mark.req("U13")
def test_a_run_that_was_rolled_back_is_published_again_when_nobody_deleted_rows_of_it() -> None:
    where, found, terms = _people(deletions="reapply")
    run_id = accepted_run(found, declared(contract=terms))
    publish(found, run_id, "bob")
    seen = _content(where)
    _back(found, None, deletions="reapply")
    publish(found, run_id, "bob")
    assert _content(where) == seen


@pytest.mark.req("E3")
def test_a_pinned_product_does_not_go_back_to_rows_that_tombstones_name() -> None:
    where = lake()
    where.write(PRODUCT, DAYS[0], "eva@old", "max@old")
    where.add("privacy.gone", all="nobody")
    compute = FakeCompute(where)
    compute.keys[DAYS[0]] = {"eva@new"}
    found = context(where, compute)
    more = {
        "publication": "pinned",
        "tombstones": [{"table": "privacy.gone", "columns": {"id": "id"}}],
    }
    target = {"publish_mode": "pointer_swap", "partitions": SCOPE}
    run_id = accepted_run(found, declared(contract=contract(**more), target=target))
    publish(found, run_id, "bob")
    where.write("privacy.gone", "all", "nobody", "max")
    with pytest.raises(TargetChanged, match="tombstones name"):
        _back(found, None, **more)
    assert found.versions.pointer(PRODUCT).pending is None
    assert _state(found, run_id) is RunState.PUBLISHED


@pytest.mark.req("U9", "U13")
def test_a_rollback_past_corrections_that_were_taken_back_looks_at_the_products_table_alone() -> (
    None
):
    where = lake()
    found = context(where)
    before = _content(where)
    found.corrections.tables["silver.events"] = [(f"t-{n}", []) for n in range(10)]  # type: ignore[attr-defined]
    publish(found, accepted_run(found, declared()), "bob")
    events = {
        "publish_mode": "correction_events", "partitions": SCOPE,
        "corrections": {"table": "silver.events"},
    }  # fmt: skip
    publish(found, accepted_run(found, declared(target=events)), "bob")
    _back(found, 1)
    asked: list[int | None] = []
    gone = found.erasing.gone

    def noted(old: Any, new: Any, *more: Any) -> Any:
        asked.extend((old.snapshot_id, new.snapshot_id))
        return gone(old, new, *more)

    found.erasing.gone = noted  # type: ignore[method-assign]
    where.write(PRODUCT, "2020-01-05", "live")
    way = plan_rollback(found, PRODUCT, 0, ())
    rows: list[str] = []
    find = where.find

    def looked(table: str, token: str) -> Any:
        rows.append(table)
        return find(table, token)

    where.find = looked  # type: ignore[method-assign]
    rollback.rollback(found, contract(), way, "wrong", "ana")
    assert _content(where) == before | {"2020-01-05": frozenset({"live"})}
    assert asked == [2, 3]
    assert set(rows) == {PRODUCT}
    pending = [row for row in found.versions.history(PRODUCT) if row.action == "reserve"]
    assert pending[0].table == PRODUCT


@pytest.mark.req("U9", "U14")
def test_correction_events_are_not_compared_with_the_candidate_as_if_they_were_its_rows() -> None:
    compute = FakeCompute(lake())
    asked: list[tuple[str, str]] = []
    through = compute.diff

    def diff(request: Any) -> Any:
        asked.append((request.old_table, request.new_table))
        return through(request)

    compute.diff = diff  # type: ignore[method-assign]
    found = context(compute.lake, compute)
    events = {
        "publish_mode": "correction_events", "partitions": SCOPE,
        "corrections": {"table": "silver.events"},
    }  # fmt: skip
    run_id = accepted_run(found, declared(target=events, contract=contract(after_publish={})))
    asked.clear()
    publish(found, run_id, "bob")
    assert not [pair for pair in asked if "silver.events" in pair]


@pytest.mark.req("U11", "E3")
def test_a_partition_taken_over_by_a_revision_does_not_bring_deleted_rows_back() -> None:
    """They were deleted from another run's output, which was rolled back since."""
    where, found, terms = _people(deletions="reapply")
    follows = {"contract": terms, "safety": {"on_conflict": "catch_up"}}
    mine = accepted_run(found, declared(**follows))
    publish(found, mine, "bob")
    _back(found, None, deletions="reapply")
    why = {"requested_by": "bob", "reason": "another", "reason_code": "bug_fix"}
    other = accepted_run(found, declared(**follows, run=why))
    publish(found, other, "bob")
    where.write(PRODUCT, DAYS[0], "eva@new")
    _back(found, None, deletions="reapply")
    where.write(PRODUCT, DAYS[1], "live")
    with pytest.raises(TargetChanged, match="deleted"):
        publish_with_catch_up(found, mine, "bob")
    assert not any("max" in name for name in _content(where)[DAYS[0]])


@pytest.mark.req("U8")
def test_what_readers_get_is_resolved_without_listing_the_whole_table() -> None:
    """A live append elsewhere must not make every reader pay for a million files."""
    where = lake()
    found = context(where)
    publish(found, accepted_run(found, declared()), "bob")
    where.write(PRODUCT, "2020-01-05", "live")
    listed: list[str] = []
    files = where.files

    def noted(table: str, *more: Any) -> Any:
        listed.append(table)
        return files(table, *more)

    where.files = noted  # type: ignore[method-assign]
    assert resolve_accepted(found, contract(), strict=True).drifted == ()
    where.write(PRODUCT, DAYS[1], "live too")
    assert resolve_accepted(found, contract(), strict=False).drifted == (DAYS[1],)
    assert listed == []


@pytest.mark.req("U2", "U14")
def test_what_became_visible_together_goes_back_together_when_a_check_after_it_fails() -> None:
    compute = FakeCompute(lake(), bad_suites={SUITE})
    for product in ("gold.a", "gold.b"):
        compute.lake.add(product, **dict.fromkeys(DAYS, "old"))
    found = context(compute.lake, compute)
    runs = []
    for product, more in (("gold.a", {}), ("gold.b", {"after_publish": ROLLS_BACK})):
        terms = contract(product=product, table=product, publication="pinned", **more)
        target = {"publish_mode": "pointer_swap", "partitions": SCOPE}
        runs.append(accepted_run(found, declared(contract=terms, product=product, target=target)))
    with pytest.raises(ChecksFailed, match="checks after publish failed"):
        publish_together(found, tuple(runs), "bob")
    pointers = found.versions.pointers(("gold.a", "gold.b"))
    seen = {name: row.accepted.version for name, row in pointers.items() if row.accepted}
    assert seen == {"gold.a": 0, "gold.b": 0}
    assert [_state(found, run) for run in runs] == [RunState.ROLLED_BACK] * 2
