"""Looking at few rows in this process, and at many on Spark."""

from __future__ import annotations

from typing import Protocol

from lakehouse_backfill.domain.inspection import ChunkFacts, Period
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Chunk, Scope
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.compute import Frame, Inspecting


class LocalCounting(Protocol):
    """The part of `Inspecting` that gives numbers; raises Unsupported for what it leaves alone."""

    def periods(self, of: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Label the hours, days or months of which an input holds a row."""
        ...

    def chunk(self, of: Plan, chunk: Chunk, snapshot_id: int | None) -> ChunkFacts:
        """Count the rows that the shadow holds of a chunk, and look at their keys."""
        ...


class InspectingBySize(Inspecting):
    """Both give the same numbers; to begin takes Spark longer than counting few rows."""

    def __init__(self, near: LocalCounting, spark: Inspecting) -> None:
        self._near = near
        self._spark = spark

    def periods(self, plan: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Label the hours, days or months of which an input holds a row, where the run reads it."""
        try:
            return self._near.periods(plan, name, unit)
        except Unsupported:
            return self._spark.periods(plan, name, unit)

    def chunk(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> ChunkFacts:
        """Count the rows that the shadow holds of a chunk, and look at their keys."""
        try:
            return self._near.chunk(plan, chunk, snapshot_id)
        except Unsupported:
            return self._spark.chunk(plan, chunk, snapshot_id)

    def snapshot(self, table: str, snapshot_id: int | None, scope: Scope | None) -> Frame:
        """The rows of a table at a snapshot, all or those of some partitions, for the suites."""
        return self._spark.snapshot(table, snapshot_id, scope)

    def visible(self, table: str, snapshot_id: int, scope: Scope) -> Frame:
        """The rows of some partitions of a table as its readers see them, for the suites."""
        return self._spark.visible(table, snapshot_id, scope)

    def rows(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> Frame:
        """The rows that the shadow holds of a chunk, for the suites."""
        return self._spark.rows(plan, chunk, snapshot_id)
