"""One commit on a table, worked out in full: what somebody inspected, and what is to change."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse_backfill.domain.scope import RowRange, Scope
from lakehouse_backfill.domain.value import Value

#: In the summary of a swap by rows: what is left to do for it, a `Rewriting` as JSON.
REWRITE_PROPERTY = "lakehouse-backfill.rewriting"


class PartitionContent(Value):
    """What partitions are to hold: their rows in a table's snapshot; none when it is None."""

    scope: Scope
    table: str | None = None
    snapshot_id: int | None = None


class PendingRewrite(Value):
    """What a swap by rows leaves in its summary: what to prove, and how to tag both states.

    Only the snapshot is one commit there; whoever finds it without its tags goes on from this.
    """

    contents: tuple[PartitionContent, ...]
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class InspectedState:
    """The state of a table that a decision was made on; a commit on any other is refused."""

    table: str
    uuid: str
    head_id: int | None
    schema_id: int
    spec_id: int
    last_column_id: int


@dataclass(frozen=True)
class AddedFile:
    """A file that comes in, by path, and its data sequence number; None: the commit's own."""

    path: str
    sequence_number: int | None


@dataclass(frozen=True)
class NewSchema:
    """The columns that a table has from a commit on: Iceberg's JSON of the schema, and numbers."""

    schema: str
    schema_id: int
    last_column_id: int


@dataclass(frozen=True)
class SwapCommit:
    """Files out and files in, in one snapshot; a delete file is named by path and offset.

    `sources` are the snapshots (table, id) that list the files that come in. `ranges` are the rows
    of the partitions concerned: only manifests that may hold them need be read.
    """

    base: InspectedState
    ranges: tuple[RowRange, ...]
    token: str
    removed: tuple[str, ...] = ()
    removed_deletes: tuple[str, ...] = ()
    added: tuple[AddedFile, ...] = ()
    sources: tuple[tuple[str, int], ...] = ()
    #: Tags on snapshots that are there, and the name of the tag on the new one.
    tags: dict[str, int] = field(default_factory=dict)
    after: str | None = None
    tag_age_ms: int = 2**63 - 1
    summary: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    #: What readers of the snapshot are told: overwrite, or append where nothing goes.
    operation: str = "overwrite"
    #: The columns after the swap; None: as they are.
    columns: NewSchema | None = None
    #: The same as rows, for who writes no files of others: every partition of the swap.
    contents: tuple[PartitionContent, ...] = ()


@dataclass(frozen=True)
class CloneCommit:
    """Metadata of a clone: the text of `metadata_location` with only one snapshot and these."""

    table: str
    metadata_location: str
    snapshot_id: int | None
    uuid: str
    location: str
    properties: dict[str, str]
    file: str
