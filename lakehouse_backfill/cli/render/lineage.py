"""Views of where partitions come from: what needs restating, lineage, and the story of one.

Views of cascades: the plan as a tree, and where each of its runs stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from lakehouse_backfill.cli.render.page import (
    BAD,
    TextPage,
    format_moment,
    format_partitions,
    shorten_hash,
)

if TYPE_CHECKING:
    from lakehouse_backfill.domain.cascade.graph import CascadeNode
    from lakehouse_backfill.results import cascades, origins


def render_stale(page: TextPage, result: origins.StaleResult) -> None:
    """Draw each product: its states, then its partitions that are not complete, and why."""
    for product in result.products:
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(product.states.items()))
        nothing = "no partition is known" if product.judged else "not judged"
        page.line(f"{product.product}: {states or nothing}", "bold")
        own = [one for one in result.partitions if one.product == product.product]
        # Neighbours with the same story are one line.
        alike = groupby(
            enumerate(own),
            lambda item: (
                item[1].state, item[1].because, item[1].run_id, item[1].place - item[0],
            ),
        )  # fmt: skip
        page.table(
            "",
            ("state", "partitions", "because", "run"),
            [
                (
                    _state_cell(state),
                    format_partitions([one.partition for _, one in some]),
                    "; ".join(because),
                    run,
                )
                for (state, because, run, _), some in alike
            ],
        )
        for note in product.notes:
            page.line(note)
        page.facts((("drafted", product.manifest),))
    if not result.products:
        page.line("the project has no contracts, so no products")
    elif result.nothing_to_do:
        page.line("nothing is stale or missing, as far as runs recorded it")
    page.next_command(result.next_command)


def render_lineage(page: TextPage, result: origins.LineageResult) -> None:
    """Draw what the table came from, what came from it, and its columns."""
    what = f" {result.partition}" if result.partition else ""
    page.line(f"{result.table}{what}", "bold")
    _edges(page, "computed from", "partitions", result.upstream)
    _edges(page, "read by", "product", result.downstream)
    page.table(
        "columns, by the query: information, no proof; conditions and joins are left out",
        ("column", "made of"),
        [(name, ", ".join(made) or "no input") for name, made in result.columns.items()],
    )
    if not result.upstream:
        page.line("no published run computed it")
    if not result.downstream:
        page.line("no published run read it")
    for note in result.notes:
        page.line(note)
    if result.events_file:
        page.line(f"{result.events} OpenLineage events written to {result.events_file}")


#: Instants that were read are shown up to this many windows.
_MAX_WINDOWS = 3


def _edges(page: TextPage, title: str, first: str, edges: Sequence[origins.LineageLine]) -> None:
    def product(edge: origins.LineageLine) -> str:
        return f"{edge.product} {format_partitions(edge.partitions)}"

    page.table(
        title,
        (first, "rows", "of", "run"),
        [
            (
                product(edge) if first == "product" else format_partitions(edge.partitions),
                _rows_text(edge),
                f"{edge.table}@{edge.snapshot_id}",
                edge.run_id,
            )
            for edge in edges
        ],
    )


def _rows_text(edge: origins.LineageLine) -> str:
    if edge.input_partitions:
        return format_partitions(edge.input_partitions)
    if edge.read_from is None:
        return "all" if edge.input_partitions is None else "none"
    none = "" if edge.input_partitions is None else "none in "
    shown = [
        f"{one.read_from:%Y-%m-%d %H:%M} to {one.read_to:%Y-%m-%d %H:%M}"
        for one in edge.windows[:_MAX_WINDOWS]
    ]
    more = len(edge.windows) - _MAX_WINDOWS
    return none + "; ".join(shown) + (f" and {more} more windows" if more > 0 else "")


def render_why(page: TextPage, result: origins.WhyResult) -> None:
    """Draw the story on one screen of 80 by 40: the state, the run, its input, checks, acts.

    Long texts and lists are cut; `--json` has all of them.
    """
    what = f" {result.partition}" if result.partition else ""
    page.line(f"{result.table}{what}", "bold")
    facts = (*_run_facts(result), *_input_facts(result.inputs), *_act_facts(result.acts))
    page.facts(tuple((name, text and _cut(text)) for name, text in facts))
    for note in result.notes[:_MAX_NOTES]:
        page.line(_cut(note))
    if len(result.notes) > _MAX_NOTES:
        page.line(f"and {len(result.notes) - _MAX_NOTES} more notes (--json shows all)")
    page.next_command(result.next_command)


#: What of a story is shown, so that it fits on one screen; `--json` has all.
_MAX_CHARACTERS, _MAX_INPUTS, _MAX_ACTS, _MAX_NOTES = 118, 2, 3, 1


def _run_facts(result: origins.WhyResult) -> tuple[tuple[str, str | None], ...]:
    by = [
        f"{word} by {', '.join(names)}"
        for word, names in (
            ("requested", (result.requested_by,) if result.requested_by else ()),
            ("approved", result.approved_by),
            ("accepted", result.accepted_by),
            ("published", (result.published_by,) if result.published_by else ()),
        )
        if names
    ]
    code = f"{result.transform} ({result.file}, {shorten_hash(result.code_hash)})"
    output = f"version {result.version} of {format_moment(result.published_at)}, {result.output}"
    rows = result.rows or {}
    state = f"{result.state}: run {result.open_run}, whose rows readers do not see here"
    return (
        ("state", state if result.open_run else result.state),
        ("because", _first(result.because)),
        ("made by", result.run_id or "no run: inputs are not recorded"),
        ("why", f"{_cut(result.reason, 90)} ({result.reason_code})" if result.reason else None),
        ("who", "; ".join(by) or None),
        ("output", output if result.output else None),
        ("code", code if result.transform else None),
        ("git commit", result.git_commit),
        ("rows", ", ".join(f"{name} {count:,}" for name, count in rows.items()) or None),
        ("checks", result.checks or None),
        ("not passed", _first(result.not_passed)),
        ("side effects", _first(result.side_effects) or "none recorded"),
        ("others since" if result.acts else "written by", _first(result.written_since[::-1])),
    )


def _input_facts(inputs: Sequence[origins.LineageLine]) -> Iterator[tuple[str, str | None]]:
    title = "computed from"
    for edge in inputs[:_MAX_INPUTS]:
        yield title, f"{edge.table}@{edge.snapshot_id}: {_rows_text(edge)}"
        title = ""
    if len(inputs) > _MAX_INPUTS:
        yield "", f"and {len(inputs) - _MAX_INPUTS} more inputs (--json shows all)"


def _act_facts(acts: Sequence[origins.StoryAct]) -> Iterator[tuple[str, str | None]]:
    title = "acts"
    for act in acts[:_MAX_ACTS]:
        run = f", run {act.run_id}" if act.run_id else ""
        text = f"{format_moment(act.at)} {act.action} of version {act.version} by {act.by}{run}"
        yield title, _cut(text, 60)
        title = ""
    if len(acts) > _MAX_ACTS:
        yield "", f"and {len(acts) - _MAX_ACTS} earlier (--json shows all)"


def _first(texts: Sequence[str]) -> str | None:
    """Return the first text, and how many more there are."""
    more = f"; and {len(texts) - 1} more" if len(texts) > 1 else ""
    return f"{_cut(texts[0], _MAX_CHARACTERS - len(more))}{more}" if texts else None


def _cut(text: str, limit: int = _MAX_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _state_cell(state: str) -> Text:
    return Text(state, style={"failed": BAD, "stale": "yellow", "missing": "yellow"}.get(state, ""))


def render_cascade_plan(page: TextPage, result: cascades.CascadePlanResult) -> None:
    """Draw the products in the order of the work, each below what it is computed from."""
    registered = "" if result.state else " (a dry run: nothing was registered)"
    page.line(f"{result.cascade_id}{registered}", "bold")
    depths: dict[str, int] = {}
    for node in result.nodes:
        depths[node.product] = 1 + max((depths.get(one, -1) for one in node.upstreams), default=-1)
        _draw_node(page, node, depths[node.product])
    page.line(
        f"in all: {result.partitions_to_compute:,} partitions to compute, "
        f"{result.partitions_reused:,} reused, about {result.input_rows:,} rows to read"
    )
    page.line()
    page.facts(
        (
            ("becomes visible", _visible(result.publication_order)),
            ("graph version", shorten_hash(result.graph_version)),
            ("undo", result.undo),
        )
    )
    for note in result.notes:
        page.line(note)
    page.next_command(result.next_command)


def _draw_node(page: TextPage, node: CascadeNode, depth: int) -> None:
    indent = "   " * depth
    critical = ", critical" if node.critical else ""
    run = f" as {node.run_id}" if node.run_id else ""
    page.line(f"{indent}{node.product}: {node.decision}{critical}{run}")
    if node.partitions:
        reused = f"; {node.reused:,} reused" if node.reused else ""
        count = f"{len(node.partitions):,} to compute" if len(node.partitions) > 1 else ""
        shown = format_partitions(node.partitions)
        page.line(f"{indent}   {shown}{f' ({count}{reused})' if count or reused else ''}")
    for reason in node.because:
        page.line(f"{indent}   {reason}")


def _visible(order: tuple[tuple[str, ...], ...]) -> str:
    texts = [
        f"{', '.join(products)} by one commit" if len(products) > 1 else products[0]
        for products in order
    ]
    one_by_one = "one by one: " if len(texts) > 1 else ""
    return one_by_one + ", then ".join(texts)


def render_cascade(page: TextPage, result: cascades.CascadeResult) -> None:
    """Draw where the cascade stands, and each of its runs."""
    page.line(f"{result.cascade_id} is {result.state}", "bold")
    page.facts(
        (
            ("readers see", result.readers_see),
            ("becomes visible", _visible(result.publication_order)),
        )
    )
    page.table(
        "products, in the order of the work",
        ("product", "state", "run", "version", "partitions", "because"),
        [
            (
                one.product,
                one.state or one.decision,
                one.run_id,
                one.version,
                format_partitions(one.partitions) if one.partitions else "",
                "; ".join(one.stale or one.because),
            )
            for one in result.members
        ],
    )
    page.next_command(result.next_command)
