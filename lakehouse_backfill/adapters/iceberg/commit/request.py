"""What a swap changes: the request, the files of each part, and the wording of its errors."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.adapters.iceberg.manifests import LiveEntries
from lakehouse_backfill.adapters.iceberg.metadata import (
    ATTEMPTS_PROPERTY,
    PUBLICATION_PROPERTY,
    ColumnIds,
)
from lakehouse_backfill.adapters.iceberg.schema import SchemaEvolution
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import PartitionContent, SwapRequest
from lakehouse_backfill.errors import TargetChanged


@dataclass(frozen=True)
class ErrorWording:
    """Wording for error messages: the attempted action, the state of the data, the fix."""

    name: str
    state: str
    fix: str

    def target_changed(
        self, table: str, problem: str, kind: type[TargetChanged] = TargetChanged
    ) -> TargetChanged:
        """Build the error for a table on which the action is no longer possible."""
        return kind(f"{table} cannot be {self.name}: {problem}", state=self.state, fix=self.fix)


@dataclass(frozen=True)
class SwapPart:
    """Partitions that get the files `wanted`, unless changed since `since_id` (None: empty).

    `source` is the table and snapshot that list these files; None: the part is empty.
    """

    scope: Scope
    since_id: int | None
    wanted: LiveEntries
    source: tuple[str, int] | None = None

    @property
    def row_content(self) -> PartitionContent:
        """The same content as rows of the source; no table where nothing is read."""
        if self.source is None or not self.wanted:
            return PartitionContent(scope=self.scope)
        return PartitionContent(scope=self.scope, table=self.source[0], snapshot_id=self.source[1])


@dataclass(frozen=True)
class Swap:
    """A swap to commit: the request, its parts, and what the table must still be."""

    request: SwapRequest
    uuid: str
    parts: tuple[SwapPart, ...]
    wording: ErrorWording
    #: The columns that the table must still have; None: any.
    columns: ColumnIds | None = None
    #: The default spec that the table must still have; None: any.
    spec_id: int | None = None
    #: The new columns that the same commit sets; None: unchanged.
    schema_evolution: SchemaEvolution | None = None

    def summary(self, attempt: int) -> dict[str, str]:
        """Return what the snapshot of an attempt records apart from its files."""
        own = {PUBLICATION_PROPERTY: self.request.token, ATTEMPTS_PROPERTY: str(attempt)}
        return {**self.request.properties, **own}
