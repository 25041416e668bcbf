"""Chains of publications, and how a publication freezes its target."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.job_code import MAX_ARCHIVED_CHARACTERS
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication import publication
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.checks import MeasureTotal
from lakehouse_backfill.domain.guards.safety import PublishWindow
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.tables.commits import CommitResult, RevertRequest
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.kills import Killed, killed_at, other_process
from tests.support.fakes.lake import FakeLake

PINNED = contract(publication="pinned")
WATCHED = contract(
    measures=[{"name": "amounts", "sum": "amount"}],
    thresholds=[{"measure": "amounts", "max_change": 0.2}],
)


def _pinned(first: str, stop: str) -> Any:
    return declared(first, stop, contract=PINNED, target={"publish_mode": "pointer_swap"})


def _files(where: FakeLake, day: str) -> frozenset[str]:
    table = where.tables[PRODUCT]
    return table.content(table.head)[day]


def _readers_see(where: FakeLake, found: Context, day: str) -> frozenset[str]:
    accepted = resolve_accepted(found, PINNED, strict=True)
    return where.tables[accepted.table].content(accepted.snapshot_id)[day]


class _Failing(FakeLake):
    """A lake whose swaps fail with `error`, before or after they landed."""

    error: BaseException
    is_late = False

    def adopt(self, request: Any) -> CommitResult:
        return self._fail(super().adopt, request)

    def revert(self, request: RevertRequest) -> CommitResult:
        return self._fail(super().revert, request)

    def _fail(self, swap: Any, request: Any) -> CommitResult:
        if self.is_late:
            swap(request)
        raise self.error


def _failing(found: Context, error: BaseException, *, late: bool = False) -> Context:
    where = _Failing(found.publisher.tables, found.publisher.calls)
    where.error, where.is_late = error, late
    return dataclasses.replace(found, publisher=where)


def _killed_before_the_last_event(found: Context, run_id: str) -> None:
    with pytest.raises(Killed), killed_at("Evidence.record:before"):
        publish(other_process(found), run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.PUBLISHING


@pytest.mark.req("U13")
def test_a_pinned_run_that_does_not_contain_what_was_accepted_since_is_refused() -> None:
    where, found = steps.world()
    first = steps.accepted_run(found, _pinned("2020-01-01", "2020-01-02"))
    second = steps.accepted_run(found, _pinned("2020-01-04", "2020-01-05"))
    publish(found, first, "bob")
    with pytest.raises(errors.PointerMoved, match="does not contain"):
        publish(found, second, "bob")
    assert _readers_see(where, found, "2020-01-01") == {f"{first}/2020-01-01"}
    assert steps.state_of(found, second) is RunState.ACCEPTED


@pytest.mark.req("U13")
def test_a_first_pinned_publication_over_later_writes_is_refused() -> None:
    where, found = steps.world()
    run_id = steps.accepted_run(found, _pinned("2020-01-01", "2020-01-02"))
    where.write(PRODUCT, "2020-01-05", "live")
    with pytest.raises(errors.PointerMoved):
        publish(found, run_id, "bob")


@pytest.mark.req("U13")
def test_a_pinned_run_starts_from_the_accepted_snapshot_not_from_the_head() -> None:
    where, found = steps.world()
    steps.published_run(found, _pinned("2020-01-01", "2020-01-02"))
    steps.roll_back(found, of=PINNED)
    where.write(PRODUCT, "2020-01-05", "never accepted")
    plan = make_plan(found, _pinned("2020-01-02", "2020-01-03"), "bob", None)
    assert plan.resolved.target.snapshot_id == 1


@pytest.mark.req("U12")
def test_a_pinned_product_cannot_go_back_in_some_partitions_only() -> None:
    where, found = steps.world()
    run_id = steps.published_run(found, _pinned("2020-01-01", "2020-01-03"))
    with pytest.raises(errors.Unsupported, match="all partitions at once"):
        steps.roll_back(found, None, ("2020-01-01",), of=PINNED)
    assert _readers_see(where, found, "2020-01-02") == {f"{run_id}/2020-01-02"}


@pytest.mark.req("U12")
def test_a_reinstated_version_that_is_rolled_back_again_can_be_published_again() -> None:
    where, found = steps.world()
    run_id = steps.published_run(found)
    for version in (0, 1, 0):
        steps.roll_back(found, version)
    assert steps.state_of(found, run_id) is RunState.ROLLED_BACK
    assert publish(found, run_id, "bob").was_published is False
    assert _files(where, "2020-01-02") == {f"{run_id}/2020-01-02"}


@pytest.mark.req("U12")
def test_going_back_to_a_version_reinstates_every_run_that_readers_see_at_it() -> None:
    _, found = steps.world()
    runs = [steps.accepted_run(found)]
    publish(found, runs[0], "bob")
    runs.append(steps.accepted_run(found, declared("2020-01-04", "2020-01-05")))
    publish(found, runs[1], "bob")
    steps.roll_back(found, 0)
    assert [steps.state_of(found, run_id) for run_id in runs] == [RunState.ROLLED_BACK] * 2
    steps.roll_back(found, 2)
    assert [steps.state_of(found, run_id) for run_id in runs] == [RunState.PUBLISHED] * 2


@pytest.mark.req("U12")
def test_a_run_that_could_not_be_published_again_is_reinstated_by_its_version() -> None:
    _, found = steps.world()
    run_id = steps.published_run(found)
    steps.roll_back(found)
    with pytest.raises(errors.NotFound):
        publish(_failing(found, errors.NotFound("a file is gone")), run_id, "bob")
    steps.roll_back(found, 1)
    assert steps.state_of(found, run_id) is RunState.PUBLISHED


@pytest.mark.req("U1")
def test_a_publication_whose_files_are_gone_gives_its_version_back() -> None:
    _, found = steps.world()
    run_id = steps.accepted_run(found)
    with pytest.raises(errors.NotFound):
        publish(_failing(found, errors.NotFound("a file is gone")), run_id, "bob")
    assert steps.pending_of(found) is None
    assert steps.state_of(found, run_id) is RunState.ACCEPTED


@pytest.mark.req("U12")
@pytest.mark.parametrize(
    "error", [errors.Unsupported("delete files"), errors.ChecksFailed("no")], ids=str
)
def test_a_rollback_that_is_refused_gives_its_version_back(error: errors.BackfillError) -> None:
    _, found = steps.world()
    steps.published_run(found)
    with pytest.raises(type(error)):
        steps.roll_back(_failing(found, error))
    assert steps.pending_of(found) is None


@pytest.mark.req("U12")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), errors.OutcomeUnknown("?")], ids=repr)
@pytest.mark.parametrize("late", [False, True], ids=["before the swap", "after the swap"])
def test_a_rollback_that_was_cut_off_is_finished_by_the_same_call(error, late) -> None:
    where, found = steps.world()
    run_id = steps.published_run(found)
    with pytest.raises(type(error)):
        steps.roll_back(_failing(found, error, late=late))
    with pytest.raises(errors.PointerMoved, match="is being rolled back"):
        steps.roll_back(found, None, ("2020-01-02",))
    snapshots = len(where.tables[PRODUCT].contents)
    assert steps.roll_back(found).publication.version == 0
    assert len(where.tables[PRODUCT].contents) == snapshots + (not late)
    assert _files(where, "2020-01-02") == {"old-2"}
    assert steps.state_of(found, run_id) is RunState.ROLLED_BACK


@pytest.mark.req("U12")
def test_a_rollback_that_moved_the_pointer_but_did_not_tell_the_run_is_made_good() -> None:
    _, found = steps.world()
    run_id = steps.published_run(found)
    way = plan_rollback(found, PRODUCT, None, ())
    untold = dataclasses.replace(way, runs_rolled_back=(), runs_reinstated=())
    rollback(found, contract(), untold, "killed before it told the run", "ana")
    assert publish(found, run_id, "bob").publication.version == 2


@pytest.mark.req("U1")
def test_a_publication_cut_off_before_the_last_event_is_finished_after_another_one() -> None:
    _, found = steps.world()
    run_id = steps.accepted_run(found)
    other = steps.accepted_run(found, declared("2020-01-04", "2020-01-05"))
    _killed_before_the_last_event(found, run_id)
    publish(found, other, "bob")
    done = publish(found, run_id, "bob")
    assert (done.was_published, done.publication.version) == (True, 1)
    assert steps.state_of(found, run_id) is RunState.PUBLISHED


@pytest.mark.req("U12")
def test_the_rollback_of_a_publication_cut_off_before_the_last_event_reaches_its_run() -> None:
    _, found = steps.world()
    run_id = steps.accepted_run(found)
    _killed_before_the_last_event(found, run_id)
    steps.roll_back(found)
    assert steps.state_of(found, run_id) is RunState.ROLLED_BACK


@pytest.mark.req("V3")
def test_a_revision_of_what_cannot_be_revised_registers_nothing() -> None:
    _, found = steps.world()
    other = contract(product="silver.other", table=PRODUCT)
    run_id = steps.staged_run(found, declared(contract=other, product="silver.other"))
    with pytest.raises(errors.NotFound):
        make_plan(found, declared(), "bob", "bf-unknown")
    with pytest.raises(errors.ConfigError, match="cannot revise"):
        make_plan(found, declared(), "bob", run_id)
    decisions.cancel(found, run_id, "ana", "")
    with pytest.raises(errors.IllegalMove):
        make_plan(found, declared(contract=other, product="silver.other"), "bob", run_id)


@pytest.mark.req("E5")
def test_other_code_than_was_planned_is_neither_staged_nor_validated_if_none_was_kept() -> None:
    where = lake()
    found = context(where, file_text=lambda file: "x" * (MAX_ARCHIVED_CHARACTERS + 1))
    edited = dataclasses.replace(found, code_hash=lambda file: "edited")
    run_id = steps.approved_run(found)
    with pytest.raises(errors.ApprovalMissing, match="changed since"):
        stage(edited, run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.APPROVED
    assert where.calls.count("open shadow") == 0
    stage(found, run_id, "bob")
    with pytest.raises(errors.ApprovalMissing, match="changed since"):
        validate(edited, run_id, "bob")


@pytest.mark.req("E5")
def test_a_candidate_that_changed_after_it_was_accepted_is_validated_and_accepted_again() -> None:
    where, found = steps.world()
    run_id = steps.accepted_run(found)
    shadow = where.tables[found.runs.plan(run_id).shadow_table]
    shadow.commit(shadow.content(shadow.head))
    with pytest.raises(errors.ApprovalMissing, match="changed after validation"):
        publish(found, run_id, "bob")
    validate(found, run_id, "bob")
    with pytest.raises(errors.IllegalMove):
        publish(found, run_id, "bob")
    decisions.accept(found, run_id, "ana", "")
    assert publish(found, run_id, "bob").publication.version == 1


def _totals(where: FakeLake, old: float | None, new: float) -> Context:
    found = context(where)
    found.compute().totals = lambda *_: (MeasureTotal(name="amounts", old=old, new=new),)
    return found


@pytest.mark.req("Q6")
def test_a_first_publication_passes_the_thresholds_of_change() -> None:
    where = lake()
    where.tables.pop(PRODUCT)
    found = _totals(where, None, 100)
    watched = WATCHED.model_copy(update={"lineage_columns": False})
    run_id = steps.staged_run(found, declared(contract=watched))
    assert validate(found, run_id, "bob")[1].passed


@pytest.mark.req("Q6")
@pytest.mark.parametrize("new", [float("nan"), float("inf")])
def test_a_total_that_is_no_number_fails_its_threshold_and_is_stored(new: float) -> None:
    found = _totals(lake(), 1.0, new)
    run_id = steps.staged_run(found, declared(contract=WATCHED))
    status, result, _ = validate(found, run_id, "bob")
    assert status.state is RunState.REJECTED
    assert result.totals[0].new == ("NaN" if new != new else "Infinity")


class _NoViews:
    """A catalog that keeps no views."""

    def show(self, view: str, table: str, snapshot_id: int | None) -> None:
        raise errors.Unsupported(f"{view} was not made")


@dataclass
class ViewsDown:
    """Views of a catalog that may be out of reach; what was shown."""

    is_down: bool = False
    shown: list[int | None] = field(default_factory=list)

    def show(self, view: str, table: str, snapshot_id: int | None) -> None:
        if self.is_down:
            raise errors.EnvironmentDown(f"{view} was not made")
        self.shown.append(snapshot_id)


@pytest.mark.req("U13")
def test_a_view_that_cannot_be_made_leaves_no_run_half_way() -> None:
    viewed = contract(view="silver.daily_accepted")
    found = context(lake(), views=_NoViews())
    run_id = steps.accepted_run(found, declared(contract=viewed))
    with pytest.raises(errors.Unsupported):
        publish(found, run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.PUBLISHED
    with pytest.raises(errors.Unsupported):
        steps.roll_back(found, of=viewed)
    assert steps.state_of(found, run_id) is RunState.ROLLED_BACK


@pytest.mark.req("U13", "U2")
def test_a_rollback_that_was_cut_off_before_its_view_is_named_and_recovered() -> None:
    views = ViewsDown()
    viewed = contract(view="silver.daily_accepted")
    found = context(lake(), views=views)
    run_id = steps.accepted_run(found, declared(contract=viewed))
    publish(found, run_id, "bob")
    views.is_down = True
    with pytest.raises(errors.EnvironmentDown):
        steps.roll_back(found, of=viewed)
    with pytest.raises(errors.Blocked, match=f"{run_id} was not told") as again:
        steps.roll_back(found, of=viewed, to=0)
    assert again.value.fix == f"lakehouse-backfill recover {run_id}"
    views.is_down = False
    shown = len(views.shown)
    (outcome,) = recover(found, run_id, "bob")
    assert (outcome.action, outcome.result) == ("tell the run", "rolled_back")
    assert len(views.shown) == shown + 1
    with pytest.raises(errors.Blocked) as done:
        steps.roll_back(found, of=viewed, to=0)
    assert done.value.fix == f"lakehouse-backfill versions {PRODUCT}"


CASES = [
    ("09:00", "17:00", "08:59", "09:00"),
    ("09:00", "17:00", "09:00", None),
    ("09:00", "17:00", "16:59", None),
    ("09:00", "17:00", "17:00", "tomorrow 09:00"),
    ("22:00", "04:00", "23:30", None),
    ("22:00", "04:00", "00:00", None),
    ("22:00", "04:00", "03:59", None),
    ("22:00", "04:00", "04:00", "22:00"),
    ("22:00", "04:00", "21:59", "22:00"),
    ("06:00", "06:00", "05:59", None),
]


@pytest.mark.req("U11")
@pytest.mark.parametrize(("first", "last", "now", "opens"), CASES)
def test_a_window_says_when_it_opens_next(first, last, now, opens) -> None:
    window = PublishWindow.model_validate({"from": first, "to": last})
    found = publication.next_opening(window, _at(2, now))
    wanted = None if opens is None else _at(3 if "tomorrow" in opens else 2, opens[-5:])
    assert found == wanted


def _at(day: int, clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-0{day}T{clock}").replace(tzinfo=timezone.utc)
