"""The Differ port in this process: Arrow, with DuckDB where rows must be joined; no JVM.

The cost follows the change. Files that both sides share are skipped by metadata. The rest is
compared partition by partition, with small partitions together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from lakehouse_backfill.adapters.local.diff.compare import BatchComparison
from lakehouse_backfill.adapters.local.diff.key_buckets import read_in_buckets
from lakehouse_backfill.adapters.local.diff.layout import (
    FilePiece,
    batch_partitions,
    group_by_label,
    read_both_sides,
    read_in_batches,
)
from lakehouse_backfill.adapters.local.diff.plan import DiffPlan
from lakehouse_backfill.adapters.local.diff.snapshot_lister import SnapshotLister
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.duckdb_engine import LazyDuckDB, start_with_spill_folder
from lakehouse_backfill.adapters.local.scan import release_after
from lakehouse_backfill.domain.comparison.diff import (
    Diff,
    DiffPreview,
    FileTotals,
    PartitionPreview,
    redact_column,
    redact_sample,
)
from lakehouse_backfill.domain.comparison.partition_sums import NO_ROWS
from lakehouse_backfill.domain.partitions import scope_row_ranges
from lakehouse_backfill.domain.rollout import DifferingRow, redact_row
from lakehouse_backfill.ports.comparison import SummedDiff

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog

    from lakehouse_backfill.ports.comparison import DiffRequest
    from lakehouse_backfill.ports.system import Progress


def build_preview(asked: DiffPlan) -> DiffPreview:
    """Sum what is shared, what is known to be equal, and what a diff would read."""
    request, split, is_aligned = asked.request, asked.split, asked.layout.is_partition_aligned
    equal = request.known_equal if is_aligned else frozenset()
    if is_aligned:
        groups = group_by_label(split.old, split.new, split.shared)
    else:
        groups = {None: (split.old, split.new, split.shared)}
    return DiffPreview(
        old=asked.old.display_name,
        new=asked.new.display_name,
        key=request.key,
        identical=not split.old and not split.new,
        shared=_sum_load(piece for piece in split.shared if piece.label not in equal),
        equal_by_fingerprint=_sum_load(piece for piece in split.shared if piece.label in equal),
        old_to_read=_sum_load(split.old),
        new_to_read=_sum_load(split.new),
        partitions=tuple(
            _preview_partition(label, *groups[label][:2], is_equal=label in equal)
            for label in (asked.labels if is_aligned else [None])
            if any(groups.get(label, ()))
        ),
        shared_to_count=_sum_load(asked.split_shared_files()[1]),
        adds_up=bool(asked.row_sums),
    )


def _preview_partition(
    label: str | None, old: list[FilePiece], new: list[FilePiece], *, is_equal: bool
) -> PartitionPreview:
    proof: Literal["shared files", "fingerprints"] = "fingerprints" if is_equal else "shared files"
    return PartitionPreview(
        partition=label,
        proven_by=None if old or new else proof,
        old=_sum_load(old),
        new=_sum_load(new),
    )


def _sum_load(pieces: Iterable[FilePiece]) -> FileTotals:
    found = list(pieces)
    return FileTotals(
        files=len(found),
        rows=sum(piece.rows for piece in found),
        bytes=sum(piece.size_bytes for piece in found),
    )


#: Rows of both sides that are compared together, and their bytes: two batches are there at a time.
BATCH_ROWS, BATCH_BYTES = 100_000, 8 << 20
#: A group of partitions with more rows on a side, or more bytes, is compared in buckets of its
#: keys: in two to three times the time, and in no more memory however many rows there are.
LARGE_ROWS, LARGE_BYTES = 400_000, 160 << 20
#: Buckets of a batch: a bucket is also divided, and none is read while another is compared.
_BUCKETS_PER_BATCH = 2
#: Of a task or a group of rows on workers, which begin anew with each.
WORKER_ROWS = 500_000


_Group = tuple[list[FilePiece], list[FilePiece]]


class LocalDiffer:
    """The Differ for changes that fit one machine.

    This contract holds for every engine:

    - Columns are matched by name, over those of both sides; a column that a side lacks is null
      there. Columns of `ignore` take no part. Values of types that Iceberg cannot promote to each
      other differ.
    - Null equals null, NaN equals NaN, -0.0 equals 0.0; decimals are compared exactly, maps by
      their entries.
    - Rows are counted in their own partition: a key that moved is removed in one and added in
      another.
    - A key that one side holds more than once in a partition is counted in `duplicate_keys`, and
      its rows are compared as a multiset: added and removed only, never multiplied.
    - Files with the same path, the same delete files and the same reading on both sides are not
      read: their rows are unchanged. Distributions and duplicates cover the rows that were read.
    - Samples are the first rows by partition, then key, nulls first.
    """

    def __init__(
        self,
        catalog: Catalog,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
        large_rows: int = LARGE_ROWS,
        listing: SnapshotLister | None = None,
    ) -> None:
        self._progress = progress
        self._listing = listing or SnapshotLister(catalog)
        self._batch_rows, self._large_rows = batch_rows, large_rows
        # Kept for the next diff: starting DuckDB costs as much as comparing a few files.
        self._engine = LazyDuckDB(start_with_spill_folder)

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported, ConfigError."""
        return self.diff_and_sum(request).diff

    def diff_and_sum(self, request: DiffRequest) -> SummedDiff:
        """Compare as `diff` does, and add up the sides where all of their rows are read."""
        plan = self.plan_diff(request)
        tally = plan.new_tally()
        unread = self.count_shared_rows(plan, tally)
        if unread or plan.split.old or plan.split.new:
            with self._counted(len(plan.split.old) + len(plan.split.new) + len(unread)):
                self._compare_batches(plan, tally, unread)
            release_after(sum(piece.rows for piece in (*plan.split.to_read, *unread)))
        return build_diff(plan, tally, "local")

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every differing row in full; memory holds two groups of partitions at a time."""
        plan = self.plan_diff(request.without_options())
        tally = Tally(plan.labels, plan.columns, 0)
        with closing(BatchComparison(self._engine, tally, None)) as comparison:
            for old, new in self._read_ahead(plan, self._groups(plan)):
                for _, row in comparison.iterate_differing(old, new):
                    yield redact_row(row, request.redaction)

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Return from metadata what is the same on both sides, and what a diff would read.

        A condition applies to rows while they are read, so with a condition shared files are read
        too.
        """
        return build_preview(self.plan_diff(replace(request, distributions=False)))

    def plan_diff(self, request: DiffRequest, *, any_deletes: bool = False) -> DiffPlan:
        """Return the plan of the diff. Raises as `diff` does.

        With `any_deletes` also where rows are hidden by equality deletes: another engine reads
        them.
        """
        rows = scope_row_ranges(request.scope) if request.scope else ()
        listed = self._listing.list_both(*request.states, rows, any_deletes=any_deletes)
        return DiffPlan.for_request(request, *listed, rows)

    def count_shared_rows(self, asked: DiffPlan, tally: Tally) -> list[FilePiece]:
        """Count the shared rows that metadata gives; return the files whose rows must be read.

        Raises ConfigError when the condition is not valid.
        """
        old, new = asked.side_readers()
        counted, unread = asked.split_shared_files()
        if asked.row_sums:
            counted, unread = [], asked.split.shared
        for piece in counted:
            tally.add_shared(old.partition_numbers[piece.label], piece.rows)
        if asked.condition_sql:
            no_rows = old.read_pieces([], tally.columns), new.read_pieces([], tally.columns)
            with closing(BatchComparison(self._engine, tally, asked.condition_sql)) as comparison:
                comparison.check_condition(*no_rows, asked.request.where or "")
        return unread

    @contextmanager
    def _counted(self, files: int) -> Iterator[None]:
        """Count the files that are compared."""
        if self._progress is None:
            yield
            return
        self._progress.count("diff", files, "files")
        try:
            yield
        finally:
            self._progress.finish()

    def _count_compared(self, pieces: Iterable[FilePiece]) -> None:
        if self._progress is not None:
            found = list(pieces)
            self._progress.advance(len(found), sum(piece.rows for piece in found))

    def _groups(self, asked: DiffPlan) -> Iterator[_Group]:
        return batch_partitions(
            asked.split.old, asked.split.new, asked.layout, 1, partial(self._share_of, asked)
        )

    def _share_of(self, asked: DiffPlan, piece: FilePiece) -> float:
        """Return how much of a batch the rows of a file take."""
        return max(piece.rows / self._batch_rows, asked.size_of(piece) / BATCH_BYTES)

    def _batches(self, asked: DiffPlan, pieces: Iterable[FilePiece]) -> float:
        """Return how many batches the rows of the files are."""
        return sum(self._share_of(asked, piece) for piece in pieces)

    def _is_large(self, asked: DiffPlan, group: _Group) -> bool:
        old, new = (sum(piece.rows for piece in side) for side in group)
        # Rows that one side lacks take twice the memory: they are kept as differing ones, too.
        if max(old, new) + abs(old - new) > self._large_rows:
            return True
        return sum(asked.size_of(piece) for side in group for piece in side) > LARGE_BYTES

    def _read_ahead(
        self, asked: DiffPlan, groups: Iterable[_Group], tally: Tally | None = None
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Read whole partitions of both sides; read the next batch while the last is compared.

        A partition of more than a batch is read when nothing else is in memory.
        """
        old, new = asked.side_readers(tally)
        with ThreadPoolExecutor(1, thread_name_prefix="ahead") as ahead:
            reading: Future[tuple[pa.Table, pa.Table]] | None = None
            read = list[FilePiece]()
            for old_pieces, new_pieces in groups:
                last, before = reading, read
                read = [*old_pieces, *new_pieces]
                if last is not None and self._batches(asked, read) > 1:
                    yield from self._finished(last, before)
                    last = reading = None
                reading = ahead.submit(
                    read_both_sides, (old, old_pieces), (new, new_pieces), asked.columns
                )
                if last is not None:
                    yield from self._finished(last, before)
            if reading is not None:
                yield from self._finished(reading, read)

    def _finished(
        self, reading: Future[tuple[pa.Table, pa.Table]], pieces: list[FilePiece]
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the rows that are read; count them once they are compared."""
        yield reading.result()
        self._count_compared(pieces)
        release_after(sum(piece.rows for piece in pieces))

    def _compare_batches(self, asked: DiffPlan, tally: Tally, unread: list[FilePiece]) -> None:
        shared, columns = asked.shared_reader(tally), asked.condition_columns
        with closing(BatchComparison(self._engine, tally, asked.condition_sql)) as comparison:
            for rows, pieces in read_in_batches(shared, unread, columns, self._batch_rows):
                comparison.count_shared_rows(rows)
                self._count_compared(pieces)
            for are_large, groups in groupby(self._groups(asked), partial(self._is_large, asked)):
                if are_large:
                    self._compare_in_buckets(asked, tally, groups)
                    continue
                for old_rows, new_rows in self._read_ahead(asked, groups, tally):
                    comparison.compare_batch(old_rows, new_rows)
                    del old_rows, new_rows  # They would stay until the next batch has been read.

    def _compare_in_buckets(self, asked: DiffPlan, tally: Tally, groups: Iterable[_Group]) -> None:
        """Compare partitions of which not even one is to be in memory."""
        old, new = asked.side_readers(tally)
        for group in groups:
            sides = (old, group[0]), (new, group[1])
            pieces = [*group[0], *group[1]]
            count = math.ceil(self._batches(asked, pieces) * _BUCKETS_PER_BATCH)
            for bucket in read_in_buckets(*sides, asked.columns, count):
                # The first rows by key, which are the samples, may be in any bucket.
                found = asked.new_tally()
                with closing(BatchComparison(self._engine, found, asked.condition_sql)) as one:
                    one.compare_batch(*bucket)
                tally.merge(found)
                del bucket
            self._count_compared(pieces)
            release_after(sum(piece.rows for piece in pieces))


def build_diff(asked: DiffPlan, tally: Tally, engine: Literal["local", "spark"]) -> SummedDiff:
    """Return the diff that a complete tally adds up to, without values of redacted columns."""
    redaction = asked.request.redaction
    diff = Diff(
        old=asked.old.display_name,
        new=asked.new.display_name,
        key=asked.request.key,
        summary=tally.summary(),
        partitions=tally.partition_diffs(),
        columns=tuple(redact_column(each, redaction) for each in tally.column_diffs()),
        samples=tuple(redact_sample(each, redaction) for each in tally.all_samples()),
        files=asked.split.files,
        engine=engine,
        duplicate_keys=tally.duplicate_keys,
        cells=tally.cell_diffs(),
        added_columns=tally.added_column_counts(),
    )
    sums = tally.sums or {}
    return SummedDiff(diff, sums.get("new"), sums.get("old", NO_ROWS))
