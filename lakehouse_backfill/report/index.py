"""The index: one page that lists all runs, beside their evidence pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_backfill.command_lines import Invocation
from lakehouse_backfill.core.evidence.status import WAITING_FOR_PEOPLE
from lakehouse_backfill.report.html import render, show_invisible
from lakehouse_backfill.report.summary import STATE_TONES, UNDER_WAY

if TYPE_CHECKING:
    from lakehouse_backfill.domain.run import RunStatus

INDEX_FILE = "index.html"
#: Runs on the index; `status --all` lists the others.
MAX_LISTED = 150


def render_index(runs: Sequence[RunStatus], folder: Path, profile: str = "") -> str:
    """Return the index of runs, in their order; linked are those whose page is in the folder.

    `profile` is the lake, as the call named it.
    Works without network and script, as the pages do.
    """
    rows = [
        (
            run,
            (folder / f"{run.run_id}.html").is_file(),
            *STATE_TONES.get(run.state, UNDER_WAY),
            run.state.value in WAITING_FOR_PEOPLE,
        )
        for run in runs[:MAX_LISTED]
    ]
    page = render(
        "index.html",
        rows=rows,
        more=max(0, len(runs) - MAX_LISTED),
        typed=Invocation(profile=profile).complete,
        newest=max((run.at for run in runs), default=None),
    )
    return show_invisible(page)
