"""The ports and the identity that a verb works with; moves, drivers and leases of runs.

A driver holds a lease on its run and renews it in the background. Fences, not the lease, guarantee
that a driver which lost the run changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lakehouse_backfill.core.runs import lifecycle, signers
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.manifest import Compute
from lakehouse_backfill.domain.monitoring.metrics import NO_RUN, UNKNOWN_RUN
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import ChosenWritePath, Plan
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, Lease, RunStatus
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.errors import (
    BackfillError,
    ConfigError,
    EnvironmentDown,
    NotFound,
    RunMoved,
    Unsupported,
    hide_texts,
)
from lakehouse_backfill.ports.comparison import Corrections, CorrectionTopics, Differ
from lakehouse_backfill.ports.compute import ComputePorts, RowReader, Views
from lakehouse_backfill.ports.control import Audit, Evidence, RunFiles, Runs, Versions
from lakehouse_backfill.ports.system import (
    Anchor,
    Clock,
    Hooks,
    Identity,
    Journal,
    Progress,
    Secrets,
)
from lakehouse_backfill.ports.tables import (
    LandedTopics,
    Pins,
    Publisher,
    Shadows,
    StoredFiles,
    Tables,
    VersionTables,
)


@dataclass(frozen=True)
class Context:
    """The ports of one project and profile, and the identity of this process."""

    tables: Tables
    pins: Pins
    shadows: Shadows
    version_tables: VersionTables
    publisher: Publisher
    runs: Runs
    versions: Versions
    evidence: Evidence
    stored_files: StoredFiles
    audit: Audit
    run_files: RunFiles
    compute: Callable[[], ComputePorts]
    differ: Callable[[str], Differ]
    row_reader: RowReader
    views: Views
    corrections: Corrections
    correction_topics: CorrectionTopics
    topics: LandedTopics
    hooks: Hooks
    identity: Identity
    #: Where heads of logs are kept outside the lake; None: nowhere.
    anchor: Anchor | None
    secrets: Secrets
    clock: Clock
    journal: Journal
    progress: Progress
    profile: Profile
    driver: str
    is_alive: Callable[[str], bool]
    #: SHA-256 of the current content of a file of the project.
    code_hash: Callable[[str], str]
    #: Current text of a file of the project.
    file_text: Callable[[str], str]
    #: Python and SQL files of the project at a git commit, by path.
    committed_files: Callable[[str], Mapping[str, bytes]]
    #: The contract of a product as the project has it now.
    contract: Callable[[str], Contract]
    #: The write path by which a table is changed, in a scope of it or as a whole.
    choose_write_path: Callable[[str, Scope | None], ChosenWritePath]
    #: The cores on which Spark computes; None where the profile does not say.
    cores: Callable[[], int | None]
    #: Whether a run may be taken over from a process that still lives; fencing makes that safe.
    take_over: bool = False
    #: Whether `publish` hashes the staged files before it makes them visible.
    check_files: bool = False
    #: The pool and scratch place in which this process computes.
    place: Callable[[], Compute] = Compute

    def journal_of(self, subject: str | None) -> Journal:
        """Return a journal with the labels of a run; without them when the subject is no run."""
        if subject is None:
            return self.journal
        try:
            return self.journal.bind(**self.runs.plan(subject).labels)
        except NotFound:
            return self.journal
        except BackfillError:  # The plan cannot be read; a log line must not stop the work.
            return self.journal.bind(run_id=subject, processing_mode=UNKNOWN_RUN)

    def mode_of(self, run_id: str | None) -> str:
        """Return the mode of a run; raises what reading its plan raises."""
        return NO_RUN if run_id is None else self.runs.plan(run_id).resolved.manifest.run.mode

    def found_by_doctor(self) -> Capabilities | None:
        """Return what `doctor` found of the catalog last, where it is only told; None: nothing.

        Also for who may not read where it is kept: what is planned, decided or compared stands.
        """
        try:
            return self.shadows.capabilities()
        except (Unsupported, EnvironmentDown):
            return None

    def proof_limit(self) -> str:
        """Say which proofs the catalog does not allow, by what `doctor` found last; else empty."""
        found = self.found_by_doctor()
        return found.proof_limit if found else ""

    def redaction(self, contract: Contract | None) -> Redaction:
        """Return what reports on a product hide.

        Where the secret of the contract's masks is not at hand, values are left out, not hashed.
        From now on, texts of other libraries' errors are left out, too.
        """
        columns = contract.restricted_columns if contract else ()
        if contract is None or not columns:
            return Redaction()
        hide_texts()
        key = contract.privacy.key if contract.privacy else None
        try:
            return Redaction.of(columns, self.secrets.read(key) if key else b"")
        except ConfigError:
            return Redaction.of(columns)

    def move(
        self,
        status: RunStatus,
        plan: Plan,
        verb: str,
        actor: str,
        *,
        lease: Lease | None = None,
        **detail: Any,
    ) -> RunStatus:
        """Move a run by one conditional commit, or add a note to it, and log it.

        The run is fenced before the move when the move ends another driver's lease. Raises
        IllegalMove when the state forbids it, RunMoved when another process was faster.
        """
        event = lifecycle.next_event(
            status,
            verb,
            actor=actor,
            mode=plan.resolved.manifest.run.mode,
            at=self.clock.now(),
            detail=detail,
        )
        placed = event.model_copy(update={"product": plan.product, "previous": status.head})
        event = signers.sign_event(self.identity, self.profile, plan, placed)
        if verb in signers.FOUR_EYES_VERBS and event != placed:
            events = self.runs.events(plan.run_id)
            signers.require_second_key(self.identity, self.profile, plan, event, events)
        if self._ends_a_lease(status, event, lease):
            # Fence first: after a crash between move and fence, the old driver could still write.
            self.runs.fence(plan.run_id, event.seq)
        moved = self.runs.append(event, lease)
        self.journal.bind(**plan.labels).log(
            "run moved", verb=verb, actor=actor, from_state=event.from_state.value,
            to_state=event.to_state.value,
        )  # fmt: skip
        return moved

    def _ends_a_lease(self, status: RunStatus, event: Event, lease: Lease | None) -> bool:
        """Return whether the event must fence a driver, including its writes in progress.

        A new lease ends any earlier one. A move by another process, e.g. a person's decision, ends
        the driver's lease. The driver's own moves do not, nor do notes.
        """
        if lease is not None:
            return status.driver is not None
        is_note = event.from_state == event.to_state
        return not is_note and status.driver not in (None, self.driver)

    def drive(
        self, status: RunStatus, plan: Plan, verb: str, actor: str, **detail: Any
    ) -> RunStatus:
        """Move a run and become its driver; the epoch of the lease is the move's number.

        An earlier driver that crashed or was overtaken can write nothing from then on, not even a
        write in progress. Raises RunMoved while another living process drives the run.
        """
        self.require_no_other_driver(status)
        lease = Lease(holder=self.driver, until=self.lease_end())
        return self.move(status, plan, verb, actor, lease=lease, **detail)

    def lease_end(self) -> datetime:
        """Return when a lease that is granted now ends."""
        return self.clock.now() + timedelta(seconds=self.profile.lease_seconds)

    def is_driven_elsewhere(self, status: RunStatus) -> bool:
        """Return whether another living process, with a lease in force, drives the run."""
        if status.driver is None or status.driver == self.driver:
            return False
        has_ended = status.lease_until is not None and status.lease_until < self.clock.now()
        return not has_ended and self.is_alive(status.driver)

    def is_pending_elsewhere(self, pending: Publication) -> bool:
        """Return whether another process works on a pending action of the pointer."""
        if pending.driver is None or pending.driver == self.driver:
            return False
        end = pending.at + timedelta(seconds=self.profile.lease_seconds)
        return self.clock.now() < end and self.is_alive(pending.driver)

    def require_no_other_driver(self, status: RunStatus) -> None:
        """Raise RunMoved while another process drives the run, unless `take_over` is set."""
        if self.take_over or not self.is_driven_elsewhere(status):
            return
        until = f", its lease ends {status.lease_until:%H:%M:%S}Z" if status.lease_until else ""
        raise RunMoved(
            f"{status.run_id} is driven by another process ({status.driver}{until})",
            state="that process goes on; this one changed nothing",
            fix=f"lakehouse-backfill status {status.run_id}; if that process is dead or stuck, "
            "give the same command with --take-over: it cannot write any more then",
        )


#: A lease is renewed this often while it lasts, so that one failed renewal does not end it.
RENEWALS_PER_LEASE = 3
#: Seconds between two looks at whether somebody paused or cancelled the run.
WATCH_S = 2.0


class RenewedLease:
    """Renews a run's lease in the background until the block ends.

    The lease only shows others that the driver lives. The fences keep an overtaken driver from
    changing anything, independently of this thread. With `on_lost`, the run's log is watched, too:
    it is called, again and again until the block ends, once the run is no longer this driver's, and
    ends computations that are under way.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        status: RunStatus,
        on_lost: Callable[[RunStatus], None] | None = None,
    ) -> None:
        self._context = context
        self._journal = context.journal.bind(**plan.labels)
        self._run_id = status.run_id
        self._on_lost = on_lost
        self.epoch = status.epoch
        self._lost: RunMoved | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> RenewedLease:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._thread.join()

    def require_held(self) -> None:
        """Raise RunMoved when the run was overtaken or moved, so that further work is useless."""
        if self._lost is not None:
            raise self._lost

    def require_driving(self) -> None:
        """Read the run's log, and raise RunMoved when somebody paused, cancelled or took it."""
        self.require_held()
        self._look()
        self.require_held()

    def _look(self) -> RunStatus | None:
        """Return the run's status once it is no longer this driver's."""
        status = self._context.runs.status(self._run_id)
        if status.driver is not None and status.epoch == self.epoch:
            return None
        self._lost = self._lost or RunMoved(
            f"{self._run_id} was moved on by another process: it is {status.state.value}",
            state="this process changed nothing since; what it staged before is kept",
            fix=f"lakehouse-backfill status {self._run_id}",
        )
        return status

    def _renew(self) -> None:
        pause_s = self._context.profile.lease_seconds / RENEWALS_PER_LEASE
        waited_s = 0.0
        while not self._is_over.wait(step_s := self._step_s(pause_s)):
            waited_s += step_s
            try:
                if self._on_lost and (moved := self._look()) is not None:
                    self._on_lost(moved)
                elif waited_s >= pause_s:
                    waited_s = 0.0
                    self._context.runs.renew(self._run_id, self.epoch, self._context.lease_end())
            except RunMoved as error:
                self._lost = error
                if self._on_lost is None:
                    return
            except Exception as error:  # noqa: BLE001 (any failure: the next look may succeed)
                # The catalog may be back at the next renewal; until then the lease still runs.
                self._journal.log("lease not renewed", problem=str(error))

    def _step_s(self, pause_s: float) -> float:
        return pause_s if self._on_lost is None else min(WATCH_S, pause_s)
