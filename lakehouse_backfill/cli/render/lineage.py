"""Views of where partitions come from: what needs restating, lineage, and the story of one."""

from __future__ import annotations

from collections.abc import Sequence
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
    from lakehouse_backfill.results import origins


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
    """Draw the story on one screen: the state, the run, its input and checks, earlier acts."""
    what = f" {result.partition}" if result.partition else ""
    page.line(f"{result.table}{what}", "bold")
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
    writers = "written by others since" if result.acts else "written by"
    state = f"{result.state}: run {result.open_run}, whose rows readers do not see here"
    page.facts(
        (
            ("state", state if result.open_run else result.state),
            ("because", "; ".join(result.because) or None),
            ("made by", result.run_id or "no run: inputs are not recorded"),
            ("why", f"{result.reason} ({result.reason_code})" if result.reason else None),
            ("who", "; ".join(by) or None),
            ("output", output if result.output else None),
            ("code", code if result.transform else None),
            ("git commit", result.git_commit),
            ("rows", ", ".join(f"{name} {count:,}" for name, count in rows.items()) or None),
            ("checks", result.checks or None),
            ("not passed", "; ".join(result.not_passed) or None),
            ("side effects", "; ".join(result.side_effects) or "none recorded"),
            (writers, "; ".join(result.written_since[-3:]) or None),
        )
    )
    _edges(page, "computed from", "partitions", result.inputs)
    page.records(
        "acts, newest first", "at | action | version | run: run_id | by", result.acts, most=5
    )
    for note in result.notes:
        page.line(note)
    page.next_command(result.next_command)


def _state_cell(state: str) -> Text:
    return Text(state, style={"failed": BAD, "stale": "yellow", "missing": "yellow"}.get(state, ""))
