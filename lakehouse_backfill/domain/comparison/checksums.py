"""Checksums of rows and fingerprints of files.

A checksum does not depend on row order; its definition is fixed in docs/row-hash.md.
"""

from __future__ import annotations

from datetime import datetime

from lakehouse_backfill.domain.serialization import Value

CHECKSUM_ALGORITHM = "lhb-rowhash-1"


_MASK = (1 << 64) - 1


class Checksum(Value):
    """Count, XOR and sum modulo 2^64 of the 64-bit row hashes: 128 bits that add up over rows.

    `shape` is the digest of the hashed columns' names and canonical types: checksums of different
    shapes are never equal.
    """

    rows: int
    xor: int
    total: int
    shape: str
    algorithm: str = CHECKSUM_ALGORITHM

    def __add__(self, other: Checksum) -> Checksum:
        if (self.algorithm, self.shape) != (other.algorithm, other.shape):
            raise ValueError("checksums of different algorithms or shapes do not add up")
        return Checksum(
            rows=self.rows + other.rows,
            xor=self.xor ^ other.xor,
            total=(self.total + other.total) & _MASK,
            shape=self.shape,
            algorithm=self.algorithm,
        )

    @property
    def text(self) -> str:
        """`lhb-rowhash-1:<shape, 8 hex>:<rows>:<xor, 16 hex><total, 16 hex>`."""
        return f"{self.algorithm}:{self.shape[:8]}:{self.rows}:{self.xor:016x}{self.total:016x}"

    @staticmethod
    def parse(text: str) -> Checksum:
        """Parse a `text`; the shape has only the digits that the text holds."""
        algorithm, shape, rows, digits = text.split(":")
        return Checksum(
            rows=int(rows), xor=int(digits[:16], 16), total=int(digits[16:], 16), shape=shape,
            algorithm=algorithm,
        )  # fmt: skip

    @staticmethod
    def empty(shape: str) -> Checksum:
        """Return the checksum of no rows."""
        return Checksum(rows=0, xor=0, total=0, shape=shape)


class Repetition(Value):
    """One output, computed twice; `columns` are those whose values differ as a multiset."""

    first: Checksum
    second: Checksum
    columns: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether both are the same multiset of rows."""
        return self.first == self.second


class FileBytes(Value):
    """The bytes of a stored file: their number and SHA-256 (64 hex digits)."""

    size_bytes: int
    sha256: str


class FileFingerprint(Value):
    """One data file, hashed once: its rows without those that delete files hide, and its bytes.

    `reading` identifies the table's columns for the file (field ids, names, types): under another
    schema the same bytes read as other rows, and have another fingerprint.
    """

    path: str
    table: str
    reading: str
    partition: str | None
    size_bytes: int
    checksum: Checksum
    sha256: str
    run_id: str | None
    at: datetime
