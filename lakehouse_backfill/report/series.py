"""Before and after, partition by partition: the row count and the product's declared totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.domain.checks import MeasureTotal, Validation
from lakehouse_backfill.report import charts
from lakehouse_backfill.report.amounts import amount, change
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.heat import axis
from lakehouse_backfill.report.markup import NOTHING, Markup, join, number, shorten, signed, tag
from lakehouse_backfill.report.markup import share as percent
from lakehouse_backfill.report.parts import Column, section, table

#: Totals with a picture; more stand in the table only.
MAX_PICTURES = 6
_TITLE = "Totals of the product, before and after"


@dataclass(frozen=True)
class Series:
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


def totals(dossier: Dossier) -> Markup:
    """Set the declared totals side by side, then draw them by partition."""
    validation = dossier.validation
    if validation is None:
        absent = "The run was not validated yet, so nothing was compared."
        return section("totals", _TITLE, tag("p", absent))
    pictures = [_picture(each) for each in _series(validation)]
    if not validation.totals:
        return section("totals", _TITLE, tag("p", "The contract declares no totals."), *pictures)
    heads = (
        Column("Total", is_wide=True),
        Column("Old", is_number=True),
        Column("New", is_number=True),
        Column("Change", is_number=True),
        Column("Share", is_number=True),
        Column("Partitions that differ", is_number=True),
    )
    lead = "Over the restated partitions only. Totals are declared in the product's contract."
    rows = [_total(total, is_first=dossier.is_first) for total in validation.totals]
    return section("totals", _TITLE, tag("p", lead), table(heads, rows), *pictures)


def _total(total: MeasureTotal, *, is_first: bool) -> tuple[Any, ...]:
    found, old = change(total.old, total.new), amount(total.old)
    changed, part = (
        (NOTHING, NOTHING) if found is None else (signed(found), percent(found, old or 0))
    )
    moved = sum(1 for point in total.series if change(point.old, point.new))
    count = f"{moved:,} of {len(total.series):,}" if total.series else NOTHING
    old_shown = "none" if is_first else _shown(total.old)
    return (total.name, old_shown, _shown(total.new), changed, part, count)


def _shown(value: float | str | None) -> str:
    """Numbers keep their own digits; decimals came as text, and are set as numbers all the same."""
    return number(amount(value) if isinstance(value, str) and amount(value) is not None else value)


def _series(validation: Validation) -> list[Series]:
    balances = validation.balances
    rows = Series(
        "rows",
        tuple(row.partition for row in balances),
        tuple(row.old_count for row in balances),
        tuple(row.new_count for row in balances),
    )
    drawn = [_of(total) for total in validation.totals[:MAX_PICTURES]]
    return [series for series in (rows, *drawn) if series.labels]


def _of(total: MeasureTotal) -> Series:
    return Series(
        total.name,
        tuple(point.partition for point in total.series),
        tuple(amount(point.old) for point in total.series),
        tuple(amount(point.new) for point in total.series),
    )


def _picture(series: Series) -> Markup:
    old, new = charts.gather(series.labels, series.old), charts.gather(series.labels, series.new)
    changes = charts.gather(series.labels, series.changes)
    values = [cell.value for cell in (*old, *new) if cell.value is not None]
    if not values:
        return Markup("")
    name = shorten(series.name, 80)
    low, high = _scale(values)
    lines = charts.step_lines(f"{name} by partition, old and new", old, new, (low, high))
    plots = [_plot(lines, (number(max(values)), number(_bottom(values))), "plot")]
    gains = [cell.value or 0 for cell in changes]
    if any(gains):
        bars = charts.change_bars(f"change of {name} by partition", changes)
        ends = (_end(max(gains)), _end(min(gains)))
        plots.append(_plot(bars, ends, "plot low"))
    said = _said(series, is_shared=len(old) < len(series.labels))
    return tag(
        "figure",
        tag("h3", name),
        tag("p", *said, class_="legend small soft"),
        tag("div", *plots, tag("span"), axis(series.labels), class_="chart"),
    )


def _plot(picture: Markup, ends: tuple[str, str], style: str) -> Markup:
    scale = tag("span", *(tag("span", end) for end in ends), class_="scale n")
    return join([scale, tag("div", picture, class_=style)])


def _end(value: charts.Amount) -> str:
    return signed(value) if value else "0"


def _said(series: Series, *, is_shared: bool) -> list[Any]:
    moved = sum(1 for value in series.changes if value)
    keys = [tag("span", tag("i", class_=f"key {side}"), side) for side in ("old", "new")]
    count = f"{moved:,} of {len(series.labels):,} partitions differ"
    words = "below, new less old" if moved else "both lines are the same"
    per = "; neighbouring partitions are summed up" if is_shared else ""
    return [*keys, f"{count}; {words}{per}"]


def _bottom(values: Sequence[charts.Amount]) -> charts.Amount:
    """Start at zero, unless all values lie so close together that nothing could be seen."""
    low, high = min(values), max(values)
    return 0 if low >= 0 and (low == high or 2 * low < high) else low


def _scale(values: Sequence[charts.Amount]) -> tuple[float, float]:
    return float(_bottom(values)), float(max(values))
