"""Charts: heat maps, distributions and series."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from lakehouse_backfill.domain.comparison.diff import (
    CellDiff,
    ColumnDiff,
    Diff,
    Distribution,
    DistributionBar,
    PartitionDiff,
)
from lakehouse_backfill.report import changes, charts
from lakehouse_backfill.report.changes import amount_change, parse_amount
from lakehouse_backfill.report.charts import MAX_DISTRIBUTION_FIGURES, distribution_figures
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.html import format_number
from lakehouse_backfill.report.page import render_section
from tests.support.examples.dossiers import diff

LABELS = ("p1", "p2", "p3")


def partition(label: str, added: int = 0, removed: int = 0, changed: int = 0) -> PartitionDiff:
    return PartitionDiff(
        partition=label, old_rows=9, new_rows=9, added=added, removed=removed, changed=changed,
        unchanged=0,
    )  # fmt: skip


def made(*partitions: PartitionDiff, cells: tuple[tuple[str, str, int], ...] = ()) -> Diff:
    found = tuple(
        CellDiff(partition=label, column=column, changed=count) for label, column, count in cells
    )
    return diff().model_copy(update={"partitions": partitions, "cells": found, "columns": ()})


def cells(page: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", page)


@pytest.mark.req("O4")
def test_every_changed_cell_is_drawn_with_its_partition_and_count() -> None:
    both = made(
        partition("p1", changed=5), partition("p3", changed=2),
        cells=(("p1", "a", 5), ("p3", "a", 1), ("p3", "b", 2)),
    )  # fmt: skip
    assert cells(charts.draw_heat_map(both, LABELS)) == [
        "p1: 5",
        "p3: 2",
        "p1: 5",
        "p3: 1",
        "p3: 2",
    ]


@pytest.mark.req("O4")
def test_a_partition_of_which_rows_only_came_or_went_has_cells_too() -> None:
    page = charts.draw_heat_map(made(partition("p1", added=4), partition("p2", removed=3)), LABELS)
    assert cells(page) == ["p1: 4", "p2: 3"]
    assert "rows added: 4 in all" in page
    assert "rows removed: 3 in all" in page


def test_columns_stand_in_the_order_of_their_changes() -> None:
    found = charts.lines_by_column(
        made(partition("p1"), cells=(("p1", "few", 1), ("p1", "most", 9), ("p2", "some", 3)))
    )
    assert [(line.name, line.total) for line in found] == [("most", 9), ("some", 3), ("few", 1)]


@pytest.mark.req("O4")
def test_columns_beyond_the_limit_are_summed_up_in_one_line() -> None:
    many = tuple(("p1", f"c{number:03d}", 200 - number) for number in range(100))
    found = charts.lines_by_column(made(partition("p1"), cells=many))
    assert len(found) == charts.MAX_HEAT_COLUMNS
    assert found[-1].name == "77 other columns, values changed"
    assert sum(line.total for line in found) == sum(count for _, _, count in many)


@pytest.mark.req("O4")
def test_neighbours_share_a_cell_and_no_row_is_lost() -> None:
    labels = [f"{number:04d}" for number in range(3_000)]
    rows = [partition(label, added=1) for label in labels]
    page = charts.draw_heat_map(made(*rows), labels)
    counts = [int(text.rsplit(": ", 1)[1]) for text in cells(page)]
    assert len(counts) <= charts.MAX_CELLS
    assert sum(counts) == 3_000
    assert "3,000 partitions share 120 cells" in page
    cells_of = charts.group_cells([str(number) for number in range(1_001)], list(range(1_001)))
    assert cells_of[0] == charts.ChartCell("0 to 8", 36)


def test_a_run_that_changes_nothing_has_no_map() -> None:
    assert (
        charts.draw_heat_map(made(partition("p1")), LABELS).strip()
        == "<p>No row differs, so there is no map.</p>"
    )


def test_columns_that_stay_equal_are_named() -> None:
    assert "No row with equal key differs in: diverted." in charts.draw_heat_map(
        diff(), [str(row.partition) for row in diff().partitions]
    )


@pytest.mark.parametrize("highest", [1, 2, 7, 80, 10_000, 10**12])
def test_the_legend_says_the_counts_of_each_step(highest: int) -> None:
    steps = charts.legend_steps(highest)
    assert steps[-1][2] == highest
    for step, low, high in steps:
        assert charts.ramp_step(low, highest) == step
        assert charts.ramp_step(high, highest) == step
    assert [low for _, low, _ in steps] == [1, *(high + 1 for _, _, high in steps[:-1])]


def test_the_legend_shows_a_swatch_with_the_counts_of_each_step() -> None:
    page = charts.draw_heat_map(
        made(partition("p1", changed=5), partition("p2", changed=1)), LABELS
    )
    assert re.findall(r'class="h(\d)"/></svg>([\d to]+)<', page) == [
        (str(step), f"{low}" if low == high else f"{low} to {high}")
        for step, low, high in charts.legend_steps(5)
    ]


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
        column(f"column-{n}", 0.1 + n / 100, *BARS) for n in range(1, MAX_DISTRIBUTION_FIGURES + 3)
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


MINUS = "\N{MINUS SIGN}"


def page(document: dict[str, Any]) -> str:
    return render_section(Dossier.model_validate(document), "totals")


def with_total(document: dict[str, Any], *points: tuple[Any, Any]) -> dict[str, Any]:
    """Leave one total with these points, and nothing else to draw."""
    document["validation"]["balances"] = []
    document["validation"]["totals"] = [
        {
            "name": "fares", "old": "1.10", "new": "1.30",
            "series": [
                {"partition": f"p{place}", "old": old, "new": new}
                for place, (old, new) in enumerate(points)
            ],
        }
    ]  # fmt: skip
    return document


@pytest.mark.req("O4")
def test_each_total_shows_old_and_new_of_every_partition(document: dict[str, Any]) -> None:
    found = page(with_total(document, (1, 2), ("0.10", "0.30"), (5, 5)))
    hints = re.findall(r"<title>(p\d: .*?→.*?)</title>", found)
    assert hints == ["p0: 1 → 2", "p1: 0.10 → 0.30", "p2: 5 → 5"]
    assert re.findall(rf"<title>(p\d: [+{MINUS}].*?)</title>", found) == ["p0: +1", "p1: +0.20"]
    assert "2 of 3 partitions differ; below, new less old" in found


@pytest.mark.req("O4")
def test_the_row_count_and_all_declared_totals_are_drawn(document: dict[str, Any]) -> None:
    assert re.findall(r"<h3>(.*?)</h3>", page(document)) == [
        "rows",
        "flights",
        "fares",
        "cancelled",
    ]


def test_a_total_that_stays_the_same_has_no_bars_of_change(document: dict[str, Any]) -> None:
    found = page(with_total(document, (3, 3), (4, 4)))
    assert "0 of 2 partitions differ; both lines are the same" in found
    assert "plot low" not in found


def test_a_partition_without_a_value_leaves_a_gap(document: dict[str, Any]) -> None:
    found = page(with_total(document, (1, 1), (None, 2), (1, 1)))
    old = re.findall(r'<path d="([^"]*)" class="s-old"/>', found)[0]
    assert old.count("M") == 2
    assert "p1: \N{EN DASH} → 2" in found


def test_a_total_without_any_value_is_not_drawn(document: dict[str, Any]) -> None:
    assert "<svg" not in page(with_total(document, (None, None), ("no number", None)))


@pytest.mark.req("O4")
def test_decimals_are_subtracted_without_losing_a_digit() -> None:
    assert amount_change("0.1", "0.3") == Decimal("0.2")
    assert (
        format_number(amount_change("12345678901234567890.12", "12345678901234567890.13")) == "0.01"
    )
    assert amount_change(None, "2.5") == Decimal("2.5")
    assert amount_change(None, None) is None


@pytest.mark.parametrize("value", [None, "", "NaN", "Infinity", "1e400", "text", float("inf")])
def test_what_is_no_finite_number_is_not_drawn(value: Any) -> None:
    assert parse_amount(value) is None


def test_gains_and_losses_stand_on_a_zero_line_of_their_own_scale() -> None:
    only_losses = charts.change_bars("x", [charts.ChartCell("a", -5), charts.ChartCell("b", -10)])
    assert only_losses.zero == 2.0
    assert only_losses.ends == (-5, -10)
    only_gains = charts.change_bars("x", [charts.ChartCell("a", 5)])
    assert only_gains.zero == 98.0
    assert charts.change_bars("x", [charts.ChartCell("a", 0)]) is None


@pytest.mark.parametrize(
    ("values", "low"), [((0, 10), 0), ((4, 10), 0), ((6, 10), 6), ((5, 5), 0), ((-3, 10), -3)]
)
def test_the_scale_starts_at_zero_unless_nothing_could_be_seen(values, low) -> None:
    assert changes._axis_bottom(values) == low


def test_a_column_that_moved_less_than_its_limit_has_no_picture() -> None:
    assert distribution_figures([column("delay", 0.09, *BARS)]) == ""


@pytest.mark.parametrize(
    ("held", "ticks"),
    [
        (({"min": 1, "max": "15.5"}, {"min": "0.50", "max": 12}), ["0.5", "8", "15.5"]),
        (({"min": 9, "max": 12}, {"min": 9, "max": 12}), ["9", "12"]),
        (({"min": "NaN"}, {}), ["0", "8", "16"]),
    ],
    ids=["both sides", "middle is outside", "not known"],
)
def test_ticks_lie_within_the_data(held: tuple[Any, Any], ticks: list[str]) -> None:
    found = column("delay", 0.5, *BARS).model_copy(update={"old": held[0], "new": held[1]})
    drawn = str(distribution_figures([found]))
    axis = drawn.split('class="axis">')[1].split("</div>")[0]
    assert re.findall("<span>(.*?)</span>", axis) == ticks
    assert f"shifted; {ticks[0]} to {ticks[-1]}" in drawn
