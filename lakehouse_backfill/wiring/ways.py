"""Ports that choose for each table who writes its commits; the JVM starts when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from lakehouse_backfill.core.planning import ways
from lakehouse_backfill.domain.carrying import CarryRequest
from lakehouse_backfill.domain.drift import Drift
from lakehouse_backfill.domain.publication import (
    AdoptRequest,
    ChunkCommit,
    CommitResult,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
)
from lakehouse_backfill.domain.schema_change import SchemaChange
from lakehouse_backfill.domain.scope import Scope, ScopeField
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.domain.ways import ChosenWritePath, JvmState, WritePath
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.carrying import Carrying
from lakehouse_backfill.ports.lake import Pins, Publisher, Shadows
from lakehouse_backfill.ports.surveying import TableSurveyor

Port = TypeVar("Port")


class WritePathChooser:
    """Looks at a table and says by which way it is changed."""

    def __init__(self, surveying: TableSurveyor, engine: Callable[[], JvmState]) -> None:
        self._surveying = surveying
        self._engine = engine

    def choose(self, table: str, scope: Scope | None = None) -> ChosenWritePath:
        """Choose from the table as it is now; no scope: for tags and clones."""
        return ways.choose_write_path(self._surveying.survey(table, scope), self._engine())


class ByWritePath(Generic[Port]):
    """The adapters of one port, by way; the first is also the one that only reads."""

    def __init__(self, choosing: WritePathChooser, adapters: Mapping[WritePath, Port]) -> None:
        self._choosing = choosing
        self._adapters = adapters
        self._reading = adapters["pyiceberg"]

    def _of(self, table: str, scope: Scope | None = None) -> Port:
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
        self._of(table).pin(table, snapshot_id, name)

    def unpin(self, table: str, name: str) -> None:
        """Drop the tag if it is there."""
        if self._reading.pinned(table, name) is not None:
            self._of(table).unpin(table, name)

    def pinned(self, table: str, name: str) -> int | None:
        """Give the snapshot id that the tag protects, or None."""
        return self._reading.pinned(table, name)


class ShadowsByWritePath(ByWritePath[Shadows], Shadows):
    """Clones, written by whoever can write the table that is cloned."""

    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone `target` at the snapshot as table `shadow`, and verify it."""
        return self._of(target).open(target, snapshot_id, shadow, properties)

    def fence(self, shadow: str, epoch: int) -> None:
        """Let only writers of `epoch` and later commit to the shadow from now on."""
        self._of(shadow).fence(shadow, epoch)

    def evolve(self, shadow: str, base_schema_id: int, change: SchemaChange) -> None:
        """Change the shadow's columns by one commit; the same change again does nothing."""
        self._of(shadow).evolve(shadow, base_schema_id, change)

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the shadow, oldest first."""
        return self._reading.chunks(shadow)

    def keep(
        self, shadow: str, snapshot_id: int, name: str, properties: dict[str, str]
    ) -> TableInfo:
        """Give a snapshot of the shadow a table of its own."""
        return self._of(shadow).keep(shadow, snapshot_id, name, properties)

    def retire(self, shadow: str) -> None:
        """Drop the shadow from the catalog; its files stay."""
        self._reading.retire(shadow)


class PublisherByWritePath(ByWritePath[Publisher], Publisher):
    """Swaps on a target; what is inspected and refused is the same in every way."""

    def adopt(self, request: AdoptRequest) -> CommitResult:
        """Swap the shadow's files in."""
        return self._of(request.target, request.scope).adopt(request)

    def revert(self, request: RevertRequest) -> CommitResult:
        """Put partitions back to earlier contents."""
        return self._of(request.target, request.scope).revert(request)

    def rewrites(
        self, target: str, field: ScopeField, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Say which partitions cannot go back by adding their files again, and why."""
        labels = tuple(label for restore in restores for label in restore.partitions)
        scope = Scope(field=field, partitions=labels) if labels else None
        return self._of(target, scope).rewrites(target, field, restores)

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Say which commit changed rows of the scope since the snapshot."""
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
        """Let a shadow hold the partitions as another one has them."""
        return self._of(request.shadow).carry(request)
