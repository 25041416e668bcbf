"""Results of `replay` and `rebuild`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lakehouse_backfill.core.replay.check import stopping_faults
from lakehouse_backfill.core.replay.preview import EventCheck
from lakehouse_backfill.core.replay.rebuild import RebuiltState
from lakehouse_backfill.core.replay.replay import ReplayOutcome
from lakehouse_backfill.core.replay.topic import TopicReplayOutcome
from lakehouse_backfill.domain.sources.events import EventFindings, EventStoreDeclaration
from lakehouse_backfill.errors import BackfillError, RejectedInput
from lakehouse_backfill.results.base import Record, Result, optional


class EventVersionRecord(Record):
    """How many events of a type have a version; null: none, or one that cannot be read."""

    event_type: str
    version: int | None
    events: int


class EventCheckResult(Result):
    """What the events of a snapshot are like; nothing was changed."""

    store: str
    table: str
    snapshot_id: int
    rows: int
    events: int
    aggregates: int
    duplicates: int
    missing: int
    held_back: int
    faults: tuple[str, ...]
    versions: tuple[EventVersionRecord, ...]
    #: Events of the selection; those of them that the named handler has not handled.
    selected: int
    left: int | None

    def error(self) -> BackfillError | None:
        """Return what stops a replay."""
        if not self.faults:
            return None
        return RejectedInput(
            f"the events of {self.table} cannot be replayed: {'; '.join(self.faults)}",
            state="nothing was changed",
            fix=f"correct the events, or catalog/events/{self.store}.yaml",
        )

    @staticmethod
    def of(
        store: EventStoreDeclaration, check: EventCheck, missing: tuple[str, ...]
    ) -> EventCheckResult:
        """Describe findings; `missing` are versions that no upcasters make current."""
        found = check.findings
        return EventCheckResult(
            store=store.events,
            table=store.table,
            snapshot_id=check.snapshot_id,
            rows=found.rows,
            events=found.events,
            aggregates=found.aggregates,
            duplicates=found.duplicates,
            missing=found.missing,
            held_back=found.held_back,
            faults=(*stopping_faults(store, found), *missing, *check.faults),
            versions=tuple(
                EventVersionRecord(event_type=kind, version=version, events=events)
                for kind, version, events in found.versions
            ),
            selected=check.selected,
            left=check.left,
            warnings=(*_warnings(store, found), *check.notes),
        )


class ReplayResult(Result):
    """What a replay has done."""

    store: str
    table: str
    snapshot_id: int
    handler: str
    version: str
    output_table: str
    replay_id: str | None
    resumed: bool
    #: Events that were left when the replay began, those handled by all its commands, by this one.
    total: int
    processed: int
    handled_now: int
    done: int
    skipped: int
    suppressed: int
    rejected: int
    duplicates: int
    missing: int

    def error(self) -> BackfillError | None:
        """Return what says that events were rejected: those that wait for them must know."""
        if not self.rejected:
            return None
        return RejectedInput(
            f"{self.rejected} events were rejected by {self.handler} {self.version}",
            state=f"all others were handled; {self.output_table} says why, by event_id",
            fix="correct what they say by later events, or give the handler a new version",
        )

    @staticmethod
    def of(store: EventStoreDeclaration, handler: str, outcome: ReplayOutcome) -> ReplayResult:
        """Describe the outcome of a replay."""
        state, declared = outcome.state, store.handlers[handler]
        counts = state.counts if state else None
        return ReplayResult(
            store=store.events,
            table=store.table,
            snapshot_id=outcome.snapshot_id,
            handler=handler,
            version=declared.version,
            output_table=declared.table,
            replay_id=state.replay_id if state else None,
            resumed=outcome.is_resumed,
            total=state.total if state else 0,
            processed=counts.processed if counts else 0,
            handled_now=outcome.handled,
            done=counts.done if counts else 0,
            skipped=counts.skipped if counts else 0,
            suppressed=counts.suppressed if counts else 0,
            rejected=counts.rejected if counts else 0,
            duplicates=outcome.findings.duplicates,
            missing=outcome.findings.missing,
            warnings=(*_warnings(store, outcome.findings), *outcome.notes),
        )


class TopicReplayResult(Result):
    """What a replay has sent to a topic."""

    store: str
    table: str
    snapshot_id: int
    topic: str
    version: str
    replay_id: str | None
    #: Events of the selection that the topic lacked, and those of them that were sent.
    total: int
    sent: int
    duplicates: int
    missing: int

    @staticmethod
    def of(
        store: EventStoreDeclaration, topic: str, outcome: TopicReplayOutcome
    ) -> TopicReplayResult:
        """Describe the outcome of a replay into a topic."""
        declared = store.topics[topic]
        return TopicReplayResult(
            store=store.events,
            table=store.table,
            snapshot_id=outcome.snapshot_id,
            topic=declared.name,
            version=declared.version,
            replay_id=outcome.replay_id if outcome.total else None,
            total=outcome.total,
            sent=outcome.sent,
            duplicates=outcome.findings.duplicates,
            missing=outcome.findings.missing,
            warnings=_warnings(store, outcome.findings),
        )


class RebuildResult(Result):
    """The state of one aggregate, and what was read for it; nothing was changed."""

    store: str
    handler: str
    version: str
    aggregate: str
    snapshot_id: int
    sequence_num: int
    state: Any
    based_on: int | None
    events: int
    rejected: int
    files_read: int
    files_total: int
    good_before: datetime | None = optional()

    @staticmethod
    def of(
        store: EventStoreDeclaration, handler: str, aggregate: str, found: RebuiltState
    ) -> RebuildResult:
        """Describe a rebuilt state."""
        return RebuildResult(
            store=store.events,
            handler=handler,
            version=store.handlers[handler].version,
            aggregate=aggregate,
            snapshot_id=found.snapshot_id,
            sequence_num=found.sequence_num,
            state=found.state,
            based_on=found.based_on,
            events=found.events,
            rejected=found.rejected,
            files_read=found.files_read,
            files_total=found.files_total,
        )


def _warnings(store: EventStoreDeclaration, found: EventFindings) -> tuple[str, ...]:
    texts = []
    if found.gaps and store.gaps == "allow":
        texts.append(f"{found.missing} sequence numbers are missing: {'; '.join(found.gaps)}")
    if found.held_back:
        texts.append(
            f"{found.held_back} events occurred, by their clock, before an earlier one of their "
            "aggregate; they keep the order of sequence numbers"
        )
    return tuple(texts)
