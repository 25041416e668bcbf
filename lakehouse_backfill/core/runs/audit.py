"""Whether the logs of the runs are as they were written (V4).

Each run's events form a chain: an event's hash covers what it says and the hash of the one before.
That shows what was edited, moved or taken out. The seal, written with every event, counts the
events of all runs and adds up the newest hash of each run: that shows what was cut off at the end,
and runs that are gone altogether.

Nobody's secret is in it. Who rewrites events, all later hashes and the seal together is found only
by comparing the newest hashes with a copy that is kept elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakehouse_backfill.core.runs import run_log
from lakehouse_backfill.domain import pointer
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.errors import Tampered

EventChains = Mapping[str, tuple[Event, ...]]
LogSeal = tuple[int, str]
ProductRows = Mapping[str, tuple[tuple[Publication, ...], Pointer | None]]
_MODULUS = 1 << 256
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class AuditVerdict:
    """What was found: how many events, runs, products, and the first thing that is wrong.

    `unchained` events were written before events had hashes, `heads` are the newest hashes by run.
    """

    events: int
    runs: int
    unchained: int
    first_bad: str | None
    heads: dict[str, str]
    products: int = 0

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return self.first_bad is None


def sum_hashes(hashes: Iterable[str]) -> str:
    """Add hashes up, modulo 2^256, as 64 hex digits; what is no hash counts as zero."""
    return _int_to_hash(sum(map(_hash_to_int, hashes)))


def advance_seal(seal: LogSeal | None, previous: str, newest: str) -> LogSeal:
    """Give the seal once a run's newest hash goes from `previous` to `newest`."""
    count, mark = seal or (0, sum_hashes(()))
    return count + 1, _int_to_hash(
        _hash_to_int(mark) - _hash_to_int(previous) + _hash_to_int(newest)
    )


def _hash_to_int(mark: str) -> int:
    # Somebody may have put anything there; that is found by the chain, not by a crash.
    return int(mark, 16) if _HASH.fullmatch(mark) else 0


def _int_to_hash(number: int) -> str:
    return f"{number % _MODULUS:064x}"


def initial_seal(chains: EventChains) -> LogSeal | None:
    """Give the seal over events of older releases; None where events have hashes already.

    Then a seal was there and is gone: making another one would hide that.
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
) -> AuditVerdict:
    """Check every chain, the seal over all of them, and what is known of the open runs.

    Also that each product's pointer is where its rows lead, and that no plan is a bad one.
    """
    events = [event for chain in chains.values() for event in chain]
    heads = _newest_hashes(chains)
    faults = (_chain_fault(run_id, chain) for run_id, chain in sorted(chains.items()))
    return AuditVerdict(
        events=len(events),
        runs=len(chains),
        unchained=sum(not event.hash for event in events),
        first_bad=next((fault for fault in faults if fault), None)
        or _seal_fault(events, heads, seal)
        or next((fault for one in statuses if (fault := _status_fault(one, chains))), None)
        or _product_fault(products or {})
        or next(iter((bad_plans or {}).values()), None),
        heads=heads,
        products=len(products or {}),
    )


def require_intact_log(status: RunStatus, chain: tuple[Event, ...]) -> None:
    """Raise Tampered unless a run's log is as it was written: decisions are read from it.

    Events that came after `status` was read are no fault.
    """
    held = run_log.chain_events(chain)[: status.seq]
    fault = _chain_fault(status.run_id, chain)
    if fault is None and (len(held) < status.seq or status.head not in ("", held[-1].hash)):
        fault = f"{status.run_id}: its newest events are not those that were written last"
    if fault is not None:
        raise Tampered(
            f"the log of runs was edited: {fault}",
            state="nothing was computed, decided or published",
            fix="lakehouse-backfill audit verify",
        )


def _newest_hashes(chains: EventChains) -> dict[str, str]:
    return {
        run_id: run_log.chain_events(chain)[-1].hash
        for run_id, chain in sorted(chains.items())
        if chain
    }


def _chain_fault(run_id: str, chain: tuple[Event, ...]) -> str | None:
    previous = ""
    for number, event in enumerate(run_log.chain_events(chain), start=1):
        where = f"{run_id}: event {event.seq} ('{event.verb}')"
        if event.seq != number:
            return f"{run_id}: event {number} is missing, or not in its place"
        if not event.hash:
            return f"{where} has no hash, though the one before it has"
        if event.previous != previous:
            return f"{where} does not follow the event before it, as that one is now"
        if event.hash != run_log.event_seal(event):
            return f"{where} was edited: its hash is not that of its content"
        previous = event.hash
    return None


def _seal_fault(events: list[Event], heads: dict[str, str], seal: LogSeal | None) -> str | None:
    if seal is None:
        is_bare = any(event.hash for event in events)
        return "the seal over all runs is gone" if is_bare else None
    if seal[0] != len(events):
        return f"over all runs, {_event_count_text(seal[0])} written, and {_event_count_text(len(events))} there"
    if seal[1] != sum_hashes(heads.values()):
        return "the newest events of the runs are not those that were written last"
    return None


def _product_fault(products: ProductRows) -> str | None:
    found = (
        pointer.pointer_fault(name, rows, held) for name, (rows, held) in sorted(products.items())
    )
    return next((fault for fault in found if fault), None)


def _event_count_text(events: int) -> str:
    return "1 event was" if events == 1 else f"{events} events were"


def _status_fault(status: RunStatus, chains: EventChains) -> str | None:
    chain = chains.get(status.run_id, ())
    newest = chain[-1] if chain else None
    known = (status.seq, status.state, status.head)
    if newest is None or known != (newest.seq, newest.to_state, newest.hash):
        said = f"event {newest.seq}, {newest.to_state.value}" if newest else "no event at all"
        return (
            f"{status.run_id}: the state that commands go by ({status.state.value}, event "
            f"{status.seq}) is not that of its log ({said})"
        )
    return None
