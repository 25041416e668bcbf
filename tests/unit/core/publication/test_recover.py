"""Verbs that die between any two side effects, and drivers that are overtaken."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.publication.recover import _find_actions, recover
from lakehouse_backfill.core.publication.rollback import align_run_states, plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context, RenewedLease
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import Lease, RunState
from lakehouse_backfill.errors import (
    Conflict,
    EnvironmentDown,
    PointerMoved,
    RunMoved,
    TargetChanged,
    TooBusy,
)
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import FakeLake, FixedClock

#: Port of the workbench -> its methods with side effects.
EFFECTS = {
    "pins": ("pin",),
    "shadows": ("open", "fence"),
    "publisher": ("adopt", "revert"),
    "runs": ("register", "append"),
    "fences": ("fence",),
    "ledger": ("record",),
    "versions": ("move",),
    "evidence": ("record",),
}
PUBLISHED = [
    "2020-01-02 new", "2020-01-03 new", "live", "version 1", "state published", "publications 1",
]  # fmt: skip
BACK = [
    "2020-01-02 old-2", "2020-01-03 old-3", "live", "version 0", "state rolled_back",
    "publications 1",
]  # fmt: skip


class Killed(BaseException):
    """Nothing catches it: the process is gone."""


class _Mortal:
    """A port of a process that dies at its n-th side effect, before or after it."""

    def __init__(self, inner: Any, name: str, count: Callable[[str, bool], None]) -> None:
        self._inner, self._name, self._count = inner, name, count

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._inner, method)
        if method not in EFFECTS.get(self._name, ()) and (self._name, method) != (
            "staging", "stage",
        ):  # fmt: skip
            return real

        def call(*args: Any, **named: Any) -> Any:
            self._count(f"{self._name}.{method}", False)
            result = real(*args, **named)
            self._count(f"{self._name}.{method}", True)
            return result

        return call


def _watched(found: Context, watch: Callable[[str, bool], None], driver: str) -> Context:
    """Give a workbench of another process, which tells `watch` of each moment of its effects."""
    ports = {name: _Mortal(getattr(found, name), name, watch) for name in EFFECTS}
    compute = found.compute()

    class Compute:
        staging = _Mortal(compute.staging, "staging", watch)
        measuring, judge = compute.measuring, compute.judge
        inspecting = compute.inspecting

    return dataclasses.replace(found, **ports, compute=Compute, driver=driver)


def _mortal(found: Context, dies_at: int) -> tuple[Context, list[str]]:
    """Give a workbench of another process, which dies at its `dies_at`-th moment."""
    moments: list[str] = []

    def count(name: str, is_after: bool) -> None:
        moments.append(f"{name}:{'after' if is_after else 'before'}")
        if len(moments) == dies_at:
            raise Killed(moments[-1])

    return _watched(found, count, "here:dead"), moments


def _world() -> tuple[FakeLake, Context]:
    where = lake()
    return where, context(where, FakeCompute(where))


def _planned(found: Context) -> str:
    plan = make_plan(found, declared(), "bob", None)
    return register_plan(found, plan, "bob")[0].run_id


def _approved(found: Context) -> str:
    run_id = _planned(found)
    decisions.approve(found, run_id, "ana", "")
    return run_id


def _accepted(found: Context) -> str:
    run_id = _approved(found)
    run_until_decision(found, run_id, "bob")
    decisions.accept(found, run_id, "ana", "")
    return run_id


def _back(found: Context) -> None:
    rollback(found, contract(), plan_rollback(found, PRODUCT, None, ()), "wrong", "ana")


def _facts(where: FakeLake, found: Context, run_id: str) -> list[str]:
    """Say what readers and the logs hold, in words."""
    table = where.tables[PRODUCT]
    now = table.content(table.head)
    pointer = found.versions.pointer(PRODUCT)
    assert pointer.pending is None
    days = [
        f"{day} {'new' if now[day] == {f'{run_id}/{day}'} else ' '.join(now[day])}"
        for day in ("2020-01-02", "2020-01-03")
    ]
    made = [row for row in found.versions.history(PRODUCT) if row.action == "publish"]
    tokens = [summary["token"] for summary in table.summaries if "token" in summary]
    assert len(tokens) == len(set(tokens))
    return [
        *days, *now["2020-01-05"], f"version {pointer.accepted and pointer.accepted.version}",
        f"state {found.runs.status(run_id).state.value}", f"publications {len(made)}",
    ]  # fmt: skip


def _moments(verb: Callable[[Context, str], Any], prepare: Callable[[Context], str]) -> int:
    _, found = _world()
    run_id = prepare(found)
    mortal, moments = _mortal(found, 0)
    verb(mortal, run_id)
    return len(moments)


def _run(found: Context, run_id: str) -> None:
    run_until_decision(found, run_id, "bob")


def _publish(found: Context, run_id: str) -> None:
    publish(found, run_id, "bob")


def _published(found: Context) -> str:
    run_id = _accepted(found)
    publish(found, run_id, "bob")
    return run_id


def _recover(found: Context, run_id: str | None) -> list[str]:
    done = recover(found, run_id, "ops")
    assert all(item.is_done for item in done)
    return [item.action for item in done]


@pytest.mark.req("T2", "T3", "X2")
@pytest.mark.parametrize("dies_at", range(1, _moments(_run, _approved) + 1))
@pytest.mark.parametrize("first", ["run", "recover"])
def test_a_run_that_died_anywhere_ends_as_if_nothing_had_happened(dies_at: int, first: str) -> None:
    where, found = _world()
    run_id = _approved(found)
    mortal, _ = _mortal(found, dies_at)
    with pytest.raises(Killed):
        run_until_decision(mortal, run_id, "bob")
    if first == "recover":
        _recover(found, None)
        assert _recover(found, None) == []
    run_until_decision(found, run_id, "bob")
    assert found.runs.status(run_id).state is RunState.VALIDATED
    plan = found.runs.plan(run_id)
    staged = [item.chunk_id for item in where.chunks(plan.shadow_table)]
    assert staged == [chunk.chunk_id for chunk in plan.resolved.chunks]
    shadow = where.tables[plan.shadow_table]
    assert shadow.content(shadow.head)["2020-01-03"] == {f"{run_id}/2020-01-03"}
    assert [item.status for item in found.ledger.chunks(run_id)] == ["done", "done"]


@pytest.mark.req("U10", "T4")
@pytest.mark.parametrize("dies_at", range(1, _moments(_publish, _accepted) + 1))
@pytest.mark.parametrize("then", ["publish", "run", "recover", "recover all"])
def test_a_publication_that_died_anywhere_is_made_exactly_once(dies_at: int, then: str) -> None:
    where, found = _world()
    run_id = _accepted(found)
    where.write(PRODUCT, "2020-01-05", "live")
    mortal, moments = _mortal(found, dies_at)
    with pytest.raises(Killed):
        publish(mortal, run_id, "bob")
    if then == "publish" or moments[-1] == "runs.append:before":
        publish(found, run_id, "bob")
    elif then == "run":
        run_until_decision(found, run_id, "bob")
    else:
        _recover(found, None if then == "recover all" else run_id)
    if found.runs.status(run_id).state is RunState.ACCEPTED:
        publish(found, run_id, "bob")  # it had not begun
    assert _recover(found, None) == []
    assert _facts(where, found, run_id) == PUBLISHED


@pytest.mark.req("U12", "T4")
@pytest.mark.parametrize("dies_at", range(1, _moments(lambda b, _: _back(b), _published) + 1))
@pytest.mark.parametrize("then", ["rollback", "recover", "recover all"])
def test_a_rollback_that_died_anywhere_is_made_exactly_once(dies_at: int, then: str) -> None:
    where, found = _world()
    run_id = _published(found)
    where.write(PRODUCT, "2020-01-05", "live")
    mortal, moments = _mortal(found, dies_at)
    with pytest.raises(Killed):
        _back(mortal)
    has_begun = len(moments) > 1
    is_over = found.versions.pointer(PRODUCT).pending is None and has_begun
    if not has_begun or (then == "rollback" and not is_over):
        _back(found)
    else:
        _recover(found, None if then == "recover all" else run_id)
    assert _recover(found, None) == []
    assert _facts(where, found, run_id) == BACK


@pytest.mark.req("U12")
def test_a_partial_rollback_that_died_is_recovered_for_its_partitions_alone() -> None:
    where, found = _world()
    run_id = _published(found)
    mortal, _ = _mortal(found, 3)  # reserved, not swapped
    way = plan_rollback(mortal, PRODUCT, None, ("2020-01-03",))
    with pytest.raises(Killed):
        rollback(mortal, contract(), way, "one day", "ana")
    assert _recover(found, None) == ["finish the rollback"]
    assert _facts(where, found, run_id)[:2] == ["2020-01-02 new", "2020-01-03 old-3"]
    assert found.versions.pointer(PRODUCT).accepted.version == 2


@pytest.mark.req("U10")
def test_a_publication_that_is_refused_by_now_is_given_back_by_recover() -> None:
    where, found = _world()
    run_id = _accepted(found)
    mortal, moments = _mortal(found, 0)
    dies_at = _moments_until(mortal, moments, run_id, "publisher.adopt:before")
    where, found = _world()
    run_id = _accepted(found)
    mortal, _ = _mortal(found, dies_at)
    with pytest.raises(Killed):
        publish(mortal, run_id, "bob")
    where.write(PRODUCT, "2020-01-02", "live")
    [done] = recover(found, run_id, "ops")
    assert (done.is_done, "live writer" in done.result) == (True, True)
    assert found.runs.status(run_id).state is RunState.ACCEPTED
    assert found.versions.pointer(PRODUCT).pending is None
    with pytest.raises(TargetChanged):
        publish(found, run_id, "bob")


def _moments_until(mortal: Context, moments: list[str], run_id: str, name: str) -> int:
    publish(mortal, run_id, "bob")
    return moments.index(name) + 1


@pytest.mark.req("X9")
def test_a_living_driver_is_left_alone_until_its_lease_ends_or_it_is_taken_over() -> None:
    _, found = _world()
    run_id = _approved(found)
    status, plan = found.runs.status(run_id), found.runs.plan(run_id)
    until = FixedClock().now() + timedelta(minutes=1)
    other = dataclasses.replace(found, driver="there:2")
    other.move(status, plan, "begin staging", "eve", lease=Lease(holder="there:2", until=until))
    with pytest.raises(RunMoved, match=r"there:2, its lease ends 03:05:05Z"):
        stage(found, run_id, "bob")
    with pytest.raises(RunMoved):
        recover(found, run_id, "ops")
    assert _recover(found, None) == []
    assert (
        stage(dataclasses.replace(found, take_over=True), run_id, "bob")[0].state is RunState.STAGED
    )


@pytest.mark.req("X9")
def test_a_lease_that_ended_holds_nobody_off() -> None:
    _, found = _world()
    run_id = _approved(found)
    status, plan = found.runs.status(run_id), found.runs.plan(run_id)
    over = Lease(holder="there:2", until=FixedClock().now() - timedelta(seconds=1))
    found.move(status, plan, "begin staging", "eve", lease=over)
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED


@pytest.mark.req("X9")
@pytest.mark.parametrize("verb", ["run", "publish"])
@pytest.mark.parametrize("stops_at", range(1, 40))
def test_a_driver_that_was_overtaken_anywhere_changes_nothing_when_it_wakes(
    verb: str, stops_at: int
) -> None:
    """The first process is held up at one moment; a second one finishes; the first goes on."""
    where, found = _world()
    run_id = _approved(found) if verb == "run" else _accepted(found)
    second = dataclasses.replace(found, take_over=True, driver="here:2")
    after: list[str] = []

    def overtake(moment: str, is_after: bool) -> None:
        moments.append(moment)
        if len(moments) == stops_at:
            if verb == "run":
                run_until_decision(second, run_id, "eve")
            else:
                publish(second, run_id, "eve")
            after.append(_everything(where, found))

    moments: list[str] = []
    first = _watched(found, overtake, "here:1")
    with suppress(Conflict):
        (run_until_decision if verb == "run" else publish)(first, run_id, "bob")
    if after:
        assert _everything(where, found) == after[0]


def _everything(where: FakeLake, found: Context) -> str:
    versions: Any = found.versions
    runs: Any = found.runs
    ledger: Any = found.ledger
    evidence: Any = found.evidence
    state = {name: (t.contents, t.summaries, t.refs) for name, t in where.tables.items()}
    return repr((state, versions.rows, runs.log, ledger.rows, evidence.rows))


@pytest.mark.req("X9")
def test_a_store_that_is_down_ends_the_lease_with_the_run() -> None:
    _, found = _world()
    compute = found.compute()
    run_id = _approved(found)
    chunk = found.runs.plan(run_id).resolved.chunks[0].chunk_id
    compute.dies_at = chunk  # type: ignore[attr-defined]
    with pytest.raises(EnvironmentDown):
        stage(found, run_id, "bob")
    status = found.runs.status(run_id)
    assert (status.state, status.driver, status.lease_until) == (RunState.FAILED, None, None)
    assert _recover(found, None) == []
    validate_after = stage(found, run_id, "bob")[0]
    assert validate(found, validate_after.run_id, "bob")[0].state is RunState.VALIDATED


def _died_publishing(moment: str) -> tuple[FakeLake, Context, str]:
    """Give a world in which a publication died at a moment, e.g. `publisher.adopt:before`."""
    _, found = _world()
    mortal, moments = _mortal(found, 0)
    publish(mortal, _accepted(found), "bob")
    where, found = _world()
    run_id = _accepted(found)
    mortal, _ = _mortal(found, moments.index(moment) + 1)
    with pytest.raises(Killed):
        publish(mortal, run_id, "bob")
    return where, found, run_id


@pytest.mark.req("U10")
def test_what_landed_is_finished_though_the_shadow_is_gone() -> None:
    where, found, run_id = _died_publishing("publisher.adopt:after")
    where.tables.pop(found.runs.plan(run_id).shadow_table)
    assert _recover(found, run_id) == ["finish the publication"]
    assert found.runs.status(run_id).state is RunState.PUBLISHED
    assert found.versions.pointer(PRODUCT).pending is None


@pytest.mark.req("U10")
def test_what_did_not_land_is_given_back_when_the_shadow_is_gone() -> None:
    where, found, run_id = _died_publishing("publisher.adopt:before")
    where.tables.pop(found.runs.plan(run_id).shadow_table)
    [done] = recover(found, run_id, "ops")
    assert "given back" in done.result
    assert found.runs.status(run_id).state is RunState.ACCEPTED
    assert found.versions.pointer(PRODUCT).pending is None
    assert stage(found, run_id, "bob")[0].state is RunState.STAGED


@pytest.mark.req("U10")
def test_recover_does_not_publish_again_what_a_person_rolled_back_meanwhile() -> None:
    _, found, run_id = _died_publishing("publisher.adopt:before")
    work = iter(_find_actions(found, run_id, dry_run=False))
    found_work = next(work)
    publish(found, run_id, "bob")
    _back(found)
    assert found_work.execute("ops") == "it went on meanwhile"
    assert found.runs.status(run_id).state is RunState.ROLLED_BACK


@pytest.mark.req("X9", "U10")
def test_a_busy_table_does_not_release_what_another_process_may_still_land() -> None:
    where, found, run_id = _died_publishing("publisher.adopt:before")

    class Busy(FakeLake):
        def adopt(self, request: Any) -> Any:
            raise TooBusy("others kept winning")

    busy = dataclasses.replace(found, publisher=Busy(where.tables, where.calls))
    token = found.versions.pointer(PRODUCT).pending.token
    with pytest.raises(TooBusy):
        publish(busy, run_id, "bob")
    assert found.versions.pointer(PRODUCT).pending.token == token
    assert publish(found, run_id, "bob").publication.token == token


@pytest.mark.req("E5", "U1")
def test_rows_written_to_the_shadow_after_the_check_are_not_published() -> None:
    where, found = _world()
    run_id = _accepted(found)
    shadow = found.runs.plan(run_id).shadow_table

    class Late(FakeLake):
        def adopt(self, request: Any) -> Any:
            where.write(shadow, "2020-01-02", "sneaked in")
            return super().adopt(request)

    publish(dataclasses.replace(found, publisher=Late(where.tables, where.calls)), run_id, "bob")
    assert where.tables[PRODUCT].content(where.tables[PRODUCT].head)["2020-01-02"] == {
        f"{run_id}/2020-01-02"
    }


@pytest.mark.req("U12")
def test_a_rollback_to_another_version_does_not_join_one_that_is_under_way() -> None:
    _, found = _world()
    run_id = _published(found)
    other = _accepted_over(found, "2020-01-02")
    publish(found, other, "bob")
    mortal, _ = _mortal(found, 3)
    way = plan_rollback(mortal, PRODUCT, 1, ("2020-01-02",))
    with pytest.raises(Killed):
        rollback(mortal, contract(), way, "to 1", "ana")
    with pytest.raises(PointerMoved, match="rolled back to version 1"):
        rollback(found, contract(), plan_rollback(found, PRODUCT, 0, ("2020-01-02",)), "0", "ana")
    assert _recover(found, None) == ["finish the rollback"]
    assert run_id in [row.run_id for row in found.versions.history(PRODUCT)]


def _accepted_over(found: Context, day: str) -> str:
    values = {"column": "day", "values": [day]}
    plan = make_plan(found, declared(target={"partitions": values}), "bob", None)
    run_id = register_plan(found, plan, "bob")[0].run_id
    decisions.approve(found, run_id, "ana", "")
    run_until_decision(found, run_id, "bob")
    decisions.accept(found, run_id, "ana", "")
    return run_id


@pytest.mark.req("U12")
def test_a_rollback_that_tells_its_runs_late_says_what_the_pointer_says_by_then() -> None:
    _, found = _world()
    run_id = _published(found)
    _back(found)
    publish(found, run_id, "bob")
    align_run_states(found, (run_id,), (), "ana", "late")
    assert found.runs.status(run_id).state is RunState.PUBLISHED


@pytest.mark.req("M4")
def test_a_cancelled_revision_closes_nothing() -> None:
    _, found = _world()
    run_id = _approved(found)
    revision = make_plan(found, declared("2020-01-02", "2020-01-05"), "bob", run_id)
    mortal = dataclasses.replace(found, runs=_Unsuperseded(found.runs))
    with pytest.raises(Killed):
        register_plan(mortal, revision, "bob")
    decisions.cancel(found, revision.run_id, "bob", "")
    assert _recover(found, revision.run_id) == []
    assert _recover(found, None) == []
    assert found.runs.status(run_id).state is RunState.APPROVED


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
    where, found = _world()
    run_id = _approved(found)
    person = dataclasses.replace(found, driver="there:2")

    class Cancelled(FakeCompute):
        def stage(self, plan: Any, chunk: Any, epoch: int) -> Any:
            record = super().stage(plan, chunk, epoch)
            decisions.cancel(person, run_id, "bob", "wrong")
            return record

    living = dataclasses.replace(found, compute=lambda: Cancelled(where))
    with pytest.raises(RunMoved):
        stage(living, run_id, "bob")
    assert (found.runs.status(run_id).state, found.ledger.chunks(run_id)) == (
        RunState.CANCELLED,
        (),
    )


@pytest.mark.req("X9")
def test_the_lease_lives_on_when_a_renewal_fails_in_an_unknown_way() -> None:
    _, found = _world()
    run_id = _approved(found)
    status = found.drive(found.runs.status(run_id), found.runs.plan(run_id), "begin staging", "bob")
    calls: list[int] = []

    class Odd:
        def renew(self, *args: Any) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("odd")

    quick = found.profile.model_copy(update={"lease_seconds": 0.03})
    odd: Any = Odd()
    with RenewedLease(dataclasses.replace(found, runs=odd, profile=quick), status) as lease:
        deadline = time.monotonic() + 5
        while len(calls) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        lease.require_held()
    assert len(calls) >= 2
