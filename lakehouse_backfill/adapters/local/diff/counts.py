"""How often whole numbers are there: counted in an array, which takes no hash table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class NumberCounts:
    """Numbers in ascending order, and how often each is there."""

    numbers: np.ndarray
    rows: np.ndarray

    def as_dict(self) -> dict[int, int]:
        """Give the rows by number."""
        return dict(zip(self.numbers.tolist(), self.rows.tolist(), strict=True))


def count_in_range(parts: Iterable[np.ndarray], first: int, last: int) -> NumberCounts:
    """Count the whole numbers of all parts: from first to last, which are not far apart."""
    rows = np.zeros(last - first + 1, np.int64)
    for part in parts:
        found = np.bincount(part - first if first else part)
        rows[: len(found)] += found
    filled = np.flatnonzero(rows)
    return NumberCounts(filled + first, rows[filled])


def min_and_max(parts: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """Give the least and the greatest number of all parts, as Python's own; None without any."""
    held = [part for part in parts if len(part)]
    if not held:
        return None, None
    return min(part.min() for part in held).item(), max(part.max() for part in held).item()
