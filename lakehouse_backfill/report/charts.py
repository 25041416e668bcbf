"""Small pictures as inline SVG. Texts stand beside them in HTML, so that they never shrink."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from lakehouse_backfill.report.markup import (
    Markup,
    format_number,
    format_signed,
    html_tag,
    join,
    shorten,
)

#: More partitions than this share a cell: a screen shows no more, and the page stays small.
MAX_CELLS = 120
#: Longer partition names are cut in a cell's hint; the archive holds them whole.
_MAX_LABEL = 24
#: Steps of the colour ramp of a heat map.
RAMP_STEPS = 5
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
    return tuple(
        ChartCell(
            _cell_label(labels[start : start + size]), _sum_known(values[start : start + size])
        )
        for start in range(0, len(labels), size)
    )


def _cell_label(part: Sequence[str]) -> str:
    first, last = shorten(part[0], _MAX_LABEL), shorten(part[-1], _MAX_LABEL)
    return first if len(part) == 1 else f"{first} to {last}"


def _sum_known(values: Sequence[Amount | None]) -> Amount | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def ramp_step(value: Amount, highest: Amount) -> int:
    """Give the step of the ramp, 0 for nothing, `STEPS` for the highest; steps grow by powers."""
    if not value:
        return 0
    step = math.ceil(RAMP_STEPS * math.log1p(float(value)) / math.log1p(float(highest)))
    return max(1, min(step, RAMP_STEPS))


def heat_row(name: str, cells: Sequence[ChartCell], highest: Amount) -> Markup:
    """Draw one row of a heat map: the more, the darker and the taller."""
    ground = html_tag("rect", x=0, y=0, width=len(cells) * 10, height=20, class_="f-cell")
    shapes = [ground]
    for index, cell in enumerate(cells):
        step = ramp_step(cell.value or 0, highest)
        if step:
            height = 4 * step
            shapes.append(
                html_tag(
                    "rect",
                    html_tag("title", f"{cell.label}: {format_number(cell.value)}"),
                    x=index * 10,
                    y=20 - height,
                    width=9 if len(cells) <= MAX_CELLS // 2 else 10,
                    height=height,
                    class_=f"h{step}",
                )
            )
    return _chart_svg(len(cells) * 10, 20, name, shapes)


def step_lines(
    name: str, old: Sequence[ChartCell], new: Sequence[ChartCell], scale: tuple[float, float]
) -> Markup:
    """Draw old (dashed) and new (solid) as steps, one step per cell, on a scale from low to high.

    A cell without a value leaves a gap.
    """
    width = max(len(new), 1) * 10
    base = html_tag("line", x1=0, y1=100, x2=width, y2=100, class_="s-line")
    paths = [
        html_tag("path", d=_step_path(cells, scale), class_=style)
        for style, cells in (("s-new", new), ("s-old", old))
    ]
    return _chart_svg(width, 102, name, [base, *paths, _hover_hints(old, new)])


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


def _hover_hints(old: Sequence[ChartCell], new: Sequence[ChartCell]) -> Markup:
    return join(
        html_tag(
            "rect",
            html_tag(
                "title",
                f"{after.label}: {format_number(before.value)} → {format_number(after.value)}",
            ),
            x=index * 10,
            y=0,
            width=10,
            height=100,
            fill="transparent",
        )
        for index, (before, after) in enumerate(zip(old, new, strict=True))
    )


def change_bars(name: str, cells: Sequence[ChartCell]) -> Markup:
    """Draw gains above and losses below a line, which stands where zero is."""
    values = [float(cell.value or 0) for cell in cells]
    high, low = max(0.0, *values, 0.0), min(0.0, *values, 0.0)
    scale = 96 / ((high - low) or 1)
    zero = round(2 + high * scale, 1)
    shapes: list[Markup] = []
    for index, (cell, value) in enumerate(zip(cells, values, strict=True)):
        if value:
            height = round(max(1.5, abs(value) * scale), 1)
            shapes.append(
                html_tag(
                    "rect",
                    html_tag("title", f"{cell.label}: {format_signed(cell.value or 0)}"),
                    x=index * 10 + 1,
                    y=round(zero - height, 1) if value > 0 else zero,
                    width=8,
                    height=height,
                    class_="f-new" if value > 0 else "f-old",
                )
            )
    width = max(len(cells), 1) * 10
    line = html_tag("line", x1=0, y1=zero, x2=width, y2=zero, class_="s-zero")
    return _chart_svg(width, 100, name, [*shapes, line])


def _chart_svg(width: int, height: int, title: str, shapes: Sequence[Markup]) -> Markup:
    return html_tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {max(width, 1)} {height}",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
    )
