"""Where the result comes from: inputs, transform, shadow, target and consumers; live commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from markupsafe import Markup

from lakehouse_backfill.core.validation import movements
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.html import render, shorten

#: Boxes of one stage; the tables below the picture name all.
MAX_BOXES = 4
#: Characters of a job's code on the page; the archive holds all.
MAX_CODE_CHARACTERS = 60_000
#: Units of the picture; `templates/lineage_figure.html` sets the texts by them.
_LINE, _TOP, _PAD, _GAP = 18, 22, 12, 14
_MAX_LINES = 5


@dataclass(frozen=True)
class LineageBox:
    """A table, a program or a reader: a heading and lines of text."""

    title: str
    texts: tuple[str, ...] = ()
    style: str = "box"


@dataclass(frozen=True)
class PlacedBox:
    """A box at its place, with its texts in lines of its width."""

    box: LineageBox
    lines: tuple[str, ...]
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Picture:
    """Boxes and the arrows between them."""

    width: int
    height: int
    paths: tuple[str, ...]
    boxes: tuple[PlacedBox, ...]


Stages = Sequence[Sequence[LineageBox]]


def lineage_facts(dossier: Dossier) -> dict[str, Any]:
    """Return the picture, the live commits, and the job's code as far as the page has room."""
    code, room = [], MAX_CODE_CHARACTERS
    for item in dossier.code:
        text = str(item.get("text", ""))[:room]
        code.append((item, text))
        room -= len(text)
    return {
        "figure": lineage_figure(dossier),
        "live_commits": live_commits(dossier),
        "moved": movements.newest_movements(dossier.events),
        "describe_range": movements.describe_range,
        "code": code,
    }


def live_commits(dossier: Dossier) -> Markup:
    """Describe what came and what each partition was computed from; nothing where nothing came."""
    resolved, origins = dossier.plan.resolved, []
    pinned = {pin.name: pin.snapshot_id for pin in resolved.sources}
    for chunk in resolved.chunks if resolved.catch_up else ():
        origin = resolved.catch_up and resolved.catch_up.origin(chunk.chunk_id)
        inputs = origin.inputs if origin else pinned
        run = origin.run_id if origin else dossier.plan.run_id
        shown = ", ".join(f"{name} {number}" for name, number in inputs.items())
        origins.append((chunk, run, shown))
    return render("live_commits.html", dossier=dossier, origins=origins)


def lineage_figure(dossier: Dossier) -> Markup:
    """Draw inputs, transform, shadow, target and consumers, for wide and for narrow screens."""
    stages = _lineage_stages(dossier)
    label = ", then ".join(", ".join(box.title for box in stage) for stage in stages)
    wide, narrow = _wide_picture(stages), _narrow_picture(stages)
    return render("lineage_figure.html", wide=wide, narrow=narrow, label=label)


def _lineage_stages(dossier: Dossier) -> Stages:
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


def _wide_picture(stages: Stages) -> Picture:
    """Set the stages side by side, each in the middle of the height."""
    width, gap, letters = 188, 35, 22
    columns = [
        _stack(stage, column * (width + gap) + 1, 0, width, letters, _GAP)
        for column, stage in enumerate(stages)
    ]
    highest = max(_bottom(column) for column in columns)
    placed = [
        _stack(stage, column[0].x, (highest - _bottom(column)) // 2 + 1, width, letters, _GAP)
        for stage, column in zip(stages, columns, strict=True)
    ]
    neighbours = [pair for before, after in pairwise(placed) for pair in product(before, after)]
    arrows = [_arrow_right(start, end) for start, end in neighbours]
    boxes = tuple(box for column in placed for box in column)
    return Picture(len(stages) * (width + gap) - gap + 2, highest + 2, tuple(arrows), boxes)


def _narrow_picture(stages: Stages) -> Picture:
    """Set the stages one below the other."""
    width, gap, letters, y = 340, 30, 40, 1
    boxes: list[PlacedBox] = []
    arrows: list[str] = []
    for stage in stages:
        if boxes:
            arrows.append(_arrow_down(width // 2, y - gap, y))
        placed = _stack(stage, 1, y, width - 2, letters, _GAP // 2)
        boxes += placed
        y = _bottom(placed) + gap
    return Picture(width, y - gap + 1, tuple(arrows), tuple(boxes))


def _stack(
    stage: Sequence[LineageBox], x: int, y: int, width: int, letters: int, gap: int
) -> list[PlacedBox]:
    """Set the boxes of a stage one below the other, from `y` on."""
    placed = []
    for box in stage:
        lines = _box_lines(box, letters)
        height = _TOP + len(lines) * _LINE + _PAD
        placed.append(PlacedBox(box, lines, x, y, width, height))
        y += height + gap
    return placed


def _bottom(placed: Sequence[PlacedBox]) -> int:
    return placed[-1].y + placed[-1].height


def _box_lines(box: LineageBox, letters: int) -> tuple[str, ...]:
    wrapped = [part for text in box.texts for part in wrap_text(text, letters)]
    if len(wrapped) > _MAX_LINES:
        wrapped[_MAX_LINES - 1 :] = [shorten(wrapped[_MAX_LINES - 1], letters - 1) + "…"]
    return tuple(wrapped)


def wrap_text(text: str, letters: int) -> list[str]:
    """Cut a text into lines, after a sign that separates words where there is one."""
    lines, rest = [], " ".join(text[:400].split())
    while len(rest) > letters:
        seams = [rest.rfind(sign, 0, letters) + 1 for sign in (" ", ".", "_", "/", "-")]
        at = max(seams) if max(seams) >= letters // 2 else letters
        lines.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, rest] if rest else lines


def _arrow_right(start: PlacedBox, end: PlacedBox) -> str:
    x, y = start.x + start.width, start.y + start.height // 2
    to_x, to_y = end.x - 2, end.y + end.height // 2
    middle = (x + to_x) // 2
    curve = f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    return f"{curve}M{to_x - 7} {to_y - 5}L{to_x} {to_y}L{to_x - 7} {to_y + 5}"


def _arrow_down(x: int, y: int, to_y: int) -> str:
    tip = to_y - 3
    return f"M{x} {y + 2}V{tip}M{x - 5} {tip - 7}L{x} {tip}L{x + 5} {tip - 7}"
