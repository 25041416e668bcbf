"""In-memory stand-ins of `ports/control.py`; the contract suite runs on them and on Iceberg."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.planning.job_code import code_files
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.core.runs.event_log import matches_digest, open_document, open_plan
from lakehouse_backfill.core.staging import rejects
from lakehouse_backfill.domain import publication as pointer_rules
from lakehouse_backfill.domain.comparison.checksums import FileFingerprint
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.retention import OrphanFiles, PinLease
from lakehouse_backfill.domain.run import (
    ChunkRecord,
    Event,
    Lease,
    RejectedCount,
    RejectedGroup,
    RunStatus,
)
from lakehouse_backfill.domain.serialization import canonical_json, digest
from lakehouse_backfill.errors import RunMoved, Tampered
from lakehouse_backfill.ports.control import RecordedRun


class Fences:
    """The epoch that may write for each run; the control tables of one lake share it."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}

    def require(self, run_id: str | None, epoch: int) -> None:
        if run_id is not None:
            event_log.require_current_epoch(run_id, epoch, self.epochs.get(run_id, 0))


class FakeRuns:
    """`ports.control.Runs` and `Audit` in dictionaries."""

    def __init__(self, versions: FakeVersions | None = None, fences: Fences | None = None) -> None:
        self.versions = versions
        self.fences = fences or Fences()
        self.chunk_rows: list[ChunkRecord] = []
        self.rejected: list[Mapping[str, Any]] = []
        self.plans: dict[str, Plan] = {}
        self.statuses: dict[str, RunStatus] = {}
        self.log: dict[str, list[Event]] = defaultdict(list)

    def register(self, plan: Plan, event: Event) -> RunStatus:
        event_log.require_first_event(plan, event)
        if plan.run_id in self.statuses:
            raise event_log.run_exists_error(self.statuses[plan.run_id])
        stored = self.plans.setdefault(plan.run_id, plan)
        if stored.manifest_hash != plan.manifest_hash:
            raise RunMoved(f"{plan.run_id} was planned by {stored.created_by}")
        return self._write(*event_log.apply_first_event(plan, event))

    def plan(self, run_id: str) -> Plan:
        if run_id not in self.plans:
            raise event_log.unknown_run_error(run_id)
        return event_log.with_bound_inputs(self.plans[run_id], self.log[run_id])

    def code_of(self, name: str, version: str, newest: int) -> dict[str, dict[str, str]]:
        found = {
            run_id: code_files(plan.resolved)
            for run_id, plan in self.plans.items()
            if (plan.resolved.manifest.transform.name, plan.resolved.manifest.transform.version)
            == (name, version)
        }
        return dict(list(found.items())[-newest:])

    def recorded(self, transform: str, newest: int) -> tuple[RecordedRun, ...]:
        bad = self.bad_plans()
        plans = [plan for run_id, plan in self.plans.items() if run_id not in bad]
        own = [plan for plan in plans if plan.resolved.manifest.transform.name == transform]
        others = [plan for plan in plans if plan not in own]
        kept = {plan.run_id for plan in (*own[-newest:], *others[-newest:])}
        return tuple(
            RecordedRun(plan, self.events(plan.run_id), self.chunks(plan.run_id))
            for plan in plans
            if plan.run_id in kept
        )

    def status(self, run_id: str) -> RunStatus:
        if run_id not in self.statuses:
            raise event_log.unknown_run_error(run_id)
        return self.statuses[run_id]

    def append(self, event: Event, lease: Lease | None = None) -> RunStatus:
        current = self.status(event.run_id)
        if event.seq != current.seq + 1:
            winner = next((one for one in self.log[event.run_id] if one.seq == event.seq), None)
            raise event_log.run_moved_error(event, current, winner)
        return self._write(*event_log.apply_event(current, event, lease))

    def renew(self, run_id: str, epoch: int, until: datetime) -> None:
        self.statuses[run_id] = event_log.extend_lease(self.status(run_id), epoch, until)

    def drafts(self) -> tuple[Plan, ...]:
        bad = self.bad_plans()
        return tuple(
            plan
            for run_id, plan in self.plans.items()
            if run_id not in self.statuses and run_id not in bad
        )

    def bad_documents(self) -> dict[str, str]:
        return {}

    def bad_plans(self) -> dict[str, str]:
        found = {}
        for run_id, plan in self.plans.items():
            try:
                open_plan(run_id, plan.model_dump_json(), plan.manifest_hash)
            except Tampered as error:
                found[run_id] = error.problem
        return found

    def products(self) -> dict[str, tuple[tuple[Publication, ...], Pointer | None]]:
        if self.versions is None:
            return {}
        return {
            product: (tuple(reversed(self.versions.history(product))), pointer)
            for product, pointer in self.versions.states.items()
        }

    def chains(self) -> dict[str, tuple[Event, ...]]:
        return {run_id: tuple(events) for run_id, events in self.log.items()}

    def recorded_runs(self) -> dict[str, frozenset[str]]:
        rows = [row for rows, _ in self.products().values() for row in rows]
        return {
            "pipeline_run": frozenset(self.plans),
            "accepted_output_version": frozenset(row.run_id for row in rows if row.run_id),
        }

    def seal(self) -> tuple[int, str] | None:
        events = [event for log in self.log.values() for event in log]
        return (len(events), event_log.sum_hashes(log[-1].hash for log in self.log.values()))

    def events(self, run_id: str) -> tuple[Event, ...]:
        return tuple(self.log.get(run_id, ()))

    def list(self, open_only: bool = True) -> tuple[RunStatus, ...]:
        found = [
            one for one in self.statuses.values() if event_log.is_open_run(one) or not open_only
        ]
        return tuple(sorted(found, key=lambda one: (one.at, one.run_id), reverse=True))

    def record_chunk(self, chunk: ChunkRecord) -> None:
        self.fences.require(chunk.run_id, chunk.epoch)
        self.chunk_rows.append(chunk)

    def record_rejects(self, run_id: str, epoch: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.fences.require(run_id, epoch)
        self.rejected.extend(rows)

    def rejected_counts(self) -> tuple[RejectedCount, ...]:
        newest = {(row.run_id, row.chunk_id): row for row in self.chunk_rows}
        return tuple(
            RejectedCount(run_id=run, chunk_id=chunk, rows=row.rejected_rows, seal=row.rejects_seal)
            for (run, chunk), row in newest.items()
            if row.rejected_rows is not None
        )

    def rejected_groups(self) -> tuple[RejectedGroup, ...]:
        return rejects.group_rows(self.rejected)

    def chunks(self, run_id: str) -> tuple[ChunkRecord, ...]:
        newest = {row.chunk_id: row for row in self.chunk_rows if row.run_id == run_id}
        return tuple(newest[chunk_id] for chunk_id in sorted(newest, key=event_log.chunk_sort_key))

    def fence(self, run_id: str, epoch: int) -> None:
        self.fences.epochs[run_id] = max(epoch, self.fences.epochs.get(run_id, 0))

    def describe_runs(self) -> dict[str, dict[str, str]]:
        return {
            run_id: {
                "product": plan.product,
                "target": plan.resolved.target.table,
                "shadow": plan.shadow_table,
                "owner": plan.resolved.manifest.run.requested_by,
                "reason": plan.resolved.manifest.run.reason,
            }
            for run_id, plan in self.plans.items()
        }

    def pending_deletions(self) -> tuple[str, ...]:
        found = []
        for run_id in sorted(self.plans):
            events = self.events(run_id)
            is_named = any(one.verb == "retire" and "staged" in one.detail for one in events)
            if is_named and not any(one.verb == "delete files" for one in events):
                found.append(run_id)
        return tuple(found)

    def fenced(self) -> tuple[str, ...]:
        return tuple(sorted(self.fences.epochs))

    def lift_fences(self, run_ids: tuple[str, ...]) -> None:
        for run_id in run_ids:
            self.fences.epochs.pop(run_id, None)

    def count_orphans(self, before: datetime) -> OrphanFiles:
        return OrphanFiles()

    def delete_orphans(self, before: datetime) -> OrphanFiles:
        return OrphanFiles()

    def _write(self, event: Event, status: RunStatus) -> RunStatus:
        self.log[event.run_id].append(event)
        self.statuses[event.run_id] = status
        return status


class FakeVersions:
    """`ports.control.Versions` in a list."""

    def __init__(self, fences: Fences | None = None) -> None:
        self.fences = fences or Fences()
        self.rows: list[Publication] = []
        self.states: dict[str, Pointer] = {}

    def pointer(self, product: str) -> Pointer:
        return self.states.get(product, Pointer())

    def whole_pointer(self, product: str) -> Pointer:
        pointer = self.pointer(product)
        pointer_rules.require_whole_pointer(product, self._rows(product), pointer)
        return pointer

    def move(self, product: str, decide: Callable[[Pointer], tuple[Publication, ...]]) -> Pointer:
        return self.move_all((product,), lambda found: decide(found[product]))[product]

    def move_all(
        self,
        products: tuple[str, ...],
        decide: Callable[[dict[str, Pointer]], tuple[Publication, ...]],
    ) -> dict[str, Pointer]:
        pointers = {product: self.whole_pointer(product) for product in products}
        rows = []
        for row in decide(dict(pointers)):
            if row.product not in pointers:
                raise ValueError(f"a move of {products} cannot write a row of {row.product}")
            self.fences.require(row.run_id, row.epoch)
            content = pointer_rules.sealed_content(pointers[row.product].head, row)
            sealed = row.model_copy(update={"seal": digest(content)})
            pointers[row.product] = pointer_rules.apply_to_pointer(pointers[row.product], sealed)
            rows.append(sealed)
        self.rows.extend(rows)
        self.states |= pointers
        return pointers

    def rebuild(self, product: str, tokens: Collection[str]) -> Pointer:
        self.states[product] = pointer_rules.rebuilt_pointer(product, self._rows(product), tokens)
        return self.states[product]

    def _rows(self, product: str) -> tuple[Publication, ...]:
        return tuple(reversed(self.history(product)))

    def pointers(self, products: tuple[str, ...]) -> dict[str, Pointer]:
        return {product: self.pointer(product) for product in products}

    def history(self, product: str) -> tuple[Publication, ...]:
        return tuple(row for row in reversed(self.rows) if row.product == product)

    def of_table(self, table: str) -> tuple[Publication, ...]:
        return tuple(row for row in reversed(self.rows) if row.table == table)

    def pending(self) -> tuple[Publication, ...]:
        return tuple(one.pending for one in self.states.values() if one.pending is not None)


class FakeEvidence:
    """`ports.control.Evidence` in lists and a dictionary."""

    def __init__(self, fences: Fences | None = None) -> None:
        self.rows: list[tuple[str, str, str, str]] = []
        self.fences = fences or Fences()
        self.fingerprint_rows: list[FileFingerprint] = []
        self.leases: dict[tuple[str, str], PinLease] = {}
        self.ended: list[PinLease] = []

    def record(self, run_id: str, kind: str, document: dict[str, Any], epoch: int) -> str:
        self.fences.require(run_id, epoch)
        mark = digest(document)
        rows = [row for row in self.rows if row[:2] == (run_id, kind)]
        if not rows or rows[-1][2] != mark or not matches_digest(rows[-1][3], mark):
            self.rows.append((run_id, kind, mark, canonical_json(document)))
        return mark

    def document(self, run_id: str, digest: str) -> dict[str, Any] | None:
        found = [row for row in reversed(self.rows) if (row[0], row[2]) == (run_id, digest)]
        texts = (row[3] for row in found)
        return open_document(run_id, found[0][1], digest, texts) if found else None

    def newest(self, run_id: str, kind: str) -> tuple[str, dict[str, Any]] | None:
        for row in reversed(self.rows):
            if row[:2] == (run_id, kind) and matches_digest(row[3], row[2]):
                return row[2], json.loads(row[3])
        return None

    def all_of(self, run_id: str, kind: str) -> tuple[dict[str, Any], ...]:
        rows = [row for row in self.rows if row[:2] == (run_id, kind)]
        return tuple(json.loads(row[3]) for row in rows if matches_digest(row[3], row[2]))

    def newest_of(self, run_ids: Collection[str], kind: str) -> dict[str, dict[str, Any]]:
        found = {run_id: self.newest(run_id, kind) for run_id in run_ids}
        return {run_id: one[1] for run_id, one in found.items() if one is not None}

    def find_fingerprints(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        stored = [row for row in self.fingerprint_rows if row.path in paths]
        return fingerprints.select_unstored((), stored)

    def record_fingerprints(self, found: tuple[FileFingerprint, ...]) -> None:
        paths = {one.path for one in found}
        stored = [row for row in self.fingerprint_rows if row.path in paths]
        self.fingerprint_rows += fingerprints.select_unstored(stored, found)

    def grant_leases(self, leases: tuple[PinLease, ...]) -> None:
        for lease in leases:
            self.leases.setdefault((lease.table, lease.tag), lease)

    def end_leases(self, leases: tuple[PinLease, ...]) -> None:
        for lease in leases:
            if self.leases.pop((lease.table, lease.tag), None) is not None:
                self.ended.append(lease.model_copy(update={"action": "end"}))

    def active_leases(self) -> tuple[PinLease, ...]:
        return tuple(self.leases.values())
