"""The chunks of a run one after another and side by side, within limits."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.planning.pace import PacedEdges
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.stages import edges_while_staging
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.pause import pause, preview_run, unpause
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, RunState
from lakehouse_backfill.errors import (
    CatalogDown,
    ChecksFailed,
    Conflict,
    LimitExceeded,
    OutcomeUnknown,
    RunPaused,
)
from lakehouse_backfill.ports.compute import KeptIntermediate
from tests.support.fakes.compute import FakeCompute, SilentProgress, checksum
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import approved_run, state_of

SLOW_S = 30
BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class Clock:
    """A clock that waits at once, and knows how long it waited."""

    def __init__(self) -> None:
        self.time = BEGIN

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclasses.dataclass
class Threads(FakeCompute):
    """An engine whose commits are safe from several threads; it notes who stages what."""

    lock: Any = dataclasses.field(default_factory=threading.Lock)
    by_thread: dict[str, str] = dataclasses.field(default_factory=dict)
    working: list[str] = dataclasses.field(default_factory=list)
    act: Callable[[Chunk], object] = lambda _: None

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        self.by_thread[chunk.chunk_id] = threading.current_thread().name
        self.act(chunk)
        with self.lock:
            record = super().stage(plan, chunk, epoch)
        return record.model_copy(update={"finished_at": BEGIN})

    @contextmanager
    def beside(self, plan: Plan) -> Iterator[None]:
        self.working.append(threading.current_thread().name)
        yield


@dataclasses.dataclass
class Shown(SilentProgress):
    """What a person sees of waits."""

    texts: list[str] = dataclasses.field(default_factory=list)

    def start(self, label: str, total: int, unit: str) -> None:
        self.texts.append(label)


def _world(**limits: Any) -> tuple[FakeLake, Threads, Context, str]:
    where = lake()
    engine = Threads(where)
    found = context(where, engine, clock=Clock(), progress=Shown())
    cut = {"partitions_per_chunk": 1, **limits}
    return (
        where,
        engine,
        found,
        approved_run(found, declared("2020-01-01", "2020-01-06", limits=cut)),
    )


def _sums(found: Context, run: str) -> list[str]:
    return [one.checksum for one in found.runs.chunks(run)]


def _expected(run: str) -> list[str]:
    """The checksums of the five days, each with one file of the run."""
    return [checksum(frozenset({f"{run}/2020-01-0{day}"})).text for day in range(1, 6)]


@pytest.mark.req("X3")
def test_chunks_side_by_side_come_to_the_same_and_the_ledger_is_in_order() -> None:
    _, engine, found, run = _world(parallel=3)
    order: list[str] = []
    recorded: Any = found.runs.record_chunk

    def record(row: ChunkRecord) -> None:
        order.append(row.chunk_id)
        recorded(row)

    found.runs.record_chunk = record  # type: ignore[method-assign]
    stage(found, run, "bob")
    assert _sums(found, run) == _expected(run)
    assert order == sorted(order)
    assert all(name.startswith("lhb-chunk") for name in engine.by_thread.values())
    assert set(engine.by_thread.values()) <= set(engine.working)


@pytest.mark.req("X3")
def test_as_many_are_side_by_side_as_the_window_has_grown_to() -> None:
    _, engine, found, run = _world(parallel=2)
    both = threading.Barrier(2)
    # Chunks 2 and 3, and then 4 and 5, can only end together.
    engine.act = lambda chunk: chunk.chunk_id.startswith("c0001") or both.wait(SLOW_S)
    stage(found, run, "bob")
    assert state_of(found, run) is RunState.STAGED
    pace = [text for row in found.runs.chunks(run) for text in row.pace]
    assert pace == ["window 1 to 2: 1 good chunks"]


@pytest.mark.req("X3")
def test_while_a_chunk_is_judged_two_others_are_in_work_but_none_beside_the_first() -> None:
    _, engine, found, run = _world(parallel=2)
    started: dict[str, threading.Event] = {f"c000{n}": threading.Event() for n in range(1, 6)}
    look: Any = engine.chunk

    def judge(plan: Plan, one: Chunk, *others: Any) -> Any:
        number = int(one.chunk_id[4])
        if number == 1:
            assert not started["c0002"].is_set()
        if number in (2, 3):
            assert started[f"c000{number + 2}"].wait(SLOW_S)
        return look(plan, one, *others)

    engine.chunk = judge  # type: ignore[method-assign]
    engine.act = lambda chunk: started[chunk.chunk_id[:5]].set()
    stage(found, run, "bob")
    assert _sums(found, run) == _expected(run)


@pytest.mark.req("X3", "X9")
def test_a_driver_that_is_overtaken_with_two_chunks_in_work_leaves_at_most_these() -> None:
    _, engine, found, run = _world(parallel=2)
    other = dataclasses.replace(found, driver="two")
    both, paused = threading.Barrier(2), threading.Event()

    def interfere(chunk: Chunk) -> None:
        if chunk.chunk_id.startswith("c0001"):
            return
        if both.wait(SLOW_S) == 0:
            pause(other, run, "bob", "")
            paused.set()
        assert paused.wait(SLOW_S)

    engine.act = interfere
    with pytest.raises(RunPaused):
        stage(found, run, "bob")
    acts = [one.act for one in preview_run(other, run)[1]]
    # The verdicts of a driver that was stopped are not stored yet.
    assert acts == ["judge", "record", "record", "compute", "compute"]
    unpause(other, run, "bob", "")
    engine.act = lambda _: None
    computed = len(engine.staged)
    stage(other, run, "bob")
    assert len([one for one in engine.staged[computed:] if one != "load"]) == 2
    assert _sums(other, run) == _expected(run)


@pytest.mark.req("X3", "Q9")
def test_a_bad_chunk_halts_the_run_once_what_is_in_work_has_landed() -> None:
    _, engine, found, run = _world(parallel=2)
    engine.chunk_duplicates = 1
    ended = threading.active_count()
    with pytest.raises(ChecksFailed):
        stage(found, run, "bob")
    assert state_of(found, run) is RunState.HALTED
    assert threading.active_count() == ended
    assert [one.status for one in found.runs.chunks(run)] == ["failed"]


@pytest.mark.req("X3")
@pytest.mark.parametrize("parallel", [1, 2])
def test_limits_are_kept_and_the_wait_is_shown_with_its_reason(parallel: int) -> None:
    _, _, found, run = _world(parallel=parallel, commits_per_hour=12)
    clock: Any = found.clock
    stage(found, run, "bob")
    # Four waits of five minutes.
    assert 1200 <= (clock.time - BEGIN).total_seconds() < 1210
    shown: Any = found.progress
    waits = [text for text in shown.texts if text.startswith("waits")]
    assert waits == ["waits 5 min: 12 commits an hour"] * 4


@pytest.mark.req("X3")
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_chunk_that_meets_a_conflict_is_tried_again_and_the_ledger_says_so(
    parallel: int,
) -> None:
    _, engine, found, run = _world(parallel=parallel, failures_in_a_row=3)
    problems = iter(["a conflict", "another"])

    def fail(chunk: Chunk) -> None:
        if chunk.chunk_id.startswith("c0002") and (problem := next(problems, "")):
            raise Conflict(problem)

    engine.act = fail
    stage(found, run, "bob")
    pace = [text for row in found.runs.chunks(run) for text in row.pace]
    assert any("failed: a conflict; tried again after 2 s" in text for text in pace)
    assert len(set(engine.staged)) == len(engine.staged) == 6


@pytest.mark.req("X3")
@pytest.mark.parametrize("parallel", [1, 2])
def test_the_circuit_breaks_and_the_same_command_goes_on(parallel: int) -> None:
    _, engine, found, run = _world(parallel=parallel, failures_in_a_row=2)

    def fail(chunk: Chunk) -> None:
        if not chunk.chunk_id.startswith("c0001"):
            raise Conflict("the table is busy")

    engine.act = fail
    with pytest.raises(LimitExceeded, match="chunks in a row failed") as broken:
        stage(found, run, "bob")
    assert f"run {run}" in broken.value.fix
    assert state_of(found, run) is RunState.FAILED
    # No row of the ledger follows: the log keeps them.
    assert all("table is busy" in one for one in found.runs.events(run)[-1].detail["pace"])
    engine.act = lambda _: None
    stage(found, run, "bob")
    assert state_of(found, run) is RunState.STAGED


@pytest.mark.req("X3")
def test_a_failure_after_the_commit_is_found_in_the_shadow_and_not_computed_again() -> None:
    _, engine, found, run = _world(failures_in_a_row=2)
    landed: Any = engine.remeasure
    problems = iter(["the store is slow"])

    def measure(*arguments: Any) -> ChunkRecord:
        record: ChunkRecord = landed(*arguments)
        if record.chunk_id.startswith("c0002") and (problem := next(problems, "")):
            raise Conflict(problem)
        return record

    engine.remeasure = measure  # type: ignore[method-assign]
    stage(found, run, "bob")
    assert len(set(engine.staged)) == len(engine.staged) == 6


@pytest.mark.req("X3")
def test_a_limit_that_is_smaller_than_one_chunk_is_refused_with_number_and_limit() -> None:
    found = context(lake())
    wanted = declared(limits={"partitions_per_chunk": 2, "rows_per_minute": 1})
    with pytest.raises(LimitExceeded) as refused:
        make_plan(found, wanted, "bob", None)
    assert "limits.rows_per_minute 1 lets 5 through in 5 minutes" in refused.value.problem
    assert refused.value.field == "limits.rows_per_minute"


@pytest.mark.req("X3")
def test_partitions_beyond_the_edges_are_computed_within_the_limit_of_rows() -> None:
    """In five minutes 20 rows may be read: those of two partitions of about 10."""
    _, engine, found, run = _world(rows_per_minute=4)
    stage(found, run, "bob")
    plan, clock, begun = found.runs.plan(run), found.clock, list[tuple[str, float]]()
    assert edges_while_staging(plan) == {}
    clock.sleep(600)
    start, look = clock.now(), engine.edge_checksums

    def edge_checksums(plan: Plan, around: Any) -> Any:
        ((label,),) = around.values()
        begun.append((label, round((clock.now() - start).total_seconds())))
        return look(plan, around)

    engine.edge_checksums = edge_checksums  # type: ignore[method-assign]
    labels = {"before": ("2019-12-31", "2019-12-30"), "after": ("2020-01-06", "2020-01-07")}
    PacedEdges(found, engine).edge_checksums(plan, labels)
    assert begun == [
        ("2019-12-31", 0), ("2019-12-30", 0), ("2020-01-06", 300), ("2020-01-07", 300),
    ]  # fmt: skip
    shown: Any = found.progress
    assert shown.texts[-1] == "waits 5 min before it computes beyond the edges: limits"
    begun.clear()
    validate(found, run, "bob")
    assert [label for label, _ in begun] == ["2019-12-31", "2020-01-06"]


@pytest.mark.req("X2", "X3")
def test_after_a_kill_only_chunks_whose_verdict_was_not_stored_are_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakehouse_backfill.core.staging.checks._VERDICTS_PER_DOCUMENT", 2)
    _, engine, found, run = _world()
    judged: list[str] = []
    look: Any = engine.chunk

    def chunk(plan: Plan, one: Chunk, *others: Any) -> Any:
        judged.append(one.chunk_id[:5])
        return look(plan, one, *others)

    engine.chunk = chunk  # type: ignore[method-assign]

    def die(one: Chunk) -> None:
        if one.chunk_id.startswith("c0004"):
            raise KeyboardInterrupt

    engine.act = die
    with pytest.raises(KeyboardInterrupt):
        stage(found, run, "bob")
    engine.act = lambda _: None
    stage(dataclasses.replace(found, driver="two", take_over=True), run, "bob")
    # The third was recorded, and its verdict was not stored.
    assert judged == ["c0001", "c0002", "c0003", "c0003", "c0004", "c0005"]


@pytest.mark.req("X6")
def test_intermediate_results_are_kept_once_before_chunks_and_not_where_all_are_there() -> None:
    _, engine, found, run = _world(parallel=2)
    engine.kept = (KeptIntermediate("rates", "shadow.kept", 7), KeptIntermediate("x", because="no"))
    stage(found, run, "bob")
    assert engine.staged.count("keep") == 1
    acts = [one for one in engine.staged if one != "load"]
    assert acts[0] == "keep"
    journal: Any = found.journal
    told = [line for line in journal.lines if line[0] == "intermediate result"]
    assert [(line[1]["result"], line[1]["how"], line[1]["place"]) for line in told] == [
        ("rates", "kept", "shadow.kept@7"), ("x", "computed for each chunk", None),
    ]  # fmt: skip


@pytest.mark.req("X6")
def test_a_job_without_intermediate_results_keeps_none() -> None:
    _, engine, found, run = _world()
    stage(found, run, "bob")
    assert "keep" not in engine.staged


@pytest.mark.req("X3", "T8")
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_catalog_that_is_away_for_a_minute_is_waited_for(parallel: int) -> None:
    """Failures 1 to 5 are followed by 2, 4, 8, 16 and 32 seconds; the log cannot be read either."""
    _, engine, found, run = _world(parallel=parallel, failures_in_a_row=6)
    clock: Any = found.clock
    since: list[datetime] = []
    look: Any = found.runs.status

    def require_there() -> None:
        if since and (clock.time - since[0]).total_seconds() < 60:
            raise CatalogDown("the catalog is away", fix="try again")

    def away(_: Chunk) -> None:
        if not since:
            since.append(clock.time)
            raise OutcomeUnknown("the answer was lost", fix="run the step again")
        require_there()

    def status(run_id: str) -> Any:
        require_there()
        return look(run_id)

    engine.act, found.runs.status = away, status  # type: ignore[method-assign]
    stage(found, run, "bob")
    assert 60 <= (clock.time - BEGIN).total_seconds() < 80
    assert state_of(found, run) is RunState.STAGED
    assert _sums(found, run) == _expected(run)
    shown: Any = found.progress
    assert "waits 32 s: after a failure: the catalog is away" in shown.texts


@pytest.mark.req("X3", "T8")
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("what", ["the log", "the shadow"])
def test_a_run_whose_chunks_are_there_waits_and_gives_up_as_any_other(
    parallel: int, what: str
) -> None:
    """Chunks that are not computed follow no limits; they are not looked for without end."""
    _, engine, found, run = _world(parallel=parallel, failures_in_a_row=3)

    def die(chunk: Chunk) -> None:
        if not chunk.chunk_id.startswith("c0001"):
            raise RuntimeError("the process ends")

    engine.act = die
    with pytest.raises(RuntimeError):
        stage(found, run, "bob")
    engine.act = lambda _: None
    again = dataclasses.replace(found, driver="two", take_over=True)
    looks: list[str] = []

    def away(*_: Any) -> Any:
        looks.append(what)
        assert len(looks) < 50, "it is looked for without end"
        raise CatalogDown("the catalog is away", fix="try again")

    def begin(*_: Any) -> None:
        found.runs.status = away  # type: ignore[method-assign]

    if what == "the log":
        engine.load = begin  # type: ignore[method-assign]
    else:
        found.runs.chunks = lambda _: ()  # type: ignore[method-assign]
        engine.remeasure = away  # type: ignore[method-assign]
    before = found.clock.now()
    with pytest.raises(LimitExceeded, match=r"chunks in a row failed.*the catalog is away"):
        stage(again, run, "bob")
    # Others may look at the log, and chunks beside it may land: then one was not in a row.
    assert len(looks) <= 10
    assert found.clock.now() - before >= timedelta(seconds=2)


@pytest.mark.req("X3", "T4")
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_chunk_of_unknown_outcome_is_told_also_where_that_cannot_be_noted(parallel: int) -> None:
    _, engine, found, run = _world(parallel=parallel)
    note: Any = found.runs.append

    def lost(chunk: Chunk) -> None:
        found.runs.append = away  # type: ignore[method-assign]
        raise OutcomeUnknown(f"{chunk.chunk_id} may have landed", fix="run the step again")

    def away(*_: Any) -> None:
        raise CatalogDown("the catalog is away", fix="try again")

    engine.act = lost
    with pytest.raises(OutcomeUnknown, match="c0001-2020-01-01 may have landed"):
        stage(found, run, "bob")
    engine.act, found.runs.append = lambda _: None, note  # type: ignore[method-assign]
    stage(found, run, "bob")
    assert _sums(found, run) == _expected(run)
