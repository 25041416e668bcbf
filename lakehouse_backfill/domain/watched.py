"""What was seen of a result beside earlier partitions, and of its columns beside the old ones."""

from __future__ import annotations

from typing import Literal

from lakehouse_backfill.domain.value import Value, added_later


class Anomaly(Value):
    """One partition whose number is far from that of earlier partitions.

    `score` is the robust z; None: all earlier partitions hold the same number, and this one does
    not.
    """

    partition: str
    value: float
    median: float
    score: float | None
    limit: float
    history: int


class AnomalyReport(Value):
    """A number of each restated partition, held against earlier partitions of the same kind."""

    measure: str
    basis: str
    judged: int
    too_little: int
    found: tuple[Anomaly, ...] = ()


class DistributionBar(Value):
    """A share of the rows on both sides: of one category, or of the numbers from `low` on."""

    name: str
    old: float
    new: float
    low: float | None = None
    high: float | None = None


class Distribution(Value):
    """How far a column's values moved: an index for categories, a distance for numbers.

    `psi`: population stability index; `ks`: greatest distance of the two cumulative shares.
    `limit` is what it must exceed to count: more than chance would do, too.
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
