"""Pictures of how values are spread: only of what moved, the most first, nothing unescaped."""

from __future__ import annotations

import pytest

from lakehouse_backfill.domain.checks import ColumnDiff, Distribution, DistributionBar
from lakehouse_backfill.report.charts import MAX_DISTRIBUTION_FIGURES, distribution_figures

pytestmark = pytest.mark.req("Q5", "O4")


def column(name: str, value: float, *bars: DistributionBar) -> ColumnDiff:
    found = Distribution(test="ks", value=value, limit=0.1, bars=bars)
    return ColumnDiff(name=name, changed=1, old={}, new={}, distribution=found)


BARS = (
    DistributionBar(name="0", old=0.75, new=0.25, low=0, high=8),
    DistributionBar(name="8", old=0.25, new=0.75, low=8, high=16),
)


def test_nothing_is_drawn_where_nothing_moved() -> None:
    still = ColumnDiff(name="a", changed=0, old={}, new={})
    assert distribution_figures([still, column("b", 0.0, *BARS), column("c", 0.3)]) == ""


def test_a_picture_says_test_limit_verdict_and_range() -> None:
    drawn = str(distribution_figures([column("delay", 0.5, *BARS)]))
    assert "KS 0.5, limit 0.1: shifted; 0 to 16" in drawn
    assert "values of delay, shares old and new" in drawn
    assert "<title>8: 25.0 → 75.0</title>" in drawn


def test_columns_that_moved_most_come_first_and_the_rest_is_counted() -> None:
    columns = [
        column(f"column-{n}", n / 100, *BARS) for n in range(1, MAX_DISTRIBUTION_FIGURES + 3)
    ]
    drawn = str(distribution_figures(columns))
    places = [drawn.find(f"column-{n}<") for n in range(MAX_DISTRIBUTION_FIGURES + 2, 2, -1)]
    assert -1 not in places
    assert places == sorted(places)
    assert "2 more moved less" in drawn


def test_names_are_escaped() -> None:
    odd = DistributionBar(name="<script>", old=1.0, new=0.0)
    drawn = str(
        distribution_figures([column("<b>", 0.5, odd, DistributionBar(name="x", old=0.0, new=1.0))])
    )
    assert "<script>" not in drawn
    assert "<b>" not in drawn
