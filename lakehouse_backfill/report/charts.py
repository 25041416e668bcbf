"""Inline SVG: bars, heat map, distributions.

Small pictures as inline SVG. Texts stand beside them in HTML, so that they never shrink.

The heat map: how many rows of which partition differ in which column.

How the values of columns are spread, old and new: a picture for those that moved most.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import expm1, log1p

from lakehouse_backfill.domain.checks import ColumnDiff, Diff, Distribution
from lakehouse_backfill.report.html import (
    Markup,
    code_text,
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
    """Return the step of the ramp, 0 for nothing, `STEPS` for the highest; steps grow by powers."""
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


#: Columns on the page, those that change most; the rest is summed up in one line.
MAX_HEAT_COLUMNS = 24
#: Cells on the page: what a screen can show, and what keeps the page small.
MAX_HEAT_CELLS = 2_400
_KIND_NAMES = (("added", "rows added"), ("removed", "rows removed"), ("changed", "rows changed"))


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


def draw_heat_map(diff: Diff, partitions: Sequence[str]) -> Markup:
    """Draw the map of all partitions, or say why there is none."""
    labels = list(partitions)
    lines = [*lines_by_kind(diff), *lines_by_column(diff)]
    highest = max((max(line.counts.values(), default=0) for line in lines), default=0)
    if not highest:
        return html_tag("p", "No row differs, so there is no map.")
    most = max(40, min(MAX_CELLS, MAX_HEAT_CELLS // len(lines)))
    drawn = [_line_cells(line, labels, most) for line in lines]
    highest = max(int(cell.value or 0) for cells in drawn for cell in cells)
    body = [_heat_line(line, cells, highest) for line, cells in zip(lines, drawn, strict=True)]
    is_shared = len(drawn[0]) < len(labels)
    return html_tag(
        "figure",
        html_tag(
            "figcaption", _heat_caption(is_shared=is_shared, count=len(labels), drawn=len(drawn[0]))
        ),
        _heat_legend(highest),
        html_tag(
            "div", *body, html_tag("span"), partition_axis(labels), html_tag("span"), class_="map"
        ),
        _unchanged_columns(diff),
        class_="heat",
    )


def lines_by_kind(diff: Diff) -> list[HeatLine]:
    """Return rows added, removed and changed by partition: also where no column can differ."""
    rows = [row for row in diff.partitions if row.partition is not None]
    return [
        HeatLine(name, {str(row.partition): getattr(row, kind) for row in rows}, is_column=False)
        for kind, name in _KIND_NAMES
    ]


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


def _line_cells(line: HeatLine, labels: list[str], most: int) -> tuple[ChartCell, ...]:
    return group_cells(labels, [line.counts.get(label, 0) for label in labels], most)


def _heat_line(line: HeatLine, cells: Sequence[ChartCell], highest: int) -> Markup:
    name = code_text(line.name) if line.is_column else line.name
    title = f"{shorten(line.name, 80)}: {line.total:,} in all"
    return join(
        [
            html_tag("span", name, class_="name" if line.is_column else "name kind"),
            heat_row(title, cells, highest),
            html_tag("span", format_number(line.total), class_="n"),
        ]
    )


def _heat_caption(*, is_shared: bool, count: int, drawn: int) -> str:
    per = f"{count:,} partitions share {drawn} cells" if is_shared else "one cell per partition"
    return (
        f"Rows that differ, by partition (left to right: {per}) and by kind or column "
        "(top to bottom). The more rows, the taller and stronger; at the right the sum."
    )


def _heat_legend(highest: int) -> Markup:
    """Describe what each step stands for, as `charts.step_of` draws it."""
    tops = [int(expm1(step * log1p(highest) / RAMP_STEPS)) for step in range(RAMP_STEPS + 1)]
    tops[-1] = highest
    keys = []
    for step in range(1, RAMP_STEPS + 1):
        low, high = tops[step - 1] + 1, tops[step]
        if low <= high:
            text = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            picture = html_tag("svg", _swatch(step), viewBox="0 0 10 20", aria_hidden="true")
            keys.append(html_tag("span", picture, text))
    return html_tag("p", "Rows in a cell: ", *keys, class_="ramp small soft")


def _swatch(step: int) -> Markup:
    ground = html_tag("rect", x=0, y=0, width=10, height=20, class_="f-cell")
    shape = html_tag("rect", x=0, y=20 - 4 * step, width=10, height=4 * step, class_=f"h{step}")
    return join([ground, shape])


def partition_axis(labels: Sequence[str]) -> Markup:
    """Name the first, the middle and the last partition."""
    shown = labels if len(labels) < 3 else (labels[0], labels[len(labels) // 2], labels[-1])
    return html_tag(
        "span", *(html_tag("span", shorten(label, 24)) for label in shown), class_="axis"
    )


def _unchanged_columns(diff: Diff) -> Markup:
    equal = [column.name for column in diff.columns if not column.changed]
    if not equal:
        return Markup("")
    names = ", ".join(equal[:MAX_HEAT_COLUMNS])
    more = f" and {len(equal) - MAX_HEAT_COLUMNS} more" if len(equal) > MAX_HEAT_COLUMNS else ""
    text = f"No row with equal key differs in: {shorten(names, 800)}{more}."
    return html_tag("p", text, class_="small soft")


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
        tuple(ChartCell(bar.name, _percent(share)) for bar, share in pairs)
        for pairs in (
            [(bar, bar.old) for bar in found.bars],
            [(bar, bar.new) for bar in found.bars],
        )
    ]
    highest = max((cell.value or 0 for side in sides for cell in side), default=0)
    title = f"values of {shorten(name, 80)}, shares old and new"
    lines = step_lines(title, sides[0], sides[1], (0.0, float(highest)))
    ends = (
        f"{shorten(found.bars[0].name, _MAX_BAR_NAME_LENGTH)} to "
        f"{shorten(_last_bound(found), _MAX_BAR_NAME_LENGTH)}"
    )
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
