"""Habits that make backfills dangerous, and the answer to a manifest that requests one (T11).

Those that no manifest can request are refused where they would happen: docs/anti-patterns.md names
the place, and the test that shows it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ANY_NAME = "*"


class AntiPattern(NamedTuple):
    """A field with the words that request an anti-pattern; without words, any value requests it.

    `ANY_NAME` in the path stands for each name.
    """

    name: str
    path: tuple[str, ...]
    words: tuple[str, ...]
    problem: str
    instead: str

    def is_requested(self, value: Any) -> bool:
        """Return whether the value of the field requests it."""
        if not self.words:
            return value is not None
        if not isinstance(value, str):
            return False
        return value.strip().lower().replace("-", "_").replace(" ", "_") in self.words


_INTO_LIVE_TOPIC = (
    "would write to a topic that live consumers read; they cannot be asked to forget it",
    "write publish_mode: correction_events with target.corrections.table, and send its rows to a "
    "topic of their own",
)

ANTI_PATTERNS = (
    AntiPattern(
        "production consumer group",
        ("sources", ANY_NAME, "consumer_group"),
        (),
        "would read with a consumer group: the live job that owns it loses its place, and no later "
        "run can read the same again",
        "land the topic as a table, and name that table: a run reads pinned snapshots only",
    ),
    AntiPattern(
        "production consumer group",
        ("sources", ANY_NAME, "type"),
        ("kafka", "topic", "stream", "kinesis", "pubsub", "pulsar"),
        "reads a stream, whose content moves under the run",
        "write type: iceberg, and land the stream as a table first: a run reads pinned snapshots "
        "only",
    ),
    AntiPattern("live topic", ("target", "topic"), (), *_INTO_LIVE_TOPIC),
    AntiPattern(
        "live topic",
        ("target", "publish_mode"),
        ("kafka", "topic", "stream", "live_topic", "replay_to_topic"),
        *_INTO_LIVE_TOPIC,
    ),
    *(
        AntiPattern(
            "no reference version",
            (group, ANY_NAME, "at"),
            ("latest", "current", "newest", "now", "today", "floating"),
            "is no version: the same run would read something else tomorrow",
            "leave `at` out: plan pins what is there now and writes its snapshot id into the plan; "
            "or name a snapshot, tag or timestamp",
        )
        for group in ("reference_data", "sources")
    ),
    AntiPattern(
        "delete-and-insert",
        ("target", "publish_mode"),
        (
            "delete_insert",
            "delete_and_insert",
            "truncate",
            "truncate_insert",
            "truncate_and_insert",
            "overwrite",
            "insert_overwrite",
        ),
        "leaves a moment, or a crash, between deleting and inserting, in which readers see neither",
        "write publish_mode: replace_partitions: old rows go and new rows come in one snapshot, "
        "after they were checked",
    ),
    AntiPattern(
        "validation after publish only",
        ("validation", "when"),
        (),
        "would choose when checks run, but readers act on what they see: every gate runs before "
        "publication",
        "remove it; checks of what is published come beside: lakehouse-backfill validate "
        "PRODUCT@accepted",
    ),
    AntiPattern(
        "validation after publish only",
        ("target", "publish_mode"),
        ("publish_then_validate", "optimistic", "write_audit_later"),
        "shows rows to readers before anybody checked them",
        "write publish_mode: replace_partitions, which stages beside the target and validates "
        "there; or shadow_only to look without publishing",
    ),
    AntiPattern(
        "last writer wins",
        ("safety", "on_conflict"),
        ("last_writer_wins", "overwrite", "force", "ignore", "ours", "win"),
        "would overwrite what live jobs committed meanwhile, and nobody would know",
        "write on_conflict: fail (the conflict is named) or catch_up (what moved is computed "
        "again); or publish_mode: merge, where the newer version of a row wins",
    ),
    AntiPattern(
        "just rerun the DAG",
        ("run", "kind"),
        ("rerun", "rerun_dag", "dag_rerun", "clear", "retry", "airflow"),
        "is a rerun of what reads and writes live: other input, no approval, no way back",
        "write run.kind: reprocessing, with pinned sources and a range: it is computed beside the "
        "target, checked, published by one commit and can be rolled back",
    ),
)
