"""Views of where partitions come from: what needs restating."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from lakehouse_backfill.cli.render.page import BAD, TextPage, format_partitions

if TYPE_CHECKING:
    from lakehouse_backfill.results import lineage


def render_stale(page: TextPage, result: lineage.StaleResult) -> None:
    """Draw each product: its states, then its partitions that are not complete, and why."""
    for product in result.products:
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(product.states.items()))
        page.line(f"{product.product}: {states or 'no partition is known'}", "bold")
        own = [one for one in result.partitions if one.product == product.product]
        # Neighbours with the same story are one line.
        alike = groupby(own, lambda one: (one.state, one.because, one.run_id))
        page.table(
            "",
            ("state", "partitions", "because", "run"),
            [
                (
                    _state_cell(state),
                    format_partitions([one.partition for one in some]),
                    "; ".join(because),
                    run,
                )
                for (state, because, run), some in alike
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


def _state_cell(state: str) -> Text:
    return Text(state, style={"failed": BAD, "stale": "yellow", "missing": "yellow"}.get(state, ""))
