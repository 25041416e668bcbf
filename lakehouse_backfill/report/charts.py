"""Small pictures as inline SVG. Texts stand beside them in HTML, so that they never shrink."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse_backfill.report.markup import Markup, join, number, signed, tag

#: More partitions than this share a cell: a screen shows no more, and the page stays small.
MAX_CELLS = 240
_STEPS = 5


@dataclass(frozen=True)
class Cell:
    """One or more neighbouring partitions, and a number for them."""

    label: str
    value: int


def gather(labels: Sequence[str], values: Sequence[int]) -> tuple[Cell, ...]:
    """Sum neighbours up until at most `MAX_CELLS` cells are left; the total stays the same."""
    size = max(1, math.ceil(len(labels) / MAX_CELLS))
    cells = []
    for start in range(0, len(labels), size):
        part = labels[start : start + size]
        label = part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}"
        cells.append(Cell(label, sum(values[start : start + size])))
    return tuple(cells)


def heat_strip(name: str, cells: Sequence[Cell], highest: int) -> Markup:
    """Draw one row of cells: the darker, the more rows; steps grow by powers."""
    shapes = [
        tag(
            "rect",
            tag("title", f"{cell.label}: {number(cell.value)} {name}"),
            x=index * 10,
            y=0,
            width=9.2 if len(cells) <= 120 else 10,
            height=20,
            class_="heat f-new" if cell.value else "heat f-cell",
            fill_opacity=_opacity(cell.value, highest),
        )
        for index, cell in enumerate(cells)
    ]
    return _canvas(len(cells) * 10, 20, f"{name} rows per partition", shapes)


def _opacity(value: int, highest: int) -> str | None:
    if not value:
        return None
    step = math.ceil(_STEPS * math.log1p(value) / math.log1p(highest)) if highest else _STEPS
    return f"{max(1, min(step, _STEPS)) / _STEPS:.1f}"


def step_lines(old: Sequence[Cell], new: Sequence[Cell]) -> Markup:
    """Draw old (dashed) and new (solid) as steps, one step per cell, from zero up."""
    highest = max([cell.value for cell in (*old, *new)], default=0) or 1
    width = max(len(new), 1) * 10
    base = tag("line", x1=0, y1=100, x2=width, y2=100, class_="s-line")
    paths = [
        tag("path", d=_steps(cells, highest), class_=name)
        for name, cells in (("s-new", new), ("s-old", old))
    ]
    return _canvas(width, 102, "rows per partition, old and new", [base, *paths, _hovers(old, new)])


def _steps(cells: Sequence[Cell], highest: int) -> str:
    points = []
    for index, cell in enumerate(cells):
        height = round(100 - 96 * cell.value / highest, 1)
        points.append(f"{'L' if index else 'M'}{index * 10} {height}H{index * 10 + 10}")
    return "".join(points)


def _hovers(old: Sequence[Cell], new: Sequence[Cell]) -> Markup:
    return join(
        tag(
            "rect",
            tag("title", f"{after.label}: {number(before.value)} → {number(after.value)} rows"),
            x=index * 10,
            y=0,
            width=10,
            height=100,
            fill="transparent",
        )
        for index, (before, after) in enumerate(zip(old, new, strict=True))
    )


def change_bars(cells: Sequence[Cell]) -> Markup:
    """Draw gains above and losses below a middle line."""
    highest = max([abs(cell.value) for cell in cells], default=0) or 1
    width = max(len(cells), 1) * 10
    shapes = [tag("line", x1=0, y1=50, x2=width, y2=50, class_="s-line")]
    for index, cell in enumerate(cells):
        height = round(48 * abs(cell.value) / highest, 1)
        if height:
            shapes.append(
                tag(
                    "rect",
                    tag("title", f"{cell.label}: {signed(cell.value)} rows"),
                    x=index * 10 + 1,
                    y=50 - height if cell.value > 0 else 50,
                    width=8,
                    height=height,
                    class_="f-new" if cell.value > 0 else "f-old",
                )
            )
    return _canvas(width, 100, "change of the row count per partition", shapes)


def pair_bars(old: float, new: float) -> Markup:
    """Draw two numbers as two bars on one scale; a negative one as its size."""
    highest = max(abs(old), abs(new)) or 1
    shapes = [
        tag("rect", x=0, y=y, width=round(200 * abs(value) / highest, 1), height=7, class_=name)
        for value, y, name in ((old, 0, "f-old"), (new, 9, "f-new"))
    ]
    return _canvas(200, 16, "old above, new below", shapes)


def arrow() -> Markup:
    """Draw an arrow to the right."""
    return tag(
        "svg", tag("path", d="M1 6H27M21 1L27 6L21 11"), viewBox="0 0 28 12", aria_hidden="true"
    )


def _canvas(width: int, height: int, title: str, shapes: Sequence[Markup]) -> Markup:
    return tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {max(width, 1)} {height}",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
    )
