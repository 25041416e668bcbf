"""Results of the gates, of the edge check and of anomaly checks; rules of expectation suites.

A rule is the translation of an expectation, as engines count the rows that break it. A null value
breaks no rule but `NotNull`; where a comparison gives null, nothing is broken either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lakehouse_backfill.domain.comparison.diff import Diff
from lakehouse_backfill.domain.serialization import Value, added_later


class Anomaly(Value):
    """One partition whose number is far from that of earlier partitions.

    `score` is the robust z; None: all earlier partitions hold the same number, and this one
    differs.
    """

    partition: str
    value: float
    median: float
    score: float | None
    limit: float
    history: int


class AnomalyReport(Value):
    """One measure of each restated partition, compared with earlier partitions of the same kind."""

    measure: str
    basis: str
    judged: int
    too_little: int
    found: tuple[Anomaly, ...] = ()


CheckGroup = Literal[
    "input",
    "technical",
    "schema",
    "quality",
    "reconciliation",
    "diff",
    "business",
    "edge",
    "golden",
    "anomaly",
    "distribution",
]


#: Position of a checked partition: before or after the scope, or inside one of its gaps.
EdgeSide = Literal["before", "inside", "after"]


#: Checks that may find nothing to judge, and how their details then begin.
_MAYBE_UNJUDGED = ("technical", "anomaly", "distribution", "edge")
_UNJUDGED_DETAILS = (
    "another engine wrote it",
    "its engine names no application",
    "no value",
    "not judged",
    "not looked at",
    "nothing is accepted beyond",
    "nothing to compare",
)


class CheckResult(Value):
    """One gate: passed or not, with the observed number and its limit."""

    name: str
    group: CheckGroup
    passed: bool
    detail: str
    observed: Any = None
    limit: Any = None
    blocking: bool = True
    #: Whether a person with the role may waive the gate (Q8).
    waivable: bool = True
    judged: bool = added_later(
        default=True,
        description="Whether there was anything to judge; where not, it passes, and says why.",
    )
    counted: bool = added_later(
        default=False,
        description="Whether an expectation of a suite was judged by counting the rows that break "
        "it; otherwise Great Expectations judged it.",
    )
    engine: Literal["", "pandas"] = added_later(
        default="",
        description="`pandas`: Great Expectations judged few rows in the process, not on Spark.",
    )

    @property
    def is_judged(self) -> bool:
        """Whether it was judged; results of earlier builds only say so in their detail."""
        return self.judged and not (
            self.group in _MAYBE_UNJUDGED and self.detail.startswith(_UNJUDGED_DETAILS)
        )


class PartitionBalance(Value):
    """Count and checksum of one partition on both sides (texts of `Checksum`)."""

    partition: str
    old_count: int
    new_count: int
    old_checksum: str
    new_checksum: str
    equal: bool


class EdgePartition(Value):
    """One partition beyond the edge: the accepted rows against the rows that the run computes.

    `counted_twice` and `lost` are amounts of the declared measures in the rows that moved across
    the edge; where `moved_in` and `moved_out` are None, in all rows removed or added.
    """

    partition: str
    side: EdgeSide
    added: int
    removed: int
    changed: int
    counted_twice: dict[str, int]
    lost: dict[str, int]
    moved_in: int | None = added_later(
        None, "Removed rows whose key the run computes within its own partitions, as a new row."
    )
    moved_out: int | None = added_later(
        None,
        "Added rows whose key is accepted within the run's partitions and not computed there.",
    )

    @property
    def differing_rows(self) -> int:
        """Rows that differ in any way."""
        return self.added + self.removed + self.changed


class EdgeReport(Value):
    """The edge check (Q10): whether the range is closed, and if not, which range closes it.

    `closing_from`/`closing_to` are labels of a half-open range; None when no probed range closes.
    """

    partitions: tuple[EdgePartition, ...]
    is_closed: bool
    closing_from: str | None
    closing_to: str | None


class MeasurePoint(Value):
    """A declared total of one partition, old and new; None: the partition holds no value."""

    partition: str
    old: int | float | str | None
    new: int | float | str | None


class MeasureTotal(Value):
    """A declared total over the run's partitions, old and new, and partition by partition."""

    name: str
    old: int | float | str | None
    new: int | float | str | None
    series: tuple[MeasurePoint, ...] = ()
    of: str | None = added_later(
        None, "The measure whose rows are counted by value; this is one value."
    )


class ValidationResult(Value):
    """The result that `accept` is bound to."""

    run_id: str
    manifest_hash: str
    shadow_snapshot_id: int | None
    checks: tuple[CheckResult, ...]
    diff: Diff
    balances: tuple[PartitionBalance, ...]
    totals: tuple[MeasureTotal, ...]
    edge: EdgeReport | None
    anomalies: tuple[AnomalyReport, ...] = added_later(
        (), "Numbers of the partitions beside those of earlier partitions."
    )

    @property
    def passed(self) -> bool:
        """Whether every blocking gate passed."""
        return all(check.passed for check in self.checks if check.blocking)


@dataclass(frozen=True)
class NotNull:
    """The column has a value."""

    column: str


@dataclass(frozen=True)
class OneOf:
    """The value is one of `values`; with `is_excluded`, none of them."""

    column: str
    values: tuple[Any, ...]
    is_excluded: bool = False


@dataclass(frozen=True)
class Within:
    """The value, or with `of_length` the number of its characters, lies within the bounds."""

    column: str
    low: Any = None
    high: Any = None
    is_low_excluded: bool = False
    is_high_excluded: bool = False
    of_length: bool = False


@dataclass(frozen=True)
class Matches:
    """The text contains a match of the pattern; with `is_excluded`, it contains none."""

    column: str
    pattern: str
    is_excluded: bool = False


@dataclass(frozen=True)
class Unique:
    """The value occurs once; each row with a value that occurs more often breaks the rule."""

    column: str


@dataclass(frozen=True)
class Greater:
    """The value is greater than that of another column, or equal where that is allowed."""

    column: str
    other: str
    or_equal: bool = False


@dataclass(frozen=True)
class RowCount:
    """The number of rows lies within the bounds, both included."""

    low: int | None = None
    high: int | None = None

    def allows(self, rows: int) -> bool:
        """Return whether a number of rows lies within the bounds."""
        return (self.low is None or rows >= self.low) and (self.high is None or rows <= self.high)


RowRule = NotNull | OneOf | Within | Matches | Unique | Greater


def columns_of(rule: RowRule) -> tuple[str, ...]:
    """Return the columns that a rule reads."""
    return (rule.column, rule.other) if isinstance(rule, Greater) else (rule.column,)


@dataclass(frozen=True)
class SuiteEntry:
    """An expectation of a suite: its place in the file, and what it says of rows.

    `rule` is None where nothing can be counted: Great Expectations judges it. `is_of_rows` tells
    whether it must hold for every part of the rows, and `limit` what the file demands.
    """

    number: int
    name: str
    rule: RowRule | RowCount | None
    is_of_rows: bool
    limit: Any = None


class StoredCheck(Value):
    """One comparison of stored state with accepted state; `because` names the method.

    `ok` is None where nothing could be compared; `because` then gives the reason.
    """

    name: str
    ok: bool | None
    expected: Any = None
    found: Any = None
    because: str = ""
