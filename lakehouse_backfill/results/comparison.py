"""Results of the methods that compare two table states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.domain import checks
from lakehouse_backfill.domain.comparison import diff
from lakehouse_backfill.domain.comparison.diff import (
    AddedColumn,
    CellDiff,
    ColumnDiff,
    Diff,
    DiffSample,
    PartitionDiff,
    SharedFiles,
)
from lakehouse_backfill.errors import BackfillError, ChecksFailed
from lakehouse_backfill.results.base import Result, optional


class _Compared(Result):
    """The part that a diff and its preview share; `proof_limit`: what the catalog may hide."""

    must_be_equal: bool | None = optional()
    proof_limit: str | None = optional()


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
    engine_choice: diff.EngineChoice | None = optional()
    attribution: Mapping[str, Any] | None = optional()

    @classmethod
    def of(cls, diff: Diff, choice: diff.EngineChoice | None = None) -> DiffResult:
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
        from lakehouse_backfill.results.base import diff_html

        return diff_html(self)


class DiffPreviewResult(_Compared):
    """What metadata proves to be the same, what would be read, and by which engine."""

    old: str
    new: str
    key: tuple[str, ...]
    identical: bool
    shared: diff.FileTotals
    equal_by_fingerprint: diff.FileTotals
    old_to_read: diff.FileTotals
    new_to_read: diff.FileTotals
    partitions: tuple[diff.PartitionPreview, ...]
    shared_to_count: diff.FileTotals
    preview: bool = True
    bytes_to_read: int
    engine: str
    engine_choice: diff.EngineChoice

    @classmethod
    def of(cls, preview: diff.DiffPreview, choice: diff.EngineChoice) -> DiffPreviewResult:
        """Describe a preview, and why its engine would be chosen."""
        return cls.from_fields(preview, engine=choice.engine, engine_choice=choice)

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when the states must be equal and metadata does not prove it."""
        if not self.must_be_equal or self.identical:
            return None
        return ChecksFailed(
            "metadata alone does not prove that old and new are equal",
            fix="give the command again without --preview: then it compares the rows",
        )


class ReconcileResult(Result):
    """Count and checksum of each partition on both sides."""

    partitions: tuple[checks.PartitionBalance, ...]
    equal: bool
