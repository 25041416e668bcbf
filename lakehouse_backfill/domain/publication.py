"""Accepted output versions: the rows of the pointer table, and what a swap did to a table."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from lakehouse_backfill.domain.schema_change import SchemaStep
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.value import Value, added_later

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
