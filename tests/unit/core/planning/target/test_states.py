"""From which state a stateful run starts: the plan chooses it, and says why."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.planning.target import states
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.cascade.graph import CandidatePin
from lakehouse_backfill.domain.partitions import ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.stateful.declaration import StateSnapshot
from lakehouse_backfill.errors import BackfillError, ConfigError, Unsupported
from tests.support.examples.plans import with_fields
from tests.support.fakes import steps
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared
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


NO_WARM_UP: dict[str, Any] = {
    "stateful": {"warm_up_days": 0}, "sources": {"raw": {"warm_up_days": 0}},
}  # fmt: skip


def good_run(where: FakeLake, found: Context, first: str, stop: str, **changes: Any) -> str:
    """A validated run without a warm-up, whose chunks have left states."""
    stateful = {"warm_up_days": 0, "start_boundary": "empty"}
    fields = NO_WARM_UP | {"stateful": stateful} | changes
    run_id = steps.validated_run(found, wanted(first, stop, **fields))
    for record in found.runs.chunks(run_id):
        label = record.partitions[-1]
        table = f"lhb.{run_id}_{label}"
        state = StateSnapshot(table=table, snapshot_id=1, checksum="x", key="k", boundary=label)
        where.add(table, state="state")
        found.runs.record_chunk(record.model_copy(update={"state": state.text}))
    return run_id


def test_a_state_whose_rows_reach_back_further_goes_before_a_nearer_one() -> None:
    where, found = steps.world()
    whole = good_run(where, found, "2020-01-01", "2020-01-03")
    good_run(where, found, "2020-01-03", "2020-01-04")
    start = plan(found, **NO_WARM_UP).resolved.state_start
    assert start is not None
    assert start.kept is not None
    assert (start.run_id, start.kept.boundary) == (whole, "2020-01-02")
    assert start.cold_since == "2020-01-01"
    assert start.why.endswith("which holds no row from before 2020-01-01")


def test_what_is_read_behind_a_state_is_estimated_too() -> None:
    where, found = steps.world()
    for day in ("2020-01-02", "2020-01-03", "2020-01-04"):
        where.write("bronze.raw", day, f"raw {day}")
    good_run(where, found, "2020-01-01", "2020-01-02")
    assert plan(found, **NO_WARM_UP).estimate.input_files == 3
    assert plan(found, stateful={"start_boundary": "warm_up"}).estimate.input_files == 2


def test_a_dry_run_leaves_no_state_to_start_from() -> None:
    where, found = steps.world()
    good_run(where, found, "2020-01-02", "2020-01-04", run={"mode": "dry_run"})
    start = plan(found, **NO_WARM_UP).resolved.state_start
    assert start is not None
    assert start.kept is None


@pytest.mark.parametrize(("days", "is_whole"), [(2, True), (3, False)])
def test_a_state_of_fewer_days_than_the_warm_up_is_not_restored(days: int, is_whole: bool) -> None:
    where, found = steps.world()
    fields: dict[str, Any] = {"sources": {"raw": {"warm_up_days": days}}}
    begun = {"warm_up_days": days, "start_boundary": "empty"}
    good_run(where, found, "2020-01-02", "2020-01-04", stateful=begun, **fields)
    start = plan(found, stateful={"warm_up_days": days}, **fields).resolved.state_start
    assert start is not None
    assert (start.kept is not None, start.warm_up) == (is_whole, not is_whole)
    assert is_whole or "it holds no row from before 2020-01-02" in start.why


def test_a_start_without_a_state_that_was_to_be_restored_is_a_warning() -> None:
    where, found = steps.world()
    cold, declared_cold = plan(found, **NO_WARM_UP), plan(found)
    assert [one for one in cold.warnings if one.startswith("cold start: no state from before")]
    good_run(where, found, "2020-01-02", "2020-01-04")
    assert not [
        one
        for made in (declared_cold, plan(found, **NO_WARM_UP))
        for one in made.warnings
        if one.startswith("cold start")
    ]


OTHER_PINS: dict[str, tuple[dict[str, Any], str]] = {
    "column": ({"range__column": "arrived"}, "raw was cut by another column"),
    "candidate": (
        {
            "candidate": CandidatePin(
                run_id="bf-up", manifest_hash="h", product="up", product_table="bronze.raw",
                table="bronze.raw", snapshot_id=1,
            )
        },
        "it was made of what bf-up staged of raw",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_PINS)
def test_a_state_of_other_rows_of_the_same_snapshot_is_refused(case: str) -> None:
    _, found = kept_states()
    change, because = OTHER_PINS[case]
    runs: Any = found.runs
    for run_id, made in runs.plans.items():
        (pin,) = made.resolved.sources
        runs.plans[run_id] = with_fields(made, resolved__sources=(with_fields(pin, **change),))
    start = plan(found).resolved.state_start
    assert start is not None
    assert because in start.why


def test_rows_that_only_a_delete_file_hides_are_a_change() -> None:
    where, found = kept_states()
    tables: Any = where
    spans = tables.column_spans

    def after_equality_deletes(table: str, snapshot_id: int, *more: Any) -> Any:
        deletes = ("d-1",) if snapshot_id == 1 else ("d-1", "d-2")
        change = {"deletes": deletes, "least_rows": 0}
        return tuple(one.model_copy(update=change) for one in spans(table, snapshot_id, *more))

    tables.column_spans = after_equality_deletes
    where.write("bronze.raw", "2020-01-05", "new")
    start = plan(found).resolved.state_start
    assert start is not None
    assert "raw has changed before its end" in start.why


def test_the_files_of_a_snapshot_are_read_once_however_many_states_are_looked_at() -> None:
    where, found = kept_states()
    where.add(f"{TABLE[:-1]}1", state="state")
    where.write("bronze.raw", "2020-01-01", "late")
    calls = steps.note_calls(where, "column_spans")
    start = plan(found).resolved.state_start
    assert start is not None
    assert start.why.count("raw has changed before its end") == 2
    assert len(calls) == len(set(calls)) == 2


def test_hours_are_not_computed_from_days() -> None:
    _, found = steps.world()
    made = plan(found).resolved
    hours = ScopeField(column="day", transform="hour", type="timestamptz")
    with pytest.raises(Unsupported, match="each hour would read the rows of its whole day"):
        states.with_start(found, with_fields(made, scope__field=hours))


def test_a_state_names_its_target_also_where_staging_made_it() -> None:
    where = FakeLake()
    where.add("bronze.raw", **{"2020-01-01": "raw-1"})
    found = context(where, compute := FakeCompute(where))
    calls = steps.note_calls(compute, "stage")
    run_id = steps.staged_run(found, wanted())
    assert found.runs.plan(run_id).resolved.target.uuid is None
    assert [given.resolved.target.uuid for given, *_ in calls] == [f"uuid-{PRODUCT}"] * 2


CANNOT: dict[str, tuple[dict[str, Any], type[BackfillError], str]] = {
    "processing time": ({"stateful": {"timers": "processing_time"}}, ConfigError,
                        "two runs give two results"),
    "side by side": ({"limits": {"parallel": 2}}, ConfigError, "the state of the chunk before"),
    "catch up": ({"safety": {"on_conflict": "catch_up"}}, Unsupported, "takes no chunk over"),
    "some rows": ({"target": {"row_predicate": {"id": 1}}}, Unsupported, "a state of all rows"),
    "rows behind": ({"sources": {"raw": {"cool_down_days": 1}}}, Unsupported,
                    "they would count twice"),
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
