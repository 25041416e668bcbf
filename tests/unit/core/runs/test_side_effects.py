"""Attempts of job code are evidence of the run that it fails."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.evidence.status import evidence_document
from lakehouse_backfill.core.runs.side_effects import recorded_attempts
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, RunState
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import WriteForbidden
from lakehouse_backfill.report.page import render_page
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, lake
from tests.support.fakes.steps import approved_run

ATTEMPT: dict[str, Any] = {
    "sink": "network",
    "what": "a request to https://hooks.example.org",
    "file": "jobs/notify.py",
    "line": 12,
}


class _Sending(FakeCompute):
    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        raise WriteForbidden("job code tried it", data={"attempts": [ATTEMPT]})


@pytest.mark.req("E1")
def test_an_attempt_fails_the_run_and_is_kept_as_its_evidence() -> None:
    where = lake()
    found = context(where, _Sending(where))
    run_id = approved_run(found)
    with pytest.raises(WriteForbidden):
        stage(found, run_id, "bob")
    assert found.runs.status(run_id).state is RunState.FAILED
    assert recorded_attempts(found, run_id) == (ATTEMPT,)


def test_a_run_without_attempts_has_no_such_evidence() -> None:
    where = lake()
    found = context(where, FakeCompute(where))
    run_id = approved_run(found)
    stage(found, run_id, "bob")
    assert recorded_attempts(found, run_id) == ()


@pytest.mark.req("E1")
def test_attempts_are_part_of_the_evidence_and_stand_on_its_page() -> None:
    where = lake()
    found = context(where, _Sending(where))
    run_id = approved_run(found)
    assert "attempts" not in evidence_document(found, run_id)
    with pytest.raises(WriteForbidden):
        stage(found, run_id, "bob")
    document = evidence_document(found, run_id)
    assert document["attempts"] == [ATTEMPT]
    page = render_page(to_json_value(document))
    assert ATTEMPT["what"] in page
    assert "jobs/notify.py:12" in page
