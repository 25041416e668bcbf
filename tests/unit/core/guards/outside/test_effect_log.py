"""Attempts of job code are evidence of the run that it fails."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from lakehouse_backfill.core.evidence.document import evidence_document
from lakehouse_backfill.core.evidence.reproduce import reproduce
from lakehouse_backfill.core.guards.outside.effect_log import (
    record_attempts_of_check,
    recorded_attempts,
)
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, RunState
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import WriteForbidden
from lakehouse_backfill.report.page import render_page
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, lake
from tests.support.fakes.steps import approved_run, staged_run

ATTEMPT: dict[str, Any] = {
    "sink": "network",
    "what": "a request to https://hooks.example.org",
    "file": "jobs/notify.py",
    "line": 12,
}


def _page_text(document: dict[str, Any]) -> str:
    return re.sub(r"<[^>]+>", "", render_page(to_json_value(document)))


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


@pytest.mark.req("E1")
def test_attempts_while_a_run_is_computed_again_are_its_evidence_and_close_its_gate() -> None:
    where = lake()
    found = context(where, FakeCompute(where))
    run_id = staged_run(found)
    validate(found, run_id, "bob")
    sending = dataclasses.replace(found, compute=lambda: _Sending(where))
    with pytest.raises(WriteForbidden):
        reproduce(sending, run_id, "bob")
    during = {**ATTEMPT, "during": "reproduction"}
    assert recorded_attempts(found, run_id) == (during,)
    assert evidence_document(found, run_id)["attempts"] == [during]


@pytest.mark.req("E1")
def test_attempts_of_code_that_attribution_executes_are_evidence_but_not_of_the_runs_code() -> None:
    where = lake()
    found = context(where, FakeCompute(where))
    run_id = staged_run(found)
    for line in (12, 13, 13):
        with (
            pytest.raises(WriteForbidden),
            record_attempts_of_check(found, run_id, "attribution", found.runs.status(run_id).seq),
        ):
            raise WriteForbidden("it tried", data={"attempts": [{**ATTEMPT, "line": line}]})
    during = [{**ATTEMPT, "line": line, "during": "attribution"} for line in (12, 13)]
    assert evidence_document(found, run_id)["attempts"] == during
    assert recorded_attempts(found, run_id) == ()
    assert ", during attribution" in _page_text(evidence_document(found, run_id))


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
    page = _page_text(document)
    assert ATTEMPT["what"] in page
    assert "jobs/notify.py:12" in page
