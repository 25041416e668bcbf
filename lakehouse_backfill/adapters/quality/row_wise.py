"""Which expectations can be judged on a part of the rows: a part that fails lets the whole fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.quality.suite import LoadedSuite

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

#: Great Expectations maps these over rows too, but each row's verdict hangs on all the others.
_WHOLE_TABLE_EXPECTATIONS = frozenset(
    {
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_not_be_outliers",
        "expect_column_values_to_be_increasing",
        "expect_column_values_to_be_decreasing",
        # A sort of everything; duplicate keys of a chunk are found by a gate of its own.
        "expect_compound_columns_to_be_unique",
    }
)


def keep_row_expectations(suite: LoadedSuite) -> LoadedSuite:
    """Keep the blocking expectations that every part of the rows must meet.

    A value that is there twice in a part is there twice in the whole, so a unique column counts
    too; what need only hold `mostly` does not.
    """
    chosen = [
        (expectation, entry)
        for expectation, entry in zip(suite.expectations, suite.declared, strict=True)
        if _is_row_expectation(expectation, entry)
    ]
    return replace(
        suite,
        expectations=tuple(expectation for expectation, _ in chosen),
        declared=tuple(entry for _, entry in chosen),
    )


def _is_row_expectation(expectation: Expectation, entry: dict[str, Any]) -> bool:
    from great_expectations.expectations.expectation import (
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )

    of_rows = (ColumnMapExpectation, ColumnPairMapExpectation, MulticolumnMapExpectation)
    return (
        isinstance(expectation, of_rows)
        and entry["type"] not in _WHOLE_TABLE_EXPECTATIONS
        and entry["kwargs"].get("mostly", 1) == 1
        and entry.get("severity", "critical") == "critical"
    )
