"""Running totals of a diff: rows by partition, changes and distributions by column, samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from lakehouse_backfill.adapters.local.diff.columns import ChangeKind, DiffColumn, SideName
from lakehouse_backfill.adapters.local.diff.counts import NumberCounts
from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.core.validation.partition_totals import MAX_GROUPS
from lakehouse_backfill.domain.comparison.diff import (
    AddedColumn,
    CellDiff,
    ColumnDiff,
    DiffSample,
    Distribution,
    PartitionDiff,
)
from lakehouse_backfill.domain.comparison.partition_sums import PartitionSums
from lakehouse_backfill.domain.serialization import canonical_json, to_json_value

_NULL = "null"
#: Where a row stands among the rows of a diff: by partition, then value by value.
RowOrder = tuple[Any, ...]


def row_order(partition: int, values: Iterable[Any]) -> RowOrder:
    """Return the place of a row: nulls come first, NaN last, nested values by their text."""
    return (partition, *map(_order_of_value, values))


def _order_of_value(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    if isinstance(value, (dict, list)):
        return (1, canonical_json(to_json_value(value)))
    # Only NaN differs from itself.
    return (2, 0) if value != value else (1, value)


@dataclass
class PartitionCounts:
    """Row counts of one partition."""

    old_rows: int = 0
    new_rows: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0

    def add(self, **rows: int) -> None:
        """Add rows to the counts of these names."""
        for name, number in rows.items():
            setattr(self, name, getattr(self, name) + number)

    def as_partition_diff(self, label: str | None) -> PartitionDiff:
        """Return the counts, with the remaining old rows as unchanged."""
        unchanged = self.old_rows - self.removed - self.changed
        return PartitionDiff(partition=label, unchanged=unchanged, **vars(self))


@dataclass
class ColumnProfile:
    """The distribution of one column on one side; `counts` is None above MAX_CATEGORIES."""

    moments: distributions.Moments = field(default_factory=distributions.Moments)
    nulls: int = 0
    counts: Counter[str] | None = field(default_factory=Counter)
    histogram: NumberCounts = field(default_factory=NumberCounts)

    def add_counts(self, values: Mapping[str, int]) -> None:
        """Add counted values; stop counting above the limit."""
        if self.counts is None:
            return
        self.counts.update(values)
        if len(self.counts) > distributions.MAX_CATEGORIES:
            self.counts = None

    def merge(self, other: ColumnProfile) -> None:
        """Add the distribution of other rows."""
        self.moments += other.moments
        self.nulls += other.nulls
        if other.counts is None:
            self.counts = None
        else:
            self.add_counts(other.counts)
        self.histogram += other.histogram

    @property
    def categories(self) -> dict[str, int]:
        """Counts by category; null is a category."""
        named = {f"={value}": rows for value, rows in (self.counts or {}).items()}
        return {**named, _NULL: self.nulls} if self.nulls else named

    def describe(self, kind: str) -> dict[str, Any]:
        """Return what is known of numbers, else `nulls` and `distinct`: None above a thousand."""
        if kind == "number":
            return distributions.describe_numbers(self.moments, self.nulls)
        distinct = None if self.counts is None else len(self.counts)
        return {"nulls": self.nulls, "distinct": distinct}


@dataclass
class Tally:
    """Sums over batches; a partition's number is its index in `labels`."""

    labels: list[str | None]
    columns: tuple[DiffColumn, ...]
    sample_limit: int
    partition_counts: dict[int, PartitionCounts] = field(default_factory=dict)
    #: Rows with equal key that changed in a column, by partition and the column's slot.
    changed_cells: Counter[tuple[int, str]] = field(default_factory=Counter)
    profiles: dict[tuple[str, SideName], ColumnProfile] = field(default_factory=dict)
    samples: dict[ChangeKind, list[tuple[RowOrder, DiffSample]]] = field(default_factory=dict)
    duplicate_keys: int = 0
    #: Columns that only the new side has; their rows with a value are counted.
    added_columns: tuple[str, ...] = ()
    filled_rows: Counter[str] = field(default_factory=Counter)
    #: Whether distributions are reported.
    distributions: bool = True
    #: The contents of the sides that are added up, by partition; None: no side is.
    sums: dict[SideName, PartitionSums] | None = None
    #: How many measures of a partition are one sum each, not one for each counted value.
    plain_measures: int = 0

    @property
    def keys(self) -> list[DiffColumn]:
        """The key columns."""
        return [column for column in self.columns if column.use == "key"]

    @property
    def compared(self) -> list[DiffColumn]:
        """The compared columns."""
        return [column for column in self.columns if column.use == "compared"]

    def counts_of(self, partition: int) -> PartitionCounts:
        """Return the counts of a partition, created on first use."""
        return self.partition_counts.setdefault(partition, PartitionCounts())

    def merge(self, other: Tally) -> None:
        """Add another tally of the same plan; of the samples of both, the first are kept."""
        for partition, rows in other.partition_counts.items():
            self.counts_of(partition).add(**vars(rows))
        self.changed_cells.update(other.changed_cells)
        for slot_and_side, profile in other.profiles.items():
            self.profiles.setdefault(slot_and_side, ColumnProfile()).merge(profile)
        for kind, samples in other.samples.items():
            self.add_samples(kind, samples)
        self.duplicate_keys += other.duplicate_keys
        self.filled_rows.update(other.filled_rows)
        if self.sums is not None and other.sums is not None:
            for side, sums in other.sums.items():
                self.sums[side].add(sums)
            self.drop_many_sums()
        else:
            self.sums = None

    def drop_many_sums(self) -> None:
        """Add up no more where a side has too many counted values.

        They would take the memory of all rows, and Spark refuses them.
        """
        for sums in (self.sums or {}).values():
            if sums.groups - len(sums.measures) * self.plain_measures > MAX_GROUPS:
                self.sums = None
                return

    def add_shared(self, partition: int, rows: int) -> None:
        """Count rows that both sides share as unchanged."""
        self.counts_of(partition).add(old_rows=rows, new_rows=rows)

    def profile_of(self, column: DiffColumn, side: SideName) -> ColumnProfile:
        """Return the distribution of a column on one side, created on first use."""
        return self.profiles.setdefault((column.slot, side), ColumnProfile())

    def missing_samples(self, kind: ChangeKind) -> int:
        """Return how many samples of a kind are still missing."""
        return self.sample_limit - len(self.samples.get(kind, []))

    def add_samples(self, kind: ChangeKind, samples: list[tuple[RowOrder, DiffSample]]) -> None:
        """Add differing rows, and keep the first of all."""
        both = sorted([*self.samples.get(kind, []), *samples], key=itemgetter(0))
        self.samples[kind] = both[: self.sample_limit]

    def partition_diffs(self) -> tuple[PartitionDiff, ...]:
        """Return the partitions that hold rows on a side, in order."""
        filled = sorted(
            index for index, rows in self.partition_counts.items() if rows.old_rows or rows.new_rows
        )
        return tuple(
            self.partition_counts[index].as_partition_diff(self.labels[index]) for index in filled
        )

    def summary(self) -> PartitionDiff:
        """Return the sums over the partitions."""
        total = PartitionCounts()
        for rows in self.partition_counts.values():
            total.add(**vars(rows))
        return total.as_partition_diff(None)

    def all_samples(self) -> tuple[DiffSample, ...]:
        """Return the added, removed and changed samples, in this order."""
        kinds: tuple[ChangeKind, ...] = ("added", "removed", "changed")
        return tuple(sample for kind in kinds for _, sample in self.samples.get(kind, []))

    def column_diffs(self) -> tuple[ColumnDiff, ...]:
        """Return the compared columns in table order."""
        return distributions.limit_columns_with_bars(tuple(map(self._column_diff, self.compared)))

    def cell_diffs(self) -> tuple[CellDiff, ...]:
        """Return the non-zero change counts by partition and column, in the order of both."""
        return tuple(
            CellDiff(partition=label, column=column.name, changed=changed)
            for index, label in enumerate(self.labels)
            for column in self.columns
            if (changed := self.changed_cells[index, column.slot])
        )

    def added_column_counts(self) -> tuple[AddedColumn, ...]:
        """Return the added columns, each with the compared rows that hold a value."""
        return tuple(
            AddedColumn(name=name, rows=self.filled_rows[name]) for name in self.added_columns
        )

    def _column_diff(self, column: DiffColumn) -> ColumnDiff:
        old, new = self.profile_of(column, "old"), self.profile_of(column, "new")
        changed = sum(self.changed_cells[index, column.slot] for index in self.partition_counts)
        # A column without any change gets no bars.
        draw = bool(
            changed or any(row.added or row.removed for row in self.partition_counts.values())
        )
        distribution, shift = _measure_shift(column, old, new, draw=draw)
        return ColumnDiff(
            name=column.name,
            changed=changed,
            old=old.describe(column.kind),
            new=new.describe(column.kind),
            shift=shift,
            distribution=distribution if self.distributions else None,
        )


def _measure_shift(
    column: DiffColumn, old: ColumnProfile, new: ColumnProfile, *, draw: bool
) -> tuple[Distribution | None, float | None]:
    """Return the distribution, and the shift: of the mean, or the index of categories."""
    if column.kind == "number":
        bins = (side.histogram.as_dict() for side in (old, new))
        distribution = distributions.number_distribution(
            *bins, origin=column.origin, draw=draw, whole=column.is_integer
        )
        return distribution, distributions.mean_shift(old.moments, new.moments)
    if column.kind != "category" or old.counts is None or new.counts is None:
        return None, None
    distribution = distributions.category_distribution(old.categories, new.categories, draw=draw)
    return distribution, None if distribution is None else distribution.value
