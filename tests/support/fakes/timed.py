"""Fakes in which computing takes time: a clock that is moved, and an engine that moves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context
from tests.support.fakes.lake import FakeLake


class MovedClock:
    """A clock that moves only when somebody moves it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass
class TimedCompute(FakeCompute):
    """Takes so many seconds for a partition that it computes, and for a validation."""

    clock: MovedClock = field(default_factory=MovedClock)
    partition_s: float = 10.0
    validation_s: float = 7.0

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        seconds = self.partition_s * len(chunk.partitions)
        self.clock.sleep(seconds)
        record = super().stage(plan, chunk, epoch)
        return record.model_copy(update={"seconds": seconds, "finished_at": self.clock.now()})

    def measure(self, *sides: Any, **named: Any) -> Any:
        self.clock.sleep(self.validation_s)
        return super().measure(*sides, **named)


def timed_world(where: FakeLake, **changes: Any) -> tuple[TimedCompute, Context]:
    """An engine that takes time over the lake, and a context over both with its clock."""
    compute = TimedCompute(where)
    profile_changes = {"clock": compute.clock, "cores": lambda: 2} | changes
    return compute, context(where, compute, **profile_changes)
