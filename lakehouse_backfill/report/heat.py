"""The heat map: how many rows of which partition differ in which column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log1p

from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.report import charts
from lakehouse_backfill.report.markup import Markup, format_number, html_tag, join, shorten
from lakehouse_backfill.report.parts import code_text

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
    most = max(40, min(charts.MAX_CELLS, MAX_HEAT_CELLS // len(lines)))
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
    """Give rows added, removed and changed by partition: also where no column can differ."""
    rows = [row for row in diff.partitions if row.partition is not None]
    return [
        HeatLine(name, {str(row.partition): getattr(row, kind) for row in rows}, is_column=False)
        for kind, name in _KIND_NAMES
    ]


def lines_by_column(diff: Diff) -> list[HeatLine]:
    """Give the columns that differ, most first; what does not fit is one line more."""
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


def _line_cells(line: HeatLine, labels: list[str], most: int) -> tuple[charts.ChartCell, ...]:
    return charts.group_cells(labels, [line.counts.get(label, 0) for label in labels], most)


def _heat_line(line: HeatLine, cells: Sequence[charts.ChartCell], highest: int) -> Markup:
    name = code_text(line.name) if line.is_column else line.name
    title = f"{shorten(line.name, 80)}: {line.total:,} in all"
    return join(
        [
            html_tag("span", name, class_="name" if line.is_column else "name kind"),
            charts.heat_row(title, cells, highest),
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
    """Say what each step stands for, as `charts.step_of` draws it."""
    tops = [
        int(expm1(step * log1p(highest) / charts.RAMP_STEPS))
        for step in range(charts.RAMP_STEPS + 1)
    ]
    tops[-1] = highest
    keys = []
    for step in range(1, charts.RAMP_STEPS + 1):
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
