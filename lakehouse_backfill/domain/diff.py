"""Diff previews, attribution of changed rows, checksums and file fingerprints.

A checksum does not depend on row order; its definition is fixed in docs/row-hash.md. Previews come
from metadata alone. Attribution covers the sampled partitions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.domain.serialization import Value

#: What can change a row; `unexplained`: no swapped factor accounts for the change.
Cause = Literal[
    "code", "late_input", "upstream", "reference", "deletion", "live_write", "unexplained"
]
#: The class that counts a row: its cause, or `several` for more than one cause.
CauseClass = Cause | Literal["several"]
CAUSE_CLASSES: tuple[CauseClass, ...] = (
    "code", "late_input", "upstream", "reference", "deletion", "live_write", "several",
    "unexplained",
)  # fmt: skip

#: What is known about how the old side was computed: by a run with a known plan, by the code that
#: the manifest names, from the inputs as they were when the partition was last written (the code is
#: unknown), or nothing.
AttributionBasis = Literal["run", "named", "assumed", "none"]


class Factor(Value):
    """One thing that can be swapped, or was observed: a cause, and the input it belongs to."""

    cause: Cause
    input: str | None = None

    def __str__(self) -> str:
        words = self.cause.replace("_", " ")
        return f"{words} of {self.input}" if self.input else words


def describe_factors(factors: Iterable[Mapping[str, Any]]) -> str:
    """Return the factors as text, from their JSON form."""
    return " + ".join(str(Factor.model_validate(each)) for each in factors)


@dataclass(frozen=True)
class ComparedState:
    """A state that rows are compared in; `swapped` are the new factors of a computed state."""

    kind: Literal["replaced", "published", "was_kept", "computed", "kept", "candidate"]
    swapped: frozenset[int] = frozenset()

    def words(self, factors: Sequence[Factor]) -> str:
        """Return the name of the state."""
        if self.kind != "computed":
            return self.kind
        names = [str(factors[place]) for place in sorted(self.swapped)]
        return f"old with new {', '.join(names)}" if names else "old"


class InputChange(Value):
    """How one input differs between the two pins, in the rows that the partition reads.

    Rows are None for reference data, which is swapped as a whole. `told_by` names the method that
    separates late rows from changed ones.
    """

    input: str
    table: str
    role: Literal["source", "reference"]
    old_snapshot_id: int
    new_snapshot_id: int
    late_rows: int | None = None
    upstream_rows: int | None = None
    deleted_rows: int | None = None
    told_by: str = ""


class ExplainedRows(Value):
    """The changed rows that share their causes; `columns`: rows in which each column differs."""

    cause: CauseClass
    factors: tuple[Factor, ...]
    rows: int
    columns: dict[str, int]
    samples: tuple[DiffSample, ...] = ()


class PartitionCauses(Value):
    """The changed rows of one sampled partition, by cause; the groups add up to `changed_rows`.

    `made_by` is the run whose result readers had; `live` names commits on the target since.
    `named_code` is the code that the manifest names where no run made the rows; `not_reproduced`
    are the changed rows whose old values it does not compute.
    """

    partition: str
    changed_rows: int
    basis: AttributionBasis
    made_by: str | None
    groups: tuple[ExplainedRows, ...]
    inputs: tuple[InputChange, ...] = ()
    live: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    named_code: str | None = None
    not_reproduced: int | None = None


class Attribution(Value):
    """The causes found on the sampled partitions; it covers no other partitions."""

    run_id: str
    product: str
    old: str
    new: str
    changed_rows: int
    changed_partitions: int
    sampled_rows: int
    partitions: tuple[PartitionCauses, ...]
    at: datetime
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each class over the sampled partitions, without empty classes."""
        counts: dict[str, int] = {}
        for name in CAUSE_CLASSES:
            rows = sum(g.rows for p in self.partitions for g in p.groups if g.cause == name)
            if rows:
                counts[name] = rows
        return counts

    @property
    def sampled(self) -> tuple[str, ...]:
        """The sampled partitions."""
        return tuple(part.partition for part in self.partitions)

    def data(self) -> dict[str, Any]:
        """Return the JSON form, with the counts and the sampled share of changed rows."""
        share = self.sampled_rows / self.changed_rows if self.changed_rows else 1.0
        return self.model_dump(mode="json") | {
            "counts": self.counts,
            "sampled": list(self.sampled),
            "sampled_share": round(share, 6),
        }


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


class FileTotals(Value):
    """Files with their rows and bytes by metadata; rows that delete files hide count too."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


class PartitionPreview(Value):
    """One partition: why both sides are the same, or what a diff would read of it."""

    partition: str | None
    proven_by: Literal["shared files", "fingerprints"] | None
    old: FileTotals
    new: FileTotals


class DiffPreview(Value):
    """What is proven to be the same without reading a row, and what would have to be read.

    `identical` is never guessed: false means that rows would have to be compared, and they may be
    equal. `shared_to_count` are files that are proven to be the same, but must be read once because
    metadata does not give the number of their rows in the diff.
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
