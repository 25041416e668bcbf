"""Diffs: partitions, columns, samples and distributions, old against new; and their previews.

Previews come from metadata alone.
"""

from __future__ import annotations

from typing import Any, Literal

from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.serialization import Value, added_later


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
    #: Whether the diff adds up its sides, where that is asked for.
    adds_up: bool = False

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


class DistributionBar(Value):
    """A share of the rows on both sides: of one category, or of the numbers from `low` on."""

    name: str
    old: float
    new: float
    low: float | None = None
    high: float | None = None


class Distribution(Value):
    """How far a column's values moved: an index for categories, a distance for numbers.

    `psi`: population stability index; `ks`: greatest distance of the two cumulative shares. Only a
    value above `limit` counts; the limit allows for chance.
    """

    test: Literal["psi", "ks"]
    value: float
    limit: float
    bars: tuple[DistributionBar, ...] = ()
    is_unjudged: bool = added_later(
        default=False,
        description="Whether one range of numbers holds nearly all of both sides: nothing is told.",
    )

    @property
    def is_shifted(self) -> bool:
        """Whether the values moved by more than the limit."""
        return self.value > self.limit


class PartitionDiff(Value):
    """Rows by key in one partition (None: the diff is not by partition)."""

    partition: str | None
    old_rows: int
    new_rows: int
    added: int
    removed: int
    changed: int
    unchanged: int


class ColumnDiff(Value):
    """How one non-key column differs: rows changed, and its distribution on both sides."""

    name: str
    changed: int
    old: dict[str, Any]
    new: dict[str, Any]
    shift: float | None = None
    distribution: Distribution | None = added_later(
        None, "How its values are spread on both sides, and how far that moved."
    )


class DiffSample(Value):
    """One differing row: its key, the kind of difference, and the differing values."""

    kind: Literal["added", "removed", "changed"]
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None


class CellDiff(Value):
    """How many rows of one partition changed in one column; only cells above zero are kept."""

    partition: str | None
    column: str
    changed: int


class SharedFiles(Value):
    """How many live data files both sides share, and how many only one has."""

    shared: int
    old_only: int
    new_only: int


class AddedColumn(Value):
    """A column that only the new side of a diff has, and how many compared rows hold a value."""

    name: str
    rows: int


class Diff(Value):
    """Old against new; shared files count as unchanged.

    The sums of `partitions` are the `summary`.
    """

    old: str
    new: str
    key: tuple[str, ...]
    summary: PartitionDiff
    partitions: tuple[PartitionDiff, ...]
    columns: tuple[ColumnDiff, ...]
    samples: tuple[DiffSample, ...]
    files: SharedFiles
    engine: Literal["local", "spark"]
    how: str = added_later("", "How the work was divided, and why.")
    duplicate_keys: int = 0
    cells: tuple[CellDiff, ...] = ()
    added_columns: tuple[AddedColumn, ...] = added_later(
        (), "Columns that the run adds, with the compared rows that hold a value in them."
    )


def redact_sample(sample: DiffSample, redaction: Redaction) -> DiffSample:
    """Return a sample without the values of redacted columns."""
    sides = [None if side is None else redaction.row(side) for side in (sample.old, sample.new)]
    return DiffSample(kind=sample.kind, key=redaction.row(sample.key), old=sides[0], new=sides[1])


def redact_column(column: ColumnDiff, redaction: Redaction) -> ColumnDiff:
    """Return a redacted column with the counts alone: how many changed, are null, are distinct."""
    if not redaction.hides(column.name):
        return column
    old, new = (
        {name: side.get(name) for name in ("nulls", "distinct")}
        for side in (column.old, column.new)
    )
    distribution = column.distribution and column.distribution.model_copy(update={"bars": ()})
    return column.model_copy(
        update={"old": old, "new": new, "shift": None, "distribution": distribution}
    )
