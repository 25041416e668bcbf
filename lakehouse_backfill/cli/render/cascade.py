"""Views of cascades: the plan as a tree, and where each of its runs stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.cli.render.page import TextPage, format_partitions, shorten_hash

if TYPE_CHECKING:
    from lakehouse_backfill.domain.cascade.graph import CascadeNode
    from lakehouse_backfill.results import cascades


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
