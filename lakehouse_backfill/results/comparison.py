"""Results of the methods that compare two table states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.domain.checks import (
    CellDiff,
    ColumnDiff,
    Diff,
    DiffSample,
    PartitionBalance,
    PartitionDiff,
    SharedFiles,
)
from lakehouse_backfill.domain.diff import (
    DiffPreview,
    EngineChoice,
    FileTotals,
    PartitionPreview,
)
from lakehouse_backfill.domain.table import AddedColumn
from lakehouse_backfill.errors import BackfillError, ChecksFailed
from lakehouse_backfill.results.base import Result, optional


@dataclass(frozen=True, kw_only=True)
class _Compared(Result):
    """The part that a diff and its preview share."""

    must_be_equal: bool | None = optional()


@dataclass(frozen=True, kw_only=True)
class DiffResult(_Compared):
    """Old against new: counts, partitions, columns and samples."""

    old: str
    new: str
    key: tuple[str, ...]
    summary: PartitionDiff
    partitions: tuple[PartitionDiff, ...]
    columns: tuple[ColumnDiff, ...]
    samples: tuple[DiffSample, ...]
    files: SharedFiles
    engine: str
    how: str | None = optional()
    duplicate_keys: int
    cells: tuple[CellDiff, ...]
    added_columns: tuple[AddedColumn, ...] | None = optional()
    equal: bool
    engine_choice: EngineChoice | None = optional()  # noqa: RUF009 (it makes a field)
    attribution: Mapping[str, Any] | None = optional()

    @classmethod
    def of(cls, diff: Diff, choice: EngineChoice | None = None) -> DiffResult:
        """Describe a diff, and why its engine was chosen."""
        summary = diff.summary
        return cls.from_fields(
            diff,
            how=diff.how or None,
            added_columns=diff.added_columns or None,
            equal=not (summary.added or summary.removed or summary.changed),
            engine_choice=choice,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types; the summary is of no partition."""
        data = super().to_dict()
        data["summary"].pop("partition")
        return data

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when the states must be equal and are not."""
        if not self.must_be_equal or self.equal:
            return None
        counts = ", ".join(
            f"{getattr(self.summary, name):,} {name}" for name in ("added", "removed", "changed")
        )
        return ChecksFailed(f"old and new differ: {counts}", fix="look at the samples")

    def _repr_html_(self) -> str:
        """Draw the diff in a notebook."""
        from lakehouse_backfill.results.notebook import diff_html

        return diff_html(self)


@dataclass(frozen=True, kw_only=True)
class DiffPreviewResult(_Compared):
    """What metadata proves to be the same, what would be read, and by which engine."""

    old: str
    new: str
    key: tuple[str, ...]
    identical: bool
    shared: FileTotals
    equal_by_fingerprint: FileTotals
    old_to_read: FileTotals
    new_to_read: FileTotals
    partitions: tuple[PartitionPreview, ...]
    shared_to_count: FileTotals
    preview: bool = True
    bytes_to_read: int
    engine: str
    engine_choice: EngineChoice

    @classmethod
    def of(cls, preview: DiffPreview, choice: EngineChoice) -> DiffPreviewResult:
        """Describe a preview, and why its engine would be chosen."""
        return cls.from_fields(preview, engine=choice.engine, engine_choice=choice)

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when the states must be equal and metadata does not prove it."""
        if not self.must_be_equal or self.identical:
            return None
        return ChecksFailed("not proven to be equal without reading rows", fix="without --preview")


@dataclass(frozen=True, kw_only=True)
class ReconcileResult(Result):
    """Count and checksum of each partition on both sides."""

    partitions: tuple[PartitionBalance, ...]
    equal: bool
