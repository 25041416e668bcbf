"""A topic of replayed events as a list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from lakehouse_backfill.domain.sources.events import EventTopic, EventTopicRequest, StoredEvent
from lakehouse_backfill.errors import Blocked
from lakehouse_backfill.ports.events import ChooseEvents, HandledEvents


@dataclass
class FakeEventTopics:
    """`ports.events.EventTopics`: (headers, event) of each record; None: the record of another."""

    records: dict[str, list[tuple[dict[str, str], StoredEvent] | None]] = field(
        default_factory=dict
    )

    def sent(self, topic: EventTopic, store: str) -> HandledEvents:
        return partial(self._handled, topic, store)

    def send(self, request: EventTopicRequest, choose: ChooseEvents) -> int:
        sent, held = 0, self.records.setdefault(request.topic.name, [])
        for batch in choose(self.sent(request.topic, request.store)):
            held += [(request.headers, event) for event in batch]
            sent += len(batch)
        return sent

    def _handled(self, topic: EventTopic, store: str) -> Iterator[Any]:
        rows = []
        for record in self.records.get(topic.name, []):
            if record is None or record[0]["x-event-store"] != store:
                raise Blocked(
                    f"{topic.name} has records that are no replayed events of {store}",
                    state="nothing was sent", fix="name another topic",
                )  # fmt: skip
            headers, event = record
            if headers["x-transform-version"] == topic.version:
                rows.append(
                    {
                        "event_id": event.event_id, "aggregate_id": event.aggregate_id,
                        "sequence_num": event.sequence_num, "state": "",
                        "content_hash": event.content_hash,
                    }
                )  # fmt: skip
        if rows:
            yield pa.Table.from_pylist(rows)
