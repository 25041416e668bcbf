"""Verbs that die between any two side effects, and drivers that are overtaken."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.publication.recover import _find_actions, recover
from lakehouse_backfill.core.publication.rollback import align_run_states
from lakehouse_backfill.core.runs.context import Context, RenewedLease
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import Lease, RunState
from tests.support.fakes import steps
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.kills import Killed, hooked, killed_at, other_process
from tests.support.fakes.lake import FakeLake, FixedClock

PUBLISHED = [
    "2020-01-02 new", "2020-01-03 new", "live", "version 1", "state published", "publications 1",
]  # fmt: skip
BACK = [
    "2020-01-02 old-2", "2020-01-03 old-3", "live", "version 0", "state rolled_back",
    "publications 1",
]  # fmt: skip


def _facts(where: FakeLake, found: Context, run_id: str) -> list[str]:
    """Say what readers and the logs hold, in words."""
    now = steps.content_of(where)
    pointer = found.versions.pointer(PRODUCT)
    assert pointer.pending is None
    days = [
        f"{day} {'new' if now[day] == {f'{run_id}/{day}'} else ' '.join(now[day])}"
        for day in ("2020-01-02", "2020-01-03")
    ]
    made = [row for row in found.versions.history(PRODUCT) if row.action == "publish"]
    tokens = [summary["token"] for summary in where.tables[PRODUCT].summaries if "token" in summary]
    assert len(tokens) == len(set(tokens))
    return [
        *days, *now["2020-01-05"], f"version {pointer.accepted and pointer.accepted.version}",
        f"state {found.runs.status(run_id).state.value}", f"publications {len(made)}",
    ]  # fmt: skip


def _run(found: Context, run_id: str) -> None:
    run_until_decision(found, run_id, "bob")


def _publish(found: Context, run_id: str) -> None:
    publish(found, run_id, "bob")


def _points(verb: Callable[[Context, str], Any], prepare: Callable[[Context], str]) -> range:
    """Give the number of each moment at which a process may die that runs `verb`."""
    _, found = steps.world()
    run_id = prepare(found)
    with killed_at("nowhere") as points:
        verb(other_process(found), run_id)
    return range(1, len(points) + 1)


def _recover(found: Context, run_id: str | None) -> list[str]:
    done = recover(found, run_id, "ops")
    assert all(item.is_done for item in done)
    return [item.action for item in done]


@pytest.mark.req("T2", "T3", "X2")
@pytest.mark.parametrize("dies_at", _points(_run, steps.approved_run))
@pytest.mark.parametrize("first", ["run", "recover"])
def test_a_run_that_died_anywhere_ends_as_if_nothing_had_happened(dies_at: int, first: str) -> None:
    where, found = steps.world()
    run_id = steps.approved_run(found)
    with pytest.raises(Killed), killed_at(dies_at):
        _run(other_process(found), run_id)
    if first == "recover":
        _recover(found, None)
        assert _recover(found, None) == []
    run_until_decision(found, run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.VALIDATED
    plan = found.runs.plan(run_id)
    staged = [item.chunk_id for item in where.chunks(plan.shadow_table)]
    assert staged == [chunk.chunk_id for chunk in plan.resolved.chunks]
    assert steps.content_of(where, plan.shadow_table)["2020-01-03"] == {f"{run_id}/2020-01-03"}
    assert [item.status for item in found.runs.chunks(run_id)] == ["done", "done"]


@pytest.mark.req("U10", "T4")
@pytest.mark.parametrize("dies_at", _points(_publish, steps.accepted_run))
@pytest.mark.parametrize("then", ["publish", "run", "recover", "recover all"])
def test_a_publication_that_died_anywhere_is_made_exactly_once(dies_at: int, then: str) -> None:
    where, found = steps.world()
    run_id = steps.accepted_run(found)
    where.write(PRODUCT, "2020-01-05", "live")
    with pytest.raises(Killed), killed_at(dies_at) as points:
        _publish(other_process(found), run_id)
    if then == "publish" or points[-1] == "Runs.append:before":
        publish(found, run_id, "bob")
    elif then == "run":
        run_until_decision(found, run_id, "bob")
    else:
        _recover(found, None if then == "recover all" else run_id)
    if steps.state_of(found, run_id) is RunState.ACCEPTED:
        publish(found, run_id, "bob")  # it had not begun
    assert _recover(found, None) == []
    assert _facts(where, found, run_id) == PUBLISHED


@pytest.mark.req("U12", "T4")
@pytest.mark.parametrize(
    "dies_at", _points(lambda mortal, _: steps.roll_back(mortal), steps.published_run)
)
@pytest.mark.parametrize("then", ["rollback", "recover", "recover all"])
def test_a_rollback_that_died_anywhere_is_made_exactly_once(dies_at: int, then: str) -> None:
    where, found = steps.world()
    run_id = steps.published_run(found)
    where.write(PRODUCT, "2020-01-05", "live")
    with pytest.raises(Killed), killed_at(dies_at) as points:
        steps.roll_back(other_process(found))
    has_begun = len(points) > 1
    is_over = steps.pending_of(found) is None and has_begun
    if not has_begun or (then == "rollback" and not is_over):
        steps.roll_back(found)
    else:
        _recover(found, None if then == "recover all" else run_id)
    assert _recover(found, None) == []
    assert _facts(where, found, run_id) == BACK


@pytest.mark.req("U12")
def test_a_partial_rollback_that_died_is_recovered_for_its_partitions_alone() -> None:
    where, found = steps.world()
    run_id = steps.published_run(found)
    with pytest.raises(Killed), killed_at("Publisher.revert:before"):
        steps.roll_back(other_process(found), None, ("2020-01-03",))
    assert _recover(found, None) == ["finish the rollback"]
    assert _facts(where, found, run_id)[:2] == ["2020-01-02 new", "2020-01-03 old-3"]
    assert found.versions.pointer(PRODUCT).accepted.version == 2


@pytest.mark.req("U10")
def test_a_publication_that_is_refused_by_now_is_given_back_by_recover() -> None:
    where, found, run_id = _died_publishing("Publisher.adopt:before")
    where.write(PRODUCT, "2020-01-02", "live")
    [done] = recover(found, run_id, "ops")
    assert (done.is_done, "live writer" in done.result) == (True, True)
    assert steps.state_of(found, run_id) is RunState.ACCEPTED
    assert steps.pending_of(found) is None
    with pytest.raises(errors.TargetChanged):
        publish(found, run_id, "bob")


@pytest.mark.req("X9")
def test_a_living_driver_is_left_alone_until_its_lease_ends_or_it_is_taken_over() -> None:
    _, found = steps.world()
    run_id = steps.approved_run(found)
    status, plan = found.runs.status(run_id), found.runs.plan(run_id)
    until = FixedClock().now() + timedelta(minutes=1)
    other = dataclasses.replace(found, driver="there:2")
    other.move(status, plan, "begin staging", "eve", lease=Lease(holder="there:2", until=until))
    with pytest.raises(errors.RunMoved, match=r"there:2, its lease ends 03:05:05Z"):
        stage(found, run_id, "bob")
    with pytest.raises(errors.RunMoved):
        recover(found, run_id, "ops")
    assert _recover(found, None) == []
    overtaking = dataclasses.replace(found, take_over=True)
    assert stage(overtaking, run_id, "bob")[0].state is RunState.STAGED


@pytest.mark.req("X9", "V3")
@pytest.mark.parametrize(
    ("holder", "seconds", "refused"),
    [("here:2", 60, "here:2"), ("here:dead", 60, ""), ("there:2", -1, "")],
    ids=["a living process", "a process that died", "a lease that ended"],
)
def test_only_a_living_driver_with_a_lease_is_left_alone(holder, seconds, refused) -> None:
    _, found = steps.world()
    run_id = steps.approved_run(found)
    lease = Lease(holder=holder, until=FixedClock().now() + timedelta(seconds=seconds))
    status, plan = found.runs.status(run_id), found.runs.plan(run_id)
    found.move(status, plan, "begin staging", "eve", lease=lease)
    if refused:
        with pytest.raises(errors.RunMoved, match=refused):
            stage(found, run_id, "bob")
    else:
        assert stage(found, run_id, "bob")[0].state is RunState.STAGED


@pytest.mark.req("X9")
@pytest.mark.parametrize("verb", ["run", "publish"])
@pytest.mark.parametrize("stops_at", range(1, 40))
def test_a_driver_that_was_overtaken_anywhere_changes_nothing_when_it_wakes(verb, stops_at) -> None:
    """The first process is held up at one moment; a second one finishes; the first goes on."""
    where, found = steps.world()
    run_id = steps.approved_run(found) if verb == "run" else steps.accepted_run(found)
    second = dataclasses.replace(found, take_over=True, driver="here:2")
    act: Any = run_until_decision if verb == "run" else publish
    points: list[str] = []
    after: list[str] = []

    def overtake(point: str) -> None:
        points.append(point)
        if len(points) == stops_at:
            act(second, run_id, "eve")
            after.append(_everything(where, found))

    with suppress(errors.Conflict), hooked(overtake):
        act(other_process(found, "here:1"), run_id, "bob")
    if after:
        assert _everything(where, found) == after[0]


def _everything(where: FakeLake, found: Context) -> str:
    versions: Any = found.versions
    runs: Any = found.runs
    evidence: Any = found.evidence
    state = {name: (t.contents, t.summaries, t.refs) for name, t in where.tables.items()}
    return repr((state, versions.rows, runs.log, runs.chunk_rows, evidence.rows))


@pytest.mark.req("X9", "X2")
def test_a_store_that_is_down_ends_the_lease_with_the_run() -> None:
    _, found = steps.world()
    compute = found.compute()
    run_id = steps.approved_run(found)
    chunk = found.runs.plan(run_id).resolved.chunks[0].chunk_id
    compute.dies_at = chunk  # type: ignore[attr-defined]
    with pytest.raises(errors.EnvironmentDown):
        stage(found, run_id, "bob")
    status = found.runs.status(run_id)
    assert (status.state, status.driver, status.lease_until) == (RunState.FAILED, None, None)
    assert _recover(found, None) == []
    stage(found, run_id, "bob")
    assert found.compute().staged.count(chunk) == 1
    assert validate(found, run_id, "bob")[0].state is RunState.VALIDATED


def _died_publishing(point: str) -> tuple[FakeLake, Context, str]:
    """Give a world in which a publication died at a point."""
    where, found = steps.world()
    run_id = steps.accepted_run(found)
    with pytest.raises(Killed), killed_at(point):
        _publish(other_process(found), run_id)
    return where, found, run_id


@pytest.mark.req("U10")
def test_what_landed_is_finished_though_the_shadow_is_gone() -> None:
    where, found, run_id = _died_publishing("Publisher.adopt:after")
    where.tables.pop(found.runs.plan(run_id).shadow_table)
    assert _recover(found, run_id) == ["finish the publication"]
    assert steps.state_of(found, run_id) is RunState.PUBLISHED
    assert steps.pending_of(found) is None


@pytest.mark.req("U10")
def test_what_did_not_land_is_given_back_when_the_shadow_is_gone() -> None:
    where, found, run_id = _died_publishing("Publisher.adopt:before")
    where.tables.pop(found.runs.plan(run_id).shadow_table)
    [done] = recover(found, run_id, "ops")
    assert "given back" in done.result
    assert steps.state_of(found, run_id) is RunState.ACCEPTED
    assert steps.pending_of(found) is None
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED


@pytest.mark.req("U10")
def test_recover_does_not_publish_again_what_a_person_rolled_back_meanwhile() -> None:
    _, found, run_id = _died_publishing("Publisher.adopt:before")
    work = iter(_find_actions(found, run_id, dry_run=False))
    found_work = next(work)
    publish(found, run_id, "bob")
    steps.roll_back(found)
    assert found_work.execute("ops") == "it went on meanwhile"
    assert steps.state_of(found, run_id) is RunState.ROLLED_BACK


@pytest.mark.req("X9", "U10")
def test_a_busy_table_does_not_release_what_another_process_may_still_land() -> None:
    where, found, run_id = _died_publishing("Publisher.adopt:before")

    class Busy(FakeLake):
        def adopt(self, request: Any) -> Any:
            raise errors.TooBusy("others kept winning")

    busy = dataclasses.replace(found, publisher=Busy(where.tables, where.calls))
    token = found.versions.pointer(PRODUCT).pending.token
    with pytest.raises(errors.TooBusy):
        publish(busy, run_id, "bob")
    assert found.versions.pointer(PRODUCT).pending.token == token
    assert publish(found, run_id, "bob").publication.token == token


@pytest.mark.req("E5", "U1")
def test_rows_written_to_the_shadow_after_the_check_are_not_published() -> None:
    where, found = steps.world()
    run_id = steps.accepted_run(found)
    shadow = found.runs.plan(run_id).shadow_table

    class Late(FakeLake):
        def adopt(self, request: Any) -> Any:
            where.write(shadow, "2020-01-02", "sneaked in")
            return super().adopt(request)

    publish(dataclasses.replace(found, publisher=Late(where.tables, where.calls)), run_id, "bob")
    assert steps.content_of(where)["2020-01-02"] == {f"{run_id}/2020-01-02"}


@pytest.mark.req("U12")
def test_a_rollback_to_another_version_does_not_join_one_that_is_under_way() -> None:
    _, found = steps.world()
    run_id = steps.published_run(found)
    steps.published_run(found, declared("2020-01-02", "2020-01-03"))
    with pytest.raises(Killed), killed_at("Publisher.revert:before"):
        steps.roll_back(other_process(found), 1, ("2020-01-02",))
    with pytest.raises(errors.PointerMoved, match="rolled back to version 1"):
        steps.roll_back(found, 0, ("2020-01-02",))
    assert _recover(found, None) == ["finish the rollback"]
    assert run_id in [row.run_id for row in found.versions.history(PRODUCT)]


def _edit_plan(found: Context, run_id: str) -> None:
    """Change a stored plan as anybody may who can write the control table."""
    runs: Any = found.runs
    whole = runs.plan

    def plan(wanted: str) -> Any:
        if wanted == run_id:
            raise errors.Tampered(
                f"the plan of {run_id} in pipeline_run was edited",
                state="nothing was changed",
                fix="restore",
            )
        return whole(wanted)

    runs.plan = plan


@pytest.mark.req("C2")
@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("state", ["staging", "published"])
def test_a_bad_run_is_named_and_the_others_are_recovered(bad: int, state: str) -> None:
    _, found = steps.world()
    wanted = [declared(f"2020-01-0{day}", f"2020-01-0{day + 1}") for day in range(1, bad + 2)]
    prepare = steps.approved_run if state == "staging" else steps.published_run
    broken = [prepare(found, one) for one in wanted[:bad]]
    good = steps.approved_run(found, wanted[bad])
    for run_id in (*broken, good) if state == "staging" else (good,):
        with pytest.raises(Killed), killed_at("Staging.stage:after"):
            stage(other_process(found), run_id, "bob")
    for run_id in broken:
        _edit_plan(found, run_id)
    done = recover(found, None, "ops")
    assert {one.subject for one in done if one.is_done} == {good}
    assert steps.state_of(found, good) is RunState.FAILED
    # Of published runs, only the newest of the product has something that could be left to do.
    named = broken if state == "staging" else broken[-1:]
    assert sorted(one.result for one in done if not one.is_done) == sorted(
        f"the plan of {run_id} in pipeline_run was edited (nothing was changed); fix: restore"
        for run_id in named
    )
    with pytest.raises(errors.Tampered, match=broken[-1]):
        recover(found, broken[-1], "ops")


@pytest.mark.req("C2")
def test_a_published_run_whose_plan_was_edited_does_not_block_its_repair() -> None:
    _, found = steps.world()
    bad = steps.published_run(found)
    _edit_plan(found, bad)
    repair = declared(run={"reason": "repair what the edited run made"})
    again = steps.accepted_run(found, repair)
    assert publish(found, again, "bob").publication.version == 2


@pytest.mark.req("C2")
def test_an_open_run_whose_plan_was_edited_is_cancelled_by_who_may() -> None:
    _, found = steps.world()
    roles = contract(roles={"approve": ["ana"], "publish": ["ana"]})
    found = dataclasses.replace(found, contract=lambda _: roles)
    bad = steps.approved_run(found)
    _edit_plan(found, bad)
    with pytest.raises(errors.Tampered):
        steps.planned_run(found, declared(run={"reason": "another"}))
    freeing = f"lakehouse-backfill cancel {bad} --reason TEXT   # "
    shown = summarise_run_safety(found, found.runs.status(bad), look=True)
    assert shown.next_command.startswith(freeing)
    with pytest.raises(errors.NotAllowed):
        decisions.cancel(found, bad, "eve", "")
    signed = found.profile.model_copy(update={"environment": "prod"})
    signing = dataclasses.replace(found, profile=signed)
    with pytest.raises(errors.Tampered) as unsigned:
        decisions.cancel(signing, bad, "ana", "")
    # What would be refused again is not named.
    assert unsigned.value.fix.startswith(f"put the row of {bad} in pipeline_run back")
    shown = summarise_run_safety(signing, found.runs.status(bad), look=True)
    assert shown.next_command.startswith(f"lakehouse-backfill log {bad}   # ")
    assert steps.state_of(found, bad) is RunState.APPROVED
    assert decisions.cancel(found, bad, "ana", "edited").state is RunState.CANCELLED
    assert found.runs.events(bad)[-1].detail["problem"].startswith(f"the plan of {bad}")
    assert recover(found, None, "ops") == ()
    steps.published_run(found, declared(run={"reason": "another"}))


@pytest.mark.req("U12")
def test_a_rollback_that_tells_its_runs_late_says_what_the_pointer_says_by_then() -> None:
    _, found = steps.world()
    run_id = steps.published_run(found)
    steps.roll_back(found)
    publish(found, run_id, "bob")
    align_run_states(found, (run_id,), (), "ana", "late")
    assert steps.state_of(found, run_id) is RunState.PUBLISHED


@pytest.mark.req("M4")
def test_a_cancelled_revision_closes_nothing() -> None:
    _, found = steps.world()
    run_id = steps.approved_run(found)
    revision = make_plan(found, declared("2020-01-02", "2020-01-05"), "bob", run_id)
    mortal = dataclasses.replace(found, runs=_Unsuperseded(found.runs))
    with pytest.raises(Killed):
        register_plan(mortal, revision, "bob")
    decisions.cancel(found, revision.run_id, "bob", "")
    assert _recover(found, revision.run_id) == []
    assert _recover(found, None) == []
    assert steps.state_of(found, run_id) is RunState.APPROVED


class _Unsuperseded:
    """Runs of a process that dies before it supersedes the run that it revises."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, event: Any, lease: Any = None) -> Any:
        raise Killed(event.verb)


@pytest.mark.req("X9")
def test_a_run_that_a_person_cancelled_takes_nothing_more_from_its_living_driver() -> None:
    where, found = steps.world()
    run_id = steps.approved_run(found)
    person = dataclasses.replace(found, driver="there:2", take_over=True)

    class Cancelled(FakeCompute):
        def stage(self, plan: Any, chunk: Any, epoch: int) -> Any:
            record = super().stage(plan, chunk, epoch)
            decisions.cancel(person, run_id, "bob", "wrong")
            return record

    living = dataclasses.replace(found, compute=lambda: Cancelled(where))
    with pytest.raises(errors.RunMoved):
        stage(living, run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.CANCELLED
    assert found.runs.chunks(run_id) == ()


@pytest.mark.req("X9")
def test_the_lease_lives_on_when_a_renewal_fails_in_an_unknown_way() -> None:
    _, found = steps.world()
    run_id = steps.approved_run(found)
    status = found.drive(found.runs.status(run_id), found.runs.plan(run_id), "begin staging", "bob")
    calls: list[int] = []

    class Odd:
        def renew(self, *args: Any) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("odd")

    quick = found.profile.model_copy(update={"lease_seconds": 0.03})
    odd: Any = Odd()
    here = dataclasses.replace(found, runs=odd, profile=quick)
    with RenewedLease(here, found.runs.plan(run_id), status) as lease:
        deadline = time.monotonic() + 5
        while len(calls) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        lease.require_held()
    assert len(calls) >= 2
