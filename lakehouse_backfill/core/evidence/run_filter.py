"""Which runs `list` shows: by product, state, environment, and when they last moved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import BackfillError


@dataclass(frozen=True)
class RunFilter:
    """What a run must be to be listed; None and no states: anything. `since`: its last move."""

    product: str | None = None
    states: frozenset[RunState] = frozenset()
    environment: str | None = None
    since: datetime | None = None

    def admits(self, status: RunStatus) -> bool:
        """Return whether the newest state passes; the environment is not looked at."""
        return (
            self.product in (None, status.product)
            and (not self.states or status.state in self.states)
            and (self.since is None or status.at >= self.since)
        )


def find_runs(context: Context, wanted: RunFilter) -> tuple[RunStatus, ...]:
    """List open and closed runs that pass the filter, the last moved first.

    Plans are read only where an environment is asked for; a run whose plan cannot be read is of
    no environment.
    """
    found = [status for status in context.runs.list(open_only=False) if wanted.admits(status)]
    if wanted.environment is not None:
        found = [one for one in found if _environment(context, one) == wanted.environment]
    return tuple(sorted(found, key=lambda status: status.at, reverse=True))


def _environment(context: Context, status: RunStatus) -> str | None:
    try:
        return context.runs.plan(status.run_id).resolved.environment
    except BackfillError:
        return None
