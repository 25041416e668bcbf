"""What one look at the rows of a staged chunk found."""

from __future__ import annotations

from typing import Literal

from lakehouse_backfill.domain.value import Value

Period = Literal["hour", "day", "month"]


class ChunkFacts(Value):
    """Counts over a chunk's stored rows.

    `rows` by partition, those without rows left out; `null_keys` by key column, only those above
    zero; `duplicate_keys`: how many keys stand more than once.
    """

    rows: dict[str, int]
    null_keys: dict[str, int]
    duplicate_keys: int
