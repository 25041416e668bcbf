"""The event log of runs: what an event does to a run, and whether logs and documents are intact.

Each run's events form a chain: an event's hash covers its content and the hash of the event before
it. The chain shows edited, moved and removed events. The seal is written with every event. It
counts the events of all runs and sums the newest hash of each run. It shows events removed at the
end of a log, and missing runs (V4).

No secret key is involved. A rewrite of events, of all later hashes and of the seal together is
found only by comparing the newest hashes with a copy that is kept elsewhere.

Stored plans and documents are hashed again on every read (M4).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.domain import publication
from lakehouse_backfill.domain.plan import Plan, ReusedPartition
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import Event, Lease, RunState, RunStatus
from lakehouse_backfill.domain.serialization import canonical_json, digest
from lakehouse_backfill.errors import NotFound, RunMoved, Tampered


def is_open_run(status: RunStatus) -> bool:
    """Return whether the run still needs an action."""
    return status.state in lifecycle.OPEN_STATES


def require_first_event(plan: Plan, event: Event) -> None:
    """Raise ValueError unless `event` is the first one of the plan's run."""
    if (event.run_id, event.seq) != (plan.run_id, 1):
        raise ValueError(f"event {event.seq} of {event.run_id} does not begin {plan.run_id}")


def events_since_rejection(events: Iterable[Event]) -> list[Event]:
    """Return the events after the last rejection, oldest first: decisions before it are void."""
    in_order = sorted(events, key=lambda event: event.seq)
    rejected = max((event.seq for event in in_order if event.verb == "reject"), default=-1)
    return [event for event in in_order if event.seq > rejected]


def apply_first_event(plan: Plan, event: Event) -> tuple[Event, RunStatus]:
    """Return the sealed first event of a run, and its status."""
    draft = RunStatus(
        run_id=plan.run_id, product=plan.product, state=RunState.DRAFT, seq=0, at=event.at
    )
    return apply_event(draft, event, lease=None)


def apply_event(current: RunStatus, event: Event, lease: Lease | None) -> tuple[Event, RunStatus]:
    """Return `event` sealed onto the run's log, and the status once it is written.

    The holder of `lease` becomes the driver. Without one, a move ends the driver's lease (also a
    move to the same state), and a note keeps it.
    """
    is_note = event.from_state == event.to_state and event.verb not in lifecycle.MOVES
    driver, until = (lease.holder, lease.until) if lease else (None, None)
    if lease is None and is_note:
        driver, until = current.driver, current.lease_until
    epoch = event.seq if lease else current.epoch
    sealed = _seal_event(
        event, previous=current.head, product=current.product, driver=driver, epoch=epoch
    )
    return sealed, current.model_copy(
        update={
            "state": event.to_state, "seq": event.seq, "at": event.at, "driver": driver,
            "epoch": epoch, "lease_until": until, "head": sealed.hash,
        }
    )  # fmt: skip


def _seal_event(event: Event, **written: Any) -> Event:
    # Hash the detail as it is read back: JSON has only numbers, texts, lists and objects.
    detail = json.loads(canonical_json(event.detail))
    bare = event.model_copy(update={**written, "detail": detail, "hash": ""})
    return bare.model_copy(update={"hash": event_seal(bare)})


#: An invalid value (in an edited row) is hashed as it is, without warnings.
_SEALED: dict[str, Any] = {"exclude": {"hash"}, "exclude_defaults": True, "warnings": False}


def event_seal(event: Event) -> str:
    """Return the SHA-256 of the event's content, including the hash of the event before it.

    Fields at their defaults are left out, so a field that a later release adds does not change the
    hash of an event without it.
    """
    in_utc = event.model_copy(update={"at": event.at.astimezone(timezone.utc)})
    return digest(in_utc.model_dump(mode="json", **_SEALED))


def chain_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return a run's events; leading events without a hash get the hash that they would have.

    Older releases wrote no hashes. The first event with one continues the chain that is computed
    here, so it also covers the older events, as they were at that time.
    """
    chained: list[Event] = []
    is_unchained = True
    for event in events:
        is_unchained = is_unchained and not event.hash
        previous = chained[-1].hash if chained else ""
        chained.append(_seal_event(event, previous=previous) if is_unchained else event)
    return tuple(chained)


def extend_lease(current: RunStatus, epoch: int, until: datetime) -> RunStatus:
    """Return the status with a longer lease; raises RunMoved when the run has no such lease."""
    if current.driver is None or current.epoch != epoch or not is_open_run(current):
        raise overtaken_error(current.run_id, epoch, current.epoch)
    return current.model_copy(update={"lease_until": until})


def require_current_epoch(run_id: str, epoch: int, fence: int) -> None:
    """Raise RunMoved when the run was fenced by a later epoch than `epoch`."""
    if epoch < fence:
        raise overtaken_error(run_id, epoch, fence)


def overtaken_error(run_id: str, epoch: int, fence: int) -> RunMoved:
    """Build the error for a process that was overtaken."""
    return RunMoved(
        f"{run_id} was taken over by another process, or moved on without this one (lease "
        f"{epoch}, now {fence})",
        state="this process changed nothing since; what it staged before is kept",
        fix=f"lakehouse-backfill status {run_id}",
    )


def chunk_sort_key(chunk_id: str) -> tuple[tuple[int, str], ...]:
    """Return the sort key of a chunk id: digits count as numbers, so that 10 comes after 9."""
    return tuple(
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", chunk_id)
    )


def run_moved_error(event: Event, current: RunStatus, winner: Event | None) -> RunMoved:
    """Build the error for an event that came too late, or too early; it names the winner."""
    if winner is None:
        problem = f"{event.run_id} is at event {current.seq}: {event.seq} cannot follow it"
    else:
        problem = (
            f"{winner.actor} was faster: {event.run_id} is {current.state.value} "
            f"since '{winner.verb}' (event {winner.seq}); '{event.verb}' was not done"
        )
    return RunMoved(
        problem,
        state=f"{event.run_id} is {current.state.value}; this command changed nothing",
        fix=f"lakehouse-backfill status {event.run_id}",
    )


def run_exists_error(current: RunStatus) -> RunMoved:
    """Build the error for a run id that is already registered."""
    return RunMoved(
        f"{current.run_id} is registered already, for {current.product}, "
        f"and is {current.state.value}",
        fix=f"lakehouse-backfill status {current.run_id}",
    )


def unknown_run_error(run_id: str) -> NotFound:
    """Build the error for a run that is not registered."""
    return NotFound(f"there is no run {run_id}", fix="lakehouse-backfill status")


EventChains = Mapping[str, tuple[Event, ...]]
LogSeal = tuple[int, str]
ProductRows = Mapping[str, tuple[tuple[Publication, ...], Pointer | None]]
_MODULUS = 1 << 256
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class AuditVerdict:
    """The numbers of events, runs and products that were checked, and the first fault.

    `unchained` events were written before events had hashes, `heads` are the newest hashes by run.
    `compared`: how many heads of an earlier verdict were looked for; None: there was none.
    """

    events: int
    runs: int
    unchained: int
    first_bad: str | None
    heads: dict[str, str]
    products: int = 0
    compared: int | None = None
    #: Records of the anchor that were compared; None: it was not asked.
    anchored: int | None = None
    #: Heads of what was accepted or published that the anchor lacks; None: it was not asked.
    unanchored: int | None = None
    #: Decisions and publications with a signature that was verified, and without any; None: there
    #: are no signatures, and none are required.
    signed: int | None = None
    unsigned: int | None = None

    @property
    def is_intact(self) -> bool:
        """Return whether no fault was found."""
        return self.first_bad is None


def sum_hashes(hashes: Iterable[str]) -> str:
    """Sum hashes modulo 2^256, as 64 hex digits; a text that is no hash counts as zero."""
    return _int_to_hash(sum(map(_hash_to_int, hashes)))


def advance_seal(seal: LogSeal | None, previous: str, newest: str) -> LogSeal:
    """Return the seal after a run's newest hash changed from `previous` to `newest`."""
    count, mark = seal or (0, sum_hashes(()))
    return count + 1, _int_to_hash(
        _hash_to_int(mark) - _hash_to_int(previous) + _hash_to_int(newest)
    )


def _hash_to_int(mark: str) -> int:
    # An edited row may hold any text here; the chain check reports it, so do not crash.
    return int(mark, 16) if _HASH.fullmatch(mark) else 0


def _int_to_hash(number: int) -> str:
    return f"{number % _MODULUS:064x}"


def initial_seal(chains: EventChains) -> LogSeal | None:
    """Return the seal over events of older releases; None where events have hashes already.

    Events with hashes had a seal, which is missing then: a new one would hide that.
    """
    if any(event.hash for chain in chains.values() for event in chain):
        return None
    return sum(map(len, chains.values())), sum_hashes(_newest_hashes(chains).values())


def verify_logs(
    chains: EventChains,
    seal: LogSeal | None,
    statuses: Iterable[RunStatus] = (),
    products: ProductRows | None = None,
    bad_plans: Mapping[str, str] | None = None,
    recorded_runs: Mapping[str, frozenset[str]] | None = None,
    kept_heads: Mapping[str, str] | None = None,
) -> AuditVerdict:
    """Check every chain, the seal over all of them, and the states of the open runs.

    Then check that each product's pointer agrees with its rows, and report the first of
    `bad_plans`; `recorded_runs` are the runs that have rows in each of the other control tables.
    `kept_heads`, from an earlier verdict, are looked for first: without them a log that was
    rewritten as a whole agrees with itself.
    """
    events = list(itertools.chain.from_iterable(chains.values()))
    heads = _newest_hashes(chains)
    faults = itertools.chain(
        [_kept_head_fault(chains, kept_heads or {})],
        (_chain_fault(run_id, events_of_run) for run_id, events_of_run in sorted(chains.items())),
        [_seal_fault(events, heads, seal)],
        (_status_fault(status, chains) for status in statuses),
        (
            publication.pointer_fault(name, rows, pointer)
            for name, (rows, pointer) in sorted((products or {}).items())
        ),
        (bad_plans or {}).values(),
        [_record_fault(chains, recorded_runs or {})],
    )
    return AuditVerdict(
        events=len(events),
        runs=len(chains),
        unchained=sum(not event.hash for event in events),
        first_bad=next(filter(None, faults), None),
        heads=heads,
        products=len(products or {}),
        compared=None if kept_heads is None else len(kept_heads),
    )


def _kept_head_fault(chains: EventChains, kept_heads: Mapping[str, str]) -> str | None:
    """Return which kept head is no event's hash any more; a log only ever gains events."""
    for run_id, head in sorted(kept_heads.items()):
        if not chains.get(run_id):
            return f"{run_id} is in the heads that were kept, and has no events any more"
        # Events of older releases have no hash, nor has a head of then.
        if head and all(event.hash != head for event in chains[run_id]):
            return f"{run_id}: no event has the hash {head[:12]}… that was kept of it"
    return None


def require_intact_log(status: RunStatus, chain: tuple[Event, ...]) -> None:
    """Raise Tampered unless a run's log is as it was written: decisions are read from it.

    Events that were added after `status` was read are no fault.
    """
    logged = chain_events(chain)[: status.seq]
    fault = _chain_fault(status.run_id, chain)
    if fault is None and (len(logged) < status.seq or status.head not in ("", logged[-1].hash)):
        fault = f"{status.run_id}: its newest events are not those that were written last"
    if fault is not None:
        raise Tampered(
            f"the log of runs was edited: {fault}",
            state="nothing was computed, decided or published",
            fix="lakehouse-backfill audit verify",
        )


def _newest_hashes(chains: EventChains) -> dict[str, str]:
    return {
        run_id: chain_events(chain)[-1].hash for run_id, chain in sorted(chains.items()) if chain
    }


def _chain_fault(run_id: str, chain: tuple[Event, ...]) -> str | None:
    previous = ""
    for number, event in enumerate(chain_events(chain), start=1):
        where = f"{run_id}: event {event.seq} ('{event.verb}')"
        if event.seq != number:
            return f"{run_id}: event {number} is missing, or not in its place"
        if not event.hash:
            return f"{where} has no hash, though the one before it has"
        if event.previous != previous:
            return f"{where} does not follow the event before it, as that one is now"
        if event.hash != event_seal(event):
            return f"{where} was edited: its hash is not that of its content"
        previous = event.hash
    return None


def _seal_fault(events: list[Event], heads: dict[str, str], seal: LogSeal | None) -> str | None:
    if seal is None:
        has_hashes = any(event.hash for event in events)
        return "the seal over all runs is gone" if has_hashes else None
    if seal[0] != len(events):
        written, found = (
            "1 event was" if count == 1 else f"{count} events were"
            for count in (seal[0], len(events))
        )
        return f"over all runs, {written} written, and {found} there"
    if seal[1] != sum_hashes(heads.values()):
        return "the newest events of the runs are not those that were written last"
    return None


#: By control table: the events after which a run has a row in it.
_EVENTS_WITH_ROWS = {
    "pipeline_run": frozenset({"plan"}),
    "accepted_output_version": frozenset({"finish publishing"}),
    "evidence": frozenset({"pass validation", "fail validation"}),
}


def _record_fault(chains: EventChains, recorded_runs: Mapping[str, frozenset[str]]) -> str | None:
    """Return which run has rows without events, or events without the rows that belong to them."""
    for table, runs in recorded_runs.items():
        unlogged = sorted(runs - chains.keys())
        # A plan without an event was being registered.
        if unlogged and table != "pipeline_run":
            return f"{unlogged[0]} has rows in {table}, and no event in the log of runs"
        for run_id, chain in chains.items():
            verbs = {event.verb for event in chain} & _EVENTS_WITH_ROWS.get(table, frozenset())
            if verbs and run_id not in runs:
                return f"{run_id}: '{min(verbs)}' is in its log, and {table} has no row of it"
    return None


def _status_fault(status: RunStatus, chains: EventChains) -> str | None:
    chain = chains.get(status.run_id, ())
    newest = chain[-1] if chain else None
    known = (status.seq, status.state, status.head)
    if newest is None or known != (newest.seq, newest.to_state, newest.hash):
        log_state = f"event {newest.seq}, {newest.to_state.value}" if newest else "no event at all"
        return (
            f"{status.run_id}: the state that commands go by ({status.state.value}, event "
            f"{status.seq}) is not that of its log ({log_state})"
        )
    return None


def open_plan(run_id: str, text: str, manifest_hash: str) -> Plan:
    """Parse a plan from its JSON text; raises Tampered when its hash is not `manifest_hash`.

    The hash is taken of the stored text: a later release with more fields reads an old plan, and
    still finds its hash.
    """
    try:
        stored = json.loads(text)
        current, recorded = digest(stored["resolved"]), str(stored["manifest_hash"])
        is_intact = current == recorded == manifest_hash and stored["run_id"] == run_id
    except (ValueError, TypeError, KeyError) as error:
        raise _edited_plan_error(
            run_id, f"its row in pipeline_run holds no plan any more ({type(error).__name__})"
        ) from error
    if not is_intact:
        raise _edited_plan_error(
            run_id,
            f"the hash of its row in pipeline_run is {current[:12]}, recorded are "
            f"{recorded[:12]} and {manifest_hash[:12]}",
        )
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        first = ".".join(str(part) for part in error.errors()[0]["loc"])
        what = f"its field {first} cannot be read (its row in pipeline_run), unless a later release"
        what += " made it"
        raise _edited_plan_error(run_id, what) from error


#: The note of a run's log that says which snapshots its candidates are; its detail by input.
BIND_VERB = "bind inputs"
#: Its detail that names the partitions which are not computed.
REUSED = "reused"


def with_bound_inputs(plan: Plan, events: Iterable[Event]) -> Plan:
    """Return a plan whose candidates are the snapshots that the run's log names, the newest last.

    With them come the partitions that are not computed. Without a candidate, or before it is
    validated, the plan is returned as it is.
    """
    bound: dict[str, dict[str, Any]] = {}
    reused: tuple[ReusedPartition, ...] = ()
    for event in events:
        if event.verb == BIND_VERB:
            bound = event.detail["inputs"]
            kept = event.detail.get(REUSED, ()) if plan.resolved.may_reuse else ()
            reused = tuple(map(ReusedPartition.model_validate, kept))
    return plan.with_inputs(bound, reused)


def reads_candidates(plan: Plan) -> bool:
    """Return whether an input of the plan is staged by another run."""
    return any(pin.candidate is not None for pin in plan.resolved.sources)


def open_document(run_id: str, kind: str, mark: str, texts: Iterable[str]) -> dict[str, Any] | None:
    """Return the document of this digest from the texts stored under it; None without texts.

    Raises Tampered when no text has the digest.
    """
    is_stored = False
    for text in texts:
        is_stored = True
        if matches_digest(text, mark):
            document: dict[str, Any] = json.loads(text)
            return document
    if is_stored:
        verb = "validate" if kind == "validation" else "run"
        raise Tampered(
            f"the {kind} of {run_id} was edited after it was recorded",
            state="nothing was decided or published",
            fix=f"lakehouse-backfill {verb} {run_id}, which judges and records it again",
        )
    return None


def matches_digest(text: str, mark: str) -> bool:
    """Return whether a stored text has the digest `mark`."""
    return sha256(text.encode()).hexdigest() == mark


def _edited_plan_error(run_id: str, what: str) -> Tampered:
    return Tampered(
        f"the plan of {run_id} was edited after it was made: {what}",
        state="nothing was computed or published; what readers see is unchanged",
        fix=f"lakehouse-backfill cancel {run_id} --reason TEXT   # frees its product while the run "
        f"is open; else {restore_row_fix(run_id)}",
    )


def restore_row_fix(run_id: str) -> str:
    """Say how to put the row of a plan back, which helps whatever the run's state is."""
    return (
        f"put the row of {run_id} in pipeline_run back from an earlier snapshot of that table; "
        f"lakehouse-backfill log {run_id} shows which hash was approved"
    )
