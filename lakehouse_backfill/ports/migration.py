"""Old places that are migrated from, and the Iceberg tables that they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.sources.migration import (
    MigrationPart,
    MigrationState,
    MigrationSurvey,
)
from lakehouse_backfill.fault_points import side_effect


@dataclass(frozen=True)
class PartitionRows:
    """Rows of one partition: their checksum, and the partition's values as hex."""

    checksum: Checksum
    values: tuple[str | None, ...]


class RowSums(Protocol):
    """Counts and checksums of rows by partition of the table."""

    def add(self, batch: Any) -> None:
        """Add rows that have the columns of the table."""
        ...

    def groups(self) -> dict[str, PartitionRows]:
        """Return what was added, by partition."""
        ...


class OldPlace(Protocol):
    """Where the rows are before the migration; nothing is ever changed there."""

    @property
    def name(self) -> str:
        """What the place is called in messages."""
        ...

    @property
    def is_lasting(self) -> bool:
        """Whether another process can read the same rows again."""
        ...

    def survey(self) -> MigrationSurvey:
        """Read everything once: what is good, what is bad and why, counts and checksums.

        Raises Blocked when the place as a whole cannot be migrated, SourceDown.
        """
        ...

    def batches(self, part: MigrationPart) -> Iterator[Any]:
        """Yield the rows of a part with the columns and types of the table, in bounded memory.

        Raises Conflict when the part is not there any more.
        """
        ...

    def changed(self, parts: Iterable[MigrationPart]) -> tuple[str, ...]:
        """Return which parts changed or vanished since the survey."""
        ...

    def added(self, survey: MigrationSurvey) -> tuple[str, ...]:
        """Return which parts are there that the survey did not find."""
        ...


@dataclass(frozen=True)
class StagedPart:
    """Data files that no snapshot lists yet."""

    files: tuple[Any, ...]


class MigratedTables(Protocol):
    """Tables that a migration makes; until it is accepted their main branch is empty."""

    def state(self, table: str) -> MigrationState | None:
        """Return the state of the migration; None: no table.

        Raises Unsupported for a table that no migration made.
        """
        ...

    @side_effect
    def create(self, contract: Contract, state: MigrationState) -> None:
        """Create the table with the state; raises Conflict when another process was first."""
        ...

    @side_effect
    def stage(
        self, table: str, parts: tuple[MigrationPart, ...], place: OldPlace
    ) -> tuple[StagedPart, ...]:
        """Describe adopted files, and write the rows of other parts as files no reader sees."""
        ...

    @side_effect
    def commit(self, table: str, staged: tuple[StagedPart, ...], state: MigrationState) -> None:
        """Add staged files to the migration's branch together with the state, exactly once.

        Raises Conflict when another process migrates, TooBusy, OutcomeUnknown.
        """
        ...

    @side_effect
    def note(self, table: str, state: MigrationState) -> None:
        """Store the state alone. Raises as `commit` does."""
        ...

    def sums(self, table: str, state: MigrationState, sums: RowSums) -> int:
        """Read the branch as readers will, and add all of its rows to `sums`; return its files.

        Raises Blocked when a file is listed twice.
        """
        ...

    def branch_snapshot(self, table: str) -> int:
        """Return the snapshot that the migration has committed last."""
        ...

    @side_effect
    def accept(self, table: str, state: MigrationState, tag: str) -> int:
        """Make the branch the main one, with a tag that keeps it, in one commit.

        Returns the snapshot. Raises Conflict when something else was committed to the table.
        """
        ...

    def foreign_snapshot(self, table: str) -> int | None:
        """Return a snapshot of the table that the migration did not make; None: there is none."""
        ...

    @side_effect
    def drop(self, table: str, state: MigrationState) -> None:
        """Drop the table from the catalog; no file is deleted."""
        ...
