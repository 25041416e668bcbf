"""Publication rows and their effect on the pointer; adopt, revert, swap and clone requests.

A publication row is one row of `accepted_output_version`, sealed by a hash chain per product. A
`SwapCommit` is one fully prepared commit: the inspected state of the table, and what changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import reduce
from itertools import filterfalse, takewhile
from typing import Any, Literal, NamedTuple, get_args

from lakehouse_backfill.domain.partitions import RowRange, Scope, scope_row_ranges
from lakehouse_backfill.domain.serialization import Value, added_later, digest
from lakehouse_backfill.domain.table import SchemaStep
from lakehouse_backfill.errors import Tampered

PublicationAction = Literal["baseline", "reserve", "publish", "rollback", "release", "expire"]


class Publication(Value):
    """One row of `accepted_output_version`.

    `version` counts 1, 2, 3 … per product; 0 is the state before the first run. `token` identifies
    the publication and is in the target's snapshot summary. `before_snapshot_id` is the target's
    head right before it: the content that rollback restores, for the partitions of `scope`. `epoch`
    is the lease of the publishing process: a process that lost its lease can neither finish nor
    release it. `evidence_digest` is that of the archive of what was accepted.
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
    #: For a rollback: the restored version; `version` differs from it if the rollback is partial.
    returns_to: int | None = None
    #: The publishing process, while the publication is pending.
    driver: str | None = None
    seal: str = added_later("", "SHA-256 of the row and the seal of the product's row before it.")

    signature: str = added_later(
        "", "The signed statement of who published or rolled back, as a DSSE envelope in JSON."
    )

    @property
    def tags(self) -> dict[Literal["before", "after"], str]:
        """The tags that keep both sides of the publication readable."""
        token = self.token[:12]
        return {"before": f"lhb-before-{token}", "after": f"lhb-v{self.version}-{token}"}


class Pointer(Value):
    """The current state of a product: the accepted publication, and a pending one."""

    accepted: Publication | None = None
    pending: Publication | None = None
    last_version: int = 0
    #: Number of expired versions. A rollback decided before an expiry must be decided again.
    expirations: int = added_later(0, "How many versions were let go.")
    head: str = added_later("", "The seal of the product's newest row.")


#: Snapshot summary property of every commit that brings in rows: `run.mode`, or the mode of what
#: is no run.
MODE_PROPERTY = "lakehouse-backfill.processing-mode"

#: The columns of a table of versions that the product does not have.
VERSION_COLUMN, STATUS_COLUMN = "output_version", "output_status"
#: What a view of a table of versions ends with, in the SQL of every engine.
ACCEPTED_ROWS = f" WHERE {STATUS_COLUMN} = 'accepted'"
VersionStatus = Literal["accepted", "superseded", "rolled_back"]


class LabelledVersion(Value):
    """A kept version with the snapshot that holds its rows, and its status."""

    version: int
    status: VersionStatus
    table: str
    snapshot_id: int


class VersionLabels(Value):
    """What a table of versions has to say after a number of acts on its product.

    A row gets the first of `versions` whose snapshot holds it. `let_go` are versions that expired:
    what they were the first to hold keeps their number while a kept version holds it.
    """

    product: str
    table: str
    #: How many rows the product's history had: a later state is never replaced by an earlier one.
    acts: int
    versions: tuple[LabelledVersion, ...]
    let_go: tuple[int, ...] = ()
    #: The mode of the run of the newest act.
    mode: str = added_later("none", "The mode of the run of the newest act.")

    @property
    def accepted(self) -> LabelledVersion:
        """The version that readers get."""
        return next(one for one in self.versions if one.status == "accepted")


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
    #: Of all snapshots, by their ids.
    summaries: Mapping[int, Mapping[str, str]]


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


#: Fields about the process of a pending publication, on which the accepted state does not depend.
_TRANSIENT_FIELDS = {"driver"}
_SEALED: dict[str, Any] = {"exclude": {"seal"}, "exclude_defaults": True, "warnings": False}


def apply_to_pointer(pointer: Pointer, row: Publication) -> Pointer:
    """Return the pointer as it is once `row` is written.

    reserve sets `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
    release clears `pending`; expire, which removes an old version, is counted. A version number is
    never used again.
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


def sealed_content(previous: str, row: Publication) -> dict[str, Any]:
    """Return what a row's seal is the SHA-256 of: its fields, and the seal of the row before it.

    Fields at their defaults are left out, so a field that a later release adds changes no older
    seal.
    """
    in_utc = row.model_copy(update={"at": row.at.astimezone(timezone.utc)})
    return {"previous": previous, "row": in_utc.model_dump(mode="json", **_SEALED)}


def pointer_fault(product: str, rows: Iterable[Publication], pointer: Pointer | None) -> str | None:
    """Describe how a stored pointer differs from the one that its rows, oldest first, lead to.

    None when it does not differ. Rows are sealed one by one. If someone edits a row, all later
    seals and the pointer together, the log of the run still shows it: it has the digest of what was
    published.
    """
    rows = tuple(rows)
    for row in filterfalse(_is_act, rows):
        return f"{product}: a row of its versions was edited: '{row.action}' is no act"
    if pointer is None:
        return unreadable_pointer_fault(product)
    expected = reduce(apply_to_pointer, rows, Pointer())
    for name in ("accepted", "pending"):
        expected_row, pointer_row = getattr(expected, name), getattr(pointer, name)
        if _durable_fields(expected_row) != _durable_fields(pointer_row):
            difference = _difference(expected_row, pointer_row)
            return f"{product}: {name} in its pointer is not that of its rows: {difference}"
    if expected.last_version != pointer.last_version:
        return (
            f"{product}: its pointer counts {pointer.last_version} versions, its rows "
            f"{expected.last_version}"
        )
    if expected.expirations != pointer.expirations:
        return (
            f"{product}: by its pointer {pointer.expirations} versions have expired, by its rows "
            f"{expected.expirations}"
        )
    return _seal_fault(product, rows, pointer)


def _is_act(row: Publication) -> bool:
    """Return whether the row can move a pointer: an edited one may not."""
    return row.action in get_args(PublicationAction) and isinstance(row.version, int)


def unreadable_pointer_fault(product: str) -> str:
    """Describe a pointer that is missing although the product has rows, or that is no pointer."""
    return f"{product}: its pointer is gone, or was edited: it cannot be read"


def tampered_pointer_error(fault: str) -> Tampered:
    """Build the error for a pointer that does not fit its rows."""
    return Tampered(
        fault,
        state="nothing was written; readers see what they saw before",
        fix="lakehouse-backfill audit verify, then lakehouse-backfill recover --all: it writes the "
        "pointer again if the rows that lead to it are whole",
    )


def require_whole_pointer(
    product: str, rows: Iterable[Publication], pointer: Pointer | None
) -> None:
    """Raise Tampered unless the pointer is the one that its rows, oldest first, lead to."""
    fault = pointer_fault(product, rows, pointer)
    if fault is not None:
        raise tampered_pointer_error(fault)


def rebuilt_pointer(
    product: str, rows: tuple[Publication, ...], tokens: Collection[str]
) -> Pointer:
    """Return the pointer that the rows, oldest first, lead to.

    `tokens` are those of the publications that the logs of the runs know. Raises Tampered when a
    row was edited, or is missing as far as seals and tokens tell.
    """
    pointer = reduce(apply_to_pointer, takewhile(_is_act, rows), Pointer())
    fault = pointer_fault(product, rows, pointer)
    missing = sorted(set(tokens) - {row.token for row in rows if row.action == "publish"})
    if fault is None and missing:
        fault = f"{product}: the row of a publication that its run records is gone ({missing[0]})"
    if fault is not None:
        raise missing_rows_error(fault)
    return pointer


def missing_rows_error(fault: str) -> Tampered:
    """Build the error for rows that were edited or are missing, so that no pointer follows."""
    return Tampered(
        fault,
        state="the pointer was not written; readers see what they saw before",
        fix="bring back the table accepted_output_version as it was: its earlier snapshots and "
        "metadata files hold it (docs/recovery.md)",
    )


def _seal_fault(product: str, rows: tuple[Publication, ...], pointer: Pointer) -> str | None:
    """Describe the first row that is not as it was written; rows of older releases have no seal."""
    previous = ""
    for row in rows:
        if not row.seal and not previous:
            continue
        if row.seal != digest(sealed_content(previous, row)):
            return (
                f"{product}: the row of {_describe_row(row)} was edited, or the one before it is "
                "gone: its seal is not that of its content"
            )
        previous = row.seal
    if pointer.head != previous:
        return f"{product}: the newest rows of its versions are not those that were written last"
    return None


def _durable_fields(row: Publication | None) -> dict[str, object] | None:
    return None if row is None else {k: v for k, v in row if k not in _TRANSIENT_FIELDS}


def _difference(expected: Publication | None, stored: Publication | None) -> str:
    if expected is None or stored is None:
        return f"{_describe_row(stored)}, and {_describe_row(expected)} by its rows"
    fields = _durable_fields(expected) or {}
    differing = (name for name, value in fields.items() if getattr(stored, name) != value)
    return f"{_describe_row(stored)} differs in {', '.join(sorted(differing))}"


def _describe_row(row: Publication | None) -> str:
    return "none" if row is None else f"version {row.version} ({row.action} by {row.by})"


#: In the summary of a swap by rows: its unfinished work, a `PendingRewrite` as JSON.
REWRITE_PROPERTY = "lakehouse-backfill.rewriting"
#: Table property of a copy that rehearsals work on: the UUID of the real table.
REHEARSAL_PROPERTY = "lakehouse-backfill.rehearsal-of"


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
