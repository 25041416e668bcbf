"""The control tables: runs, pointers, evidence, and the audit of all.

Writes of a run's driver carry the epoch of its lease, and raise RunMoved once a later epoch has
fenced the run. So a driver that was suspended and replaced changes nothing when it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from lakehouse_backfill.domain.comparison.checksums import FileFingerprint
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.retention import OrphanFiles, PinLease, StagedFiles, StagedShadow
from lakehouse_backfill.domain.run import (
    ChunkRecord,
    Event,
    Lease,
    RejectedCount,
    RejectedGroup,
    RunStatus,
)
from lakehouse_backfill.fault_points import side_effect


class RecordedRun(NamedTuple):
    """A run as the control tables hold it: its plan, its log, and its rows of the chunk ledger."""

    plan: Plan
    events: tuple[Event, ...]
    chunks: tuple[ChunkRecord, ...]


class Runs(Protocol):
    """Runs, their append-only logs, the chunk ledger, and fences that stop a replaced driver.

    A move is one conditional commit. The shadow's snapshot log is the source of truth for chunks.
    """

    @side_effect
    def register(self, plan: Plan, event: Event) -> RunStatus:
        """Store the plan and its first event (seq 1); raise RunMoved when the run id exists."""
        ...

    def plan(self, run_id: str) -> Plan:
        """Load the plan, its candidates bound as the run's log says; raise NotFound."""
        ...

    def code_of(self, name: str, version: str, newest: int) -> dict[str, dict[str, str]]:
        """Return, by run, the code of the newest plans with this transform: SHA-256 by file.

        A plan that was edited is left out; `Audit.bad_plans` names it.
        """
        ...

    def recorded(self, transform: str, newest: int) -> tuple[RecordedRun, ...]:
        """Return the `newest` runs of a transform, and the newest of all others, oldest first.

        Three table loads, however many runs. A plan that was edited is left out.
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

    @side_effect
    def record_chunk(self, chunk: ChunkRecord) -> None:
        """Append one row to the chunk ledger.

        Raises RunMoved when a later epoch than the row's has fenced the run.
        """
        ...

    @side_effect
    def record_rejects(self, run_id: str, epoch: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the table of rejected records, in one commit.

        Raises RunMoved when a later epoch has fenced the run.
        """
        ...

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        """Return the newest row of each chunk of the run, in chunk order."""
        ...

    @side_effect
    def fence(self, run_id: str, epoch: int) -> None:
        """Refuse rows of the run with an earlier epoch from now on, also writes in progress."""
        ...

    def fenced(self) -> tuple[str, ...]:
        """Return the runs that have a fence."""
        ...

    @side_effect
    def lift_fences(self, run_ids: tuple[str, ...]) -> None:
        """Remove the fences of permanently closed runs; one commit per table."""
        ...


class Audit(Protocol):
    """The stored rows of all runs, for verification and upkeep; rows are never deleted."""

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

    def rejected_counts(self) -> tuple[RejectedCount, ...]:
        """Return what the newest ledger row of each chunk says of its rejected rows, if it does."""
        ...

    def rejected_groups(self) -> tuple[RejectedGroup, ...]:
        """Return the stored rejected rows by run, chunk and attempt; seals are worked out again."""
        ...

    def describe_runs(self) -> dict[str, dict[str, str]]:
        """Return for each run, without its plan: product, target, shadow, owner, reason."""
        ...

    def pending_deletions(self) -> tuple[str, ...]:
        """Return the runs whose `retire` event names staged files, and that did not delete them."""
        ...

    def count_orphans(self, before: datetime) -> OrphanFiles:
        """Count the files written before then that no snapshot of a control table references."""
        ...

    @side_effect
    def delete_orphans(self, before: datetime) -> OrphanFiles:
        """Delete the files that `count_orphans` counts.

        Each is checked against the table's references again just before.
        """
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

    def of_table(self, table: str) -> tuple[Publication, ...]:
        """Return all rows of a table, of whichever product, newest first."""
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
    """Documents under their digests, fingerprints of data files, and leases of pins.

    The documents show why a run was accepted. Files never change, so each is hashed once, and its
    fingerprint has no epoch. A lease names the owner, reason and end of a pin.
    """

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

    def all_of(self, run_id: str, kind: str) -> tuple[dict[str, Any], ...]:
        """Return all unedited documents of a kind, oldest first."""
        ...

    def newest_of(self, run_ids: Collection[str], kind: str) -> dict[str, dict[str, Any]]:
        """Return, by run, the newest unedited document of a kind; runs without one are left out."""
        ...

    def find_fingerprints(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        """Return all fingerprints of the files, oldest first: one by file, reading and partition.

        Raises Tampered when two rows give one file different contents.
        """
        ...

    @side_effect
    def record_fingerprints(self, found: tuple[FileFingerprint, ...]) -> None:
        """Store the fingerprints that are not stored yet, in one commit; a repeat does nothing.

        Raises Tampered, and stores nothing, when a file is known with another content: the file or
        its row was replaced or edited.
        """
        ...

    @side_effect
    def grant_leases(self, leases: tuple[PinLease, ...]) -> None:
        """Record leases, before their tags are created; existing leases are left out."""
        ...

    @side_effect
    def end_leases(self, leases: tuple[PinLease, ...]) -> None:
        """Record that leases have ended, after their tags are removed; a repeat does nothing."""
        ...

    def active_leases(self) -> tuple[PinLease, ...]:
        """List the active leases, oldest first: granted and not ended."""
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
        scope: Scope | None,
        tables: Collection[str],
        dropped: Collection[str],
        *,
        is_begun: bool,
    ) -> StagedFiles | None:
        """Return the files that the run's own chunk commits added, and the shadow's metadata files.

        Files that the target, one of `tables` or any shadow but those in `dropped` reaches, in any
        snapshot, are counted in `held`; within `scope` this is faster. With `is_begun`, files that
        an interrupted deletion removed are left out; None: it removed all. Raises a BackfillError
        on any doubt.
        """
        ...

    @side_effect
    def delete(self, staged: StagedShadow, groups: tuple[tuple[str, ...], ...]) -> None:
        """Delete the files, group after group; files that are gone are left out."""
        ...
