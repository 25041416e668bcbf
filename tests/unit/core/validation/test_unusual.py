"""What is unusual about a result: reported, blocking, or not looked at, as the contract says."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from lakehouse_backfill.core.approval.decisions import waive
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import staged_run

pytestmark = pytest.mark.req("Q6", "Q8")
#: The restated day, a Thursday.
DAY = date(2020, 1, 2)
GATE = "rows is like that of earlier partitions"


def judged(
    weeks: int, files: int, watch: dict[str, str] | None = None, gates: dict[str, str] | None = None
) -> tuple[Context, str, RunState, ValidationResult]:
    """Restate a day into so many files of ten rows; each earlier Thursday has one."""
    where = FakeLake()
    where.add("bronze.raw", **{"2020-01-01": "raw-1"})
    days = [DAY - timedelta(days=7 * week) for week in range(weeks + 1)]
    where.add(PRODUCT, **{day.isoformat(): f"old {day}" for day in days})
    compute = FakeCompute(where, keys={DAY.isoformat(): {f"new-{n}" for n in range(files)}})
    found = context(where, compute)
    changes: dict[str, Any] = {"watch": watch} if watch else {}
    wanted = declared(
        DAY.isoformat(), (DAY + timedelta(days=1)).isoformat(), contract=contract(**changes),
        validation={"edge_partitions": 0, "gates": gates or {}},
    )  # fmt: skip
    run_id = staged_run(found, wanted)
    status, result, _ = validate(found, run_id, "bob")
    return found, run_id, status.state, result


def said(result: ValidationResult) -> list[tuple[bool, bool, str]]:
    return [
        (check.passed, check.blocking, check.detail)
        for check in result.checks
        if check.name == GATE
    ]


FAR = (
    "1 of 1 partitions far from earlier partitions of the same weekday; "
    "2020-01-02: 30, median 10 of 9 (all the same there)"
)


def test_an_anomaly_is_reported_where_the_contract_says_nothing() -> None:
    _, _, state, result = judged(weeks=9, files=3)
    assert (state, said(result)) == (RunState.VALIDATED, [(False, False, FAR)])
    assert [len(report.found) for report in result.anomalies] == [1]


def test_an_anomaly_blocks_where_the_contract_says_so_until_somebody_reviewed_it() -> None:
    found, run_id, state, result = judged(weeks=9, files=3, watch={"anomalies": "block"})
    assert (state, said(result)) == (RunState.REJECTED, [(False, True, FAR)])
    status = waive(found, run_id, GATE, "ana", "three shops opened")
    assert status.state is RunState.VALIDATED


def test_a_run_may_have_its_anomalies_reported_for_once() -> None:
    _, _, state, result = judged(
        weeks=9, files=3, watch={"anomalies": "block"}, gates={"anomalies": "report"}
    )
    assert (state, said(result)) == (RunState.VALIDATED, [(False, False, FAR)])


def test_too_little_history_is_said_and_blocks_nothing() -> None:
    _, _, state, result = judged(weeks=7, files=3, watch={"anomalies": "block"})
    detail = (
        "not judged, too little history: 1 have fewer than 8 of earlier partitions of the same "
        "weekday"
    )
    assert (state, said(result)) == (RunState.VALIDATED, [(True, True, detail)])


def test_what_is_not_watched_is_not_looked_at() -> None:
    _, _, _, result = judged(9, 3, watch={"anomalies": "off", "distributions": "off"})
    assert result.anomalies == ()
    assert {"anomaly", "distribution"} & {check.group for check in result.checks} == set()
