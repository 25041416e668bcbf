"""The gates of a run that restates some columns: other columns, keys, and the diff beside them."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation import column_scope
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.partitions import Scope
from tests.support.fakes.context import declared
from tests.support.fakes.lake import DAY
from tests.support.fakes.steps import approved_run, world

COLUMNS = {"target": {"columns": ["amount"]}}
GATES = ("other columns are unchanged", "the same keys are there", "only named columns differ")
SCOPE = Scope(field=DAY, partitions=("2020-01-02", "2020-01-03"))


def judged(changes: Any = COLUMNS, **engine: Any) -> tuple[str, dict[str, CheckResult]]:
    """The state of a run over the fakes, and its checks by name."""
    _, found = world(**engine)
    run_id = approved_run(found, declared(**changes))
    stage(found, run_id, "bob")
    checks = validate(found, run_id, "bob")[1].checks
    return found.runs.status(run_id).state.value, {check.name: check for check in checks}


@pytest.mark.req("P9", "Q8")
def test_what_is_as_before_passes_and_a_run_of_whole_rows_is_not_asked() -> None:
    state, checks = judged(differing_columns={"amount": 3, "produced_at": 20})
    assert state == "validated"
    assert [checks[name].detail for name in GATES] == [
        "20 rows, counts and checksums of all columns but amount equal in 2 partitions",
        "20 keys, counts and checksums equal",
        "3 values of amount differ, and no other",
    ]
    assert not any(checks[name].waivable for name in GATES)
    _, checks = judged({})
    assert not set(GATES) & set(checks)


@pytest.mark.req("P9", "Q8")
def test_another_column_or_other_keys_reject_the_run_for_good() -> None:
    state, checks = judged(touched={"2020-01-03"})
    assert (state, [checks[name].passed for name in GATES]) == ("rejected", [False, False, True])
    assert checks[GATES[0]].detail == (
        "1 partitions differ in other columns than amount, first 2020-01-03"
    )


@pytest.mark.req("P9", "Q8")
def test_the_diff_is_a_witness_of_its_own() -> None:
    state, checks = judged(differing_columns={"amount": 3, "cause": 2})
    assert (state, [checks[name].passed for name in GATES]) == ("rejected", [True, True, False])
    assert checks[GATES[2]].detail == "rows differ in cause in 2"


@pytest.mark.req("P9")
def test_a_lost_row_is_told_by_its_partition_and_counts() -> None:
    one, fewer = (Checksum(rows=rows, xor=1, total=1, shape="s") for rows in (5, 4))
    held = {"2020-01-02": one, "2020-01-03": one}
    for found, counts in (({**held, "2020-01-03": fewer}, "5 before, 4 now"),
                          ({"2020-01-02": one}, "5 before, 0 now")):  # fmt: skip
        result = column_scope.check_same_keys(SCOPE, (held, found))
        assert (result.passed, result.detail) == (
            False, f"1 partitions have other keys, first 2020-01-03: {counts}",
        )  # fmt: skip
