"""The picture of the stages: as the plan listed them, and how far the run has come."""

from __future__ import annotations

import re

import pytest

from lakehouse_backfill.core.planning.stages import plan_stages
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.page import MAX_STAGES, render_section, stages_figure
from tests.support.examples import dossiers
from tests.support.examples.plans import with_fields

pytestmark = pytest.mark.req("P1", "O4", "O5")


def titles(page: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", page)


def a_dossier(*verbs: str) -> Dossier:
    """A run of which only these events, and no other facts, are known."""
    whole = Dossier.model_validate(dossiers.published_document())
    events = tuple(event for event in whole.events if event.verb in verbs)
    return whole.model_copy(update={"events": events, "chunks": ()})


def test_each_stage_of_the_plan_has_a_mark_in_its_order_and_a_line_below() -> None:
    found = Dossier.model_validate(dossiers.published_document())
    page = stages_figure(found)
    planned = plan_stages(found.plan)
    names = [title.split(":")[0].split(",")[0] for title in titles(page)]
    assert names == [stage.chunk_id or stage.kind.replace("_", " ") for stage in planned]
    assert page.count("<tr>") == len(planned) + 1
    assert "<script" not in page
    assert 'role="img"' in page


def test_what_the_log_does_not_say_is_not_done() -> None:
    found = titles(stages_figure(a_dossier("plan", "approve")))
    done = [title.split(":")[0] for title in found if title.endswith(": done")]
    assert done == ["pin", "approve, by a person"]


def test_a_chunk_is_done_when_the_ledger_says_so() -> None:
    whole = Dossier.model_validate(dossiers.published_document())
    found = whole.model_copy(update={"events": (), "chunks": whole.chunks[:1]})
    done = [title for title in titles(stages_figure(found)) if title.endswith(": done")]
    assert done == [f"{whole.chunks[0].chunk_id}: done"]


def test_many_chunks_are_counted() -> None:
    whole = Dossier.model_validate(dossiers.published_document())
    (chunk, *_) = whole.plan.resolved.chunks
    many = tuple(chunk.model_copy(update={"chunk_id": f"c{n:04}"}) for n in range(100))
    plan = with_fields(whole.plan, resolved__chunks=many)
    page = stages_figure(whole.model_copy(update={"plan": plan}))
    assert len(titles(page)) == MAX_STAGES
    assert f"and {len(plan_stages(plan)) - MAX_STAGES} more" in page


def test_the_picture_stands_where_the_page_tells_how_it_was_done() -> None:
    found = Dossier.model_validate(dossiers.published_document())
    assert str(stages_figure(found)) in render_section(found, "work")
