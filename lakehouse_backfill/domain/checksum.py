"""The order-independent checksum of a set of rows; what it means is fixed in docs/row-hash.md."""

from __future__ import annotations

from lakehouse_backfill.domain.value import Value

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
        """Read a `text`; of the shape only the digits that stand there are known."""
        algorithm, shape, rows, digits = text.split(":")
        return Checksum(
            rows=int(rows), xor=int(digits[:16], 16), total=int(digits[16:], 16), shape=shape,
            algorithm=algorithm,
        )  # fmt: skip

    @staticmethod
    def empty(shape: str) -> Checksum:
        """The checksum of no rows."""
        return Checksum(rows=0, xor=0, total=0, shape=shape)
