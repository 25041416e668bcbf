"""In-memory stand-ins of `lakehouse_backfill/ports/comparison.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakehouse_backfill.core.versions import corrections
from lakehouse_backfill.domain.publication import VersionLabels
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
)
from lakehouse_backfill.domain.sources.topics import (
    CorrectionTopic,
    SentEvents,
    TopicRequest,
    TopicState,
)
from lakehouse_backfill.domain.tables.commits import CommitResult
from lakehouse_backfill.errors import Unsupported


@dataclass
class FakeVersionTables:
    """What the tables of versions say, by table."""

    tables: dict[str, VersionLabels | None] = field(default_factory=dict)
    #: Tables of versions with delete files.
    unfit: set[str] = field(default_factory=set)

    def require_fit(self, source: str, snapshot_id: int | None) -> None:
        if source in self.unfit:
            raise Unsupported(f"{source} has delete files at snapshot {snapshot_id}")

    def open(self, name: str, product: str, source: str) -> None:
        self.tables.setdefault(name, None)

    def show(self, labels: VersionLabels) -> None:
        shown = self.tables.get(labels.table)
        if shown is None or shown.acts < labels.acts:
            self.tables[labels.table] = labels

    def fault(self, labels: VersionLabels) -> str:
        shown = self.tables.get(labels.table)
        said = shown and (shown.versions, shown.let_go)
        return "" if said == (labels.versions, labels.let_go) else "other labels"


@dataclass
class FakeCorrections:
    """Tables of events as lists; one append is one batch of events with its token."""

    tables: dict[str, list[tuple[str, list[dict[str, Any]]]]] = field(default_factory=dict)

    def write(self, request: CorrectionEventsRequest, rows: Iterable[DifferingRow]) -> CommitResult:
        name = request.sink.table
        made = partial(corrections.correction_events, request, rows)
        return self._append(name, request.publication.token, made)

    def compensate(self, request: CompensationRequest) -> CommitResult:
        def made() -> Iterable[dict[str, Any]]:
            found = dict(self.tables[request.table])
            written = [
                event
                for token in request.tokens
                for event in reversed(found[token])
                if request.partitions is None or event["partition"] in request.partitions
            ]
            return corrections.reversed_events(request, written)

        return self._append(request.table, request.publication.token, made)

    def find(self, table: str, token: str) -> CommitResult | None:
        for number, (held, events) in enumerate(self.tables.get(table, ()), start=1):
            if held == token:
                return _swap(table, number, len(events))
        return None

    def events_of(self, table: str, token: str) -> Iterator[dict[str, Any]]:
        yield from dict(self.tables[table])[token]

    def events(self, table: str) -> list[dict[str, Any]]:
        return [event for _, events in self.tables.get(table, ()) for event in events]

    def _append(self, table: str, token: str, made: Any) -> CommitResult:
        done = self.find(table, token)
        if done is not None:
            return done
        self.tables.setdefault(table, []).append((token, list(made())))
        found = self.find(table, token)
        assert found is not None
        return found


@dataclass
class FakeCorrectionTopics:
    """Topics as lists: (headers, event) of each record. All records are in partition 0."""

    records: dict[str, list[tuple[dict[str, str], Mapping[str, Any]]]] = field(default_factory=dict)
    partitions: int = 1

    def look(self, topic: CorrectionTopic) -> TopicState:
        held = self.records.get(topic.name, [])
        foreign = [f"{topic.name}[0] offset {place}" for place, (headers, _) in enumerate(held)
                   if "x-publication" not in headers]  # fmt: skip
        found = self.state(topic)
        return found.model_copy(update={"looked_at": len(held), "foreign": tuple(foreign)})

    def state(self, topic: CorrectionTopic) -> TopicState:
        ends = dict.fromkeys(range(self.partitions), 0)
        ends[0] = len(self.records.get(topic.name, []))
        return TopicState(cluster_id="c", topic_id=topic.name, ends=ends)

    def send(self, request: TopicRequest, events: Iterable[Mapping[str, Any]]) -> SentEvents:
        held = self.records.setdefault(request.topic.name, [])
        tokens = [headers.get("x-publication") for headers, _ in held[request.since.ends[0] :]]
        found = tokens.count(request.token)
        waiting = list(events)[found:]
        for event in waiting:
            own = {"x-publication": request.token, "x-event-id": event["event_id"]}
            held.append(({**request.headers, **own}, event))
        return SentEvents(sent=len(waiting), found=found)


def _swap(table: str, number: int, events: int) -> CommitResult:
    return CommitResult(
        table=table, snapshot_id=number, before_snapshot_id=number - 1 or None, files_added=1,
        files_removed=0, rows_added=events, rows_removed=0, attempts=1, seconds=0.0,
    )  # fmt: skip
