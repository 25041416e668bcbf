"""Runs, ledger, versions, evidence, fences, leases, fingerprints, upkeep.

The control tables: runs and their events, the chunk ledger, the pointer, evidence.

Writes of a run's driver carry the epoch of its lease, and raise RunMoved once a later epoch has
fenced the run: a process that was stopped, overtaken and woken up again changes nothing.

Fingerprints of data files, and what they are taken of.

What keeps snapshots, shadows and control files, and what lets them go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from lakehouse_backfill.domain.diff import FileBytes, FileFingerprint
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.rollout import ExpirationResult, OrphanFiles, PinLease
from lakehouse_backfill.domain.run import ChunkRecord, Event, Lease, RunStatus
from lakehouse_backfill.fault_points import side_effect


class Runs(Protocol):
    """Runs and their append-only logs. A move is one conditional commit."""

    @side_effect
    def register(self, plan: Plan, event: Event) -> RunStatus:
        """Store the plan and its first event (seq 1); a run id that exists raises RunMoved."""
        ...

    def plan(self, run_id: str) -> Plan:
        """Load the plan; raises NotFound."""
        ...

    def code_of(self, name: str, version: str) -> dict[str, dict[str, str]]:
        """Give, by run, the code of all stored plans with this transform: SHA-256 by file.

        A plan that was edited is left out; `Audit.bad_plans` names it.
        """
        ...

    def status(self, run_id: str) -> RunStatus:
        """Load the newest status; raises NotFound."""
        ...

    @side_effect
    def append(self, event: Event, lease: Lease | None = None) -> RunStatus:
        """Append `event`, sealed, if its seq is exactly one above the run's; else raises RunMoved.

        With a lease its holder becomes the run's driver, and the event's seq the epoch; a move
        without one ends the lease, a note leaves it as it is.
        """
        ...

    @side_effect
    def renew(self, run_id: str, epoch: int, until: datetime) -> None:
        """Let a lease last longer; raises RunMoved when it is not the run's lease any more."""
        ...

    def events(self, run_id: str) -> tuple[Event, ...]:
        """The run's log, oldest first."""
        ...

    def list(self, *, open_only: bool = True) -> tuple[RunStatus, ...]:
        """Open runs from one table load, or all runs from history; newest first."""
        ...


class Fences(Protocol):
    """What keeps a process that was overtaken from writing to the control tables."""

    @side_effect
    def fence(self, run_id: str, epoch: int) -> None:
        """Refuse rows of the run with an earlier epoch from now on, also those under way."""
        ...


class Audit(Protocol):
    """The logs of all runs, for those who doubt them."""

    def drafts(self) -> tuple[Plan, ...]:
        """Plans that were stored, while their first event was not: cut off in between.

        One that was edited since is left out; `bad_plans` names it.
        """
        ...

    def bad_plans(self) -> dict[str, str]:
        """Say of each stored plan that is not the one that was made what is wrong with it."""
        ...

    def chains(self) -> dict[str, tuple[Event, ...]]:
        """The events of each run as they are stored, in the order of their numbers."""
        ...

    def seal(self) -> tuple[int, str] | None:
        """How many events there are, and the sum of all runs' newest hashes, as last written."""
        ...

    def products(self) -> dict[str, tuple[tuple[Publication, ...], Pointer | None]]:
        """The rows of each product, oldest first, and its pointer, all of one moment.

        As they are stored; None: the pointer is gone, or is none any more.
        """
        ...


class Ledger(Protocol):
    """The queryable chunk ledger; the shadow's snapshot log is the truth behind it."""

    @side_effect
    def record(self, chunk: ChunkRecord) -> None:
        """Append one row; raises RunMoved when a later epoch than the row's has fenced the run."""
        ...

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        """The newest row of each chunk of the run, in chunk order."""
        ...


class Versions(Protocol):
    """The accepted-version pointer of each product."""

    def pointer(self, product: str) -> Pointer:
        """Read the current state: one table load, whatever the history."""
        ...

    @side_effect
    def move(self, product: str, decide: Callable[[Pointer], tuple[Publication, ...]]) -> Pointer:
        """Append the rows that `decide` gives for the current pointer, in one conditional commit.

        Somebody else's move in between runs `decide` again on what they left. Rows with action
        reserve set `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
        release clears `pending`. No rows: nothing is committed. Raises RunMoved when a later epoch
        than a row's has fenced its run.
        """
        ...

    @side_effect
    def move_all(
        self,
        products: tuple[str, ...],
        decide: Callable[[dict[str, Pointer]], tuple[Publication, ...]],
    ) -> dict[str, Pointer]:
        """Move the pointers of several products in one conditional commit, else as `move`.

        `decide` gets all of their pointers as they are at one moment.
        """
        ...

    def pointers(self, products: tuple[str, ...]) -> dict[str, Pointer]:
        """Read several pointers as they are at one moment: one table load."""
        ...

    def history(self, product: str) -> tuple[Publication, ...]:
        """All rows of the product, newest first."""
        ...

    def pending(self) -> tuple[Publication, ...]:
        """The reservations of all products, from one table load."""
        ...


class Evidence(Protocol):
    """Documents that show why a run was accepted, each under its digest."""

    @side_effect
    def record(self, run_id: str, kind: str, document: dict[str, Any], epoch: int) -> str:
        """Store a document and give its digest; the same document again does nothing.

        Unless the one that is stored was edited. Raises RunMoved when a later epoch has fenced the
        run.
        """
        ...

    def document(self, run_id: str, digest: str) -> dict[str, Any] | None:
        """The document of a run with this digest, or None.

        Raises Tampered when it was edited, and not recorded again since.
        """
        ...

    def newest(self, run_id: str, kind: str) -> tuple[str, dict[str, Any]] | None:
        """The newest document of a kind with its digest, or None; one that was edited is none."""
        ...


class Fingerprints(Protocol):
    """What is known of data files: they never change, so each is hashed once in its life.

    Rows have no epoch: whoever writes one, what a file holds is the same.
    """

    def find(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        """All fingerprints of the files, oldest first: one of each file, reading and partition.

        Raises Tampered when two rows give one file different contents.
        """
        ...

    @side_effect
    def record(self, found: tuple[FileFingerprint, ...]) -> None:
        """Store those that are not stored yet, in one commit; the same again does nothing.

        Raises Tampered, and stores nothing, when a file is known with another content: it is not
        the file that was hashed then, or its row was edited.
        """
        ...


class DataFiles(Protocol):
    """Data files as they lie in the store, and how a table reads them; no JVM."""

    def reading(self, table: str, snapshot_id: int) -> str:
        """Give the digest of what the columns of a snapshot are: field ids, names, types.

        A file has the same rows under equal readings. Lineage columns, order, documentation and
        whether a column is required do not count, nor do promotions that keep the row hash.
        """
        ...

    def digests(self, table: str, paths: Collection[str]) -> dict[str, FileBytes]:
        """Read the files' bytes, several at a time; those that are gone are left out."""
        ...


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
