"""View of what follows from a corruption window, as a part of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.cli.render.page import TextPage, format_partitions

if TYPE_CHECKING:
    from lakehouse_backfill.domain.plan import CorruptionWindow, WindowSource

#: Commits of a source that the plan draws.
_MAX_COMMITS = 8


def render_window(page: TextPage, window: CorruptionWindow | None) -> None:
    """Draw which partitions and commits a window of wrong rows reaches, and how far to replay."""
    if window is None:
        return
    good = window.last_good
    state = "none is known: a cold start; warm-up alone builds what a chunk needs"
    if good is not None:
        version = f"version {good.version}, " if good.version is not None else ""
        state = f"{version}{good.table}@{good.snapshot_id} of {good.at:%Y-%m-%d %H:%M} UTC"
    closed = "" if window.is_closed else "; not over yet: the live job still reads rows of it"
    page.line()
    page.line("wrong rows", "bold")
    page.facts(
        (
            ("event times", f"{window.first:%Y-%m-%d %H:%M} to {window.stop:%Y-%m-%d %H:%M} UTC"),
            ("reach", format_partitions(window.partitions)),
            ("last good state", state),
            ("replay", f"through {window.closes_with}, which closes the window{closed}"),
            *((f"in {one.name}", _source_text(one)) for one in window.sources),
        )
    )
    commits = [commit for one in window.sources for commit in one.commits]
    columns = "snapshot: snapshot_id | at | operation | writer | partitions"
    page.records("commits that carried them", columns, commits, most=_MAX_COMMITS)


def _source_text(source: WindowSource) -> str:
    if source.unknown:
        return f"not known: {source.unknown}"
    count = len(source.commits)
    return f"{format_partitions(source.partitions)} of {source.table}, by {count:,} commits"
