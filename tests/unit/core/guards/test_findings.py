"""Findings in the code stop a plan, unless the manifest allows them by kind with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from lakehouse_backfill.core.guards.determinism import scan_code
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.guards.determinism import (
    KINDS,
    AllowedNondeterminism,
    Finding,
    KindName,
)
from lakehouse_backfill.domain.manifest import TransformRef
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import Fault, NonDeterministic
from tests.support.fakes.context import context, declared, lake

FILE = "jobs/daily.py"
CLOCK = """import time
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform


@transform(name="daily", version="1.0.0", inputs=("raw",))
def daily(context, raw):
    return raw.withColumn("at", F.lit(time.time())).withColumn("r", F.rand())
"""
SHUFFLE = CLOCK.replace("raw.withColumn", "raw.repartition(F.rand()).withColumn")
REASON = "the column is dropped by readers"


def planned(text: str, *allowed: dict[str, object]) -> Plan:
    found = context(lake(), file_text=lambda file: text)
    return make_plan(found, declared(safety={"allow_nondeterminism": list(allowed)}), "bob", None)


@pytest.mark.req("D1")
def test_a_plan_is_refused_with_every_line_and_what_to_write_instead() -> None:
    with pytest.raises(NonDeterministic) as refused:
        planned(CLOCK)
    assert refused.value.exit_code == 3
    assert refused.value.faults == (
        Fault(
            FILE, 8, "random_value", f"rand() {KINDS['random_value'].problem}",
            KINDS["random_value"].instead,
        ),
        Fault(
            FILE, 8, "wall_clock", f"time.time {KINDS['wall_clock'].problem}",
            KINDS["wall_clock"].instead,
        ),
    )  # fmt: skip
    assert refused.value.state == "nothing was planned, pinned or changed"
    assert "safety.allow_nondeterminism" in refused.value.fix


def test_a_finding_that_is_allowed_is_shown_with_its_reason_in_plan_and_checklist() -> None:
    plan = planned(
        CLOCK,
        {"kind": "wall_clock", "reason": REASON},
        {"kind": "random_value", "file": FILE, "line": 8, "reason": "only for a test"},
    )
    assert plan.findings == (
        Finding(kind="random_value", file=FILE, line=8, found="rand()", allowed="only for a test"),
        Finding(kind="wall_clock", file=FILE, line=8, found="time.time", allowed=REASON),
    )
    (answer,) = [one.answer for one in plan.checklist if one.number == 5]
    assert f"wall_clock at {FILE}:8 ({REASON})" in str(answer)


def test_an_allowance_for_another_place_allows_nothing() -> None:
    rand = {"kind": "random_value", "reason": REASON}
    with pytest.raises(NonDeterministic, match="1 places"):
        planned(CLOCK, rand, {"kind": "wall_clock", "line": 9, "reason": REASON})


def test_a_shuffle_by_a_random_key_is_refused_whatever_is_allowed() -> None:
    allowed = [{"kind": kind, "reason": REASON} for kind in ("wall_clock", "random_value")]
    with pytest.raises(NonDeterministic) as refused:
        planned(SHUFFLE, *allowed)
    assert [fault.field for fault in refused.value.faults] == ["random_shuffle"]
    with pytest.raises(ValidationError, match="random_shuffle can't be allowed"):
        AllowedNondeterminism(kind="random_shuffle", reason=REASON)


def test_a_plan_without_findings_says_what_was_looked_at() -> None:
    plan = planned(CLOCK.replace("F.lit(time.time())", "F.lit(1)").replace("F.rand()", "F.lit(2)"))
    assert plan.findings == ()
    (answer,) = [one.answer for one in plan.checklist if one.number == 5]
    assert "no non-determinism found in 1 files of code" in str(answer)
    assert "findings" not in plan.model_dump(mode="json")


def test_every_kind_has_a_description_and_every_name_of_a_kind_is_one() -> None:
    assert set(KindName.__args__) == set(KINDS)  # type: ignore[attr-defined]


def test_the_page_lists_exactly_the_kinds_of_the_code() -> None:
    page = Path(__file__).parents[4] / "docs" / "determinism.md"
    kinds = page.read_text("utf-8").partition("\n## Kinds\n")[2].partition("\n## ")[0]
    rows = [row for row in kinds.splitlines() if row.startswith("| `")]
    assert rows == [
        f"| `{name}` | {kind.severity} | {kind.problem} | {kind.instead} |"
        for name, kind in KINDS.items()
    ]


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.0"])
def test_the_transforms_of_the_demo_are_not_flagged(version: str) -> None:
    file = "jobs/arrivals_daily/transform.py"
    text = (Path(__file__).parents[4] / file).read_text("utf-8")
    wanted = TransformRef(name="arrivals_daily", version=version, file=file)
    assert scan_code({file: text}, wanted) == ()
