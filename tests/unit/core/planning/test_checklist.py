"""The 16 questions: honest answers, and how to give one that is missing (M6)."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.planning import checklist
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.plan import ChecklistQuestion
from tests.support.fakes.context import context, contract, declared, lake

pytestmark = pytest.mark.req("M6")
FILE = "catalog/contracts/silver.daily.yaml"


def questions(found: Contract | None = None, **changes: Any) -> dict[int, ChecklistQuestion]:
    plan = make_plan(
        context(lake()), declared(contract=found or contract(), **changes), "bob", None
    )
    return {question.number: question for question in plan.checklist}


def test_a_complete_declaration_answers_all_questions() -> None:
    found = questions()
    assert list(found) == list(range(1, 17))
    assert all(question.answer and not question.how for question in found.values())


@pytest.mark.parametrize(
    ("changes", "number", "how"),
    [
        (
            {"consumers": None}, 13,
            f"write consumers in {FILE}, and whether each tolerates restatement; [] says: nobody",
        ),
        ({"classification": None}, 14, f"write classification in {FILE}"),
        ({"retention_days": None}, 14, f"write retention_days in {FILE}"),
        (
            {"classification": None, "retention_days": None}, 14,
            f"write classification and retention_days in {FILE}",
        ),
    ],
    ids=["consumers", "classification", "retention", "privacy"],
)  # fmt: skip
def test_what_only_a_person_knows_is_asked_for_by_file_and_field(changes, number, how) -> None:
    found = questions(contract(**changes))
    assert (found[number].answer, found[number].how) == (None, how)
    assert checklist.unanswered_questions(tuple(found.values())) == (
        f"{number}. {found[number].question} ({how})",
    )


def test_nobody_and_for_ever_are_answers() -> None:
    found = questions(contract(consumers=[], retention_days="unlimited"))
    assert found[13].answer == "nobody, says the contract"
    assert found[14].answer == "classification internal; kept without limit; owner ana"


def test_answers_name_gates_limits_files_and_versions() -> None:
    found = questions(
        contract(
            measures=[{"name": "amounts", "sum": "amount"}],
            thresholds=[{"measure": "amounts", "max_change": 0.2}],
            suites=[{"file": "expectations/a.json", "on": "raw"}],
        ),
        transform={
            "config": {"rate": 2},
            "image_digest": f"sha256:{'a' * 64}", "schema_versions": {"orders": "3"},
        },
        safety={"max_rows": 1000},
        validation={"edge_partitions": 1, "gates": {"edges": "report"}},
    )  # fmt: skip
    text = {number: question.answer or "" for number, question in found.items()}
    assert f"image sha256:{'a' * 64}; schemas orders 3" in text[5]
    assert "1 configuration values (hash " in text[6]
    assert "suites: expectations/a.json on raw; thresholds: amounts within 20%" in text[9]
    assert text[9].endswith("only reported: edges")
    assert "totals: amounts" in text[10]
    assert "tags keep both sides of the publication" in text[12]
    assert text[15].endswith("limits: max_rows 1,000")


@pytest.mark.req("X11", "U15")
def test_what_another_engine_and_hooks_do_is_no_side_effect_that_was_ruled_out() -> None:
    hook = {"name": "pause", "on": "before_publish", "command": ["ops/pause.sh"]}
    after = {"suites": [{"file": "expectations/a.json"}], "on_failed": "rollback"}
    found = questions(
        contract(hooks=[hook], after_publish=after),
        transform={"file": "jobs/daily.sql", "writer": "external"},
        validation={"edge_partitions": 0},
    )  # fmt: skip
    text = {number: question.answer or "" for number, question in found.items()}
    assert text[5].endswith("another engine runs it, nobody here")
    assert text[7] == (
        "those of the engine that writes the shadow: nobody here can refuse them; "
        "hooks of the contract: pause (before_publish)"
    )
    assert text[8].endswith("another engine writes it, between shadow open and shadow close")
    assert "after publish: expectations/a.json, on failure rollback" in text[9]
