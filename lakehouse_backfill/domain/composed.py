"""What became of a job's rows where a chunk is not just what the job computed."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.value import Value

#: In the summary of a chunk's commit, so that the counts survive a crash right after it.
_PREFIX = "lakehouse-backfill.counted."


class ChunkCounts(Value):
    """Row counts of one chunk, or of all; None: the publish mode does not count this.

    `carried_rows` came from the base unchanged. `stray_rows` are the job's, inside the partitions,
    that the row predicate does not name. The others count keys of a merge, `ignored_rows` the
    change rows without effect. `left_out_rows` are named by tombstones, or were deleted on the
    target since the run was pinned.
    """

    carried_rows: int | None = None
    stray_rows: int | None = None
    inserted_rows: int | None = None
    updated_rows: int | None = None
    deleted_rows: int | None = None
    ignored_rows: int | None = None
    left_out_rows: int | None = None

    @property
    def known(self) -> dict[str, int]:
        """The counts that there are, by name."""
        return {name: count for name, count in self.model_dump().items() if count is not None}

    @property
    def properties(self) -> dict[str, str]:
        """The counts as properties of a snapshot."""
        return {f"{_PREFIX}{name}": str(count) for name, count in self.known.items()}

    @classmethod
    def from_properties(cls, summary: Mapping[str, str]) -> ChunkCounts:
        """Read the counts from the summary of a snapshot."""
        found = {name: summary.get(f"{_PREFIX}{name}") for name in cls.model_fields}
        return cls(**{name: int(text) for name, text in found.items() if text is not None})

    @classmethod
    def of(cls, record: ChunkRecord) -> ChunkCounts:
        """Read the counts of a row of the ledger."""
        return cls(**{name: getattr(record, name) for name in cls.model_fields})

    def __add__(self, other: ChunkCounts) -> ChunkCounts:
        mine, more = self.known, other.known
        return ChunkCounts(**{name: mine.get(name, 0) + more.get(name, 0) for name in mine | more})
