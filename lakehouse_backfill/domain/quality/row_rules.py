"""Rules that rows must meet, as engines count them; each is the translation of an expectation.

A null value breaks no rule but `NotNull`; where a comparison gives null, nothing is broken either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
