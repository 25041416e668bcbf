"""What counts pass is not judged again; what they do not cover, or fail, is judged as before."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.suites import (
    PreparedSuite,
    judge_input_by_counts,
    judge_rows_by_counts,
)
from lakehouse_backfill.domain.checks import (
    CheckResult,
    NotNull,
    RowCount,
    RowRule,
    SuiteEntry,
    Unique,
)
from lakehouse_backfill.domain.guards.privacy import NOTHING_HIDDEN
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ChecksFailed
from tests.support.fakes.context import contract, declared
from tests.support.fakes.steps import approved_run, state_of, world

DAYS = ("2020-01-02", "2020-01-03")
OUTPUT = {"file": "expectations/daily.json", "on": "output"}


class _Judge:
    """Great Expectations, with the verdicts of a test; notes what it is asked."""

    def __init__(self, *passed: bool) -> None:
        self.passed = passed
        self.asked: list[tuple[Any, tuple[int, ...]]] = []

    def judge_entries(
        self, frame: Any, file: str, given: Any, chosen: Any, group: Any, redaction: Any
    ) -> dict[int, CheckResult]:
        self.asked.append((frame, tuple(chosen)))
        return {
            number: CheckResult(name=f"e{number}", group=group, passed=passed, detail="judged")
            for number, passed in zip(chosen, self.passed, strict=True)
        }


class _Compute:
    """The ports; `breaking` counts what a test says."""

    def __init__(self, judge: _Judge, counts: tuple[int, tuple[int, ...]] = (0, ())) -> None:
        self.judge = judge
        self.inspecting = self
        self.counts = counts
        self.rules: list[tuple[RowRule, ...]] = []

    def breaking(self, frame: Any, rules: tuple[RowRule, ...]) -> tuple[int, tuple[int, ...]]:
        self.rules.append(rules)
        return self.counts


def entry(number: int, rule: RowRule | RowCount | None, *, is_of_rows: bool = True) -> SuiteEntry:
    return SuiteEntry(number=number, name=f"e{number}", rule=rule, is_of_rows=is_of_rows)


def suite(*rules: RowRule | RowCount | None) -> PreparedSuite:
    of_whole = entry(len(rules), None, is_of_rows=False)
    entries = (*(entry(number, rule) for number, rule in enumerate(rules)), of_whole)
    return PreparedSuite("s.json", {}, entries)


def judged(judge: _Judge, found: PreparedSuite, *broken: int) -> list[CheckResult]:
    compute: Any = _Compute(judge)
    return judge_rows_by_counts(compute, found, (7, broken), lambda: "rows", NOTHING_HIDDEN)


@pytest.mark.req("Q3", "Q9")
def test_what_no_row_breaks_passes_by_its_count_and_says_so() -> None:
    judge = _Judge()
    first, second = judged(judge, suite(NotNull("a"), Unique("b")), 0, 0)
    assert first == CheckResult(
        name="e0", group="quality", passed=True, detail="7 rows, counted", observed=0, counted=True
    )
    assert (second.name, second.counted, judge.asked) == ("e1", True, [])


@pytest.mark.req("Q3", "Q9")
def test_great_expectations_reports_what_rows_break_and_judges_what_is_not_counted() -> None:
    judge = _Judge(True, False)
    found = judged(judge, suite(NotNull("a"), None, Unique("b")), 0, 3)
    assert judge.asked == [("rows", (1, 2))]
    assert [(one.name, one.passed, one.counted) for one in found] == [
        ("e0", True, True), ("e1", True, False), ("e2", False, False),
    ]  # fmt: skip


@pytest.mark.req("Q9")
def test_a_verdict_that_contradicts_a_count_fails() -> None:
    (found,) = judged(_Judge(True), suite(NotNull("a")), 2)
    assert (found.passed, found.blocking, found.observed) == (False, True, 2)
    assert found.detail.startswith("2 of 7 rows break it by count, and Great Expectations finds")


@pytest.mark.req("Q0")
def test_an_input_is_counted_only_when_all_of_its_suite_can_be() -> None:
    rows, nulls = entry(0, RowCount(low=1)), entry(1, NotNull("a"))
    compute: Any = _Compute(_Judge(), (7, (0,)))
    whole = PreparedSuite("s.json", {}, (rows, nulls))
    found = judge_input_by_counts(compute, whole, "rows", NOTHING_HIDDEN)
    assert found is not None
    assert [(one.detail, one.observed) for one in found] == [
        ("observed 7, counted", 7), ("7 rows, counted", 0),
    ]  # fmt: skip
    part = PreparedSuite("s.json", {}, (rows, entry(1, None)))
    assert judge_input_by_counts(compute, part, "rows", NOTHING_HIDDEN) is None
    assert compute.rules == [(NotNull("a"),)]


@pytest.mark.req("Q0")
def test_an_input_with_too_few_rows_is_reported_by_great_expectations() -> None:
    judge = _Judge(False)
    compute: Any = _Compute(judge, (0, ()))
    few = PreparedSuite("s.json", {}, (entry(0, RowCount(low=1)),))
    found = judge_input_by_counts(compute, few, "rows", NOTHING_HIDDEN)
    assert [one.passed for one in found or ()] == [False]
    assert judge.asked == [("rows", (0,))]


@pytest.mark.req("Q9")
def test_only_a_chunk_with_rows_that_break_a_rule_is_judged_by_great_expectations() -> None:
    _, found = world(bad_rows={DAYS[1]}, counts_rows=True)
    compute = found.compute()
    run_id = approved_run(found, declared(contract=contract(suites=[OUTPUT])))
    with pytest.raises(ChecksFailed, match=r"chunk c0002"):
        stage(found, run_id, "bob")
    assert [line.rpartition(": ")[2] for line in compute.judged] == [DAYS[1]]
    assert state_of(found, run_id) is RunState.HALTED


@pytest.mark.req("Q9")
def test_the_evidence_of_chunks_says_what_was_counted_and_what_is_judged_on_the_result() -> None:
    _, found = world(counts_rows=True)
    run_id = approved_run(found, declared(contract=contract(suites=[OUTPUT])))
    stage(found, run_id, "bob")
    stored = found.evidence.newest(run_id, "chunk-checks")
    assert stored is not None
    counted = [
        (check["name"], check["detail"])
        for chunk in stored[1]["chunks"]
        for check in chunk["checks"]
        if check.get("counted")
    ]
    assert counted == [(f"rows of {OUTPUT['file']}", "10 rows, counted")] * 2
    assert stored[1]["judged_on_result"] == [f"all of {OUTPUT['file']}"]
