"""Topics of correction events, loaded on first use: most commands send none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.ports.comparison import CorrectionTopics

if TYPE_CHECKING:
    from lakehouse_backfill.domain.sources.topics import (
        CorrectionTopic,
        SentEvents,
        TopicRequest,
        TopicState,
    )


class LateCorrectionTopics(CorrectionTopics):
    """Those of Kafka."""

    @cached_property
    def _topics(self) -> CorrectionTopics:
        from lakehouse_backfill.adapters.sources.kafka.producer import KafkaCorrectionTopics

        return KafkaCorrectionTopics()

    def look(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic, with the first and last records of its partitions looked at."""
        return self._topics.look(topic)

    def state(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic as it is; no record is read."""
        return self._topics.state(topic)

    def send(self, request: TopicRequest, events: Iterable[Mapping[str, Any]]) -> SentEvents:
        """Send the events of an act that are not in the topic, in the order of their positions."""
        return self._topics.send(request, events)
