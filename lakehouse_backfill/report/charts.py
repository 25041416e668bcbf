"""Inline SVG: what the pictures of the page show, and where.

Texts stand beside the pictures in HTML, so that they never shrink. `templates/charts.html` draws.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from math import expm1, log1p

from markupsafe import Markup

from lakehouse_backfill.domain.comparison.diff import (
    ColumnDiff,
    Diff,
    Distribution,
    DistributionBar,
)
from lakehouse_backfill.report.html import format_number, render, shorten

#: More partitions than this share a cell: a screen shows no more, and the page stays small.
MAX_CELLS = 120
#: Longer names of partitions and values are cut in a picture; the archive holds them whole.
_MAX_LABEL = 24
#: Steps of the colour ramp of a heat map.
RAMP_STEPS = 5
#: Columns on the page, those that change most; the rest is summed up in one line.
MAX_HEAT_COLUMNS = 24
#: Cells on the page: what a screen can show, and what keeps the page small.
MAX_HEAT_CELLS = 2_400
#: Columns with a picture: of those that moved beyond the limit, those that moved most.
MAX_DISTRIBUTION_FIGURES = 6
Amount = int | Decimal


@dataclass(frozen=True)
class ChartCell:
    """One or more neighbouring partitions, and a number for them; None: no value there."""

    label: str
    value: Amount | None


def group_cells(
    labels: Sequence[str], values: Sequence[Amount | None], most: int = MAX_CELLS
) -> tuple[ChartCell, ...]:
    """Sum neighbours up until at most `most` cells are left; the total stays the same."""
    size = max(1, math.ceil(len(labels) / most))
    cells = []
    for start in range(0, len(labels), size):
        part = [shorten(label, _MAX_LABEL) for label in labels[start : start + size]]
        known = [value for value in values[start : start + size] if value is not None]
        label = part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}"
        cells.append(ChartCell(label, sum(known) if known else None))
    return tuple(cells)


@dataclass(frozen=True)
class StepChart:
    """Old (dashed) and new (solid) as steps, one step per cell; a cell without a value is a gap."""

    title: str
    width: int
    old_path: str
    new_path: str
    pairs: tuple[tuple[ChartCell, ChartCell], ...]


def step_lines(
    title: str, old: Sequence[ChartCell], new: Sequence[ChartCell], scale: tuple[float, float]
) -> StepChart:
    """Draw both sides on a scale from low to high."""
    pairs = tuple(zip(old, new, strict=True))
    width = max(len(new), 1) * 10
    return StepChart(title, width, _step_path(old, scale), _step_path(new, scale), pairs)


def _step_path(cells: Sequence[ChartCell], scale: tuple[float, float]) -> str:
    points, is_drawn = [], False
    low, high = scale
    for index, cell in enumerate(cells):
        if cell.value is None:
            is_drawn = False
            continue
        height = round(98 - 94 * (float(cell.value) - low) / ((high - low) or 1), 1)
        points.append(f"{'L' if is_drawn else 'M'}{index * 10} {height}H{index * 10 + 10}")
        is_drawn = True
    return "".join(points)


@dataclass(frozen=True)
class ChangeBar:
    """A gain or a loss, at its place in the picture."""

    label: str
    value: Amount
    x: int
    y: float
    height: float


@dataclass(frozen=True)
class ChangeChart:
    """Gains above and losses below a line, which stands where zero is."""

    title: str
    width: int
    zero: float
    bars: tuple[ChangeBar, ...]
    ends: tuple[Amount, Amount]


def change_bars(title: str, cells: Sequence[ChartCell]) -> ChangeChart | None:
    """Draw the changes; None where nothing changes."""
    values = [cell.value or 0 for cell in cells]
    if not any(values):
        return None
    high, low = max(0.0, *map(float, values)), min(0.0, *map(float, values))
    scale = 96 / (high - low)
    zero = round(2 + high * scale, 1)
    bars = []
    for index, (cell, value) in enumerate(zip(cells, values, strict=True)):
        height = round(max(1.5, abs(float(value)) * scale), 1)
        y = round(zero - height, 1) if value > 0 else zero
        if value:
            bars.append(ChangeBar(cell.label, value, index * 10 + 1, y, height))
    return ChangeChart(title, len(cells) * 10, zero, tuple(bars), (max(values), min(values)))


@dataclass(frozen=True)
class HeatLine:
    """One row of the map: a kind of difference or a column, with a number per partition."""

    name: str
    counts: Mapping[str, int]
    is_column: bool = True

    @property
    def total(self) -> int:
        """Rows over all partitions."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class HeatCell(ChartCell):
    """A cell of the map: the more rows, the darker and the taller."""

    x: int
    step: int


def draw_heat_map(diff: Diff, partitions: Sequence[str]) -> Markup:
    """Draw how many rows of which partition differ in which column, or say why there is no map."""
    labels = list(partitions)
    lines = [*lines_by_kind(diff), *lines_by_column(diff)]
    most = max(40, min(MAX_CELLS, MAX_HEAT_CELLS // len(lines)))
    drawn = [
        group_cells(labels, [line.counts.get(label, 0) for label in labels], most) for line in lines
    ]
    highest = max((int(cell.value or 0) for cells in drawn for cell in cells), default=0)
    rows = [_heat_cells(cells, highest) for cells in drawn]
    return render(
        "heat_map.html",
        lines=list(zip(lines, rows, strict=True)),
        labels=labels,
        highest=highest,
        legend=legend_steps(highest),
        equal_columns=[column.name for column in diff.columns if not column.changed],
        max_columns=MAX_HEAT_COLUMNS,
    )


def _heat_cells(cells: Sequence[ChartCell], highest: int) -> list[HeatCell]:
    return [
        HeatCell(cell.label, cell.value, 10 * index, ramp_step(cell.value or 0, highest))
        for index, cell in enumerate(cells)
    ]


def lines_by_kind(diff: Diff) -> list[HeatLine]:
    """Return rows added, removed and changed by partition: also where no column can differ."""
    rows = [row for row in diff.partitions if row.partition is not None]
    return [
        HeatLine(
            f"rows {kind}", {str(row.partition): getattr(row, kind) for row in rows},
            is_column=False,
        )
        for kind in ("added", "removed", "changed")
    ]  # fmt: skip


def lines_by_column(diff: Diff) -> list[HeatLine]:
    """Return the columns that differ, most first; what does not fit is one line more."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for cell in diff.cells:
        if cell.partition is not None and cell.changed:
            counts[cell.column][cell.partition] = cell.changed
    found = sorted(
        (HeatLine(name, cells) for name, cells in counts.items()), key=lambda x: -x.total
    )
    if len(found) <= MAX_HEAT_COLUMNS:
        return found
    rest: dict[str, int] = defaultdict(int)
    for line in found[MAX_HEAT_COLUMNS - 1 :]:
        for partition, count in line.counts.items():
            rest[partition] += count
    name = f"{len(found) - MAX_HEAT_COLUMNS + 1} other columns, values changed"
    return [*found[: MAX_HEAT_COLUMNS - 1], HeatLine(name, rest, is_column=False)]


def ramp_step(value: Amount, highest: Amount) -> int:
    """Return the step of the ramp: 0 for nothing, the last for the highest, growing by powers."""
    if not value:
        return 0
    step = math.ceil(RAMP_STEPS * log1p(float(value)) / log1p(float(highest)))
    return max(1, min(step, RAMP_STEPS))


def legend_steps(highest: int) -> list[tuple[int, int, int]]:
    """Return the counts that each step stands for, as `ramp_step` gives them: step, from, to."""
    tops = [int(expm1(step * log1p(highest) / RAMP_STEPS)) for step in range(RAMP_STEPS + 1)]
    tops[-1] = highest
    steps = range(1, RAMP_STEPS + 1)
    return [(n, tops[n - 1] + 1, tops[n]) for n in steps if tops[n - 1] < tops[n]]


def distribution_figures(columns: Sequence[ColumnDiff]) -> Markup:
    """Draw shares of both sides, by value or by range of numbers, of columns that moved.

    A column that moved by less than the limit has no picture: both lines would be the same.
    """
    known = [(column, column.distribution) for column in columns]
    moved = [
        (column, found) for column, found in known if found and found.bars and found.is_shifted
    ]
    moved.sort(key=lambda each: -each[1].value / (each[1].limit or 1))
    if not moved:
        return Markup("")
    figures = [_distribution_figure(*each) for each in moved[:MAX_DISTRIBUTION_FIGURES]]
    return render("distributions.html", figures=figures, more=len(moved) - len(figures))


def _distribution_figure(column: ColumnDiff, found: Distribution) -> dict[str, object]:
    old = [ChartCell(bar.name, _percent(bar.old)) for bar in found.bars]
    new = [ChartCell(bar.name, _percent(bar.new)) for bar in found.bars]
    highest = max(cell.value or 0 for cell in (*old, *new))
    name, ticks = shorten(column.name, 80), _ticks(column, found.bars)
    return {
        "name": name,
        "text": f"{found.test.upper()} {found.value:.3g}, limit {found.limit:.2g}: shifted; "
        f"{shorten(ticks[0], _MAX_LABEL)} to {shorten(ticks[-1], _MAX_LABEL)}",
        "ticks": ticks,
        "top": f"{highest:.3g} %",
        "lines": step_lines(
            f"values of {name}, shares old and new", old, new, (0.0, float(highest))
        ),
    }


def _ticks(column: ColumnDiff, bars: Sequence[DistributionBar]) -> list[str]:
    """Return what stands below the bars; numbers lie within those that the column holds."""
    lows = [bar.low for bar in bars if bar.low is not None]
    highs = [bar.high for bar in bars if bar.high is not None]
    if not lows or not highs:
        return [bar.name for bar in bars]
    least = max([lows[0], *_held(column, "min", min)])
    most = min([highs[-1], *_held(column, "max", max)])
    middle = lows[len(lows) // 2]
    found = [least, *([middle] if least < middle < most else []), most]
    return [format_number(float(f"{tick:.6g}")) for tick in found]


def _held(column: ColumnDiff, name: str, outermost: Callable[[list[float]], float]) -> list[float]:
    """Return the outermost number of both sides, if they say one; decimals are stored as text."""
    found = []
    for side in (column.old, column.new):
        with suppress(TypeError, ValueError):
            found.append(float(side[name]) if name in side else math.nan)
    known = [value for value in found if math.isfinite(value)]
    return [outermost(known)] if known else []


def _percent(share: float) -> Decimal:
    return Decimal(str(round(100 * share, 4)))
