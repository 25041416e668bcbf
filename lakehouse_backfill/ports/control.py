"""The control tables: runs, ledger, pointer, evidence, fences, leases, fingerprints, upkeep.

Writes of a run's driver carry the epoch of its lease, and raise RunMoved once a later epoch has
fenced the run. So a driver that was suspended and replaced changes nothing when it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from lakehouse_backfill.domain.diff import FileBytes, FileFingerprint
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.rollout import (
    ExpirationResult,
    OrphanFiles,
    PinLease,
    StagedFiles,
    StagedShadow,
)
from lakehouse_backfill.domain.run import ChunkRecord, Event, Lease, RunStatus
from lakehouse_backfill.fault_points import side_effect


class Runs(Protocol):
    """Runs and their append-only logs. A move is one conditional commit."""

    @side_effect
    def register(self, plan: Plan, event: Event) -> RunStatus:
        """Store the plan and its first event (seq 1); raise RunMoved when the run id exists."""
        ...

    def plan(self, run_id: str) -> Plan:
        """Load the plan; raise NotFound."""
        ...

    def code_of(self, name: str, version: str, newest: int) -> dict[str, dict[str, str]]:
        """Return, by run, the code of the newest plans with this transform: SHA-256 by file.

        A plan that was edited is left out; `Audit.bad_plans` names it.
        """
        ...

    def status(self, run_id: str) -> RunStatus:
        """Load the newest status; raise NotFound."""
        ...

    @side_effect
    def append(self, event: Event, lease: Lease | None = None) -> RunStatus:
        """Append `event`, sealed; raise RunMoved unless its seq is exactly one above the run's.

        With a lease its holder becomes the run's driver, and the event's seq becomes the epoch. A
        move without a lease ends the lease; a note leaves it unchanged.
        """
        ...

    @side_effect
    def renew(self, run_id: str, epoch: int, until: datetime) -> None:
        """Extend a lease; raise RunMoved when it is no longer the run's lease."""
        ...

    def events(self, run_id: str) -> tuple[Event, ...]:
        """Return the run's log, oldest first."""
        ...

    def list(self, *, open_only: bool = True) -> tuple[RunStatus, ...]:
        """Return open runs from one table load, or all runs from history; newest first."""
        ...


class Fences(Protocol):
    """Fences that stop a replaced driver from writing to the control tables."""

    @side_effect
    def fence(self, run_id: str, epoch: int) -> None:
        """Refuse rows of the run with an earlier epoch from now on, also writes in progress."""
        ...


class Audit(Protocol):
    """The stored logs of all runs, for verification."""

    def drafts(self) -> tuple[Plan, ...]:
        """Return stored plans without a first event: registration was interrupted between both.

        A plan that was edited since is left out; `bad_plans` names it.
        """
        ...

    def bad_plans(self) -> dict[str, str]:
        """Return, for each stored plan that differs from the original plan, what is wrong."""
        ...

    def bad_documents(self) -> dict[str, str]:
        """Return, by run, which document of its evidence was edited and not recorded again."""
        ...

    def chains(self) -> dict[str, tuple[Event, ...]]:
        """Return the stored events of each run, in the order of their numbers."""
        ...

    def seal(self) -> tuple[int, str] | None:
        """Return the number of events and the sum of all runs' newest hashes, as last written."""
        ...

    def recorded_runs(self) -> dict[str, frozenset[str]]:
        """Return the runs that have rows in each control table that runs write to.

        Raises Tampered when a control table, or a column of it, was dropped.
        """
        ...

    def products(self) -> dict[str, tuple[tuple[Publication, ...], Pointer | None]]:
        """Return the rows of each product, oldest first, and its pointer, all of one moment.

        As they are stored; None: the pointer is missing or cannot be read. Raises Tampered when a
        control table was dropped.
        """
        ...


class Ledger(Protocol):
    """The queryable chunk ledger; the shadow's snapshot log is the source of truth."""

    @side_effect
    def record(self, chunk: ChunkRecord) -> None:
        """Append one row; raise RunMoved when a later epoch than the row's has fenced the run."""
        ...

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        """Return the newest row of each chunk of the run, in chunk order."""
        ...


class Versions(Protocol):
    """The accepted-version pointer of each product."""

    def pointer(self, product: str) -> Pointer:
        """Read the current state: one table load, however long the history."""
        ...

    def whole_pointer(self, product: str) -> Pointer:
        """Read the current state; raises Tampered unless the product's rows lead to it."""
        ...

    @side_effect
    def move(self, product: str, decide: Callable[[Pointer], tuple[Publication, ...]]) -> Pointer:
        """Append the rows that `decide` returns for the current pointer, in one conditional commit.

        After a concurrent move, `decide` runs again on the new pointer. Rows with action reserve
        set `pending`; publish, rollback and baseline set `accepted` and clear `pending`; release
        clears `pending`. Without rows nothing is committed. Raises RunMoved when a later epoch than
        a row's has fenced its run; Tampered, before it decides, when the pointer is not the one
        that the product's rows lead to.
        """
        ...

    @side_effect
    def move_all(
        self,
        products: tuple[str, ...],
        decide: Callable[[dict[str, Pointer]], tuple[Publication, ...]],
    ) -> dict[str, Pointer]:
        """Move the pointers of several products in one conditional commit, otherwise as `move`.

        `decide` gets all of their pointers as of one moment.
        """
        ...

    def pointers(self, products: tuple[str, ...]) -> dict[str, Pointer]:
        """Read several pointers as of one moment: one table load."""
        ...

    def history(self, product: str) -> tuple[Publication, ...]:
        """Return all rows of the product, newest first."""
        ...

    def pending(self) -> tuple[Publication, ...]:
        """Return the reservations of all products, from one table load.

        A pointer that cannot be read has none; `rebuild` writes it again.
        """
        ...

    @side_effect
    def rebuild(self, product: str, tokens: Collection[str]) -> Pointer:
        """Write the pointer that the product's rows lead to; nothing when it is there.

        `tokens` are those of the publications that the runs record. Raises Tampered when a row was
        edited, or is missing as far as seals and tokens tell.
        """
        ...


class Evidence(Protocol):
    """Documents that show why a run was accepted, each under its digest."""

    @side_effect
    def record(self, run_id: str, kind: str, document: dict[str, Any], epoch: int) -> str:
        """Store a document and return its digest; the same document again does nothing.

        An edited copy does not count as stored. Raises RunMoved when a later epoch has fenced the
        run.
        """
        ...

    def document(self, run_id: str, digest: str) -> dict[str, Any] | None:
        """Return the document of a run with this digest, or None.

        Raises Tampered when it was edited and not recorded again since.
        """
        ...

    def newest(self, run_id: str, kind: str) -> tuple[str, dict[str, Any]] | None:
        """Return the newest unedited document of a kind with its digest, or None."""
        ...


class Fingerprints(Protocol):
    """Fingerprints of data files; files never change, so each is hashed once.

    Rows have no epoch, as a file's content does not depend on the writer of the row.
    """

    def find(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        """Return all fingerprints of the files, oldest first: one by file, reading and partition.

        Raises Tampered when two rows give one file different contents.
        """
        ...

    @side_effect
    def record(self, found: tuple[FileFingerprint, ...]) -> None:
        """Store those that are not stored yet, in one commit; a repeat does nothing.

        Raises Tampered, and stores nothing, when a file is known with another content: the file or
        its row was replaced or edited.
        """
        ...


class DataFiles(Protocol):
    """Data files in the store, and how a table reads them; no JVM."""

    def reading(self, table: str, snapshot_id: int) -> str:
        """Return the digest of a snapshot's columns: field ids, names, types.

        A file has the same rows under equal readings. Lineage columns, order, documentation and
        whether a column is required do not count, nor do promotions that keep the row hash.
        """
        ...

    def digests(self, table: str, paths: Collection[str]) -> dict[str, FileBytes]:
        """Hash the files' bytes, several files at a time; missing files are left out."""
        ...


class PinLeases(Protocol):
    """The leases of runs' pins: owner, reason, end."""

    @side_effect
    def grant(self, leases: tuple[PinLease, ...]) -> None:
        """Record leases, before their tags are created; existing leases are left out."""
        ...

    @side_effect
    def end(self, leases: tuple[PinLease, ...]) -> None:
        """Record that leases have ended, after their tags are removed; a repeat does nothing."""
        ...

    def standing(self) -> tuple[PinLease, ...]:
        """List the active leases, oldest first: granted and not ended."""
        ...


class Upkeep(Protocol):
    """Removes our tags and snapshots from tables, by metadata alone; files stay."""

    def shadows(self) -> dict[str, int]:
        """Return the shadows in the catalog, each with the bytes that its chunks wrote."""
        ...

    def tags(self, table: str) -> dict[str, int] | None:
        """Return our tags on a table with their snapshots; None when there is no such table."""
        ...

    def written(self, table: str) -> datetime | None:
        """Return when a table was last committed to; None when there is no such table."""
        ...

    def would_let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Return what `let_go` would do now."""
        ...

    @side_effect
    def let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Drop tags in one metadata-only commit, with snapshots that regular expiry must not drop.

        A tag that is missing or names another snapshot is left unchanged. A tag is kept, with the
        reason, when without it the next expiry could delete a live file. `at_once`: also drop when
        that removes history younger than the table's own settings keep.
        """
        ...

    def dangers(self, table: str) -> dict[int, str]:
        """Return snapshots without a reference whose expiry would delete live files, and why."""
        ...


class RunFiles(Protocol):
    """Files that a run staged and nobody published; deletes them once no table reaches them."""

    def describe(self, shadow: str) -> dict[str, Any] | None:
        """Return location, metadata file and size of a shadow; None when it is not in the catalog.

        They are what `StagedShadow` needs once the shadow is dropped.
        """
        ...

    def find(
        self,
        staged: StagedShadow,
        scope: Scope,
        tables: Collection[str],
        dropped: Collection[str],
        *,
        is_begun: bool,
    ) -> StagedFiles | None:
        """Return the files that the run's own chunk commits added, and the shadow's metadata files.

        Files that the target, one of `tables` or any shadow but those in `dropped` reaches, in any
        snapshot, are counted in `held`. With `is_begun`, files that an interrupted deletion removed
        are left out; None: it removed all. Raises a BackfillError on any doubt.
        """
        ...

    @side_effect
    def delete(self, staged: StagedShadow, groups: tuple[tuple[str, ...], ...]) -> None:
        """Delete the files, group after group; files that are gone are left out."""
        ...


class ControlUpkeep(Protocol):
    """Keeps the control tables small; rows are never deleted."""

    def undeleted(self) -> tuple[str, ...]:
        """Return the runs whose `retire` event names staged files, and that did not delete them."""
        ...

    def runs(self) -> dict[str, dict[str, str]]:
        """Return for each run, without its plan: product, target, shadow, owner, reason."""
        ...

    def fenced(self) -> tuple[str, ...]:
        """Return the runs that have a fence."""
        ...

    @side_effect
    def lift(self, run_ids: tuple[str, ...]) -> None:
        """Remove the fences of permanently closed runs; one commit per table."""
        ...

    def litter(self, before: datetime) -> OrphanFiles:
        """Count the files written before then that no snapshot of a control table references."""
        ...

    @side_effect
    def sweep(self, before: datetime) -> OrphanFiles:
        """Delete these files; check each again against the table's references just before."""
        ...
