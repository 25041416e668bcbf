"""The plan of a run as a tree: what changes, its stages, whom it concerns; the sum stands last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from lakehouse_backfill.cli.group import clean_text
from lakehouse_backfill.cli.render.page import (
    BAD,
    STRONG,
    WEAK,
    TextPage,
    format_cell,
    format_moment,
    format_size,
)
from lakehouse_backfill.domain.run import format_duration

if TYPE_CHECKING:
    from lakehouse_backfill.core.planning.stages import Stage
    from lakehouse_backfill.domain.contract import Consumer
    from lakehouse_backfill.domain.plan import ChecklistQuestion, Estimate
    from lakehouse_backfill.results.plans import PlanResult

#: Labels of partitions that are listed, before "and N more": in a short plan, and in a whole one.
_SHORT_LABELS, _WHOLE_LABELS = 5, 200
#: Chunks of a whole plan that have a line of their own.
_WHOLE_CHUNKS = 50
#: The kinds of stages that are counted, not listed, in a short plan.
_CHUNK_WORDS = {
    "stage_chunk": "chunks", "carry_chunk": "chunks carried over", "measure_chunk": "chunks",
}  # fmt: skip
_Node = tuple[str, Any, Sequence["_Node"]]


def draw_plan_tree(page: TextPage, plan: PlanResult, *, is_whole: bool) -> None:
    """Draw the tree; a whole one lists each stage, each chunk, and nearly all partitions."""
    tree = Tree(Text(clean_text(plan.product), style=STRONG), guide_style=WEAK)
    for node in _nodes(plan, is_whole=is_whole):
        _grow(tree, node)
    page.draw(tree)


def _grow(tree: Tree, node: _Node) -> None:
    name, value, children = node
    label = Table.grid(padding=(0, 2, 0, 0))
    label.add_column(style=WEAK, no_wrap=True)
    label.add_column(overflow="fold")
    label.add_row(clean_text(name), format_cell(value))
    branch = tree.add(label)
    for child in children:
        _grow(branch, child)


def _nodes(plan: PlanResult, *, is_whole: bool) -> Iterator[_Node]:
    most = _WHOLE_LABELS if is_whole else _SHORT_LABELS
    count = _counted(len(plan.partitions), "partition")
    scope = f"{count} of {plan.partition_field.column}, and nothing else: "
    scope += list_labels(plan.partitions, most)
    if plan.partition_field.is_whole_table:
        scope = "the whole table"
    yield "changes", scope, tuple(_limits_of_change(plan, most))
    pins = ", ".join(pin.name for pin in plan.pins if pin.role != "target")
    yield "pinned", pins or "nothing", ()
    if plan.stages:
        stages = tuple(_stage_nodes(plan)) if is_whole else ()
        yield "stages", f"{len(plan.stages):,}" if is_whole else _stages_text(plan.stages), stages
    way = f"; written by {plan.way.way}" if plan.way else ""
    yield "publication", f"{plan.publish_mode}: {plan.publishing}{way}", ()
    for waiver in plan.waivers:
        yield "waived", Text(clean_text(waiver), style=BAD), ()
    yield from _people(plan, is_whole=is_whole)
    for other in plan.conflicts:
        labels = list_labels(other.partitions, most)
        text = Text(clean_text(f"{other.run_id} ({other.state}) is open on {labels}"), style=BAD)
        yield "blocked by", text, ()
    if plan.revises:
        yield "revises", plan.revises, ()
    yield "undo", plan.undo, ()
    yield "sum", Text(clean_text(sum_text(plan)), style=STRONG), ()


def _limits_of_change(plan: PlanResult, most: int) -> Iterator[_Node]:
    yield "the last is", plan.last_partition, ()
    if plan.skipped:
        because = plan.skipped_because or "no reason given"
        yield "skipped", f"{list_labels(plan.skipped, most)}: {because}", ()
    if plan.rows:
        yield "rows", f"with {plan.rows}; all others are carried over", ()
    if plan.columns:
        yield "only", f"columns {', '.join(plan.columns)}; all others stay", ()
    if plan.schema_change:
        yield "columns", ", ".join(plan.schema_change), ()


def _people(plan: PlanResult, *, is_whole: bool) -> Iterator[_Node]:
    if plan.consumers:
        children: Iterable[_Node] = map(_consumer_node, plan.consumers) if is_whole else ()
        yield "consumers", consumers_text(plan.consumers), tuple(children)
    if plan.deadline:
        yield "deadline", format_moment(plan.deadline.isoformat()), ()
    if plan.publish_window:
        window = plan.publish_window
        yield "allowed", f"publication between {window.from_} and {window.to} UTC", ()
    if plan.checklist:
        notes = f"; {len(plan.notes)} notes in the whole plan" if plan.notes else ""
        yield "checklist", f"{checklist_text(plan.checklist)}{'' if is_whole else notes}", ()


def _consumer_node(one: Consumer) -> _Node:
    text = "tolerates a restatement" if one.tolerates_restatement else "DOES NOT tolerate it"
    contact = f"; {one.contact}" if one.contact else ""
    style = "" if one.tolerates_restatement else BAD
    return one.name, Text(clean_text(f"{text}{contact}"), style=style), ()


def _stages_text(stages: Sequence[Stage]) -> str:
    """Name the stages in order, chunks by their number; a person's stage says so."""
    parts = []
    for kind, group in groupby(stages, key=lambda stage: stage.kind):
        some = list(group)
        count = f"{len(some):,} " if len(some) > 1 else ""
        words = _CHUNK_WORDS.get(kind) if count else None
        name = words or kind.replace("_", " ")
        by = "" if some[0].by == "toolkit" else f" ({some[0].by})"
        parts.append(f"{count if words else ''}{name}{by}")
    return ", ".join(parts)


def _stage_nodes(plan: PlanResult) -> Iterator[_Node]:
    """Yield a node for each phase, and in it one for each stage."""
    held = {one.chunk_id: one for one in plan.estimate.by_chunk}
    for phase, group in groupby(plan.stages, key=lambda stage: stage.phase):
        some = list(group)
        shown = [one for one in some if not one.chunk_id]
        chunks = [one for one in some if one.chunk_id]
        kept = {id(one) for one in (*shown, *chunks[:_WHOLE_CHUNKS])}
        nodes: list[_Node] = []
        for stage in some:
            if id(stage) not in kept:
                continue
            now = held.get(stage.chunk_id)
            size = f"; now {now.rows:,} rows in {_counted(now.files, 'file')}" if now else ""
            by = "" if stage.by == "toolkit" else f"{stage.by}: "
            name = stage.chunk_id or stage.kind.replace("_", " ")
            nodes.append((name, f"{by}{stage.text}{size}", ()))
            if chunks[_WHOLE_CHUNKS:] and stage is chunks[_WHOLE_CHUNKS - 1]:
                left = len(chunks) - _WHOLE_CHUNKS
                nodes.append(("", f"and {left:,} more chunks (--json shows all)", ()))
        yield phase, "", tuple(nodes)


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def list_labels(labels: Sequence[str], most: int) -> str:
    """List the labels exactly, at most so many, and how many more there are."""
    shown, left = ", ".join(labels[:most]), len(labels) - most
    return f"{shown} and {left:,} more" if left > 0 else shown or "none"


def consumers_text(consumers: Sequence[Consumer]) -> str:
    """Count the consumers, and name those that do not tolerate a restatement."""
    against = [one.name for one in consumers if not one.tolerates_restatement]
    count = f"{len(consumers):,}"
    return f"{count}; {', '.join(against)} DOES NOT tolerate a restatement" if against else count


def checklist_text(checklist: Sequence[ChecklistQuestion]) -> str:
    """Count the questions that are answered."""
    answered = sum(bool(one.answer) for one in checklist)
    return f"{answered} of {len(checklist)} questions answered"


def sum_text(plan: PlanResult) -> str:
    """Sum the plan up: partitions, chunks, what is read and written, duration and cost."""
    estimate = plan.estimate
    count = _counted(len(plan.partitions), "partition")
    parts = [f"{count} in {_counted(len(plan.chunks), 'chunk')}", f"reads {read_text(estimate)}"]
    if written := written_text(estimate):
        parts.append(f"writes {written}")
    if plan.nothing_to_do:
        parts.append("NOTHING TO DO")
    return "; ".join((*parts, f"takes {duration_text(estimate)}", f"costs {cost_text(estimate)}"))


def read_text(estimate: Estimate) -> str:
    """Describe what is read."""
    reads = f"{estimate.input_rows:,} rows in {_counted(estimate.input_files, 'file')}"
    return f"{reads}, {format_size(estimate.input_bytes)}"


def written_text(estimate: Estimate) -> str | None:
    """Describe what is written; None where it is not known."""
    if estimate.output_rows is None:
        return None
    size = f", {format_size(estimate.output_bytes)}" if estimate.output_bytes else ""
    return f"about {estimate.output_rows:,} rows{size}"


def duration_text(estimate: Estimate) -> str:
    """Describe the duration: as a range with the runs behind it, or as a floor without any."""
    history = estimate.history
    if estimate.duration_s is None:
        if estimate.floor_s is None:
            return "an unknown time (no history)"
        return f"at least {format_duration(estimate.floor_s)} (no history of this transform)"
    text = f"about {format_duration(estimate.duration_s)}"
    if history is None:
        return text
    # The estimate may be of other rows than the runs had: the range holds it, or is left out.
    known = (history.duration_s.p10, estimate.duration_s, history.duration_s.p90)
    low, high = (format_duration(x) for x in (min(known), max(known)))
    span = "" if low == high or history.runs == 1 else f"{low} to {high}, "
    runs = _counted(history.runs, "run")
    return f"{text} ({span}by {runs}, the newest {history.newest_days:,.0f} days ago)"


def cost_text(estimate: Estimate) -> str:
    """Describe the cost; that it, or a part of it, is not known is said, never left out."""
    cost = estimate.cost_usd
    if cost is None:
        return "an unknown amount (no prices, or no history)"
    if missing := " and ".join(estimate.not_in_cost):
        return f"at least {cost:,.2f} USD (without {missing}, not known yet)"
    return f"about {cost:,.2f} USD"
