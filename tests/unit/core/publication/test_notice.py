"""The restatement notice: recorded at publish and rollback, and sent with the hooks."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.publication.notice import NOTICE, make_notice
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Consumer
from tests.support.examples.plans import a_plan, a_publication, with_fields
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.steps import accepted_run

pytestmark = pytest.mark.req("O5")
BATCH = Consumer(name="finance", contact="f@example.com", tolerates_restatement=True)
STRICT = Consumer(name="audit", tolerates_restatement=False)
STREAM = Consumer(name="alerting", tolerates_restatement=True, reads="stream")
HOOKS = [
    {"name": "tell", "on": "after_publish", "webhook": "https://x"},
    {"name": "tell_back", "on": "after_rollback", "webhook": "https://x"},
]


def sent(found: Context) -> list[Any]:
    return [message.get("notice") for _, message in found.hooks.calls]  # type: ignore[attr-defined]


def test_the_notice_is_recorded_and_sent_at_publish_and_at_rollback() -> None:
    terms = contract(consumers=[BATCH.model_dump()], hooks=HOOKS)
    found = context(lake())
    run_id = accepted_run(found, declared(contract=terms))
    for _ in range(2):
        publish(found, run_id, "ana")
    first = found.evidence.newest(run_id, NOTICE)
    assert first is not None
    rollback(found, terms, plan_rollback(found, PRODUCT, None, ()), "wrong rates", "ana")
    second = found.evidence.newest(run_id, NOTICE)
    assert second is not None
    acts = [(one["act"], one["product"], one["reason"]) for one in (first[1], second[1])]
    assert [act for act, _, _ in acts] == ["publish", "rollback"]
    assert acts[1] == ("rollback", PRODUCT, "wrong rates")
    assert sent(found) == [first[1], second[1]]


def test_without_a_consumer_nothing_is_recorded_or_sent() -> None:
    found = context(lake())
    run_id = accepted_run(found, declared(contract=contract(hooks=HOOKS)))
    publish(found, run_id, "ana")
    assert found.evidence.newest(run_id, NOTICE) is None
    assert sent(found) == [None]


def test_each_consumer_is_told_what_to_do_and_where_to_ask() -> None:
    plan = with_fields(a_plan(), resolved__contract__consumers=(BATCH, STRICT, STREAM))
    summary = {"added": 1, "removed": 2000, "changed": 3, "unchanged": 4}
    found = make_notice(plan, a_publication(3), {"diff": {"summary": summary}})
    assert found["rows"] == {"added": 1, "removed": 2000, "changed": 3}
    assert [one["contact"] for one in found["consumers"]] == ["f@example.com", "", ""]
    text = found["text"]
    assert "Rows by key: 1 added, 2,000 removed, 3 changed." in text
    assert "finance: the next read gets these rows; nothing has to be done." in text
    assert "audit: compare what you derived" in text
    assert "alerting: read these partitions again" in text
    back = make_notice(plan, a_publication(4, "rollback"), {"diff": {"summary": summary}})
    assert back["rows"] == {}
    assert "was rolled back" in back["text"]
    assert "hold the rows from before again" in back["text"]
