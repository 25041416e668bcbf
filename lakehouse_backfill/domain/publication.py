"""Publication rows and what they do to the pointer; swap, adopt and revert requests; one prepared table commit.

Accepted output versions: the rows of the pointer table, and what a swap did to a table.

What rows of `accepted_output_version` do to their product's pointer.

One commit on a table, worked out in full: what somebody inspected, and what is to change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import reduce
from typing import Any, Literal, get_args

from lakehouse_backfill.domain.partitions import RowRange, Scope
from lakehouse_backfill.domain.serialization import Value, added_later, digest
from lakehouse_backfill.domain.table import SchemaStep

PublicationAction = Literal["baseline", "reserve", "publish", "rollback", "release", "expire"]


class Publication(Value):
    """One row of `accepted_output_version`.

    `version` counts 1, 2, 3 … per product; 0 is the state that the first run found. `token` names
    the act and stands in the target's snapshot summary. `before_snapshot_id` is the target's head
    right before the act: the content to go back to, for the partitions of `scope`. `epoch` is the
    lease of the process that acts: one that was overtaken can neither finish nor release it.
    `evidence_digest` is that of the archive of what was accepted.
    """

    product: str
    version: int
    token: str
    action: PublicationAction
    run_id: str | None
    table: str
    snapshot_id: int | None
    before_snapshot_id: int | None
    scope: Scope | None
    supersedes: int | None
    at: datetime
    by: str
    approved_by: tuple[str, ...] = ()
    accepted_by: tuple[str, ...] = ()
    manifest_hash: str | None = None
    result_digest: str | None = None
    evidence_digest: str | None = None
    reason: str = ""
    epoch: int = 0
    #: For a rollback: the version that it leads to; `version` is another one if it is partial.
    returns_to: int | None = None
    #: The process that acts, while the act is pending.
    driver: str | None = None
    seal: str = added_later("", "SHA-256 of the row and the seal of the product's row before it.")


class Pointer(Value):
    """The current state of a product: the accepted publication, and one that is under way."""

    accepted: Publication | None = None
    pending: Publication | None = None
    last_version: int = 0
    #: How often versions were let go: who worked out a way back before one of them, looks again.
    expirations: int = added_later(0, "How many versions were let go.")
    head: str = added_later("", "The seal of the product's newest row.")


class ChunkCommit(Value):
    """A chunk found in the shadow's snapshot log: id, snapshot and Iceberg's own row count."""

    chunk_id: str
    snapshot_id: int
    added_rows: int
    properties: dict[str, str]


class CommitResult(Value):
    """One metadata-only commit: the run's files of a table replaced. Seconds are wall-clock."""

    table: str
    snapshot_id: int
    before_snapshot_id: int | None
    files_added: int
    files_removed: int
    rows_added: int
    rows_removed: int
    attempts: int
    seconds: float


class AdoptRequest(Value):
    """Adopt the shadow's files of `scope` into `target`, in place of the target's own.

    `append` says that there are none: a target that holds rows of the scope is then refused, and
    the commit is one that streaming readers follow.
    """

    target: str
    base_snapshot_id: int | None
    shadow: str
    shadow_snapshot_id: int | None
    chunk_ids: tuple[str, ...]
    scope: Scope
    token: str
    tags: dict[Literal["before", "after"], str]
    properties: dict[str, str]
    #: Whether a commit of anybody else since the base, in any partition, is a conflict.
    is_frozen: bool = False
    #: Where the shadow may differ from its base; None: in `scope` only.
    within: Scope | None = None
    operation: Literal["overwrite", "append"] = "overwrite"
    #: What the target's columns, those of schema `base_schema_id`, become by the same commit.
    schema_change: tuple[SchemaStep, ...] = ()
    base_schema_id: int | None = None


class PartitionRestore(Value):
    """Partitions that go back to their content in `restore_snapshot_id` (None: to no rows).

    Refused when a commit after `since_snapshot_id` changed them.
    """

    partitions: tuple[str, ...]
    restore_snapshot_id: int | None
    since_snapshot_id: int


class RequiredRewrite(Value):
    """Partitions that cannot go back by adding their files again, and why."""

    partitions: tuple[str, ...]
    because: str


class RewrittenShadow(Value):
    """A shadow that holds the earlier content of partitions as new files, deletes applied."""

    shadow: str
    base_snapshot_id: int
    shadow_snapshot_id: int
    chunk_ids: tuple[str, ...]
    partitions: tuple[str, ...]


class RevertRequest(Value):
    """Put partitions of `target` back, keeping everything else as it is now.

    Those of `rewritten` get the files of its shadow, the others their own files again.
    """

    target: str
    scope: Scope
    restores: tuple[PartitionRestore, ...]
    token: str
    tags: dict[Literal["before", "after"], str]
    properties: dict[str, Any]
    rewritten: RewrittenShadow | None = None


#: Says who is at work, while an act is pending; what is accepted does not depend on it.
_TRANSIENT_FIELDS = {"driver"}
_SEALED: dict[str, Any] = {"exclude": {"seal"}, "exclude_defaults": True, "warnings": False}


def apply_to_pointer(pointer: Pointer, row: Publication) -> Pointer:
    """Give the pointer as it is once `row` is written.

    reserve sets `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
    release clears `pending`; expire, which lets an old version go, is counted. A version number,
    once used, is never given out again.
    """
    changed: dict[str, object] = {"head": row.seal}
    if row.action == "expire":
        changed["expirations"] = pointer.expirations + 1
        return pointer.model_copy(update=changed)
    changed["last_version"] = max(pointer.last_version, row.version)
    if row.action == "reserve":
        return pointer.model_copy(update={**changed, "pending": row})
    accepted = pointer.accepted if row.action == "release" else row
    return pointer.model_copy(update={**changed, "accepted": accepted, "pending": None})


def seal_publication(pointer: Pointer, row: Publication) -> Publication:
    """Give a row as it is written: its seal covers it and, by the seal before, all before it."""
    return row.model_copy(update={"seal": publication_seal(pointer.head, row)})


def publication_seal(previous: str, row: Publication) -> str:
    """SHA-256 over everything that the row says and the seal of the product's row before it.

    Fields at their defaults are left out: one that a later release adds changes no older seal.
    """
    in_utc = row.model_copy(update={"at": row.at.astimezone(timezone.utc)})
    return digest({"previous": previous, "row": in_utc.model_dump(mode="json", **_SEALED)})


def pointer_fault(product: str, rows: Iterable[Publication], pointer: Pointer | None) -> str | None:
    """Say how the pointer that commands go by differs from what its rows lead to, oldest first.

    None when it does not. Rows are sealed one by one: who edits a row, all seals after it and the
    pointer together is found by the log of the run, which names the digest of what was published.
    """
    rows = tuple(rows)
    for row in rows:
        if row.action not in get_args(PublicationAction) or not isinstance(row.version, int):
            return f"{product}: a row of its versions was edited: '{row.action}' is no act"
    if pointer is None:
        return f"{product}: its pointer is gone, or was edited: it cannot be read"
    told = reduce(apply_to_pointer, rows, Pointer())
    for name in ("accepted", "pending"):
        said, held = getattr(told, name), getattr(pointer, name)
        if _durable_fields(said) != _durable_fields(held):
            what = _difference(said, held)
            return f"{product}: {name} in its pointer is not that of its rows: {what}"
    if told.last_version != pointer.last_version:
        return (
            f"{product}: its pointer counts {pointer.last_version} versions, its rows "
            f"{told.last_version}"
        )
    if told.expirations != pointer.expirations:
        return (
            f"{product}: by its pointer {pointer.expirations} versions were let go, by its rows "
            f"{told.expirations}"
        )
    return _seal_fault(product, rows, pointer)


def _seal_fault(product: str, rows: tuple[Publication, ...], pointer: Pointer) -> str | None:
    """Name the first row that is not as it was written; rows of older releases have no seal."""
    previous = ""
    for row in rows:
        if not row.seal and not previous:
            continue
        if row.seal != publication_seal(previous, row):
            return (
                f"{product}: the row of {_describe_row(row)} was edited, or the one before it is gone: "
                "its seal is not that of its content"
            )
        previous = row.seal
    if pointer.head != previous:
        return f"{product}: the newest rows of its versions are not those that were written last"
    return None


def _durable_fields(row: Publication | None) -> dict[str, object] | None:
    return (
        None if row is None else {k: v for k, v in vars(row).items() if k not in _TRANSIENT_FIELDS}
    )


def _difference(told: Publication | None, held: Publication | None) -> str:
    if told is None or held is None:
        return f"{_describe_row(held)}, and {_describe_row(told)} by its rows"
    differing = (
        name for name, value in (_durable_fields(told) or {}).items() if vars(held)[name] != value
    )
    return f"{_describe_row(held)} differs in {', '.join(sorted(differing))}"


def _describe_row(row: Publication | None) -> str:
    return "none" if row is None else f"version {row.version} ({row.action} by {row.by})"


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
