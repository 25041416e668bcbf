"""Gates as people read them: a question, a verdict, and one way to count."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.run import EDGES_DETAIL


def check(**fields: Any) -> CheckResult:
    stated = {"name": "edges are closed", "group": "edge", "passed": True, "detail": ""}
    return CheckResult.model_validate(stated | fields)


@pytest.mark.parametrize(
    ("name", "group", "question"),
    [
        ("edges are closed", "edge", "Does anything beyond the range change?"),
        ("spot checks", "golden", "Are the spot checks as expected?"),
        ("golden/days.csv", "golden", "Are the rows of golden/days.csv as expected?"),
        ("flights has rows in every day", "input", "Does flights have rows in every day?"),
        ("Each flight is there once.", "input",
         "Does the input hold what is assumed: Each flight is there once?"),
        ("fares changes by at most 2.0% in each partition", "business",
         "Does fares change by at most 2.0% in each partition?"),
        ("fares of the candidate equals fare of raw", "reconciliation",
         "Does fares of the candidate equal fare of raw?"),
        ("edges are closed", "", "Does anything beyond the range change?"),
        ("dest is a known airport", "", "dest is a known airport"),
        ("something else", "technical", "something else"),
    ],
)  # fmt: skip
def test_a_gate_asks_a_question(name: str, group: str, question: str) -> None:
    assert gate_registry.gate_question(name, group) == question


def test_every_question_ends_as_one_and_names_all_that_its_gate_names() -> None:
    for gate in gate_registry.GATES:
        words = gate_registry._PLACEHOLDER.findall
        assert gate.question.endswith("?"), gate.name
        assert sorted(words(gate.question)) == sorted(words(gate.name)), gate.name


@pytest.mark.parametrize(
    ("fields", "is_waived", "verdict"),
    [
        ({}, False, "passed"),
        ({"passed": False}, False, "failed"),
        ({"passed": False}, True, "waived"),
        ({"passed": False, "blocking": False}, False, "failed without blocking"),
        ({"judged": False}, False, "not judged"),
        ({"detail": "not looked at: edge_partitions is 0"}, False, "not judged"),
        ({"detail": "not looked at", "group": "quality"}, False, "passed"),
    ],
)
def test_a_check_has_one_of_five_verdicts(
    fields: dict[str, Any], is_waived: bool, verdict: str
) -> None:
    assert gate_registry.find_verdict(check(**fields), is_waived=is_waived) == verdict


def test_what_was_not_judged_is_not_counted_as_passed() -> None:
    verdicts = ["passed"] * 1200 + ["not judged", "failed", "waived", "failed without blocking"]
    assert gate_registry.count_verdicts(verdicts) == (
        "1,200 of 1,204 checks passed, 1 failed, 1 waived, 1 failed without blocking, 1 not judged"
    )
    assert gate_registry.count_verdicts(["passed"]) == "1 of 1 checks passed"
    assert gate_registry.count_verdicts(["passed"], "it") == "1 of 1 checks of it passed"


def test_a_judged_check_is_stored_as_before() -> None:
    assert "judged" not in check().model_dump(mode="json")
    assert check(judged=False).model_dump(mode="json")["judged"] is False


def test_checks_are_described_by_question_and_finding() -> None:
    checks = [check(detail="open at 2020-01-01"), check(name="own", group="technical", detail="x")]
    assert gate_registry.describe_checks(checks) == (
        "Does anything beyond the range change? open at 2020-01-01; own: x"
    )


def test_people_see_how_many_partitions_lie_beyond_the_edges_and_no_checksums() -> None:
    detail = {"rows": 4, EDGES_DETAIL: {"2020-01-01": "lhb-rowhash-1:0a:1:0b", "2020-01-04": None}}
    told = gate_registry.with_questions(detail)
    assert told == {"rows": 4, "computed beyond the edges": "2 partitions"}
