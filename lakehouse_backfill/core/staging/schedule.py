"""Starts the chunks of a run in order, as many side by side as limits and pace allow.

Chunks are handed on in order, so the ledger is written in order by one thread. Each chunk carries
the epoch of its driver and is one commit, so a driver that is killed leaves at most the chunks in
work to be done again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.planning.pace import chunk_sizes, read_amounts
from lakehouse_backfill.core.planning.stages import Stage
from lakehouse_backfill.core.runs.context import Context, RenewedLease
from lakehouse_backfill.core.staging import pacer
from lakehouse_backfill.core.staging.pacer import Break, Go, Landed, Pace, Size
from lakehouse_backfill.core.staging.pause import require_not_paused
from lakehouse_backfill.domain.guards.safety import PaceLimits
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, RunState, format_duration
from lakehouse_backfill.domain.tables.commits import ChunkCommit
from lakehouse_backfill.errors import (
    BackfillError,
    Conflict,
    LimitExceeded,
    OutcomeUnknown,
    RunMoved,
)

ResultT = TypeVar("ResultT")
#: Seconds between two looks at the run while a limit lets nothing start.
_LOOK_S = 1.0
#: Shorter waits are not shown.
_SHOWN_S = 1.0


@dataclass(frozen=True)
class ChunkWork:
    """One chunk to bring into the shadow; `is_new`: it is not there, so that limits count it."""

    stage: Stage
    is_new: bool
    #: Brings it there, or finds it there; safe to repeat.
    act: Callable[[], ChunkRecord]


@dataclass
class LateCommits:
    """Has a run staged again once a chunk's commit may land later, beside that of a next attempt.

    Chunks by key are added to the shadow, so nothing refuses one that is there already. A staging
    that begins again fences the shadow, as one of another process does, before it looks for chunks.
    """

    plan: Plan
    #: Times in a row that it came to nothing.
    failures: int = 0
    _chunk_id: str = ""
    _error: BackfillError | None = None

    @staticmethod
    def may_follow(one: ChunkWork, error: BackfillError) -> bool:
        """Return whether an attempt that failed so may still be added; a conflict was an answer."""
        return one.stage.chunk.keys is not None and not isinstance(error, Conflict)

    def note(self, one: ChunkWork, error: BackfillError) -> None:
        """Remember why this staging ends."""
        self.failures += 1
        self._chunk_id, self._error = one.stage.chunk_id, error

    def note_landed(self, one: ChunkWork) -> None:
        """Count anew: a chunk has landed since, or the one in doubt was found."""
        if one.is_new or one.stage.chunk_id == self._chunk_id:
            self.failures = 0

    def repeat(self, context: Context, stage: Callable[[Context], ResultT]) -> ResultT:
        """Return what `stage` does, which is called again after such a chunk.

        An outage between two calls is waited for, as one between two chunks. Raises RunPaused and
        RunMoved when the run was paused or moved on meanwhile, else what `stage` raises.
        """
        while True:
            try:
                if self.failures:
                    self._require_not_moved(context)
                return stage(context)
            except BackfillError as error:
                self._require_another_try(error)
            context.clock.sleep(pacer.backoff_s(self.failures))
            # Who takes a run over does so once: another process may have begun in between.
            context = replace(context, take_over=False)

    def _require_not_moved(self, context: Context) -> None:
        """Raise RunMoved for what begun anew would be undone: others may have had it accepted."""
        status = context.runs.status(self.plan.run_id)
        require_not_paused(context, status)
        if status.state not in (RunState.FAILED, RunState.STAGING, RunState.APPROVED):
            raise RunMoved(
                f"{status.run_id} was moved on by another process: it is {status.state.value}",
                state="this process changed nothing since; what it staged before is kept",
                fix=command_line("status", status.run_id),
            )

    def _require_another_try(self, error: BackfillError) -> None:
        if error is not self._error:
            if not self.failures or not error.retry_may_help:
                raise error
            self.failures += 1
        if self.failures >= self.plan.resolved.manifest.limits.failures_in_a_row:
            raise error


_Staged = Generator[tuple[ChunkWork, ChunkRecord], None, None]


@dataclass
class ChunkSchedule:
    """The chunks of one staging: those that wait, those in work, and the pace."""

    context: Context
    plan: Plan
    lease: RenewedLease
    #: Lets a thread work for the run beside others.
    beside: Callable[[], AbstractContextManager[None]]
    late: LateCommits
    pace: Pace = field(default_factory=Pace)
    #: What changed the pace since the last ledger row.
    changes: list[str] = field(default_factory=list)
    _shown_until: datetime | None = None

    def resume(self, recorded: Mapping[str, ChunkRecord], committed: Collection[str]) -> None:
        """Count what earlier drivers landed: rows of the ledger, and chunks that it lacks."""
        now = self.context.clock.now()
        known = [self._landed(one, one.finished_at) for one in recorded.values()]
        in_doubt = [Landed(now, self._size(name)) for name in committed if name not in recorded]
        self.pace = pacer.resume(self.limits, [*known, *in_doubt], now)

    @property
    def limits(self) -> PaceLimits:
        """The limits of the run."""
        return self.plan.resolved.manifest.limits

    def run(self, work: Sequence[ChunkWork]) -> _Staged:
        """Yield each chunk with its row, in order, once it is in the shadow.

        Raises RunMoved once the run was paused, cancelled or taken over, LimitExceeded when too
        many chunks failed in a row, else what a chunk raises that may not be tried again. Chunks
        in work are waited for. The first one that is computed is alone until the next is asked for.
        """
        if self.limits.parallel == 1:
            yield from self._run_one_by_one(work)
        else:
            yield from self._run_side_by_side(work)

    def take_changes(self) -> tuple[str, ...]:
        """Return what changed the pace since the last call, for the ledger."""
        found = tuple(self.changes)
        self.changes.clear()
        return found

    def _run_one_by_one(self, work: Sequence[ChunkWork]) -> _Staged:
        for one in work:
            while True:
                self._wait_to_start(one)
                started = time.monotonic()
                try:
                    record = one.act()
                except BackfillError as error:
                    self._note_failure(one, error)
                    continue
                break
            self._note_landed(one, record, time.monotonic() - started)
            yield one, record

    def _wait_to_start(self, one: ChunkWork) -> None:
        while (wait_s := self._seconds_to_start(one)) is not None:
            self.context.clock.sleep(wait_s)

    def _run_side_by_side(self, work: Sequence[ChunkWork]) -> _Staged:
        queue, done = deque(work), dict[str, ChunkRecord]()
        in_work: dict[Future[tuple[ChunkRecord, float]], ChunkWork] = {}

        def timed(one: ChunkWork) -> tuple[ChunkRecord, float]:
            started = time.monotonic()
            with self.beside():
                return one.act(), time.monotonic() - started

        def start_ready() -> float | None:
            wait_s: float | None = _LOOK_S
            while queue and (wait_s := self._seconds_to_start(queue[0])) is None:
                started = queue.popleft()
                in_work[pool.submit(timed, started)] = started
            return wait_s

        is_first = True
        with ThreadPoolExecutor(self.limits.parallel, thread_name_prefix="lhb-chunk") as pool:
            for one in work:
                while one.stage.chunk_id not in done:
                    self._collect(in_work, queue, done, start_ready())
                # While the caller judges this chunk, others are computed; none beside the first.
                if not is_first and not self.pace.failures:
                    start_ready()
                yield one, done.pop(one.stage.chunk_id)
                is_first = is_first and not one.is_new

    def _collect(
        self,
        in_work: dict[Future[tuple[ChunkRecord, float]], ChunkWork],
        queue: deque[ChunkWork],
        done: dict[str, ChunkRecord],
        wait_s: float | None,
    ) -> None:
        """Wait for the end of a chunk, but not longer than until the next one may start."""
        timeout_s = _LOOK_S if wait_s is None else wait_s
        if not in_work:
            self.context.clock.sleep(timeout_s)
        for future in wait(in_work, timeout_s, FIRST_COMPLETED).done:
            one = in_work.pop(future)
            try:
                record, seconds = future.result()
            except BackfillError as error:
                self._note_failure(one, error)
                queue.appendleft(one)
            else:
                self._note_landed(one, record, seconds)
                done[one.stage.chunk_id] = record

    def _seconds_to_start(self, one: ChunkWork) -> float | None:
        """Return how long to wait before the next look; None: the chunk has started.

        The run's log is read first: an outage at this counts as a failure of the chunk. Raises
        RunMoved, and LimitExceeded once the circuit is broken.
        """
        try:
            return self._look_to_start(one)
        except BackfillError as error:
            self._note_failure(one, error, was_tried=False)
            return 0.0

    def _look_to_start(self, one: ChunkWork) -> float | None:
        self.lease.require_held()
        now, size = self.context.clock.now(), self._size(one.stage.chunk_id)
        decision = pacer.decide_found(self.limits, self.pace, now)
        if one.is_new:
            decision = pacer.decide(self.limits, self.pace, size, now)
        if isinstance(decision, Go):
            self.lease.require_driving()
            if one.is_new:
                self.pace = pacer.start(self.pace, one.stage.chunk_id, size)
            self._show_wait(None, "")
            return None
        if isinstance(decision, Break):
            raise self._stopped(decision)
        if decision.until is None:
            return _LOOK_S
        self._show_wait(decision.until, decision.reason)
        return min(_LOOK_S, max(0.0, (decision.until - now).total_seconds()))

    def _stopped(self, by: Break) -> LimitExceeded:
        return LimitExceeded(
            f"staging of {self.plan.run_id} was stopped: {by.reason}",
            state="chunks that are done stay in the shadow; readers see what they saw before",
            fix=f"{command_line('run', self.plan.run_id)}, once what failed works again",
        )

    def _show_wait(self, until: datetime | None, reason: str) -> None:
        """Show a wait, once, with its reason; None ends what is shown."""
        if until == self._shown_until:
            return
        if self._shown_until is not None:
            self.context.progress.finish()
            self._shown_until = None
        if until is None:
            return
        left_s = (until - self.context.clock.now()).total_seconds()
        if left_s >= _SHOWN_S:
            self._shown_until = until
            text = f"waits {format_duration(left_s)}: {reason}"
            self.context.progress.start(text, 0, "")
            self.context.journal.bind(**self.plan.labels).log(
                "staging waits", reason=reason, until=until.isoformat()
            )

    def _note_failure(
        self, one: ChunkWork, error: BackfillError, *, was_tried: bool = True
    ) -> None:
        """Count a failure after which a chunk may be tried again; raise any other.

        The last one that is allowed is raised as it is, unless others came before it.
        """
        self.lease.require_held()
        # Of an unknown outcome, the next attempt looks for the chunk first.
        may_help = error.retry_may_help or isinstance(error, (Conflict, OutcomeUnknown))
        if isinstance(error, RunMoved) or not may_help or self.limits.failures_in_a_row == 1:
            raise error
        self.pace, change = pacer.fail(
            self.limits, self.pace, one.stage.chunk_id, error.problem, self.context.clock.now()
        )
        self._log_change(change)
        if was_tried and LateCommits.may_follow(one, error):
            # Nor may it be tried again here once another chunk lands and ends the row.
            if broken := pacer.broken(self.limits, self.pace):
                raise self._stopped(broken) from error
            self.late.note(one, error)
            raise error

    def _note_landed(self, one: ChunkWork, record: ChunkRecord, seconds: float) -> None:
        self.late.note_landed(one)
        if not one.is_new:
            self.pace = pacer.find(self.pace)
            return
        landed = self._landed(record, self.context.clock.now())
        computed_s = None if record.carried_from or record.recovered else seconds
        self.pace, change = pacer.land(
            self.limits, self.pace, one.stage.chunk_id, landed, computed_s
        )
        if change:
            self._log_change(change)

    def _log_change(self, change: str) -> None:
        self.changes.append(change)
        self.context.journal.bind(**self.plan.labels).log("pace changed", change=change)

    @cached_property
    def _sizes(self) -> dict[str, Size]:
        found = chunk_sizes(self.plan.estimate, len(self.plan.resolved.chunks))
        return {chunk_id: Size(*size) for chunk_id, size in found.items()}

    def _size(self, chunk_id: str) -> Size:
        return self._sizes.get(chunk_id, Size(0, 0))

    def _landed(self, record: ChunkRecord, at: datetime) -> Landed:
        amounts = read_amounts(self.plan, record)
        return Landed(at, Size(amounts.rows, amounts.size_bytes))


@dataclass
class StageAttempts:
    """Brings one chunk into the shadow; after a failure it looks whether that landed."""

    act: Callable[[ChunkCommit | None, ChunkRecord | None], ChunkRecord]
    commit: ChunkCommit | None
    known: ChunkRecord | None
    find: Callable[[], ChunkCommit | None]
    _has_failed: bool = False

    def __call__(self) -> ChunkRecord:
        """Return the chunk's row; raises what computing and committing raise."""
        if self._has_failed:
            self.commit = self.find()
        self._has_failed = True
        return self.act(self.commit, self.known)


def pace_detail(changes: Sequence[str]) -> dict[str, Any]:
    """Return what changed the pace after the last ledger row, for the event that ends staging."""
    return {"pace": tuple(changes)} if changes else {}
