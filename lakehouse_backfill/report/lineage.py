"""Inputs to consumers; live commits while the run was open.

The way from the pinned inputs to the consumers, as SVG: side by side, or stacked on a phone.

SVG cannot wrap: lines are cut here, and the picture is drawn twice. The style sheet shows the one
that fits, so that texts are never smaller than the page's small print.

What live data did while the run was open, and what was left out because somebody deleted it.

What the result was made from, and what proves that this page tells of that very run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import CatchUp, Erasure, TombstonePin
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.html import (
    NO_VALUE,
    Markup,
    TableColumn,
    code_text,
    escape_uncut,
    fact_list,
    folded_details,
    format_moment,
    html_tag,
    join,
    page_section,
    page_table,
    shorten,
)

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


def live_commits_section(dossier: Dossier) -> Markup:
    """Draw what came and what each partition was computed from; nothing where nothing came."""
    resolved, parts = dossier.plan.resolved, list[Markup]()
    if resolved.catch_up is not None:
        parts += [
            _catch_up_summary(resolved.catch_up),
            _live_commit_table(resolved.catch_up),
            _chunk_origin_table(dossier),
        ]
    if resolved.tombstones or (resolved.catch_up and resolved.catch_up.erasures):
        parts.append(_deletion_table(dossier))
    return join(parts)


def _catch_up_summary(catch_up: CatchUp) -> Markup:
    kept = sum(1 for _ in catch_up.carried)
    return html_tag(
        "p",
        "This run caught up with live commits for ", code_text(catch_up.of),
        f" (attempt {catch_up.attempt}): {partitions.describe_labels(catch_up.drifted)} were "
        "made again, "
        f"{kept} chunks were taken over as they were accepted.",
    )  # fmt: skip


def _live_commit_table(catch_up: CatchUp) -> Markup:
    heads = (
        TableColumn("Live commit", is_wide=True),
        TableColumn("Operation", is_word=True),
        TableColumn("Writer", is_wide=True),
        TableColumn("At"),
        TableColumn("Partitions", is_wide=True),
    )
    rows = [
        (
            code_text(drift.snapshot_id), drift.operation, drift.writer, format_moment(drift.at),
            partitions.describe_labels(drift.partitions),
        )
        for drift in catch_up.drifts
    ]  # fmt: skip
    return page_table(heads, rows)


def _chunk_origin_table(dossier: Dossier) -> Markup:
    heads = (
        TableColumn("Partitions", is_wide=True), TableColumn("Computed by", is_wide=True),
        TableColumn("From input snapshots", is_wide=True),
    )  # fmt: skip
    return page_table(
        heads, [_chunk_origin_row(dossier, chunk) for chunk in dossier.plan.resolved.chunks]
    )


def _chunk_origin_row(dossier: Dossier, chunk: Chunk) -> tuple[Any, ...]:
    resolved = dossier.plan.resolved
    origin = resolved.catch_up and resolved.catch_up.origin(chunk.chunk_id)
    inputs = {pin.name: pin.snapshot_id for pin in resolved.sources}
    inputs = origin.inputs if origin else inputs
    run = origin.run_id if origin else dossier.plan.run_id
    shown = ", ".join(f"{name} {number}" for name, number in inputs.items())
    return partitions.describe_labels(chunk.partitions), code_text(run), code_text(shown)


def _deletion_table(dossier: Dossier) -> Markup:
    resolved = dossier.plan.resolved
    heads = (
        TableColumn("Left out because of", is_wide=True), TableColumn("Table", is_wide=True),
        TableColumn("Snapshots", is_wide=True), TableColumn("Partitions", is_wide=True),
    )  # fmt: skip
    erasures = resolved.catch_up.erasures if resolved.catch_up else ()
    rows = [*map(_tombstone_row, resolved.tombstones), *map(_deletion_row, erasures)]
    count = sum(chunk.left_out_rows or 0 for chunk in dossier.chunks)
    text = html_tag("p", f"{count:,} rows were left out because they had been deleted.")
    return join([text, page_table(heads, rows)])


def _tombstone_row(pin: TombstonePin) -> tuple[Any, ...]:
    named = ", ".join(pin.columns)
    return f"tombstones for {named}", code_text(pin.table), code_text(pin.snapshot_id), "all"


def _deletion_row(erasure: Erasure) -> tuple[Any, ...]:
    span = f"{erasure.before_snapshot_id} to {erasure.after_snapshot_id}"
    where = partitions.describe_labels(erasure.partitions)
    return "rows deleted live", code_text(erasure.table), code_text(span), where


#: Characters of a job's code on the page; the archive holds all.
MAX_CODE_CHARACTERS = 60_000


def lineage_section(dossier: Dossier) -> Markup:
    """Draw the way from the pinned inputs to the target, then list pins and identifiers."""
    return page_section(
        "lineage",
        "Where it comes from",
        lineage_figure(dossier),
        _pins(dossier),
        live_commits_section(dossier),
        _job_code(dossier),
    )


def _pins(dossier: Dossier) -> Markup:
    heads = (
        TableColumn("Input", is_wide=True), TableColumn("Role", is_word=True),
        TableColumn("Kept by", is_word=True), TableColumn("Asked for", is_wide=True),
        TableColumn("Snapshot", is_wide=True),
        TableColumn("Rows read at most", is_wide=True),
    )  # fmt: skip
    return page_table(heads, [_pin(pin) for pin in dossier.plan.resolved.sources])


def _pin(pin: SourcePin) -> tuple[Any, ...]:
    rows = "the whole snapshot"
    if pin.range is not None:
        rows = (
            f"{pin.range.column} from {_day_text(pin.range.from_)} to {_day_text(pin.range.to)}, "
            "not included; "
            f"{pin.warm_up_days} days before and {pin.cool_down_days} after each chunk"
        )
    return (
        pin.name,
        pin.role,
        pin.mode,
        code_text(pin.requested),
        code_text(pin.snapshot_id),
        rows,
    )


def _day_text(value: object) -> str:
    return str(value).removesuffix(" 00:00:00")


def _job_code(dossier: Dossier) -> Markup:
    """Fold the job's code in, as far as the page has room."""
    parts, room = [], MAX_CODE_CHARACTERS
    for item in dossier.code:
        text = str(item.get("text", ""))
        shown, room = text[:room], room - min(room, len(text))
        cut = f" Only {len(shown):,} of {len(text):,} characters; the archive holds all."
        note = html_tag(
            "p", "SHA-256 ", code_text(item.get("sha256")), cut if len(shown) < len(text) else ""
        )
        body = html_tag("pre", html_tag("code", escape_uncut(shown)))
        parts.append(folded_details(f"Code: {item.get('file', NO_VALUE)}", note, body))
    return join(parts)


def identity_section(dossier: Dossier) -> Markup:
    """List what identifies the run, its input, its code and its result."""
    plan, resolved = dossier.plan, dossier.plan.resolved
    base = resolved.target.snapshot_id
    pairs: list[tuple[str, Any]] = [
        ("Run", code_text(plan.run_id)),
        ("Planned", f"{format_moment(plan.created_at)} by {plan.created_by}"),
        ("Supersedes run", code_text(plan.revises) if plan.revises else "no other run"),
        ("Run manifest", code_text(plan.manifest_file)),
        ("Manifest hash", code_text(plan.manifest_hash)),
        ("Code hash", code_text(resolved.code_hash)),
        ("Git commit", code_text(resolved.git_commit) if resolved.git_commit else "no repository"),
        ("Lock file hash", code_text(resolved.lock_hash) if resolved.lock_hash else "no lock file"),
        ("Target when planned", code_text(base) if base is not None else "empty"),
        ("Way of committing", f"{plan.way.way}: {plan.way.why}" if plan.way else "not recorded"),
        ("Digest of checks and diff", code_text(dossier.validation_digest)),
        *_publication_facts(dossier),
    ]
    if dossier.chain_head:
        pairs.append(("Head of the event chain", code_text(dossier.chain_head)))
    lead = "Two pages with the same hashes tell of the same intent, code, input and result."
    return page_section("identity", "Identity", html_tag("p", lead), fact_list(pairs))


def _publication_facts(dossier: Dossier) -> list[tuple[str, Any]]:
    publication = dossier.publication
    if publication is None:
        return [("Published", "no")]
    version, before = publication.version, publication.supersedes
    return [
        ("Published", f"{format_moment(publication.at)} by {publication.by}"),
        ("Output version", f"{version}, in place of {NO_VALUE if before is None else before}"),
        ("Snapshot published", code_text(publication.snapshot_id)),
        ("Publication token", code_text(publication.token)),
    ]
