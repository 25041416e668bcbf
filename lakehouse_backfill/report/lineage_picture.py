"""The way from the pinned inputs to the consumers, as SVG: side by side, or stacked on a phone.

SVG cannot wrap: lines are cut here, and the picture is drawn twice. The style sheet shows the one
that fits, so that texts are never smaller than the page's small print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import Markup, html_tag, join, shorten

#: Boxes of one stage; the tables below the picture name all.
MAX_BOXES = 4
_LINE, _TOP, _PAD, _GAP = 18, 22, 12, 14
_MAX_LINES = 5


@dataclass(frozen=True)
class LineageBox:
    """A table, a program or a reader: a heading and lines of text."""

    title: str
    lines: tuple[str, ...] = ()
    style: str = "box"


@dataclass(frozen=True)
class BoxFrame:
    """A box at its place, in the units of the picture."""

    x: int
    y: int
    width: int
    height: int


def lineage_figure(dossier: Dossier) -> Markup:
    """Draw inputs, transform, shadow, target and consumers."""
    stages = _lineage_stages(dossier)
    said = ", then ".join(", ".join(box.title for box in stage) for stage in stages)
    return html_tag(
        "figure",
        html_tag("div", _wide_svg(stages, said), class_="wide-only"),
        html_tag("div", _narrow_svg(stages, said), class_="narrow-only"),
    )


def _lineage_stages(dossier: Dossier) -> tuple[tuple[LineageBox, ...], ...]:
    resolved, publication = dossier.plan.resolved, dossier.publication
    transform, contract = resolved.manifest.transform, resolved.contract
    inputs = [
        LineageBox("Pinned input" if pin.role == "source" else "Pinned reference",
            (pin.table, f"@ {pin.snapshot_id}"))
        for pin in resolved.sources
    ]  # fmt: skip
    rows = sum(chunk.output_rows for chunk in dossier.chunks)
    reached = f"version {publication.version}" if publication else "not published"
    consumers = [LineageBox("Consumer", (item.name,)) for item in contract.consumers or ()]
    shadow = LineageBox("Shadow table", (dossier.plan.shadow_table, f"{rows:,} rows"), "box shadow")
    target = LineageBox("Target", (resolved.target.table, reached), "box target")
    if contract.publication == "pinned":
        target = LineageBox("Pointer", (dossier.plan.product, reached), "box target")
    return (
        _limit_boxes(inputs, "inputs"),
        (LineageBox("Transform", (f"{transform.name} {transform.version}", transform.file)),),
        (shadow,),
        (target,),
        _limit_boxes(consumers, "consumers") or (LineageBox("Consumers", ("none declared",)),),
    )


def _limit_boxes(boxes: Sequence[LineageBox], what: str) -> tuple[LineageBox, ...]:
    if len(boxes) <= MAX_BOXES:
        return tuple(boxes)
    more = LineageBox(f"{len(boxes) - MAX_BOXES + 1} more {what}", ("in the tables",))
    return (*boxes[: MAX_BOXES - 1], more)


def _wide_svg(stages: Sequence[Sequence[LineageBox]], said: str) -> Markup:
    width, gap, letters = 188, 35, 22
    heights = [[_height(box, letters) for box in stage] for stage in stages]
    sums = [sum(each) + _GAP * (len(each) - 1) for each in heights]
    frames: list[list[BoxFrame]] = []
    for column, each in enumerate(heights):
        y = (max(sums) - sums[column]) // 2 + 1
        placed = []
        for height in each:
            placed.append(BoxFrame(column * (width + gap) + 1, y, width, height))
            y += height + _GAP
        frames.append(placed)
    links = [
        _arrow_right(start, end)
        for before, after in pairwise(frames)
        for start in before
        for end in after
    ]
    total = len(stages) * (width + gap) - gap + 2
    return _lineage_svg(total, max(sums) + 2, said, [*links, *_boxes(stages, frames, letters)])


def _narrow_svg(stages: Sequence[Sequence[LineageBox]], said: str) -> Markup:
    width, gap, letters, y = 340, 30, 40, 1
    frames: list[list[BoxFrame]] = []
    arrows: list[Markup] = []
    for stage in stages:
        if frames:
            arrows.append(_arrow_down(width // 2, y - gap, y))
        placed = []
        for box in stage:
            height = _height(box, letters)
            placed.append(BoxFrame(1, y, width - 2, height))
            y += height + _GAP // 2
        frames.append(placed)
        y += gap - _GAP // 2
    return _lineage_svg(width, y - gap + 1, said, [*arrows, *_boxes(stages, frames, letters)])


def _boxes(
    stages: Sequence[Sequence[LineageBox]], frames: Sequence[Sequence[BoxFrame]], letters: int
) -> list[Markup]:
    return [
        _box(box, frame, letters)
        for stage, placed in zip(stages, frames, strict=True)
        for box, frame in zip(stage, placed, strict=True)
    ]


def _box(box: LineageBox, frame: BoxFrame, letters: int) -> Markup:
    texts = [html_tag("text", box.title, x=frame.x + _PAD, y=frame.y + _TOP, class_="title")]
    for number, line in enumerate(_box_lines(box, letters), start=1):
        texts.append(html_tag("text", line, x=frame.x + _PAD, y=frame.y + _TOP + number * _LINE))
    shape = html_tag(
        "rect", x=frame.x, y=frame.y, width=frame.width, height=frame.height, rx=7,
        class_=box.style,
    )  # fmt: skip
    return join([shape, *texts])


def _height(box: LineageBox, letters: int) -> int:
    return _TOP + len(_box_lines(box, letters)) * _LINE + _PAD


def _box_lines(box: LineageBox, letters: int) -> list[str]:
    wrapped = [part for line in box.lines for part in wrap_text(line, letters)]
    if len(wrapped) <= _MAX_LINES:
        return wrapped
    return [*wrapped[: _MAX_LINES - 1], shorten(wrapped[_MAX_LINES - 1], letters - 1) + "…"]


def wrap_text(text: str, letters: int) -> list[str]:
    """Cut a text into lines, after a sign that separates words where there is one."""
    lines, rest = [], " ".join(text[:400].split())
    while len(rest) > letters:
        seams = [rest.rfind(sign, 0, letters) + 1 for sign in (" ", ".", "_", "/", "-")]
        at = max(seams) if max(seams) >= letters // 2 else letters
        lines.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, rest] if rest else lines


def _arrow_right(start: BoxFrame, end: BoxFrame) -> Markup:
    x, y = start.x + start.width, start.y + start.height // 2
    to_x, to_y = end.x - 2, end.y + end.height // 2
    middle = (x + to_x) // 2
    curve = f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    return html_tag("path", d=f"{curve}M{to_x - 7} {to_y - 5}L{to_x} {to_y}L{to_x - 7} {to_y + 5}")


def _arrow_down(x: int, y: int, to_y: int) -> Markup:
    tip = to_y - 3
    return html_tag("path", d=f"M{x} {y + 2}V{tip}M{x - 5} {tip - 7}L{x} {tip}L{x + 5} {tip - 7}")


def _lineage_svg(width: int, height: int, said: str, shapes: Sequence[Markup]) -> Markup:
    return html_tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"Lineage: {said}",
        class_="lineage",
    )
