"""What a diff would read, and what needs no reading: said from metadata alone."""

from __future__ import annotations

from typing import Literal

from lakehouse_backfill.domain.value import Value


class FileTotals(Value):
    """Files with the rows and bytes that metadata gives them; rows that deletes hide count too."""

    files: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: FileTotals) -> FileTotals:
        return FileTotals(
            files=self.files + other.files,
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
        )


class PartitionPreview(Value):
    """One partition: why it is the same on both sides, or what would be read of it."""

    partition: str | None
    proven_by: Literal["shared files", "fingerprints"] | None
    old: FileTotals
    new: FileTotals


class DiffPreview(Value):
    """What is proven to be the same without reading a row, and what would have to be read.

    `identical` is never guessed: false says that rows would have to be compared, and they may turn
    out to be equal. `shared_to_count` are files that are proven to be the same but are read once:
    metadata does not tell how many of their rows are meant.
    """

    old: str
    new: str
    key: tuple[str, ...]
    identical: bool
    shared: FileTotals
    equal_by_fingerprint: FileTotals
    old_to_read: FileTotals
    new_to_read: FileTotals
    partitions: tuple[PartitionPreview, ...]
    shared_to_count: FileTotals = FileTotals()

    @property
    def bytes_to_read(self) -> int:
        """Bytes of files of both sides, and of shared ones whose rows must be counted."""
        sides = self.old_to_read.bytes + self.new_to_read.bytes
        return sides + self.shared_to_count.bytes


class EngineChoice(Value):
    """Which engine compares, and why."""

    engine: Literal["local", "spark"]
    why: str
    bytes_to_read: int | None
    limit_bytes: int
