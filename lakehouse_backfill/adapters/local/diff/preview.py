"""What a diff would read, from metadata alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from lakehouse_backfill.adapters.local.diff.grouping import FilePiece
from lakehouse_backfill.domain.preview import DiffPreview, FileTotals, PartitionPreview

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.local.diff.asking import DiffPlan
    from lakehouse_backfill.adapters.local.diff.splitting import FileSplit


def build_preview(asked: DiffPlan) -> DiffPreview:
    """Add up what is shared, what is known to be equal, and what would be read."""
    request, how, split = asked.request, asked.how, asked.split
    equal = request.known_equal if how.is_split else frozenset()
    shared = [piece for piece in split.shared if piece.label not in equal]
    known = [piece for piece in split.shared if piece.label in equal]
    partitions = tuple(
        one
        for label in (asked.labels if how.is_split else [None])
        if (
            one := _preview_partition(
                label, split, is_equal=label in equal, all_of=not how.is_split
            )
        )
    )
    return DiffPreview(
        old=asked.old.text,
        new=asked.new.text,
        key=request.key,
        identical=not split.old and not split.new,
        shared=_sum_load(shared),
        equal_by_fingerprint=_sum_load(known),
        old_to_read=_sum_load(split.old),
        new_to_read=_sum_load(split.new),
        partitions=partitions,
        shared_to_count=_sum_load(asked.shared()[1]),
    )


def _preview_partition(
    label: str | None, split: FileSplit, *, is_equal: bool, all_of: bool
) -> PartitionPreview | None:
    old, new, same = (
        [piece for piece in side if all_of or piece.label == label]
        for side in (split.old, split.new, split.shared)
    )
    if not (old or new or same):
        return None
    reads_nothing = not (old or new)
    proof: Literal["shared files", "fingerprints"] = "fingerprints" if is_equal else "shared files"
    return PartitionPreview(
        partition=label,
        proven_by=proof if reads_nothing else None,
        old=_sum_load(old),
        new=_sum_load(new),
    )


def _sum_load(pieces: Iterable[FilePiece]) -> FileTotals:
    found = FileTotals()
    for piece in pieces:
        file = piece.task.file
        found += FileTotals(
            files=1, rows=int(file.record_count), bytes=int(file.file_size_in_bytes)
        )
    return found
