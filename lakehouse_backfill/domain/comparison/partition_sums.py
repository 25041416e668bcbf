"""The contents of partitions of one side, added up exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import localcontext
from typing import Any, Final

from lakehouse_backfill.domain.comparison.checksums import Checksum

#: Digits for totals: sums and products of Spark's decimals (38 digits) must not be rounded.
DECIMAL_DIGITS: Final = 100


@dataclass(frozen=True)
class PartitionSums:
    """The contents of one side by label: rows, checksums, and measures by the totals' names.

    Partitions without rows are omitted. `file_checksums` has checksums by label and file.
    """

    checksums: dict[str, Checksum] = field(default_factory=dict)
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    file_checksums: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    row_counts: Counter[str] = field(default_factory=Counter)

    def add_group(
        self, label: str, file: str | None, rows: int, checksum: Checksum, values: dict[str, Any]
    ) -> None:
        """Add a group of rows of a partition: those of a file (None: not kept by file)."""
        add_exactly(self.checksums, label, checksum)
        if file is not None:
            add_exactly(self.file_checksums, (label, file), checksum)
        sums = self.measures.setdefault(label, {})
        for name, value in values.items():
            add_exactly(sums, name, value)
        self.row_counts[label] += rows

    def add(self, other: PartitionSums) -> None:
        """Add the contents of other rows of the side."""
        for sums, found in (
            (self.checksums, other.checksums), (self.file_checksums, other.file_checksums),
        ):  # fmt: skip
            for key, checksum in found.items():
                add_exactly(sums, key, checksum)
        for label, values in other.measures.items():
            mine = self.measures.setdefault(label, {})
            for name, value in values.items():
                add_exactly(mine, name, value)
        self.row_counts.update(other.row_counts)

    @property
    def groups(self) -> int:
        """The number of sums by partition and measure, or by counted value."""
        return sum(map(len, self.measures.values()))


#: A side that is not read, or has no rows.
NO_ROWS = PartitionSums()


def add_exactly(sums: dict[Any, Any], key: Any, value: Any) -> None:
    """Add a value exactly; None stands for no value."""
    before = sums.get(key)
    with localcontext() as exact:
        exact.prec = DECIMAL_DIGITS
        if before is None:
            sums[key] = value
        elif value is not None:
            sums[key] = before + value
