"""The gates that stopped a run, and what lets it pass them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from lakehouse_backfill.cli.clean import clean_text
from lakehouse_backfill.cli.render.page import BAD, TextPage, verdict_mark


def render_failed_gates(page: TextPage, gates: Sequence[Mapping[str, Any]]) -> None:
    """Draw each failed gate, and the commands that waive them, each on a line to be copied."""
    rows = [(_gate_verdict(gate), gate["scope"], gate["name"], gate["detail"]) for gate in gates]
    page.table("failed gates", ("", "of", "gate", "what was seen"), rows, most=None)
    for gate in gates:
        if gate.get("why_not"):
            page.line(f"{gate['name']} cannot be waived: {gate['why_not']}", BAD)
    commands = [str(gate["command"]) for gate in gates if gate.get("command")]
    if commands:
        page.line()
        page.line("to let it pass all the same, for the record:")
    for command in dict.fromkeys(commands):
        page.draw(Text(f"  {clean_text(command)}"), is_whole=True)


def _gate_verdict(gate: Mapping[str, Any]) -> Text:
    if gate.get("waived_by"):
        return Text(clean_text(f"waived by {gate['waived_by']}"), style="yellow")
    return verdict_mark(is_good=False)
