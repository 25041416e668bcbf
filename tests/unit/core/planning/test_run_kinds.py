"""What each kind of run means, and what a plan of that kind must not declare."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from lakehouse_backfill.core.planning.inputs.pins import require_current_names
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.tables.table import Column, Snapshot
from lakehouse_backfill.errors import ConfigError, Unsupported
from tests.support.examples.plans import with_fields
from tests.support.fakes.context import PRODUCT, context, declared, lake
from tests.support.fakes.steps import published_run

OWN_SOURCE = {
    "self": {
        "table": PRODUCT,
        "range": {"column": "day", "from": "2019-12-01", "to": "2020-02-01"},
    }
}


def intent(kind: str, mode: str = "backfill") -> dict[str, str]:
    return {"kind": kind, "mode": mode}


def planned(found: Context, **changes: Any) -> Plan:
    return make_plan(found, declared(**changes), "bob", None)


@pytest.mark.req("V1")
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("backfill", "backfill"),
        ("reprocessing", "backfill"),
        ("restatement", "backfill"),
        ("repair", "dry_run"),
        ("migration", "backfill"),
        ("replay", "replay"),
    ],
)
def test_the_plan_says_what_its_kind_means_and_keeps_it(kind: str, mode: str) -> None:
    plan = planned(context(lake()), run=intent(kind, mode))
    assert plan.notes[0].startswith(f"{kind}: ")
    assert plan.resolved.manifest.run.kind == kind


@pytest.mark.req("V1")
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run": intent("replay")}, "run.mode backfill does not fit a replay"),
        ({"run": intent("restatement", "replay")}, "run.mode replay does not fit a restatement"),
        (
            {"run": intent("migration"), "sources": OWN_SOURCE},
            "a migration reads another table or layout",
        ),
    ],
)
def test_a_kind_that_the_declaration_contradicts_is_refused(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        planned(context(lake()), **changes)


@pytest.mark.req("V1")
@pytest.mark.parametrize("kind", ["repair", "reprocessing", "replay"])
def test_a_repair_uses_the_transform_that_computed_the_product(kind: str) -> None:
    found = context(lake())
    published_run(found)
    run = intent(kind, "replay" if kind == "replay" else "backfill")
    assert planned(found, run=run).notes[0].startswith(f"{kind}: ")
    with pytest.raises(ConfigError, match="no run of this lake used daily 2"):
        planned(found, run=run, transform={"version": "2.0.0"})


def test_a_source_that_is_the_target_itself_is_said() -> None:
    plan = planned(context(lake()), sources=OWN_SOURCE)
    assert any("source self is the target itself at snapshot" in note for note in plan.notes)
    assert not any("target itself" in note for note in planned(context(lake())).notes)


@pytest.mark.parametrize(
    ("then", "now", "problem"),
    [
        ({1: "day", 2: "amount"}, {1: "day", 2: "total"}, "amount is total now"),
        ({1: "day", 2: "amount"}, {1: "day", 3: "amount"}, "amount was dropped and added again"),
        ({1: "day", 2: "amount"}, {1: "day", 2: "amount", 3: "more"}, None),
        ({1: "day", 2: "amount"}, {1: "day"}, None),
        ({1: "K", 2: "k"}, {1: "K", 2: "k"}, "K and k, which Spark cannot tell apart"),
    ],
)
def test_a_snapshot_with_other_or_equal_names_of_columns_is_not_planned_on(
    then: dict[int, str], now: dict[int, str], problem: str | None
) -> None:
    snapshot = Snapshot(
        snapshot_id=7, parent_id=None, sequence_number=1, committed_at_ms=0, operation="append",
        summary={}, columns=columns(then),
    )  # fmt: skip
    info = with_fields(lake().describe(PRODUCT), columns=columns(now))
    with nullcontext() if problem is None else pytest.raises(Unsupported, match=problem):
        require_current_names(info, snapshot, "target")


def columns(names: dict[int, str]) -> tuple[Column, ...]:
    return tuple(Column(field_id=key, name=name, type="long") for key, name in names.items())
