"""How the values of columns are spread, old and new: a picture for those that moved most."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from lakehouse_backfill.domain.checks import ColumnDiff
from lakehouse_backfill.domain.watched import Distribution
from lakehouse_backfill.report import charts
from lakehouse_backfill.report.markup import Markup, html_tag, join, shorten

#: Columns with a picture: those that moved beyond the limit, then those that moved most.
MAX_DISTRIBUTION_FIGURES = 6
_MAX_BAR_NAME_LENGTH = 24


def distribution_figures(columns: Sequence[ColumnDiff]) -> Markup:
    """Draw shares of both sides, by value or by range of numbers; nothing where nothing moved."""
    known = [(column.name, column.distribution) for column in columns]
    moved = [(name, found) for name, found in known if found and found.bars and found.value]
    moved.sort(key=lambda each: -each[1].value / (each[1].limit or 1))
    if not moved:
        return Markup("")
    drawn = [_distribution_figure(name, found) for name, found in moved[:MAX_DISTRIBUTION_FIGURES]]
    more = len(moved) - len(drawn)
    note = f" {more} more moved less and stand in the table only." if more else ""
    lead = f"Share of the rows with each value, or with numbers from one value to the next.{note}"
    return join([html_tag("h3", "How values are spread"), html_tag("p", lead), *drawn])


def _distribution_figure(name: str, found: Distribution) -> Markup:
    sides = [
        tuple(charts.ChartCell(bar.name, _percent(share)) for bar, share in pairs)
        for pairs in (
            [(bar, bar.old) for bar in found.bars],
            [(bar, bar.new) for bar in found.bars],
        )
    ]
    highest = max((cell.value or 0 for side in sides for cell in side), default=0)
    title = f"values of {shorten(name, 80)}, shares old and new"
    lines = charts.step_lines(title, sides[0], sides[1], (0.0, float(highest)))
    ends = f"{shorten(found.bars[0].name, _MAX_BAR_NAME_LENGTH)} to {shorten(_last_bound(found), _MAX_BAR_NAME_LENGTH)}"
    verdict = "shifted" if found.is_shifted else "within the limit"
    keys = [html_tag("span", html_tag("i", class_=f"key {side}"), side) for side in ("old", "new")]
    said = f"{found.test.upper()} {found.value:.3g}, limit {found.limit:.2g}: {verdict}; {ends}"
    scale = html_tag(
        "span", html_tag("span", f"{highest:.3g} %"), html_tag("span", "0 %"), class_="scale n"
    )
    return html_tag(
        "figure",
        html_tag("h3", shorten(name, 80)),
        html_tag("p", *keys, said, class_="legend small soft"),
        html_tag("div", scale, html_tag("div", lines, class_="plot"), class_="chart"),
    )


def _last_bound(found: Distribution) -> str:
    end = found.bars[-1]
    return end.name if end.high is None else f"{end.high:.6g}"


def _percent(share: float) -> Decimal:
    return Decimal(str(round(100 * share, 4)))
