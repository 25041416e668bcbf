"""Totals before and after, partition by partition."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from lakehouse_backfill.report import changes, charts
from lakehouse_backfill.report.changes import amount_change, parse_amount
from lakehouse_backfill.report.dossier import read_dossier
from lakehouse_backfill.report.html import format_number

MINUS = "\N{MINUS SIGN}"


def page(document: dict[str, Any]) -> str:
    return changes.totals_section(read_dossier(document))


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
    assert 'y1="2.0"' in only_losses
    only_gains = charts.change_bars("x", [charts.ChartCell("a", 5)])
    assert 'y1="98.0"' in only_gains


@pytest.mark.parametrize(
    ("values", "low"), [((0, 10), 0), ((4, 10), 0), ((6, 10), 6), ((5, 5), 0), ((-3, 10), -3)]
)
def test_the_scale_starts_at_zero_unless_nothing_could_be_seen(
    values: tuple[int, ...], low: int
) -> None:
    assert changes._axis_bottom(values) == low
