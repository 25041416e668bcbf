"""Readers compare old and new, then the switch: gates, evidence, accepted differences."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval.decisions import accept
from lakehouse_backfill.core.evidence import document
from lakehouse_backfill.core.publication.dual_read import dual_read
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.rollout import ReaderQuery
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes.catch_up import FakeRowReader
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.steps import accepted_run, approved_run, state_of

pytestmark = pytest.mark.req("U8")
ASKED = ReaderQuery(reader="finance", sql="SELECT sum(amount) FROM product")


def _wanted(require: str = "equal", **changes: Any) -> Any:
    target = {"dual_read": {"readers": ["finance"], "require": require}}
    return declared(target=target, **changes)


class _Equal(FakeRowReader):
    """A reader to whom both sides look the same."""

    def compare_query(self, query: ReaderQuery, old: Any, new: Any) -> Any:
        found = super().compare_query(query, old, new)
        return found.model_copy(update={"equal": True, "new_answer": found.old_answer})


def _world(*, equal: bool = True) -> Context:
    where = lake()
    return context(where, row_reader=(_Equal if equal else FakeRowReader)(where))


def _lines(found: Context, run_id: str) -> list[tuple[str, str]]:
    lines = document.rollout_records(found, run_id, found.runs.events(run_id))["dual_reads"]
    return [(line["reader"], line["outcome"]) for line in lines]


def test_publish_names_the_gate_and_the_reader_that_has_not_compared() -> None:
    found = _world()
    run_id = accepted_run(found, _wanted())
    with pytest.raises(errors.ApprovalMissing) as refused:
        publish(found, run_id, "bob")
    assert "gate dual_read is closed: finance did not compare" in refused.value.problem
    assert f"dual-read {run_id} --reader finance" in refused.value.fix
    assert _lines(found, run_id) == [("finance", "missing")]
    done = dual_read(found, run_id, ASKED, "fin")
    assert (done.comparison.equal, done.comparison.by) == (True, "fin")
    assert done.comparison.old.table == PRODUCT
    publish(found, run_id, "bob")
    assert state_of(found, run_id) is RunState.PUBLISHED


def test_the_comparison_is_evidence_under_its_digest() -> None:
    found = _world()
    run_id = accepted_run(found, _wanted())
    done = dual_read(found, run_id, ASKED, "fin")
    (line,) = document.evidence_document(found, run_id)["dual_reads"]
    assert line["comparison"] == done.comparison.model_dump(mode="json")
    assert line["digest"] == done.digest
    assert found.evidence.document(run_id, done.digest) == line["comparison"]


def test_a_different_result_stops_publication_until_somebody_accepts_it_for_a_reason() -> None:
    found = _world(equal=False)
    run_id = accepted_run(found, _wanted())
    dual_read(found, run_id, ASKED, "fin")
    with pytest.raises(errors.ChecksFailed) as refused:
        publish(found, run_id, "bob")
    assert "finance reads other results" in refused.value.problem
    assert "--accept-difference REASON" in refused.value.fix
    assert _lines(found, run_id) == [("finance", "different")]
    with pytest.raises(errors.ConfigError, match="needs a reason"):
        dual_read(found, run_id, ASKED, "fin", "  ")
    dual_read(found, run_id, ASKED, "fin", "the old total was wrong")
    assert _lines(found, run_id) == [("finance", "accepted")]
    publish(found, run_id, "bob")


def test_recorded_asks_only_that_they_compared() -> None:
    found = _world(equal=False)
    run_id = accepted_run(found, _wanted("recorded"))
    dual_read(found, run_id, ASKED, "fin")
    publish(found, run_id, "bob")


def test_another_comparison_takes_an_accepted_difference_back() -> None:
    found = _world(equal=False)
    run_id = accepted_run(found, _wanted())
    dual_read(found, run_id, ASKED, "fin", "right")
    dual_read(found, run_id, ReaderQuery(reader="finance", sql="SELECT 2 FROM product"), "fin")
    with pytest.raises(errors.ChecksFailed):
        publish(found, run_id, "bob")


def test_a_comparison_of_an_earlier_candidate_does_not_count() -> None:
    found = _world()
    run_id = accepted_run(found, _wanted())
    dual_read(found, run_id, ASKED, "fin")
    plan = found.runs.plan(run_id)
    shadow = found.tables.tables[plan.shadow_table]  # type: ignore[attr-defined]
    shadow.commit(shadow.content(shadow.head))
    validate(found, run_id, "bob")
    accept(found, run_id, "ana", "")
    with pytest.raises(errors.ApprovalMissing, match="did not compare this candidate"):
        publish(found, run_id, "bob")


def test_a_reader_that_nobody_asked_for_may_compare_and_stops_nothing() -> None:
    found = _world(equal=False)
    run_id = accepted_run(found, declared())
    dual_read(found, run_id, ASKED, "fin")
    assert _lines(found, run_id) == [("finance", "different")]
    publish(found, run_id, "bob")


def test_only_validators_compare_and_only_waivers_accept_a_difference() -> None:
    owned = contract(roles={"validators": ["fin"], "waive": ["ana"]})
    found = _world(equal=False)
    run_id = accepted_run(found, _wanted(contract=owned))
    with pytest.raises(errors.NotAllowed, match="bob may not read a candidate"):
        dual_read(found, run_id, ASKED, "bob")
    with pytest.raises(errors.NotAllowed, match="fin may not waive"):
        dual_read(found, run_id, ASKED, "fin", "right")


def test_a_run_without_a_result_cannot_be_compared() -> None:
    found = _world()
    run_id = approved_run(found, _wanted())
    with pytest.raises(errors.IllegalMove):
        dual_read(found, run_id, ASKED, "fin")
    stage(found, run_id, "bob")
    assert dual_read(found, run_id, ASKED, "fin").comparison.equal


def test_a_status_is_given_without_dual_reads_that_were_edited() -> None:
    found = _world()
    run_id = accepted_run(found, _wanted())
    dual_read(found, run_id, ASKED, "fin")

    def tampered(*_: Any) -> Any:
        raise errors.Tampered("evidence was edited")

    found.evidence.document = tampered
    assert document.rollout_records(found, run_id, found.runs.events(run_id)) == {}
