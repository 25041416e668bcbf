"""Publishing in steps: each is checked as readers see it; it halts by itself and goes on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.evidence import document, status
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.tables.commits import AdoptRequest, CommitResult
from lakehouse_backfill.errors import ChecksFailed, ConfigError, TargetChanged, Unsupported
from tests.support.fakes.compute import FakeCompute, SilentProgress
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import (
    accepted_run,
    content_of,
    pending_of,
    published_run,
    roll_back,
    state_of,
    world,
)

pytestmark = pytest.mark.req("U6")

DAYS = ("2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04")
SUITE = "expectations/step.json"


def _wanted(**progressive: Any) -> Any:
    return declared("2020-01-01", "2020-01-05", target={"progressive": progressive})


def _visible(where: FakeLake, run_id: str) -> list[str]:
    return [day for day in DAYS if content_of(where).get(day) == {f"{run_id}/{day}"}]


def _versions(found: Context) -> list[tuple[int, str, tuple[str, ...]]]:
    return [
        (row.version, row.action, row.scope.partitions if row.scope else ())
        for row in reversed(found.versions.history(PRODUCT))
        if row.action in ("publish", "rollback")
    ]


def test_each_step_is_a_version_of_its_own_and_the_run_is_published_after_the_last() -> None:
    where, found = world()
    run_id = accepted_run(found, _wanted(partitions_per_step=2))
    done = publish(found, run_id, "bob")
    assert _versions(found) == [(1, "publish", DAYS[:2]), (2, "publish", DAYS[2:])]
    assert _visible(where, run_id) == list(DAYS)
    assert (state_of(found, run_id), done.publication.version) == (RunState.PUBLISHED, 2)
    assert (done.swap.files_added, done.swap.before_snapshot_id) == (2, 1)
    tokens = {row.token for row in found.versions.history(PRODUCT) if row.action == "publish"}
    assert len(tokens) == 2
    assert publish(found, run_id, "bob").was_published


def test_partitions_that_are_named_come_first_in_their_order() -> None:
    found = context(lake())
    published_run(found, _wanted(order=["2020-01-03", "2020-01-01"]))
    order = [labels[0] for _, _, labels in _versions(found)]
    assert order == ["2020-01-03", "2020-01-01", "2020-01-02", "2020-01-04"]


@pytest.mark.req("O6")
def test_steps_are_shown_and_those_that_readers_saw_before_say_nothing_of_the_speed() -> None:
    shown = _Shown()
    found = context(lake(), progress=shown)
    run_id = accepted_run(found, _wanted(partitions_per_step=2))
    shown.seen.clear()
    publish(found, run_id, "bob")
    assert shown.seen == [("publish", 2, "steps"), False, False, "finish"]


class _Shown(SilentProgress):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def start(self, label: str, total: int, unit: str) -> None:
        self.seen.append((label, total, unit))

    def advance(self, amount: int = 1, rows: int = 0, *, was_done: bool = False) -> None:
        self.seen.append(was_done)

    def finish(self) -> None:
        self.seen.append("finish")


class _Clock:
    def __init__(self, clock: Any) -> None:
        self.slept: list[float] = []
        self.now = clock.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_there_is_a_pause_between_steps_and_none_after_the_last() -> None:
    found = context(lake())
    clock = _Clock(found.clock)
    found = dataclasses.replace(found, clock=clock)
    published_run(found, _wanted(pause_seconds=7))
    assert clock.slept == [7, 7, 7]


class _Wrong(FakeCompute):
    """Readers of one day see other rows than were adopted, until `is_right`."""

    day = "2020-01-02"
    is_right = False

    def measure(self, old: Any, new: Any, scope: Any, *more: Any, **named: Any) -> Any:
        found = super().measure(old, new, scope, *more, **named)
        if new[0] == PRODUCT and self.day in found.new and not self.is_right:
            found.new[self.day] = found.new[self.day] + found.new[self.day]
        return found


def _halted() -> tuple[FakeLake, Context, str, pytest.ExceptionInfo[ChecksFailed]]:
    """A rollout of four steps that the check of its second one halted."""
    where = lake()
    found = context(where, _Wrong(where))
    run_id = accepted_run(found, _wanted())
    with pytest.raises(ChecksFailed) as halted:
        publish(found, run_id, "bob")
    return where, found, run_id, halted


def test_a_step_that_readers_see_differently_halts_the_rollout_and_says_what_to_do() -> None:
    where, found, run_id, halted = _halted()
    assert "step 2 of 4, 2020-01-02 failed its check" in halted.value.problem
    assert halted.value.state == (
        "readers see 2020-01-01, 2020-01-02 of this run, and 2020-01-03, 2020-01-04 as before"
    )
    assert f"lakehouse-backfill publish {run_id} goes on" in halted.value.fix
    assert f"lakehouse-backfill rollback {PRODUCT} --to 0" in halted.value.fix
    assert state_of(found, run_id) is RunState.PUBLISH_HALTED
    stands = status.summarise_run_safety(found, found.runs.status(run_id), look=True)
    assert stands.readers_see == halted.value.state
    assert stands.next_command.startswith(f"lakehouse-backfill publish {run_id}")
    assert _visible(where, run_id) == list(DAYS[:2])

    found.compute().is_right = True  # type: ignore[attr-defined]
    publish(found, run_id, "bob")
    assert _visible(where, run_id) == list(DAYS)
    assert [version for version, _, _ in _versions(found)] == [1, 2, 3, 4]
    steps = document.rollout_records(found, run_id, found.runs.events(run_id))["steps"]
    assert [(item["step"], item["passed"], item["version"]) for item in steps] == [
        (1, True, 1), (2, True, 2), (3, True, 3), (4, True, 4),
    ]  # fmt: skip


def test_a_halted_rollout_goes_back_to_the_version_before_its_first_step() -> None:
    where, found, run_id, _ = _halted()
    where.write(PRODUCT, "2020-01-05", "live")
    roll_back(found, 0)
    assert _visible(where, run_id) == []
    assert content_of(where)["2020-01-05"] == {"live"}
    assert state_of(found, run_id) is RunState.ROLLED_BACK
    found.compute().is_right = True  # type: ignore[attr-defined]
    publish(found, run_id, "bob")
    assert _visible(where, run_id) == list(DAYS)


def test_going_back_by_one_step_leaves_the_others_and_says_which_are_gone() -> None:
    where, found = world()
    run_id = published_run(found, _wanted(partitions_per_step=2))
    roll_back(found, 1)
    assert _visible(where, run_id) == list(DAYS[:2])
    stands = status.summarise_run_safety(found, found.runs.status(run_id), look=True)
    assert "except 2020-01-03, 2020-01-04, rolled back since" in stands.readers_see


def test_a_rollback_of_a_rollback_to_a_halted_rollout_is_halted_again() -> None:
    where, found, run_id, _ = _halted()
    roll_back(found, 0)
    roll_back(found, 2)
    assert _visible(where, run_id) == list(DAYS[:2])
    assert state_of(found, run_id) is RunState.PUBLISH_HALTED


def test_the_suites_of_a_step_judge_what_readers_see_of_it() -> None:
    _, found = world()
    compute = found.compute()
    run_id = published_run(found, _wanted(partitions_per_step=2, suites=[{"file": SUITE}]))
    judged = [line for line in compute.judged if line.startswith(SUITE)]
    assert judged == [
        f"{SUITE} on {PRODUCT}@2: 2020-01-01, 2020-01-02",
        f"{SUITE} on {PRODUCT}@3: 2020-01-03, 2020-01-04",
    ]
    compute.bad_suites.add(SUITE)
    roll_back(found, 0)
    with pytest.raises(ChecksFailed, match="step 1 of 2"):
        publish(found, run_id, "bob")


def test_a_conflict_in_a_later_step_halts_and_one_in_the_first_gives_all_back() -> None:
    where, found = world()
    run_id = accepted_run(found, _wanted())
    where.write(PRODUCT, "2020-01-03", "live")
    with pytest.raises(TargetChanged) as refused:
        publish(found, run_id, "bob")
    assert refused.value.state.startswith("readers see 2020-01-01, 2020-01-02 of")
    assert state_of(found, run_id) is RunState.PUBLISH_HALTED
    assert pending_of(found) is None
    where.write(PRODUCT, "2020-01-03", "old-3")
    publish(found, run_id, "bob")
    assert state_of(found, run_id) is RunState.PUBLISHED

    other = accepted_run(found, _wanted(partitions_per_step=3))
    where.write(PRODUCT, "2020-01-01", "live")
    with pytest.raises(TargetChanged):
        publish(found, other, "bob")
    assert state_of(found, other) is RunState.ACCEPTED


class _Dies(FakeLake):
    """A lake on which the swap of one step is the last thing that the process does."""

    at, is_late = 2, False
    swaps = 0

    def adopt(self, request: AdoptRequest) -> CommitResult:
        self.swaps += 1
        if self.swaps != self.at:
            return super().adopt(request)
        if self.is_late:
            super().adopt(request)
        raise KeyboardInterrupt


@pytest.mark.req("U10")
@pytest.mark.parametrize("by", ["publish", "recover"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before the commit", "after it"])
def test_a_rollout_that_was_cut_off_goes_on_with_its_step_and_repeats_none(by, *, is_late) -> None:
    where, found = world()
    run_id = accepted_run(found, _wanted())
    dying = _Dies(where.tables, where.calls)
    dying.is_late = is_late
    with pytest.raises(KeyboardInterrupt):
        publish(dataclasses.replace(found, publisher=dying), run_id, "bob")
    assert state_of(found, run_id) is RunState.PUBLISHING
    if by == "publish":
        publish(found, run_id, "bob")
    else:
        recover(found, run_id, "ana")
    assert [labels for _, _, labels in _versions(found)] == [(day,) for day in DAYS]
    assert _visible(where, run_id) == list(DAYS)
    tokens = [s["token"] for s in where.tables[PRODUCT].summaries if "token" in s]
    assert len(tokens) == len(set(tokens)) == 4


@pytest.mark.req("U10")
def test_a_step_whose_check_was_cut_off_is_checked_before_the_next_one() -> None:
    where, found = world()
    compute = found.compute()
    run_id = accepted_run(found, _wanted(partitions_per_step=2, suites=[{"file": SUITE}]))

    class Dead(FakeCompute):
        def frame(self, *arguments: Any) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(dataclasses.replace(found, compute=lambda: Dead(where)), run_id, "bob")
    compute.judged.clear()
    publish(found, run_id, "bob")
    assert [line.rpartition(": ")[2] for line in compute.judged] == [
        "2020-01-01, 2020-01-02", "2020-01-03, 2020-01-04",
    ]  # fmt: skip


def test_readers_that_resolve_the_product_see_a_step_as_soon_as_it_is_published() -> None:
    where, found, run_id, _ = _halted()
    seen = resolve_accepted(found, contract(), strict=True)
    day = where.tables[seen.table].content(seen.snapshot_id)["2020-01-02"]
    assert day == {f"{run_id}/2020-01-02"}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"publish_mode": "pointer_swap"}, Unsupported, "not published in steps"),
        ({"progressive": {"by": "tenant"}}, Unsupported, "steps by tenant are not possible"),
        ({"progressive": {"order": ["2020-02-01"]}}, ConfigError, "is not one of the run's"),
        ({"progressive": {"order": ["2020-01-02", "2020-01-02"]}}, ConfigError, "is named twice"),
        (
            {"progressive": {"thresholds": [{"measure": "x", "max_change": 0.1}]}},
            ConfigError,
            "x is no measure",
        ),
    ],
)
def test_steps_that_cannot_be_are_refused_when_planned(changes, error, said) -> None:
    target = {"progressive": {}} | changes
    kind = "pinned" if "publish_mode" in changes else "follow"
    wanted = declared(target=target, contract=contract(publication=kind))
    with pytest.raises(error, match=said):
        make_plan(context(lake()), wanted, "bob", None)


def test_the_plan_says_in_how_many_steps_it_is_published() -> None:
    plan = make_plan(context(lake()), _wanted(partitions_per_step=3, by="day"), "bob", None)
    assert any(
        note.startswith("published in 2 steps of at most 3 partitions") for note in plan.notes
    )
