"""Events of a store into a topic of their own, each once, in the order of a replay.

The topic is the ledger: what it holds is read first, and only what it lacks is sent. So a replay
that was cut off goes on with the same command, on the newest snapshot. Side effects, in order: a
row of `replay_job` · transactions of records · the last row of `replay_job`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lakehouse_backfill.core.replay.check import require_sound
from lakehouse_backfill.core.replay.preview import EventCheck
from lakehouse_backfill.core.replay.replay import newest_snapshot
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.events import (
    EventFindings,
    EventStoreDeclaration,
    EventTopic,
    EventTopicRequest,
    ReplayJob,
    ReplayRequest,
    StoredEvent,
    new_replay_id,
)
from lakehouse_backfill.errors import BackfillError, Blocked, Conflict
from lakehouse_backfill.ports.events import (
    EventReader,
    EventSet,
    EventTopics,
    HandledEvents,
    ReplayLedger,
)
from lakehouse_backfill.ports.system import Clock, Journal, Progress

_NOTHING_SENT = "nothing was sent"


@dataclass(frozen=True)
class TopicReplayPorts:
    """What a replay into a topic works with."""

    reader: EventReader
    topics: EventTopics
    ledger: ReplayLedger
    clock: Clock
    journal: Journal
    progress: Progress
    profile: Profile


@dataclass(frozen=True)
class TopicReplayOutcome:
    """What was sent; `total` are the events that the topic lacked."""

    findings: EventFindings
    snapshot_id: int
    replay_id: str
    total: int
    sent: int


def require_open_topic(ports: TopicReplayPorts, store: EventStoreDeclaration) -> None:
    """Raise Blocked while the profile switches topics off; the store goes by its table."""
    roles.require_switched_on(ports.profile, "live_topic", store.table, _NOTHING_SENT)


def replay_into_topic(
    ports: TopicReplayPorts,
    store: EventStoreDeclaration,
    name: str,
    request: ReplayRequest,
) -> TopicReplayOutcome:
    """Send the events of a request that a declared topic lacks, in order.

    The same call again sends nothing. Raises Blocked (the switch `live_topic`; a topic with records
    of others, or that forgets records; events that come too late), RejectedInput, Conflict (another
    process sends), SourceDown.
    """
    require_open_topic(ports, store)
    snapshot_id = newest_snapshot(ports.reader, store)
    events = ports.reader.open(store, snapshot_id, request.aggregate)
    try:
        findings = events.findings()
        require_sound(store, findings)
        act = _Act(ports, store, name, request, snapshot_id, events)
        act.send()
        return TopicReplayOutcome(findings, snapshot_id, act.replay_id, act.total, act.sent)
    finally:
        events.close()


def check_topic(
    ports: TopicReplayPorts, store: EventStoreDeclaration, name: str, request: ReplayRequest
) -> EventCheck:
    """Return what a replay into a topic would meet; nothing is sent.

    Raises Blocked as the replay itself, SourceDown.
    """
    require_open_topic(ports, store)
    snapshot_id = newest_snapshot(ports.reader, store)
    events = ports.reader.open(store, snapshot_id, request.aggregate)
    try:
        findings = events.findings()
        topic = store.topics[name]
        left = events.select(request, ports.topics.sent(topic, store.events))
        return EventCheck(
            snapshot_id=snapshot_id,
            findings=findings,
            selected=events.selected(request)[0],
            left=left,
            faults=_faults(events, topic),
            notes=(),
        )
    finally:
        events.close()


@dataclass
class _Act:
    """One replay on its way into a topic."""

    ports: TopicReplayPorts
    store: EventStoreDeclaration
    name: str
    request: ReplayRequest
    snapshot_id: int
    events: EventSet
    replay_id: str = field(init=False)
    total: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self.topic: EventTopic = self.store.topics[self.name]
        label = f"topic {self.name}@{self.topic.version}"
        self.replay_id = new_replay_id(
            self.store.events, label, self.request, self.ports.clock.now()
        )
        self._label = label

    def send(self) -> None:
        wanted = EventTopicRequest(
            topic=self.topic,
            store=self.store.events,
            producer=f"lakehouse-backfill.replay.{self.store.events}.{self.topic.name}",
            headers={
                "x-run-id": self.replay_id,
                "x-processing-mode": "replay",
                "x-transform-version": self.topic.version,
                "x-input-snapshot": f"{self.store.table}={self.snapshot_id}",
                "x-event-store": self.store.events,
            },
        )
        try:
            self.ports.topics.send(wanted, self._choose)
        except BackfillError as error:
            if isinstance(error, Conflict):
                error.fix = "wait for that process; then give the same command again"
            error.state = f"{_NOTHING_SENT} by this command"
            if self.total:
                error.state = (
                    f"at least {self.sent:,} of {self.total:,} events are in {self.topic.name}; "
                    "the same command sends those that it lacks"
                )
                with suppress(BackfillError):
                    self._report("failed")
            raise
        finally:
            self.ports.progress.finish()
        if self.total:
            self._report("done")

    def _choose(self, handled: HandledEvents) -> Iterator[Sequence[StoredEvent]]:
        """Yield what the topic lacks; whoever asks for the next batch has sent the one before."""
        left = self.events.select(self.request, handled)
        if faults := _faults(self.events, self.topic):
            raise Blocked(
                "; ".join(faults),
                state=_NOTHING_SENT,
                fix=f"give the topic a new version in catalog/events/{self.store.events}.yaml: "
                "it then gets all events, in order",
            )
        self.total = left
        self.ports.progress.start(f"sending {self.store.events}", left, "events")
        if left:
            self._report("running")
        for batch in self.events.batches(None, self.topic.events_per_transaction):
            yield batch
            self.sent += len(batch)
            self.ports.progress.advance(len(batch))
            self.ports.journal.bind(processing_mode="replay").log(
                "events sent", store=self.store.events, topic=self.topic.name,
                replay=self.replay_id, events=len(batch),
            )  # fmt: skip

    def _report(self, status: str) -> None:
        self.ports.ledger.report(
            ReplayJob(
                replay_id=self.replay_id,
                run_id=self.replay_id,
                topic=self.topic.name,
                start_offsets=canonical_json(self.request),
                end_offsets="{}",
                position=None,
                status=status,
                events=self.sent,
                suppressed=0,
                updated_at=self.ports.clock.now(),
                handler=self._label,
                snapshot_id=self.snapshot_id,
                total=self.total,
                skipped=0,
                rejected=0,
            )
        )


def _faults(events: EventSet, topic: EventTopic) -> tuple[str, ...]:
    """Return why the chosen events do not fit what is in the topic."""
    count, named = events.behind()
    late = (f"{named}: {topic.name} has later events of the same aggregates",) if count else ()
    return (*late, *(f"{topic.name}: {fault}" for fault in events.ledger_faults()))
