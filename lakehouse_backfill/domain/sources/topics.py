"""Topics that events are sent to: where they are, what was looked at of them, what is sent."""

from __future__ import annotations

from pydantic import Field

from lakehouse_backfill.domain.serialization import Text, Value


class TopicAddress(Value):
    """A topic, and how its brokers are reached."""

    name: Text = Field(description="Name of the topic; it must exist.")
    bootstrap_servers: Text = Field(description="host:port of some brokers, by commas.")
    settings: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of librdkafka for the connection, as of a source of kind kafka.",
    )
    secrets: dict[str, Text] = Field(
        default_factory=dict,
        description="Properties whose values are read from environment variables.",
    )
    timeout_s: float = Field(60, gt=0, description="How long the brokers may stay silent.")


class CorrectionTopic(TopicAddress):
    """A topic that the events of publications are sent to once these are accepted."""

    shared: bool = Field(
        default=False,
        description="Whether records of others are in the topic, such as those of a live job; "
        "refused unless this is true.",
    )


class TopicState(Value):
    """A topic at one moment: its identity, and its ends by partition."""

    cluster_id: str
    topic_id: str
    #: Behind the last record of each partition.
    ends: dict[int, int]
    #: Records that were looked at, and the places of those that the toolkit did not send.
    looked_at: int = 0
    foreign: tuple[str, ...] = ()


class TopicRequest(Value):
    """The events of one act that belong in a topic."""

    topic: CorrectionTopic
    #: Names the producer: of two processes of one name the later shuts the earlier out.
    producer: Text
    token: str
    #: The headers of each record, beside those that name act, event and position.
    headers: dict[str, str]
    #: The topic before the first record of the act.
    since: TopicState


class SentEvents(Value):
    """What a sending did: records that it sent, and those that were in the topic before."""

    sent: int
    found: int
