"""Sources outside the lake, the raw tables that they are landed in, and the ledger of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.domain.sources.landings import (
    FileDelivery,
    LandedSnapshot,
    LandingRequest,
    LandingState,
    LandingSurvey,
    SourceCapabilities,
)
from lakehouse_backfill.domain.sources.schemas import WriterSchema
from lakehouse_backfill.fault_points import side_effect


class SourcePart(Protocol):
    """A part of a checkpoint that is landed whole or rejected whole, such as a file."""

    def batches(self) -> Iterator[Any]:
        """Yield its rows as Arrow tables with the columns of the raw table but the landing's own.

        Raises RejectedInput when the part is bad, SourceDown when its source does not answer.
        """
        ...

    def landed(self, rows: int) -> FileDelivery | None:
        """Return its row of the ledger once it is landed; None: the kind has no such ledger."""
        ...

    def rejected(self, reason: str) -> FileDelivery | None:
        """Return its row of the ledger when it is rejected."""
        ...


@dataclass(frozen=True)
class SourceCheckpoint:
    """What one commit lands, and the position from which the source is read after it."""

    parts: tuple[SourcePart, ...]
    position: dict[str, Any]
    #: Rows of the ledger for what needs no reading, such as duplicates.
    deliveries: tuple[FileDelivery, ...] = ()
    #: Progress that it makes; None: one for each of its parts and deliveries.
    progress: int | None = None
    #: Values of `source_file` whose rows of earlier attempts the parts replace.
    replaces: tuple[str, ...] = ()
    #: Schemas of writers that are kept with its rows: those that were not kept before.
    schemas: Mapping[int, WriterSchema] = field(default_factory=dict)


class SourceReader(Protocol):
    """One source; the same methods for each kind."""

    capabilities: SourceCapabilities

    def survey(self, request: LandingRequest, known: tuple[FileDelivery, ...]) -> LandingSurvey:
        """Return what a landing will read, without reading rows.

        Raises Blocked when the source says that it is incomplete, SourceDown.
        """
        ...

    def checkpoints(self, survey: LandingSurvey, state: LandingState) -> Iterator[SourceCheckpoint]:
        """Yield what is to be landed from the position of `state` on, commit by commit.

        Raises SourceDown.
        """
        ...

    @side_effect
    def finish(self, state: LandingState) -> None:
        """Do what follows a commit outside the lake, such as the archive; again changes nothing."""
        ...


class RawTables(Protocol):
    """Raw tables of sources. Each commit of a landing carries rows and state together."""

    def state(self, table: str) -> LandingState | None:
        """Return the state of the newest landing; None where there was none, or no table."""
        ...

    @side_effect
    def ensure(self, source: SourceDeclaration) -> None:
        """Create the raw table unless it exists.

        Raises Unsupported when one exists whose columns do not fit the declaration.
        """
        ...

    @side_effect
    def stage(self, table: str, batches: Iterable[Any], state: LandingState) -> StagedRows:
        """Write data files that no reader sees yet; on an error they are deleted again."""
        ...

    @side_effect
    def commit(
        self, table: str, staged: tuple[StagedRows, ...], state: LandingState,
        replaces: tuple[str, ...] = (), schemas: Mapping[int, WriterSchema] | None = None,
    ) -> LandedSnapshot:  # fmt: skip
        """Make staged rows and the state visible in one commit, exactly once.

        `schemas` are kept with them. Raises Conflict when another process lands the source,
        TooBusy, OutcomeUnknown.
        """
        ...

    def schemas(self, table: str) -> Mapping[int, WriterSchema]:
        """Return the schemas of writers that were kept with landed rows, by id."""
        ...

    @side_effect
    def seal(self, table: str, state: LandingState, keep_days: int) -> LandedSnapshot:
        """Mark the landing as complete, and tag its snapshot, in one commit."""
        ...

    def rows(
        self, table: str, where: Mapping[str, str], columns: tuple[str, ...]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the rows with these values, in no order."""
        ...

    def deliveries(
        self, table: str, snapshot_id: int, ranges: tuple[RowRange, ...]
    ) -> frozenset[tuple[str, int]]:
        """Return file and attempt of the rows in these ranges that a snapshot holds."""
        ...

    def pinned(self, table: str, landing_id: str) -> LandedSnapshot:
        """Return the snapshot that the landing is pinned at, with its tag."""
        ...


@dataclass(frozen=True)
class StagedRows:
    """Rows in data files that no snapshot lists yet."""

    rows: int
    files: tuple[Any, ...]


class ImportLedger(Protocol):
    """The control table `file_import_ledger`: one row for each attempt to import a file."""

    def deliveries(self, source: str) -> tuple[FileDelivery, ...]:
        """Return all attempts of a source, oldest first."""
        ...

    @side_effect
    def record(self, deliveries: tuple[FileDelivery, ...]) -> None:
        """Append those that are not there yet, in one commit; the same again does nothing."""
        ...
