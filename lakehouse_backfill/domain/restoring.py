"""What a rollback rewrites: partitions whose files cannot simply come back."""

from __future__ import annotations

from lakehouse_backfill.domain.catch_up import ExcludedRows
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.value import Value


class RestoreChunk(Value):
    """Partitions of a shadow that get their rows of an earlier snapshot; None: no rows.

    `columns` gives for each of the shadow's columns the name that it had then; one that is not
    named came later, and is null.
    """

    chunk_id: str
    table: str
    snapshot_id: int | None
    shadow: str
    scope: Scope
    columns: tuple[tuple[str, str], ...]
    properties: dict[str, str]
    #: What names rows that do not come back.
    left_out: ExcludedRows | None = None
