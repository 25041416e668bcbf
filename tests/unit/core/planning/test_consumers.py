"""Who is broken by a publication, and who keeps a position in the table's snapshots."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.planning.estimates import affected_consumers, is_position_key
from tests.support.fakes.context import contract

STREAM = {"name": "alerts", "tolerates_restatement": True, "reads": "stream"}
BATCH = {"name": "report", "tolerates_restatement": True}


def test_a_streaming_reader_is_named_with_what_to_do() -> None:
    (text,) = affected_consumers(contract(consumers=[STREAM, BATCH]), "replace_partitions", {})
    assert text.startswith("alerts streams from silver.daily")
    assert "streaming-skip-overwrite-snapshots" in text


@pytest.mark.parametrize(
    ("mode", "publication", "says"),
    [
        ("append", "follow", ["as new ones"]),
        ("correction_events", "follow", []),
        ("pointer_swap", "pinned", ["resolve the pointer again"]),
    ],
)
def test_a_streaming_reader_is_named_where_it_meets_the_change(mode, publication, says) -> None:
    texts = affected_consumers(contract(consumers=[STREAM], publication=publication), mode, {})
    assert [word in text for word, text in zip(says, texts, strict=True)] == [True] * len(says)


@pytest.mark.parametrize(
    ("key", "writer"),
    [
        ("flink.max-committed-checkpoint-id", "a Flink job"),
        ("kafka.connect.offsets.control-x.1", "a Kafka Connect sink"),
    ],
)
def test_a_writer_that_keeps_its_position_in_summaries_is_named(key: str, writer: str) -> None:
    assert is_position_key(key)
    (text,) = affected_consumers(contract(), "replace_partitions", {key: "7"})
    assert text.startswith(f"{writer} keeps its position")
    assert "children of its head" in text


def test_batch_readers_and_plain_tables_need_no_word() -> None:
    assert affected_consumers(contract(consumers=[BATCH]), "replace_partitions", {}) == ()
    assert not is_position_key("added-records")
