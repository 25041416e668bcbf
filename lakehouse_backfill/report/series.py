"""Before and after, partition by partition: the row count and the product's declared totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.domain.checks import MeasureTotal, ValidationResult
from lakehouse_backfill.report import charts
from lakehouse_backfill.report.amounts import amount_change, parse_amount
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.heat import partition_axis
from lakehouse_backfill.report.markup import (
    NO_VALUE,
    Markup,
    format_number,
    format_signed,
    html_tag,
    join,
    shorten,
)
from lakehouse_backfill.report.markup import format_percent as percent
from lakehouse_backfill.report.parts import TableColumn, page_section, page_table

#: Totals with a picture; more stand in the table only.
MAX_TOTAL_FIGURES = 6
_TOTALS_TITLE = "Totals of the product, before and after"


@dataclass(frozen=True)
class PartitionSeries:
    """One number per partition on both sides."""

    name: str
    labels: tuple[str, ...]
    old: tuple[charts.Amount | None, ...]
    new: tuple[charts.Amount | None, ...]

    @property
    def changes(self) -> tuple[charts.Amount | None, ...]:
        """New less old; a side without a value counts as zero."""
        pairs = zip(self.old, self.new, strict=True)
        return tuple(
            None if old is None and new is None else (new or 0) - (old or 0) for old, new in pairs
        )


def totals_section(dossier: Dossier) -> Markup:
    """Set the declared totals side by side, then draw them by partition."""
    validation = dossier.validation
    if validation is None:
        absent = "The run was not validated yet, so nothing was compared."
        return page_section("totals", _TOTALS_TITLE, html_tag("p", absent))
    pictures = [_series_figure(each) for each in _drawn_series(validation)]
    if not validation.totals:
        return page_section(
            "totals", _TOTALS_TITLE, html_tag("p", "The contract declares no totals."), *pictures
        )
    heads = (
        TableColumn("Total", is_wide=True),
        TableColumn("Old", is_number=True),
        TableColumn("New", is_number=True),
        TableColumn("Change", is_number=True),
        TableColumn("Share", is_number=True),
        TableColumn("Partitions that differ", is_number=True),
    )
    lead = "Over the restated partitions only. Totals are declared in the product's contract."
    rows = [_total_row(total, is_first=dossier.is_first) for total in validation.totals]
    return page_section(
        "totals", _TOTALS_TITLE, html_tag("p", lead), page_table(heads, rows), *pictures
    )


def _total_row(total: MeasureTotal, *, is_first: bool) -> tuple[Any, ...]:
    found, old = amount_change(total.old, total.new), parse_amount(total.old)
    changed, part = (
        (NO_VALUE, NO_VALUE) if found is None else (format_signed(found), percent(found, old or 0))
    )
    moved = sum(1 for point in total.series if amount_change(point.old, point.new))
    count = f"{moved:,} of {len(total.series):,}" if total.series else NO_VALUE
    old_shown = "none" if is_first else _total_text(total.old)
    return (total.name, old_shown, _total_text(total.new), changed, part, count)


def _total_text(value: float | str | None) -> str:
    """Numbers keep their own digits; decimals came as text, and are set as numbers all the same."""
    return format_number(
        parse_amount(value) if isinstance(value, str) and parse_amount(value) is not None else value
    )


def _drawn_series(validation: ValidationResult) -> list[PartitionSeries]:
    balances = validation.balances
    rows = PartitionSeries(
        "rows",
        tuple(row.partition for row in balances),
        tuple(row.old_count for row in balances),
        tuple(row.new_count for row in balances),
    )
    drawn = [_series_of_total(total) for total in validation.totals[:MAX_TOTAL_FIGURES]]
    return [series for series in (rows, *drawn) if series.labels]


def _series_of_total(total: MeasureTotal) -> PartitionSeries:
    return PartitionSeries(
        total.name,
        tuple(point.partition for point in total.series),
        tuple(parse_amount(point.old) for point in total.series),
        tuple(parse_amount(point.new) for point in total.series),
    )


def _series_figure(series: PartitionSeries) -> Markup:
    old, new = (
        charts.group_cells(series.labels, series.old),
        charts.group_cells(series.labels, series.new),
    )
    changes = charts.group_cells(series.labels, series.changes)
    values = [cell.value for cell in (*old, *new) if cell.value is not None]
    if not values:
        return Markup("")
    name = shorten(series.name, 80)
    low, high = _axis_range(values)
    lines = charts.step_lines(f"{name} by partition, old and new", old, new, (low, high))
    plots = [
        _plot(lines, (format_number(max(values)), format_number(_axis_bottom(values))), "plot")
    ]
    gains = [cell.value or 0 for cell in changes]
    if any(gains):
        bars = charts.change_bars(f"change of {name} by partition", changes)
        ends = (_signed_end(max(gains)), _signed_end(min(gains)))
        plots.append(_plot(bars, ends, "plot low"))
    said = _series_legend(series, is_shared=len(old) < len(series.labels))
    return html_tag(
        "figure",
        html_tag("h3", name),
        html_tag("p", *said, class_="legend small soft"),
        html_tag("div", *plots, html_tag("span"), partition_axis(series.labels), class_="chart"),
    )


def _plot(picture: Markup, ends: tuple[str, str], style: str) -> Markup:
    scale = html_tag("span", *(html_tag("span", end) for end in ends), class_="scale n")
    return join([scale, html_tag("div", picture, class_=style)])


def _signed_end(value: charts.Amount) -> str:
    return format_signed(value) if value else "0"


def _series_legend(series: PartitionSeries, *, is_shared: bool) -> list[Any]:
    moved = sum(1 for value in series.changes if value)
    keys = [html_tag("span", html_tag("i", class_=f"key {side}"), side) for side in ("old", "new")]
    count = f"{moved:,} of {len(series.labels):,} partitions differ"
    words = "below, new less old" if moved else "both lines are the same"
    per = "; neighbouring partitions are summed up" if is_shared else ""
    return [*keys, f"{count}; {words}{per}"]


def _axis_bottom(values: Sequence[charts.Amount]) -> charts.Amount:
    """Start at zero, unless all values lie so close together that nothing could be seen."""
    low, high = min(values), max(values)
    return 0 if low >= 0 and (low == high or 2 * low < high) else low


def _axis_range(values: Sequence[charts.Amount]) -> tuple[float, float]:
    return float(_axis_bottom(values)), float(max(values))
