"""The Python API: one method for each command, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.project.base import begins_commands
from lakehouse_backfill.project.before import PlanCommands
from lakehouse_backfill.project.cascades import CascadeCommands
from lakehouse_backfill.project.comparison import DiffCommands
from lakehouse_backfill.project.decisions import DecisionCommands
from lakehouse_backfill.project.during import RunCommands
from lakehouse_backfill.project.events import EventCommands
from lakehouse_backfill.project.proof import ProofCommands
from lakehouse_backfill.project.publication import PublicationCommands
from lakehouse_backfill.project.sources import SourceCommands
from lakehouse_backfill.wiring.adapters import Adapters


@begins_commands
class Project(
    SourceCommands,
    EventCommands,
    PlanCommands,
    RunCommands,
    DecisionCommands,
    DiffCommands,
    PublicationCommands,
    CascadeCommands,
    ProofCommands,
):
    """A folder with profiles, contracts, suites and jobs, opened against one lake."""

    @staticmethod
    def open(
        folder: Path | str = ".", profile: str | None = None, *, progress: Progress | None = None
    ) -> Project:
        """Open the project in `folder`. Reads its profiles only; connects on first use.

        Without a `profile`, the environment variable LAKEHOUSE_BACKFILL_PROFILE names it, or the
        profiles' own `default`. Raises ConfigError when the profiles are wrong, or when there is no
        such profile.
        """
        return Project(Adapters.open(Path(folder), profile, progress))


def accepted(
    product: str,
    engine: Literal["spark", "arrow", "duckdb"] = "arrow",
    *,
    folder: Path | str = ".",
    profile: str | None = None,
    strict: bool = True,
) -> Any:
    """Return what consumers of a product read; see `Project.accepted`."""
    return Project.open(folder, profile).accepted(product, engine, strict=strict)
