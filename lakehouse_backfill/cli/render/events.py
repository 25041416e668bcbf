"""Replays of events as text and tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lakehouse_backfill.cli.render.page import TextPage

if TYPE_CHECKING:
    from lakehouse_backfill.results.events import (
        EventCheckResult,
        RebuildResult,
        ReplayResult,
        TopicReplayResult,
    )


def render_event_check(page: TextPage, result: EventCheckResult) -> None:
    """Draw what the events of a store are like."""
    page.line(
        f"{result.store}: {result.events:,} events of {result.aggregates:,} aggregates in "
        f"{result.table}@{result.snapshot_id}"
    )
    page.line(f"exact duplicates: {result.duplicates:,}, missing numbers: {result.missing:,}")
    left = "" if result.left is None else f", {result.left:,} of them are left"
    page.line(f"selected: {result.selected:,}{left}")
    rows = [(one.event_type, one.version, one.events) for one in result.versions]
    page.table("", ("event type", "version", "events"), rows)


def render_replay(page: TextPage, result: ReplayResult) -> None:
    """Draw what a replay has done."""
    name = f"{result.handler} {result.version}"
    if result.replay_id is None:
        page.line(f"{result.store}: nothing new; {name} has handled all selected events")
        return
    again = ", continued" if result.resumed else ""
    page.line(
        f"{result.store}: {result.replay_id}{again}: {result.processed:,} of {result.total:,} "
        f"events handled by {name}, {result.handled_now:,} by this command"
    )
    page.table(
        "",
        ("done", "skipped", "suppressed", "rejected"),
        [(result.done, result.skipped, result.suppressed, result.rejected)],
    )
    page.line(f"states and ledger: {result.output_table}")


def render_topic_replay(page: TextPage, result: TopicReplayResult) -> None:
    """Draw what was sent to a topic."""
    name = f"{result.topic}, version {result.version}"
    if result.replay_id is None:
        page.line(f"{result.store}: nothing new; all selected events are in {name}")
        return
    page.line(
        f"{result.store}: {result.replay_id}: {result.sent:,} of {result.total:,} events that "
        f"{name} lacked were sent"
    )


def render_rebuild(page: TextPage, result: RebuildResult) -> None:
    """Draw the state of one aggregate."""
    since = "from the first event" if result.based_on is None else f"after {result.based_on}"
    page.line(
        f"{result.aggregate} at {result.sequence_num}: {result.events:,} events {since}, "
        f"{result.files_read:,} of {result.files_total:,} files"
    )
    if result.good_before is not None:
        moment = result.good_before.isoformat()
        has_none = f"no state was kept of events before {moment} alone: a cold start"
        good = f"the last good state, of events before {moment}, is that after {result.based_on}"
        page.line(has_none if result.based_on is None else good)
    page.line(json.dumps(result.state, sort_keys=True))
