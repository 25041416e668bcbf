"""The control tables: runs and their events, the chunk ledger, the pointer, evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.publication import Pointer, Publication
from lakehouse_backfill.model.run import ChunkRecord, Event, RunStatus


class Runs(Protocol):
    """Runs and their append-only logs. A move is one conditional commit."""

    def register(self, plan: Plan, event: Event) -> RunStatus:
        """Store the plan and its first event (seq 1); a run id that exists raises RunMoved."""
        ...

    def plan(self, run_id: str) -> Plan:
        """Load the plan; raises NotFound."""
        ...

    def status(self, run_id: str) -> RunStatus:
        """Load the newest status; raises NotFound."""
        ...

    def append(self, event: Event, driver: str | None = None) -> RunStatus:
        """Append `event` if its seq is exactly one above the run's; else raises RunMoved."""
        ...

    def events(self, run_id: str) -> tuple[Event, ...]:
        """The run's log, oldest first."""
        ...

    def list(self, *, open_only: bool = True) -> tuple[RunStatus, ...]:
        """Open runs from one table load, or all runs from history; newest first."""
        ...


class Ledger(Protocol):
    """The queryable chunk ledger; the shadow's snapshot log is the truth behind it."""

    def record(self, chunk: ChunkRecord) -> None:
        """Append one row."""
        ...

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        """The newest row of each chunk of the run, in chunk order."""
        ...


class Versions(Protocol):
    """The accepted-version pointer of each product."""

    def pointer(self, product: str) -> Pointer:
        """Read the current state: one table load, whatever the history."""
        ...

    def move(self, product: str, decide: Callable[[Pointer], tuple[Publication, ...]]) -> Pointer:
        """Append the rows that `decide` gives for the current pointer, in one conditional commit.

        Somebody else's move in between runs `decide` again on what they left. Rows with action
        reserve set `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
        release clears `pending`. No rows: nothing is committed.
        """
        ...

    def history(self, product: str) -> tuple[Publication, ...]:
        """All rows of the product, newest first."""
        ...


class Evidence(Protocol):
    """Documents that show why a run was accepted, each under its digest."""

    def record(self, run_id: str, kind: str, document: dict[str, Any]) -> str:
        """Store a document and give its digest; the same document again does nothing."""
        ...

    def newest(self, run_id: str, kind: str) -> tuple[str, dict[str, Any]] | None:
        """The newest document of a kind with its digest, or None."""
        ...
