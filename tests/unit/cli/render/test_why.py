"""`why` on one screen of 80 columns and 40 lines, however much there is to tell."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest

from lakehouse_backfill.cli.render import render_result
from lakehouse_backfill.core.evidence.lineage import LineageEdge
from lakehouse_backfill.core.evidence.staleness import PartitionStatus, StaleCause
from lakehouse_backfill.core.evidence.story import PartitionStory
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.results.origins import WhyResult
from tests.support.examples.plans import a_plan

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
LONG = "a sentence of many words that goes on and on, " * 6


def a_story(**changes: Any) -> PartitionStory:
    """A run with many inputs, failed checks, attempts, commits of others and acts."""
    plan = a_plan()
    label = plan.resolved.scope.partitions[0]
    rows = tuple(
        Publication(
            product=plan.product, version=9 - number, token=f"t{number}", action="publish",
            run_id=plan.run_id if not number else f"bf-{number}", table=plan.product,
            snapshot_id=900 + number, before_snapshot_id=800, scope=plan.resolved.scope,
            supersedes=8, at=NOON - timedelta(days=number), by="ana", approved_by=("ana", "eve"),
            accepted_by=("lead",), reason=LONG,
        )
        for number in range(9)
    )  # fmt: skip
    edges = tuple(
        LineageEdge(
            plan.product, (label,), plan.run_id, f"in{number}", "source", f"bronze.table_{number}",
            7_000_000_000_000_000_000 + number, None,
            tuple((NOON + timedelta(days=2 * day), NOON + timedelta(days=2 * day + 1))
                  for day in range(5)),
        )
        for number in range(6)
    )  # fmt: skip
    story = PartitionStory(
        plan.product, plan.product, label, rows, (f"snapshot 7: {LONG}",) * 9, plan, rows[0], edges,
        {"old_rows": 10_000, "new_rows": 11_000, "added": 1_000, "removed": 0, "changed": 5_000,
         "unchanged": 5_000},
        "20 of 31 passed, 6 waived, 5 failed without blocking", (LONG,) * 9, (LONG,) * 9,
        (LONG, LONG),
    )  # fmt: skip
    return replace(story, **changes)


def screen(result: WhyResult, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a terminal of 80 columns shows."""
    monkeypatch.setenv("COLUMNS", "80")
    stream = StringIO()
    render_result(result, stream)
    return stream.getvalue().splitlines()


@pytest.mark.req("O3")
def test_the_story_of_a_partition_is_one_screen_however_long_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    causes = tuple(StaleCause("late rows", LONG) for _ in range(9))
    story = a_story()
    status = PartitionStatus(str(story.partition), "stale", causes, story.plan and "bf-open")
    lines = screen(WhyResult.of(story, status), monkeypatch)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


@pytest.mark.req("O3")
def test_the_screen_answers_why_who_from_what_by_which_code_with_which_checks_and_effects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = a_story()
    result = WhyResult.of(story, PartitionStatus(str(story.partition), "complete"))
    text = " ".join(" ".join(screen(result, monkeypatch)).split())
    assert story.plan is not None
    resolved = story.plan.resolved
    for word in (
        resolved.manifest.run.reason[:20], "approved by ana, eve", "accepted by lead",
        "published by ana", "bronze.table_0", resolved.manifest.transform.file,
        f"{story.table}@900", "20 of 31 passed", "and 8 more", "side effects",
    ):  # fmt: skip
        assert word in text
