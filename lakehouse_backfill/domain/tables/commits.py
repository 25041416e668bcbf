"""Commits to a table: what is asked of one, what it writes, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lakehouse_backfill.domain.partitions import RowRange, Scope, scope_row_ranges
from lakehouse_backfill.domain.serialization import Value
from lakehouse_backfill.domain.tables.schema_change import SchemaStep


class ChunkCommit(Value):
    """A chunk found in the shadow's snapshot log: id, snapshot and Iceberg's own row count."""

    chunk_id: str
    snapshot_id: int
    added_rows: int
    properties: dict[str, str]


class StoredTable(NamedTuple):
    """What the newest metadata of a table says; of a branch, that of its whole table."""

    properties: Mapping[str, str]
    head_id: int | None
    is_sorted: bool
    #: Of all snapshots, by their ids, in the order of the metadata: newest last.
    summaries: Mapping[int, Mapping[str, str]]
    #: Of a snapshot that only adds files: the one that it adds them to; None for others.
    added_to: Callable[[int], int | None]


class CommitResult(Value):
    """One metadata-only commit that replaced files of a table. Seconds are wall-clock."""

    table: str
    snapshot_id: int
    before_snapshot_id: int | None
    files_added: int
    files_removed: int
    rows_added: int
    rows_removed: int
    attempts: int
    seconds: float

    @classmethod
    def of_pointer(
        cls, table: str, snapshot_id: int, before_snapshot_id: int | None
    ) -> CommitResult:
        """Return the result of a publication that only moves the pointer of a product."""
        return cls(
            table=table, snapshot_id=snapshot_id, before_snapshot_id=before_snapshot_id,
            files_added=0, files_removed=0, rows_added=0, rows_removed=0, attempts=1, seconds=0.0,
        )  # fmt: skip


class SwapRequest(Value):
    """A swap of files of `target`: the partitions, the token, and what the snapshot records.

    `tags` name the states before and after it. With `append` the target must hold no rows of the
    scope, otherwise it is refused. The commit is then one that streaming readers follow.
    """

    target: str
    scope: Scope
    token: str
    tags: dict[Literal["before", "after"], str]
    properties: dict[str, str]
    operation: Literal["overwrite", "append"] = "overwrite"
    #: Whether any other writer's commit since the base, in any partition, is a conflict.
    is_frozen: bool = False


class AdoptRequest(SwapRequest):
    """Adopt the shadow's files of `scope` into `target`, in place of the target's own."""

    base_snapshot_id: int | None
    shadow: str
    shadow_snapshot_id: int | None
    chunk_ids: tuple[str, ...]
    #: Where the shadow may differ from its base; None: in `scope` only.
    within: Scope | None = None
    #: Changes of the target's columns, those of `base_schema_id`, in the same commit.
    schema_change: tuple[SchemaStep, ...] = ()
    base_schema_id: int | None = None


class PartitionRestore(Value):
    """Partitions to restore to their content in `restore_snapshot_id` (None: to no rows).

    Refused when a commit after `since_snapshot_id` changed them.
    """

    partitions: tuple[str, ...]
    restore_snapshot_id: int | None
    since_snapshot_id: int


class RequiredRewrite(Value):
    """Partitions that cannot be restored by re-adding their files, and why."""

    partitions: tuple[str, ...]
    because: str


class RewrittenShadow(Value):
    """A shadow that holds the earlier content of partitions as new files, deletes applied."""

    shadow: str
    base_snapshot_id: int
    shadow_snapshot_id: int
    chunk_ids: tuple[str, ...]
    partitions: tuple[str, ...]


class RevertRequest(SwapRequest):
    """Restore partitions of `target`, keeping everything else as it is.

    Those of `rewritten` get the files of its shadow, the others their own files again.
    """

    restores: tuple[PartitionRestore, ...]
    rewritten: RewrittenShadow | None = None


#: In the summary of a swap by rows: its unfinished work, a `PendingRewrite` as JSON.
REWRITE_PROPERTY = "lakehouse-backfill.rewriting"


class PartitionContent(Value):
    """The required content of partitions: their rows in a table's snapshot; None: no rows."""

    scope: Scope
    table: str | None = None
    snapshot_id: int | None = None


class PendingRewrite(Value):
    """Unfinished work of a swap by rows, stored in its summary: what to verify, how to tag.

    There only the snapshot is one commit. A process that finds it without its tags continues from
    this value.
    """

    contents: tuple[PartitionContent, ...]
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class InspectedState:
    """The state of a table that a decision is based on; a commit on any other is refused."""

    table: str
    uuid: str
    head_id: int | None
    schema_id: int
    spec_id: int
    last_column_id: int


@dataclass(frozen=True)
class AddedFile:
    """A file to add, by path, and its data sequence number; None: the commit's own."""

    path: str
    sequence_number: int | None


@dataclass(frozen=True)
class NewSchema:
    """The columns of a table after a commit: Iceberg's JSON of the schema, and its numbers."""

    schema: str
    schema_id: int
    last_column_id: int


@dataclass(frozen=True)
class SwapCommit:
    """Removed and added files in one snapshot; a delete file is named by path and offset.

    `sources` are the snapshots (table, id) that list the added files. `contents` is the same
    content as rows, of every partition concerned, for writers that cannot add existing files.
    """

    base: InspectedState
    contents: tuple[PartitionContent, ...]
    token: str
    removed: tuple[str, ...] = ()
    removed_deletes: tuple[str, ...] = ()
    added: tuple[AddedFile, ...] = ()
    sources: tuple[tuple[str, int], ...] = ()
    #: Tags on existing snapshots, and the name of the tag on the new one.
    tags: dict[str, int] = field(default_factory=dict)
    after: str | None = None
    tag_age_ms: int = 2**63 - 1
    summary: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    #: The snapshot's operation: overwrite, or append where nothing is removed.
    operation: str = "overwrite"
    #: The columns after the swap; None: unchanged.
    columns: NewSchema | None = None

    @property
    def ranges(self) -> tuple[RowRange, ...]:
        """The rows of the partitions concerned: only manifests that may hold them are read."""
        return tuple(rows for content in self.contents for rows in scope_row_ranges(content.scope))


@dataclass(frozen=True)
class CloneCommit:
    """A clone's metadata file: `metadata_location` with one snapshot only, and these fields."""

    table: str
    metadata_location: str
    snapshot_id: int | None
    uuid: str
    location: str
    properties: dict[str, str]
    file: str
