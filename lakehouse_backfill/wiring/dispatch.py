"""Ports that choose an adapter for each call.

- `...ByWritePath`: who commits to a table. The JVM starts only when a table needs it.
- `InspectingBySize`: few rows are counted in this process, many on Spark.
- `SparkDifferWithFallback`: partitions are compared in tasks of their own, else by a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from lakehouse_backfill.core.planning import write_path
from lakehouse_backfill.domain.catch_up import CarryRequest, Drift
from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.diff import DiffPreview
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import ChosenWritePath, JvmState, Plan, WritePath
from lakehouse_backfill.domain.publication import (
    AdoptRequest,
    ChunkCommit,
    CommitResult,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
)
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.domain.run import ChunkFacts, Period
from lakehouse_backfill.domain.table import SchemaChange, TableInfo
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.comparison import Differ, DiffRequest
from lakehouse_backfill.ports.compute import Frame, Inspecting
from lakehouse_backfill.ports.table_writer import Carrying
from lakehouse_backfill.ports.tables import Pins, Publisher, Shadows, TableSurveyor


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


class _TaskDiffer(Protocol):
    def diff(self, request: DiffRequest) -> Diff: ...


class SparkDifferWithFallback:
    """The Differ on Spark: `how` of its answer says which way was taken, and why."""

    def __init__(self, tasks: _TaskDiffer, shuffle: Differ) -> None:
        self._tasks = tasks
        self._shuffle = shuffle

    def diff(self, request: DiffRequest) -> Diff:
        """Compare in tasks, which moves no row; what they refuse is shuffled by key."""
        try:
            return self._tasks.diff(request)
        except Unsupported as error:
            how = f"rows shuffled by key: {error.problem}"
        return self._shuffle.diff(request).model_copy(update={"how": how})

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every row that differs, by a shuffle."""
        return self._shuffle.differing(request)

    def weigh(self, request: DiffRequest) -> int:
        """Describe from metadata how many bytes of files a diff would read."""
        return self._shuffle.weigh(request)

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Refuse: what metadata tells is told without Spark."""
        return self._shuffle.preview(request)


Port = TypeVar("Port")


class WritePathChooser:
    """Looks at a table and says by which way it is changed."""

    def __init__(self, surveying: TableSurveyor, engine: Callable[[], JvmState]) -> None:
        self._surveying = surveying
        self._engine = engine

    def choose(self, table: str, scope: Scope | None = None) -> ChosenWritePath:
        """Choose from the table as it is now; no scope: for tags and clones."""
        return write_path.choose_write_path(self._surveying.survey(table, scope), self._engine())


class ByWritePath(Generic[Port]):
    """The adapters of one port, by way; the first is also the one that only reads."""

    def __init__(self, choosing: WritePathChooser, adapters: Mapping[WritePath, Port]) -> None:
        self._choosing = choosing
        self._adapters = adapters
        self._reading = adapters["pyiceberg"]

    def _adapter_for(self, table: str, scope: Scope | None = None) -> Port:
        chosen = self._choosing.choose(table, scope)
        adapter = self._adapters.get(chosen.way)
        if adapter is None:
            raise Unsupported(
                f"{table} cannot be changed by this profile: {chosen.why}",
                fix="remove spark.remote from the profile for this command, so that Spark runs "
                "here; or rewrite the table to format 2 without equality deletes",
            )
        return adapter


class PinsByWritePath(ByWritePath[Pins], Pins):
    """Tags, written by whoever can write the table."""

    def pin(self, table: str, snapshot_id: int, name: str) -> None:
        """Tag the snapshot and read the tag back; the same pin again does nothing."""
        self._adapter_for(table).pin(table, snapshot_id, name)

    def unpin(self, table: str, name: str) -> None:
        """Drop the tag if it is there."""
        if self._reading.pinned(table, name) is not None:
            self._adapter_for(table).unpin(table, name)

    def pinned(self, table: str, name: str) -> int | None:
        """Return the snapshot id that the tag protects, or None."""
        return self._reading.pinned(table, name)


class ShadowsByWritePath(ByWritePath[Shadows], Shadows):
    """Clones, written by whoever can write the table that is cloned."""

    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone `target` at the snapshot as table `shadow`, and verify it."""
        return self._adapter_for(target).open(target, snapshot_id, shadow, properties)

    def fence(self, shadow: str, epoch: int) -> None:
        """Allow commits to the shadow only by writers of `epoch` and later."""
        self._adapter_for(shadow).fence(shadow, epoch)

    def evolve(self, shadow: str, base_schema_id: int, change: SchemaChange) -> None:
        """Change the shadow's columns by one commit; the same change again does nothing."""
        self._adapter_for(shadow).evolve(shadow, base_schema_id, change)

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the shadow, oldest first."""
        return self._reading.chunks(shadow)

    def keep(
        self, shadow: str, snapshot_id: int, name: str, properties: dict[str, str]
    ) -> TableInfo:
        """Return a snapshot of the shadow a table of its own."""
        return self._adapter_for(shadow).keep(shadow, snapshot_id, name, properties)

    def retire(self, shadow: str) -> None:
        """Drop the shadow from the catalog; its files stay."""
        self._reading.retire(shadow)


class PublisherByWritePath(ByWritePath[Publisher], Publisher):
    """Swaps on a target; what is inspected and refused is the same in every way."""

    def adopt(self, request: AdoptRequest) -> CommitResult:
        """Swap the shadow's files in."""
        return self._adapter_for(request.target, request.scope).adopt(request)

    def revert(self, request: RevertRequest) -> CommitResult:
        """Put partitions back to earlier contents."""
        return self._adapter_for(request.target, request.scope).revert(request)

    def rewrites(
        self, target: str, field: ScopeField, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Describe which partitions cannot go back by adding their files again, and why."""
        labels = tuple(label for restore in restores for label in restore.partitions)
        scope = Scope(field=field, partitions=labels) if labels else None
        return self._adapter_for(target, scope).rewrites(target, field, restores)

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Describe which commit changed rows of the scope since the snapshot."""
        return self._reading.changes(target, scope, since_snapshot_id)

    def prove(self, request: AdoptRequest) -> None:
        """Check the shadow as `adopt` does."""
        self._reading.prove(request)

    def drifts(self, target: str, scope: Scope, since_snapshot_id: int | None) -> tuple[Drift, ...]:
        """Name the commits since the snapshot that changed rows of the scope."""
        return self._reading.drifts(target, scope, since_snapshot_id)

    def find(self, target: str, token: str, *, settle: bool = True) -> CommitResult | None:
        """Look in the target for the commit of publication `token`."""
        return self._reading.find(target, token, settle=settle)


class CarryingByWritePath(ByWritePath[Carrying], Carrying):
    """Partitions of another shadow, taken over by whoever can write the shadow."""

    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Copy the partitions of another shadow into this one, by metadata alone."""
        return self._adapter_for(request.shadow).carry(request)
