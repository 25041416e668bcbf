"""Streaming readers and writers of a product that a publication or its rollback would break."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill.domain.contract import Contract

#: Keys of snapshot summaries by which writers find where they stopped: key prefix -> writer.
#: They look for them in the ancestors of main; a publication is a child of it, so they stay there.
POSITION_KEYS = {
    "flink.max-committed-checkpoint-id": "a Flink job",
    "kafka.connect.": "a Kafka Connect sink",
    "spark.sql.streaming.": "a Spark streaming query",
}


def is_position_key(key: str) -> bool:
    """Return whether a writer finds its position by this key of a snapshot summary."""
    return key.startswith(tuple(POSITION_KEYS))


def affected_consumers(
    contract: Contract, mode: str, positions: Mapping[str, str]
) -> tuple[str, ...]:
    """List consumers that a publication or its rollback would break, and the fix."""
    texts = []
    for item in contract.consumers or ():
        if item.reads != "stream":
            continue
        if contract.publication == "pinned":
            texts.append(
                f"{item.name} streams from a table, but the accepted version moves to another "
                "one: let it resolve the pointer again after each publication"
            )
        elif mode == "append":
            texts.append(f"{item.name} streams from {contract.table}: it gets the rows as new ones")
        elif mode != "correction_events":
            texts.append(
                f"{item.name} streams from {contract.table}: Spark stops a streaming reader at an "
                "overwrite snapshot. Stop it first and set streaming-skip-overwrite-snapshots, or "
                "publish correction_events"
            )
    writers = sorted(
        {POSITION_KEYS[p] for key in positions for p in POSITION_KEYS if key.startswith(p)}
    )
    for writer in writers:
        if contract.publication == "pinned":
            texts.append(
                f"{writer} writes to {contract.table} and keeps its position there: it goes on "
                "with that table, not with the accepted version"
            )
        else:
            texts.append(
                f"{writer} keeps its position in snapshots of {contract.table}: publication and "
                "rollback are children of its head, so it goes on where it was"
            )
    return tuple(texts)
