"""Stateful jobs: states are kept and restored, and watermark policies judge rows in any cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.stateful.declaration import Stateful, StateSnapshot, StateStart
from lakehouse_backfill.errors import BackfillError, ChecksFailed, ConfigError, NotFound
from tests.support.fakes.kills import Killed, killed_at
from tests.support.spark.lake import DAYS, Lake, PlanMaker

pytestmark = pytest.mark.req("X4")

#: A balance that never falls below zero: it depends on the order of the events of a key.
JOB = """
import pandas as pd
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

def follow(key, events, before):
    balance, rows = (int(before["v"].iloc[0]) if len(before) else 0), []
    for event in events.itertuples():
        balance = max(0, balance + event.v)
        rows.append((event.d, event.k, balance))
    rows += [(None, key[0], balance)]
    return pd.DataFrame(rows, columns=["d", "k", "v"])

@transform(name="copy", version="1.0.0", inputs=("src",), state="k bigint, v bigint")
def copy(context, src, state):
    events = src.select("d", "k", "v", "at", "seen")
    made = events.groupBy("k").cogroup(state.groupBy("k")).applyInPandas(
        follow, "d date, k bigint, v bigint")
    after = made.where(F.col("d").isNull()).select("k", "v")
    daily = made.where(F.col("d").isNotNull()).groupBy("d", "k").agg(F.sum("v").alias("v"))
    return daily, after
"""
#: Sums: their order is not asked for. A row that is marked as late becomes one of its own.
SUM_JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="copy", version="1.0.0", inputs=("src",), state="k bigint, v bigint")
def copy(context, src, state):
    late = F.col("lhb_is_late") if "lhb_is_late" in src.columns else F.lit(False)
    marked = src.withColumn("late", late)
    daily = marked.groupBy("d", F.when(F.col("late"), -F.col("k")).otherwise(F.col("k")).alias("k"))
    total = state.unionByName(marked.where(~F.col("late")).select("k", "v"))
    return daily.agg(F.sum("v").alias("v")), total.groupBy("k").agg(F.sum("v").alias("v"))
"""

Event = tuple[date, int, int, datetime, datetime]
START = datetime(2024, 1, 5, tzinfo=timezone.utc)


def event(hours: float, key: int, value: int, seen_after: float) -> Event:
    """An event some hours after the start, which arrives some hours later."""
    at = START + timedelta(hours=hours)
    return (at.date(), key, value, at, at + timedelta(hours=seen_after))


#: Two keys over three days, in the order in which they were stored: not that of their times.
EVENTS = (
    event(20, 1, -7, 0), event(2, 1, 5, 0), event(9, 1, 4, 1), event(3, 2, 8, 30),
    event(26, 1, 3, 0), event(40, 2, -9, 0), event(30, 2, 6, 0), event(45, 1, -1, 2),
    event(50, 2, 2, 0), event(70, 1, 9, 0), event(60, 1, -20, 12), event(33, 2, 4, 36),
)  # fmt: skip
ALL = DAYS[4:7]


def declared(policy: str, late: str, **changes: Any) -> dict[str, Any]:
    mark = {"policy": policy, **({} if policy == "batch_equivalent" else {"event_time": "at"})}
    if policy in ("bounded_disorder", "corrections_for_late_facts"):
        mark |= {"arrival": "seen", "disorder_s": 4 * 3600}
    return {
        "state": {"derived_from_input": True, "key": ["k"]}, "start_boundary": "empty",
        "timers": "event_time", "late": late, "watermark": mark, **changes,
    }  # fmt: skip


@dataclasses.dataclass
class World:
    """A lake with events, a product of daily values, and plans of stateful runs over it."""

    lake: Lake

    def plan(
        self, policy: str, late: str, size: int = 1, start: StateStart | None = None, **fields: Any
    ) -> Plan:
        run_id = fields.pop("run_id", "bf-1")
        partitions = fields.pop("partitions", ALL)
        changes = fields.pop("changes", {})
        maker = PlanMaker(self.lake, partitions=partitions, per_chunk=size, **fields)
        plan = maker.make(run_id)
        declaration = Stateful.model_validate(declared(policy, late, **changes))
        manifest = plan.resolved.manifest.model_copy(update={"stateful": declaration})
        update = {"manifest": manifest, "state_start": start or StateStart(why="as declared")}
        return plan.model_copy(update={"resolved": plan.resolved.model_copy(update=update)})

    def run(self, plan: Plan) -> list[ChunkRecord]:
        """Stage all chunks, each by a process of its own."""
        return [self.lake.staging().stage(plan, one, 1) for one in plan.resolved.chunks]

    def rows(self) -> dict[tuple[str, int], int]:
        found = {(str(d), k): v for d, k, v in self.lake.rows("shadow") if v is not None}
        return {place: v for place, v in found.items() if place[0] in ALL}

    def state(self, record: ChunkRecord) -> dict[int, int]:
        kept = StateSnapshot.parse(record.state or "")
        return {row["k"]: row["v"] for row in self.lake.tables.read(kept.table, None).collect()}


@pytest.fixture
def world(lake: Lake) -> World:
    lake.create("out", (("d", "date"), ("k", "long"), ("v", "long")))
    lake.create("shadow", (("d", "date"), ("k", "long"), ("v", "long")))
    columns = (("d", "date"), ("k", "long"), ("v", "long"))
    lake.create("src", (*columns, ("at", "timestamptz"), ("seen", "timestamptz")))
    lake.append("src", *EVENTS)
    lake.append("out", (date(2024, 1, 1), 1, 1))
    lake.job(SUM_JOB)
    return World(lake)


def sums(events: Iterable[Event], key: Callable[[Event], int] = lambda one: one[1]) -> Any:
    """The daily sums by key, in one thread."""
    found: dict[tuple[str, int], int] = {}
    for one in events:
        place = (str(one[0]), key(one))
        found[place] = found.get(place, 0) + one[2]
    return found


def is_late(one: Event) -> bool:
    """Whether an event was more than four hours behind the latest that had arrived before it."""
    earlier = [other[3] for other in EVENTS if other[4] < one[4]]
    return bool(earlier) and one[3] < max(earlier) - timedelta(hours=4)


def balances(events: Iterable[Event]) -> tuple[dict[tuple[str, int], int], dict[int, int]]:
    """The sums of the balances after each event, and the last ones, in one thread."""
    now: dict[int, int] = {}
    found: dict[tuple[str, int], int] = {}
    for one in events:
        now[one[1]] = max(0, now.get(one[1], 0) + one[2])
        place = (str(one[0]), one[1])
        found[place] = found.get(place, 0) + now[one[1]]
    return found, now


def test_events_of_a_key_come_in_the_order_of_their_times(world: World) -> None:
    world.lake.job(JOB)
    *_, last = world.run(world.plan("sort_by_event_time_in_key", "include"))
    rows, state = balances(sorted(EVENTS, key=lambda one: one[3]))
    assert (world.rows(), world.state(last)) == (rows, state)
    # Their order matters: in that of arrival other balances come out.
    assert balances(sorted(EVENTS, key=lambda one: one[4])) != (rows, state)


@pytest.mark.parametrize("size", [1, 3])
def test_a_row_behind_the_latest_that_arrived_is_left_out_in_any_cut(
    world: World, size: int
) -> None:
    records = world.run(world.plan("bounded_disorder", "drop", size))
    on_time = [one for one in EVENTS if not is_late(one)]
    assert 0 < len(on_time) < len(EVENTS)
    assert world.rows() == sums(on_time)
    assert sum(one.late_rows or 0 for one in records) == len(EVENTS) - len(on_time)


def test_late_rows_stop_a_run_that_accepts_none(world: World) -> None:
    with pytest.raises(ChecksFailed, match="are late by bounded_disorder"):
        world.run(world.plan("bounded_disorder", "fail"))
    assert world.rows() == {}


def test_a_batch_takes_all_rows_whenever_they_arrived(world: World) -> None:
    records = world.run(world.plan("batch_equivalent", "include"))
    assert world.rows() == sums(EVENTS)
    assert [one.late_rows for one in records] == [None] * 3


def test_late_rows_become_corrections_beside_what_was_told_first(world: World) -> None:
    records = world.run(world.plan("corrections_for_late_facts", "correct"))
    assert world.rows() == sums(EVENTS, lambda one: -one[1] if is_late(one) else one[1])
    assert sum(one.late_rows or 0 for one in records) == sum(map(is_late, EVENTS)) > 0


def test_rows_of_a_closed_partition_are_left_out_where_days_are_those_of_arrival(
    world: World,
) -> None:
    # Stored by the day of their arrival: some are of a day before.
    arrived = [(one[4].date(), *one[1:]) for one in EVENTS]
    world.lake.sql("DELETE FROM {ns}.src")
    world.lake.append("src", *arrived)
    records = world.run(world.plan("by_time_partition", "drop"))
    mine = [one for one in arrived if one[3].date() >= one[0] and str(one[0]) in ALL]
    assert world.rows() == sums(mine)
    assert sum(one.late_rows or 0 for one in records) == 2


def test_a_warm_up_judges_rows_as_the_partitions_before_did(world: World) -> None:
    arrived = [(one[4].date(), *one[1:]) for one in EVENTS]
    world.lake.sql("DELETE FROM {ns}.src")
    world.lake.append("src", *arrived)
    start = StateStart(warm_up=True, why="warm-up")
    fields = {"warm_up_days": 1, "changes": {"warm_up_days": 1, "start_boundary": "warm_up"}}
    plan = world.plan("by_time_partition", "drop", 1, start, partitions=ALL[1:], **fields)
    records = world.run(plan)
    # The row that arrives on the second day, and is of the day before, which the warm-up reads.
    assert [one.late_rows for one in records] == [1, 1]
    mine = [one for one in arrived if one[3].date() >= one[0] and str(one[0]) in ALL[1:]]
    assert world.rows() == sums(mine)


def test_a_trial_keeps_no_state(world: World) -> None:
    plan = world.plan("batch_equivalent", "include", partitions=ALL[:1])
    world.lake.create("shadow__try_0123abcd", (("d", "date"), ("k", "long"), ("v", "long")))
    trial = plan.model_copy(update={"shadow_table": f"{plan.shadow_table}__try_0123abcd"})
    chunk = trial.resolved.chunks[0]
    record = world.lake.staging().stage(trial, chunk, 1)
    assert (record.state, record.output_rows) == (None, 2)
    table = states.table_of(
        f"{world.lake.namespace}_shadow", states.state_after(plan.resolved, chunk).key
    )
    with pytest.raises(NotFound):
        world.lake.tables.stored_properties(table)


def test_what_only_the_state_reads_is_among_what_a_chunk_reads(world: World) -> None:
    other = f'src.sparkSession.table("lake.{world.lake.table("out")}").select("k", "v")'
    world.lake.job(SUM_JOB.replace('marked.where(~F.col("late")).select("k", "v")', other))
    plan = world.plan("batch_equivalent", "include")
    found = world.lake.staging().tables_read(plan, plan.resolved.chunks[0])
    assert found is not None
    assert world.lake.table("out") in {one.table for one in found.tables}


def test_a_state_is_restored_and_any_cut_ends_with_that_of_one_pass(world: World) -> None:
    whole = world.run(world.plan("batch_equivalent", "include", 3))
    parts = world.run(world.plan("batch_equivalent", "include", 1))
    assert world.state(parts[-1]) == world.state(whole[-1]) == {1: -7, 2: 11}
    assert [world.state(one) for one in parts[:2]] == [{1: 2, 2: 8}, {1: 4, 2: 9}]
    # A later run goes on from what an earlier one kept.
    kept = StateSnapshot.parse(parts[1].state or "")
    start = StateStart(kept=kept, run_id="bf-1", why="kept")
    plan = world.plan("batch_equivalent", "include", 1, start, partitions=ALL[2:], run_id="bf-2")
    (after,) = world.run(plan)
    assert world.state(after) == world.state(whole[-1])
    assert (after.input_rows, after.output_rows) == (3, 2)
    # One with an older state reads what follows it; rows outside of its partitions are left out.
    older = StateStart(kept=StateSnapshot.parse(parts[0].state or ""), run_id="bf-1", why="kept")
    plan = world.plan("batch_equivalent", "include", 1, older, partitions=ALL[2:], run_id="bf-3")
    (after,) = world.run(plan)
    assert world.state(after) == world.state(whole[-1])
    assert (after.input_rows, after.outside_rows) == (8, 2)


def test_a_warm_up_makes_the_state_of_the_first_chunk_alone(world: World) -> None:
    start = StateStart(warm_up=True, why="warm-up")
    fields = {"warm_up_days": 1, "changes": {"warm_up_days": 1, "start_boundary": "warm_up"}}
    plan = world.plan("batch_equivalent", "include", 1, start, partitions=ALL[1:], **fields)
    first, second = world.run(plan)
    assert (world.state(first), world.state(second)) == ({1: 4, 2: 9}, {1: -7, 2: 11})
    assert (first.input_rows, second.input_rows) == (9, 3)


def test_a_state_that_is_gone_or_was_changed_is_refused(world: World) -> None:
    plan = world.plan("batch_equivalent", "include")
    first, second, _ = plan.resolved.chunks
    with pytest.raises(NotFound, match="is not kept in") as missing:
        world.lake.staging().stage(plan, second, 1)
    assert "was not computed from another state" in missing.value.state
    record = world.lake.staging().stage(plan, first, 1)
    kept = StateSnapshot.parse(record.state or "")
    other = kept.model_copy(update={"checksum": kept.checksum[:-1] + "0"})
    start = StateStart(kept=other, run_id="bf-1", why="kept")
    later = world.plan("batch_equivalent", "include", 1, start, partitions=ALL[1:], run_id="bf-2")
    with pytest.raises(ChecksFailed, match="does not hold the state"):
        world.lake.staging().stage(later, later.resolved.chunks[0], 1)
    # Rows that somebody added are another snapshot: the table is no longer what was kept.
    short = kept.table.rpartition(".")[2]
    world.lake.spark.sql(f"INSERT INTO lake.{world.lake.namespace}_shadow.{short} VALUES (9, 9)")
    with pytest.raises(NotFound):
        world.lake.staging().stage(plan, second, 1)
    assert world.rows().keys() == {(ALL[0], 1), (ALL[0], 2)}


@pytest.mark.req("X2")
@pytest.mark.parametrize("when", ["committing", "committed"])
def test_a_chunk_that_was_killed_around_its_state_comes_to_the_same(
    world: World, when: str
) -> None:
    plan = world.plan("batch_equivalent", "include")
    point = f"Spark.keep_state:{when}"
    with pytest.raises(Killed), killed_at(point):
        world.run(plan)
    assert world.rows() == {}
    records = world.run(plan)
    assert world.rows() == sums(EVENTS)
    # A retry finds the states and makes the same rows; so does one that lost its ledger row.
    assert [one.state for one in world.run(plan)] == [one.state for one in records]
    assert world.rows() == sums(EVENTS)
    chunk, landed = plan.resolved.chunks[1], world.lake.head("shadow")
    again = world.lake.staging().remeasure(plan, chunk, landed or 0, 1)
    assert (again.state, again.checksum) == (records[1].state, records[1].checksum)


CASES: dict[str, tuple[str, type[BackfillError], str]] = {
    "two rows of a key": (
        SUM_JOB.replace('total.groupBy("k").agg(F.sum("v").alias("v"))', "state.unionAll(total)"),
        ChecksFailed, "more than once",
    ),
    "no state given back": (
        SUM_JOB.replace('.alias("v")), total', '.alias("v"))\n    _ = total'),
        ConfigError, "instead of two DataFrames",
    ),
    "another column": (
        SUM_JOB.replace('total.groupBy("k").agg(F.sum("v").alias("v"))', 'total.select("k")'),
        ChecksFailed, "missing v",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_state_stops_the_chunk_before_anything_is_written(world: World, case: str) -> None:
    text, kind, problem = CASES[case]
    world.lake.job(text)
    with pytest.raises(kind, match=problem):
        world.run(world.plan("batch_equivalent", "include"))
    assert world.rows() == {}
