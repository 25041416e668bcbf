"""From which state a stateful run starts: the plan chooses it, and says why."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.stateful.declaration import StateSnapshot
from lakehouse_backfill.errors import BackfillError, ConfigError, Unsupported
from tests.support.fakes import steps
from tests.support.fakes.context import contract, declared
from tests.support.fakes.lake import FakeLake

pytestmark = pytest.mark.req("X4", "P6")

STATEFUL: dict[str, Any] = {
    "state": {"derived_from_input": True, "key": ["id"]}, "start_boundary": "restored",
    "warm_up_days": 1, "timers": "event_time", "late": "include",
    "watermark": {"policy": "batch_equivalent"},
}  # fmt: skip
TABLE = "lhb.lhb_state_" + "0" * 32


def wanted(first: str = "2020-01-02", stop: str = "2020-01-04", **changes: Any) -> DeclaredRun:
    return declared(first, stop, stateful=STATEFUL | changes.pop("stateful", {}), **changes)


def plan(found: Context, first: str = "2020-01-04", **changes: Any) -> Plan:
    return make_plan(found, wanted(first, f"{first[:-1]}6", **changes), "bob", None)


def kept_states() -> tuple[FakeLake, Context]:
    """A validated run whose chunks have left states; the last one's table is there."""
    where, found = steps.world()
    run_id = steps.validated_run(found, wanted())
    where.add(TABLE, state="state")
    for record in found.runs.chunks(run_id):
        label = record.partitions[-1]
        state = StateSnapshot(
            table=TABLE if label == "2020-01-03" else f"{TABLE[:-1]}1", snapshot_id=1,
            checksum="x", key="k", boundary=label,
        )  # fmt: skip
        found.runs.record_chunk(record.model_copy(update={"state": state.text}))
    return where, found


def test_a_run_starts_from_the_nearest_state_and_the_plan_says_so() -> None:
    _, found = kept_states()
    made = plan(found)
    start = made.resolved.state_start
    assert start is not None
    assert start.kept is not None
    assert (start.kept.boundary, start.warm_up) == ("2020-01-03", False)
    assert made.notes.count(f"state: {start.why}") == 1
    assert start.why.startswith("2020-01-04 starts from the state at the end of 2020-01-03")
    # It decides what is computed: without it the intent is another one.
    other = made.resolved.model_copy(update={"state_start": None})
    assert other.manifest_hash != made.manifest_hash
    assert [len(one.partitions) for one in made.resolved.chunks] == [1, 1]


REFUSED: dict[str, str] = {
    "removed": "it is not kept any more",
    "late fact": "raw has changed before its end",
    "code": "no good run of this code kept one",
    "range": "the range of raw begins after it",
    "not validated": "no good run of this code kept one",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_state_that_would_be_wrong_is_refused_with_its_reason(case: str) -> None:
    where, found = kept_states()
    changes: dict[str, Any] = {}
    if case == "removed":
        where.tables.pop(TABLE)
    elif case == "late fact":
        where.write("bronze.raw", "2020-01-02", "late")
    elif case == "code":
        changes["transform"] = {"config": {"rate": 2}}
    elif case == "range":
        narrow = {"column": "day", "from": "2020-01-04", "to": "2020-02-01"}
        changes |= {"sources": {"raw": {"range": narrow}}, "first": "2020-01-05"}
        where.tables.pop(TABLE)
        where.add(TABLE.replace("0" * 32, "0" * 31 + "1"), state="state")
    elif case == "not validated":
        where, found = steps.world()
        steps.staged_run(found, wanted())
    start = plan(found, **changes).resolved.state_start
    assert start is not None
    assert start.kept is None
    assert REFUSED[case] in start.why
    assert start.why.endswith("its state is made of 1 days of warm-up")


def test_a_fact_that_is_behind_the_state_does_not_spoil_it() -> None:
    where, found = kept_states()
    where.write("bronze.raw", "2020-01-04", "new")
    start = plan(found).resolved.state_start
    assert start is not None
    assert start.kept is not None


def test_without_a_warm_up_a_run_without_a_state_is_a_cold_start() -> None:
    _, found = steps.world()
    sources = {"raw": {"warm_up_days": 0}}
    start = plan(found, stateful={"warm_up_days": 0}, sources=sources).resolved.state_start
    assert start is not None
    assert not start.warm_up
    assert start.why.endswith(": it is a cold start")


CANNOT: dict[str, tuple[dict[str, Any], type[BackfillError], str]] = {
    "processing time": ({"stateful": {"timers": "processing_time"}}, ConfigError,
                        "two runs give two results"),
    "side by side": ({"limits": {"parallel": 2}}, ConfigError, "the state of the chunk before"),
    "catch up": ({"safety": {"on_conflict": "catch_up"}}, Unsupported, "takes no chunk over"),
    "a query": ({"transform": {"file": "jobs/daily.sql"}}, Unsupported, "in Python"),
}  # fmt: skip


@pytest.mark.parametrize("case", CANNOT)
def test_a_plan_refuses_what_a_stateful_run_cannot_do(case: str) -> None:
    _, found = steps.world()
    changes, kind, problem = CANNOT[case]
    with pytest.raises(kind, match=problem):
        plan(found, **changes)


def test_restricted_values_are_kept_in_no_state() -> None:
    _, found = steps.world()
    columns = {"amount": {"classification": "restricted"}}
    secret = contract(privacy={"columns": columns})
    with pytest.raises(Unsupported, match="would keep values of restricted columns"):
        plan(found, contract=secret)
