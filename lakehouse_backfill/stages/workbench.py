"""What every stage works with: the ports, and who is acting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.errors import RunMoved
from lakehouse_backfill.model.contract import Profile
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import RunStatus
from lakehouse_backfill.ports.clock import Clock
from lakehouse_backfill.ports.compute import Differ, Judge, Measuring, Records, Staging, Views
from lakehouse_backfill.ports.control import Evidence, Ledger, Runs, Versions
from lakehouse_backfill.ports.lake import Pins, Publisher, Shadows, Tables
from lakehouse_backfill.ports.progress import Journal, Progress
from lakehouse_backfill.rules import lifecycle


@dataclass(frozen=True)
class Compute:
    """The ports that need Spark or Great Expectations; made on first use."""

    staging: Staging
    measuring: Measuring
    judge: Judge


@dataclass(frozen=True)
class Workbench:
    """The ports of one project and profile, and the identity of this process."""

    tables: Tables
    pins: Pins
    shadows: Shadows
    publisher: Publisher
    runs: Runs
    ledger: Ledger
    versions: Versions
    evidence: Evidence
    compute: Callable[[], Compute]
    differ: Callable[[str], Differ]
    records: Records
    views: Views
    clock: Clock
    journal: Journal
    progress: Progress
    profile: Profile
    driver: str
    is_alive: Callable[[str], bool]
    #: SHA-256 of a file of the project, as it is now.
    code_hash: Callable[[str], str]

    def move(
        self,
        status: RunStatus,
        plan: Plan,
        verb: str,
        actor: str,
        *,
        driver: str | None = None,
        **detail: Any,
    ) -> RunStatus:
        """Move a run by one conditional commit and log it.

        Raises IllegalMove when the state forbids it, RunMoved when another process was faster.
        """
        event = lifecycle.next_event(
            status,
            verb,
            actor=actor,
            mode=plan.resolved.manifest.run.mode,
            at=self.clock.now(),
            detail=detail,
        )
        moved = self.runs.append(event, driver)
        self.journal.bind(**plan.labels).log(
            "run moved", verb=verb, actor=actor, from_state=event.from_state.value,
            to_state=event.to_state.value,
        )  # fmt: skip
        return moved

    def require_no_other_driver(self, status: RunStatus) -> None:
        """Raise RunMoved while another living process drives the run."""
        if status.driver and status.driver != self.driver and self.is_alive(status.driver):
            raise RunMoved(
                f"{status.run_id} is driven by another process ({status.driver})",
                state="that process goes on; this one changed nothing",
                fix=f"lakehouse-backfill status {status.run_id}, or stop the other process first",
            )
