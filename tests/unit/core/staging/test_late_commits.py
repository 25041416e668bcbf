"""A chunk by key whose commit lands after it was looked for is not added a second time."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging import schedule
from lakehouse_backfill.core.staging.pause import pause
from lakehouse_backfill.core.staging.schedule import ChunkWork
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, RunState
from lakehouse_backfill.errors import (
    BackfillError,
    CatalogDown,
    Conflict,
    LimitExceeded,
    OutcomeUnknown,
    RunMoved,
    RunPaused,
)
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.steps import approved_run, state_of


class Clock:
    """A clock that waits at once."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


CHUNKS = [f"c000{day}" for day in range(1, 6)]


@dataclasses.dataclass
class LateCommit(FakeCompute):
    """An engine without an answer to its commit, which lands while the next attempt is computed."""

    #: How often the answer for a chunk is lost, and by what.
    lost: Counter[str] = dataclasses.field(default_factory=Counter)
    error: Callable[[], BackfillError] = lambda: OutcomeUnknown("no answer")
    #: The chunks on their way, with the fence that their writer loaded.
    late: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        with self.lock:
            return self._stage(plan, chunk, epoch)

    def remeasure(self, *measured: Any) -> ChunkRecord:
        return super().remeasure(*measured).model_copy(update={"outside_rows": 0})

    def _stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        shadow, short = self.lake.tables[plan.shadow_table], chunk.chunk_id[:5]
        fence = shadow.properties["epoch"]
        for late_id, loaded in self.late if short in self.lost else ():
            if loaded == fence:
                shadow.commit(shadow.content(shadow.head), chunk=late_id)
        if self.lost[short] > 0:
            self.lost[short] -= 1
            self.late.append((chunk.chunk_id, fence))
            raise self.error()
        return super().stage(plan, chunk, epoch)


def by_key(
    parallel: int = 1, failures: int = 3, days: int = 5, **lost: int
) -> tuple[LateCommit, Context, str]:
    """A run whose chunks are said to be by key: each is added beside the others."""
    where = lake()
    engine = LateCommit(where, lost=Counter(lost))
    found = context(where, engine, clock=Clock())
    cut = {"partitions_per_chunk": 1, "parallel": parallel, "failures_in_a_row": failures}
    run = approved_run(found, declared("2020-01-01", f"2020-01-0{days + 1}", limits=cut))
    plan = found.runs.plan(run)
    keys = Scope(field=plan.resolved.scope.field, partitions=("1",))
    chunks = tuple(one.model_copy(update={"keys": keys}) for one in plan.resolved.chunks)
    resolved = plan.resolved.model_copy(update={"chunks": chunks})
    keyed = plan.model_copy(update={"resolved": resolved})
    found.runs.plan = lambda _: keyed  # type: ignore[method-assign]
    return engine, found, run


def landed(found: Context, run: str) -> list[str]:
    shadow = found.runs.plan(run).shadow_table
    return sorted(one.chunk_id[:5] for one in found.shadows.chunks(shadow))


def verbs(found: Context, run: str) -> list[str]:
    return [one.verb for one in found.runs.events(run)][2:]


@pytest.mark.req("X3", "X9", "T4")
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("kind", [OutcomeUnknown, CatalogDown])
def test_a_chunk_by_key_is_not_added_beside_its_own_late_commit(
    parallel: int, kind: type[BackfillError]
) -> None:
    engine, found, run = by_key(parallel, c0002=1)
    engine.error = lambda: kind("no answer")
    stage(found, run, "bob")
    assert landed(found, run) == CHUNKS
    assert verbs(found, run) == ["begin staging", "fail", "begin staging", "finish staging"]


@pytest.mark.req("X3", "X9")
def test_a_conflict_is_an_answer_and_the_fence_stays() -> None:
    engine, found, run = by_key(c0002=1)
    engine.error = lambda: Conflict("another was first")
    stage(found, run, "bob")
    assert verbs(found, run) == ["begin staging", "finish staging"]


@pytest.mark.req("X3", "X9")
def test_lost_answers_count_in_a_row_over_all_fences() -> None:
    """Two in a row, of three that are allowed, and again after a chunk that landed."""
    _, found, run = by_key(c0002=2, c0004=2)
    stage(found, run, "bob")
    assert landed(found, run) == CHUNKS
    assert verbs(found, run).count("begin staging") == 5
    _, found, run = by_key(c0002=3)
    with pytest.raises(OutcomeUnknown, match="no answer"):
        stage(found, run, "bob")
    assert state_of(found, run) is RunState.FAILED
    stage(found, run, "bob")
    assert landed(found, run) == CHUNKS


@pytest.mark.req("X3", "X9")
def test_a_chunk_that_lands_beside_the_last_failure_does_not_have_it_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The staging ends there: in it, nothing would fence the shadow before the next attempt."""
    engine, found, run = by_key(3, 2, 6, c0004=1, c0005=1)

    def conflict_then_unknown() -> BackfillError:
        if engine.late[-1][0].startswith("c0005"):
            return OutcomeUnknown("no answer")
        engine.late.pop()
        return Conflict("another was first")

    def all_in_order(in_work: Mapping[Any, ChunkWork], *_: Any) -> Any:
        concurrent.futures.wait(in_work)
        return SimpleNamespace(done=sorted(in_work, key=lambda one: in_work[one].stage.chunk_id))

    engine.error = conflict_then_unknown
    monkeypatch.setattr(schedule, "wait", all_in_order)
    with pytest.raises(LimitExceeded, match="2 chunks in a row failed"):
        stage(found, run, "bob")
    stage(found, run, "bob")
    assert landed(found, run) == [*CHUNKS, "c0006"]


@pytest.mark.req("X3", "X9")
def test_what_another_process_made_of_the_run_between_two_fences_is_kept() -> None:
    """Staged again, a result that was accepted meanwhile would have to be accepted once more."""
    _, found, run = by_key(c0002=1)
    clock: Any = found.clock
    other = dataclasses.replace(found, driver="here:2", clock=Clock())
    clock.sleep = lambda _: stage(other, run, "bob")
    with pytest.raises(RunMoved, match="it is staged"):
        stage(found, run, "bob")
    assert verbs(found, run) == ["begin staging", "fail", "begin staging", "finish staging"]
    assert landed(found, run) == CHUNKS


@pytest.mark.req("X3", "X9")
def test_a_catalog_that_is_away_between_two_fences_is_waited_for() -> None:
    _, found, run = by_key(c0002=1)
    fence: Any = found.shadows.fence
    outages = iter([None, CatalogDown("away")])

    def unreliable(shadow: str, epoch: int) -> None:
        if error := next(outages, None):
            raise error
        fence(shadow, epoch)

    found.shadows.fence = unreliable  # type: ignore[method-assign]
    stage(found, run, "bob")
    assert landed(found, run) == CHUNKS


@pytest.mark.req("X3", "X5")
def test_a_run_that_is_paused_between_two_fences_stays_paused() -> None:
    engine, found, run = by_key(c0002=1)
    clock: Any = found.clock
    clock.sleep = lambda _: pause(found, run, "ana", "")
    with pytest.raises(RunPaused):
        stage(found, run, "bob")
    assert state_of(found, run) is RunState.PAUSED
    assert landed(found, run) == CHUNKS[:1]
    assert engine.late
