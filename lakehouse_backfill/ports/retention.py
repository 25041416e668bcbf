"""What keeps snapshots, shadows and control files, and what lets them go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from lakehouse_backfill.domain.retention import ExpirationResult, OrphanFiles, PinLease
from lakehouse_backfill.fault_points import side_effect


class PinLeases(Protocol):
    """The leases beside the pins of runs: owner, reason, end."""

    @side_effect
    def grant(self, leases: tuple[PinLease, ...]) -> None:
        """Record leases, before their tags are made; those that stand already are left out."""
        ...

    @side_effect
    def end(self, leases: tuple[PinLease, ...]) -> None:
        """Record that leases have ended, after their tags are gone; the same again does nothing."""
        ...

    def standing(self) -> tuple[PinLease, ...]:
        """List the leases that were granted and have not ended, oldest first."""
        ...


class Upkeep(Protocol):
    """Letting go of what we put on tables: by metadata alone, files stay."""

    def shadows(self) -> dict[str, int]:
        """Name the shadows in the catalog, each with the bytes that its chunks wrote."""
        ...

    def tags(self, table: str) -> dict[str, int] | None:
        """Give our tags on a table with their snapshots; None when there is no such table."""
        ...

    def written(self, table: str) -> datetime | None:
        """Say when a table was last committed to; None when there is no such table."""
        ...

    def would_let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Say what `let_go` would do now."""
        ...

    @side_effect
    def let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Drop tags in one metadata-only commit, with the snapshots that must not expire otherwise.

        A tag that is gone, or names another snapshot by now, is left alone. A tag without which the
        next expiry could delete a live file stays, with the reason. `at_once`: also when that cuts
        history which is younger than the table keeps by its own settings.
        """
        ...

    def dangers(self, table: str) -> dict[int, str]:
        """Name snapshots that no reference holds, and whose expiry would delete live files."""
        ...


class ControlUpkeep(Protocol):
    """Keeping the control tables small; rows are never deleted."""

    def runs(self) -> dict[str, dict[str, str]]:
        """Give of each run, without its plan: product, target, shadow, owner, reason."""
        ...

    def fenced(self) -> tuple[str, ...]:
        """Name the runs that have a fence."""
        ...

    @side_effect
    def lift(self, run_ids: tuple[str, ...]) -> None:
        """Take the fences of runs away that are closed for good; one commit per table."""
        ...

    def litter(self, before: datetime) -> OrphanFiles:
        """Count the files that no snapshot of a control table reaches, written before then."""
        ...

    @side_effect
    def sweep(self, before: datetime) -> OrphanFiles:
        """Delete them; each is looked up again among what the table reaches right before."""
        ...
