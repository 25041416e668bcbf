"""Staging: a chunk overwrites exactly its partitions, from pinned inputs, in one commit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import date, datetime, timezone
from typing import Any

import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark.dataframes import range_filter
from lakehouse_backfill.adapters.spark.staging import staging
from lakehouse_backfill.adapters.spark.staging.shadow_writer import ShadowWriter
from lakehouse_backfill.domain.checks import EdgePartition
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from lakehouse_backfill.errors import ChecksFailed, ConfigError, Conflict, NotFound
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job

Daily = Callable[..., PlanMaker]


def copy_of(*columns: str, where: str = "true") -> str:
    """A job that copies the source with these columns."""
    return copy_job(f'return src.where("{where}").selectExpr({", ".join(map(repr, columns))})')


def of_days(rows: list[tuple[Any, ...]], *days: str) -> list[tuple[Any, ...]]:
    return [row for row in rows if str(row[0]) in days]


@pytest.mark.req("X1", "Q1")
def test_a_chunk_replaces_its_partitions_and_no_others(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    before = lake.rows("shadow")
    record = lake.stage(plan)
    after = lake.rows("shadow")
    assert of_days(after, *DAYS[4:6]) == of_days(lake.rows("src"), *DAYS[4:6])
    others = (*DAYS[:4], *DAYS[6:])
    assert of_days(after, *others) == of_days(before, *others)
    assert lake.rows("out") == before
    assert (record.status, record.input_rows, record.output_rows) == ("done", 8, 8)
    assert record.outside_rows == 0
    assert record.snapshot_id == lake.head("shadow")


@pytest.mark.req("T1")
def test_two_runs_from_scratch_give_equal_checksums_in_every_partition(
    lake: Lake, daily: Daily
) -> None:
    daily()
    lake.sql("CREATE TABLE {ns}.other (d date, k bigint, v bigint) PARTITIONED BY (d)")
    found = []
    for shadow, run in (("shadow", "bf-1"), ("other", "bf-2")):
        plan = PlanMaker(lake, shadow=shadow, per_chunk=1).make(run)
        for chunk in plan.resolved.chunks:
            lake.staging().stage(plan, chunk, 1)
        found.append(lake.sums(shadow, plan.resolved.scope))
    assert found[0] == found[1]
    assert set(found[0]) == set(DAYS[4:6])


@pytest.mark.req("X2")
def test_the_ledger_row_of_a_commit_that_was_not_recorded_is_found_again(
    lake: Lake, daily: Daily
) -> None:
    plan = daily().make()
    stage = lake.staging()
    record = stage.stage(plan, plan.resolved.chunks[0], 1)
    assert record.snapshot_id is not None
    again = stage.remeasure(plan, plan.resolved.chunks[0], record.snapshot_id, 1)
    ignore = {"seconds", "finished_at", "recovered"}
    assert again.model_dump(exclude=ignore) == record.model_dump(exclude=ignore)
    assert again.recovered


@pytest.mark.req("X1", "P2")
def test_rows_outside_the_chunk_are_counted_and_never_written(lake: Lake, daily: Daily) -> None:
    plan = daily(warm_up_days=1, cool_down_days=1).make()
    before = lake.rows("shadow")
    for _ in range(2):  # pitfall 26: a second run would double appended rows
        record = lake.stage(plan)
    assert (record.input_rows, record.output_rows, record.outside_rows) == (16, 8, 8)
    assert of_days(lake.rows("shadow"), DAYS[3], DAYS[6]) == of_days(before, DAYS[3], DAYS[6])
    assert len(lake.rows("shadow")) == 40


@pytest.mark.req("X2")
def test_rows_of_tasks_that_are_computed_twice_are_counted_once(lake: Lake, daily: Daily) -> None:
    """As after the loss of an executor: to sort by ranges, Spark samples all rows before."""
    plan = daily(warm_up_days=1, cool_down_days=1).make()
    observation, inside = Observation(), F.col("d") > "2024-01-10"
    frame = lake.sql("SELECT * FROM {ns}.src")
    staging._with_observation(frame, inside, observation).repartitionByRange(3, "k").collect()
    counted = staging._observed_chunk(observation, frame.schema)
    assert counted is not None
    assert (counted.checksum.rows, counted.outside_rows) == (0, 2 * frame.count())
    assert counted.repeated_tasks > 0

    lake.sql("ALTER TABLE {ns}.shadow WRITE ORDERED BY k")
    record = lake.stage(plan)
    assert (record.output_rows, record.outside_rows) == (8, 8)


@pytest.mark.req("X2")
@pytest.mark.parametrize("where", ['"v < 0"', "F.lit(False)"], ids=["no row", "known to Spark"])
def test_an_empty_output_empties_the_partitions(lake: Lake, daily: Daily, where: str) -> None:
    plan = daily(copy_job(f"return src.where({where})")).make()
    record = lake.stage(plan)
    assert of_days(lake.rows("shadow"), *DAYS[4:6]) == []
    assert len(lake.rows("shadow")) == 32
    assert (record.output_rows, record.outside_rows) == (0, 0)
    assert record.snapshot_id == lake.head("shadow")


@pytest.mark.req("S1")
def test_a_live_append_after_the_pin_is_not_seen(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    pinned = of_days(lake.rows("src"), *DAYS[4:6])
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-05', 999, 999)")
    lake.sql("ALTER TABLE {ns}.src DROP COLUMN v")
    lake.stage(plan)
    assert of_days(lake.rows("shadow"), *DAYS[4:6]) == pinned


@pytest.mark.req("D3")
def test_the_snapshot_says_which_run_made_it_from_what(lake: Lake, daily: Daily) -> None:
    plan = daily(warm_up_days=1, references=("out",)).make("bf-7")
    lake.stage(plan)
    prefix = "lakehouse-backfill."
    said = {k: v for k, v in lake.snapshots("shadow")[-1].items() if k.startswith(prefix)}
    del said[f"{prefix}attempt-id"]
    assert said == {
        f"{prefix}chunk-id": "c1",
        f"{prefix}epoch": "1",
        f"{prefix}run-id": "bf-7",
        f"{prefix}product": lake.table("out"),
        f"{prefix}manifest-hash": plan.manifest_hash,
        f"{prefix}transform": "copy",
        f"{prefix}transform-version": "1.0.0",
        f"{prefix}input-snapshot-ids": f"src={lake.head('src')}",
        f"{prefix}input-range-start": "2024-01-04T00:00:00+00:00",
        f"{prefix}input-range-end": "2024-01-07T00:00:00+00:00",
        f"{prefix}processing-mode": "backfill",
        f"{prefix}reference-data-version": f"out={lake.head('out')}",
        f"{prefix}restatement-reason": "a bug",
        f"{prefix}distribution": "hash",
    }


@pytest.mark.req("D3")
def test_reference_data_is_named_by_the_tag_that_was_asked_for_and_its_snapshot(
    lake: Lake, daily: Daily
) -> None:
    plan = daily(references=("out",)).make()
    source, reference = plan.resolved.sources
    tagged = reference.model_copy(update={"requested": f"{reference.table}@spring"})
    resolved = plan.resolved.model_copy(update={"sources": (source, tagged)})
    named = f"out=spring@{lake.head('out')}"
    lake.stage(plan.model_copy(update={"resolved": resolved}))
    assert lake.snapshots("shadow")[-1]["lakehouse-backfill.reference-data-version"] == named


@pytest.mark.req("D3")
def test_lineage_columns_are_filled_and_left_out_of_the_checksum(lake: Lake, daily: Daily) -> None:
    plain = daily()
    expected = lake.stage(plain.make()).checksum
    kinds = {"timestamptz": "timestamp", "long": "bigint"}
    added = ", ".join(f"{name} {kinds.get(kind, kind)}" for name, kind in LINEAGE_COLUMNS)
    lake.sql(f"ALTER TABLE {{ns}}.shadow ADD COLUMNS ({added})")
    plan = PlanMaker(lake, contract={"lineage_columns": True}).make()
    record = lake.stage(plan)
    assert record.checksum == expected
    rows = (
        lake.spark.table(f"lake.{lake.table('shadow')}")
        .where("d = date'2024-01-05'")
        .drop("d", "k", "v", "produced_at")
    )
    moment = "2024-01-05 00:00:00", "2024-01-07 00:00:00"
    texts = rows.selectExpr(
        "* EXCEPT (input_range_start, input_range_end)",
        "string(input_range_start)",
        "string(input_range_end)",
    )
    assert {tuple(row) for row in texts.collect()} == {
        ("bf-1", "copy", "1.0.0", lake.head("src"), "backfill", None, "a bug", *moment)
    }


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ('"d", "k"', "missing v"),
        ('"d", "k", "v", "v as extra_one"', "extra extra_one"),
        ('"d", "k", "string(v) as v"', "v is string, the target has bigint"),
        ('"d", "k", "double(v) as v"', "v is double, the target has bigint"),
    ],
)
@pytest.mark.req("Q2")
def test_an_output_that_does_not_fit_the_target_is_refused_by_name(
    lake: Lake, daily: Daily, select: str, said: str
) -> None:
    plan = daily(copy_job(f"return src.selectExpr({select})")).make()
    head = lake.head("shadow")
    with pytest.raises(ChecksFailed) as caught:
        lake.stage(plan)
    assert said in caught.value.problem
    assert lake.head("shadow") == head


def test_a_narrower_integer_is_widened_without_loss(lake: Lake, daily: Daily) -> None:
    plan = daily(copy_of("int(v) as v", "k", "d")).make()
    lake.stage(plan)
    assert of_days(lake.rows("shadow"), *DAYS[4:6]) == of_days(lake.rows("src"), *DAYS[4:6])


def test_a_failure_on_the_data_leaves_the_shadow_as_it_was(lake: Lake, daily: Daily) -> None:
    plan = daily(copy_of("d", "k", "bigint(v / 0) as v")).make()
    before = (lake.rows("shadow"), lake.head("shadow"))
    with pytest.raises(ChecksFailed, match="DIVIDE_BY_ZERO"):
        lake.stage(plan)
    assert (lake.rows("shadow"), lake.head("shadow")) == before


def test_a_job_that_raises_is_named_with_its_line(lake: Lake, daily: Daily) -> None:
    plan = daily(copy_job('return src.select("nope")')).make()
    with pytest.raises(ConfigError, match=r"jobs/job.py:7: AnalysisException"):
        lake.stage(plan)


def test_an_expired_pin_is_not_found(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    pins = tuple(pin.model_copy(update={"snapshot_id": 12345}) for pin in plan.resolved.sources)
    resolved = plan.resolved.model_copy(update={"sources": pins})
    with pytest.raises(NotFound):
        lake.staging().stage(plan.model_copy(update={"resolved": resolved}), resolved.chunks[0], 1)


@pytest.mark.req("T5", "P2")
def test_warm_up_gives_the_state_that_the_whole_history_gives(lake: Lake, daily: Daily) -> None:
    job = copy_job(
        'seconds = F.col("d").cast("timestamp").cast("bigint")',
        'order = Window.partitionBy(F.col("k") % 10 * 0).orderBy(seconds)',
        "week = order.rangeBetween(-2 * 86400, 0)",
        'return src.select("d", "k", F.sum("v").over(week).alias("v"))',
    )
    maker = daily(job)
    maker.partitions = DAYS
    whole = maker.make()
    lake.stage(whole)
    truth = of_days(lake.rows("shadow"), *DAYS[4:6])
    results = {}
    for days in (1, 2, 3):
        maker.partitions, maker.warm_up_days = DAYS[4:6], days
        plan = maker.make()
        lake.stage(plan)
        results[days] = of_days(lake.rows("shadow"), *DAYS[4:6]) == truth
    assert results == {1: False, 2: True, 3: True}
    proof = {}
    for days in (1, 2):
        maker.warm_up_days = days
        once, twice = lake.staging().prove_warm_up(maker.make(), DAYS[4])
        proof[days] = once == twice
    assert proof == {1: False, 2: True}


@pytest.mark.req("P2")
def test_a_warm_up_proof_that_the_declared_range_cannot_hold_is_refused(
    lake: Lake, daily: Daily
) -> None:
    plan = daily(warm_up_days=3).make()
    with pytest.raises(ConfigError, match="outside its declared range"):
        lake.staging().prove_warm_up(plan, DAYS[4])


_EDGES = {"before": (DAYS[3],), "after": (DAYS[6], DAYS[7])}


def edges_of(lake: Lake, maker: PlanMaker) -> tuple[EdgePartition, ...]:
    """Stage the plan, and compare what it computes beyond its edges."""
    plan = maker.make()
    stage = lake.staging()
    for chunk in plan.resolved.chunks:
        stage.stage(plan, chunk, 1)
    found = stage.edges(plan, _EDGES)
    sides = [(edge.side, edge.partition) for edge in found]
    assert sides == [("before", DAYS[3]), ("after", DAYS[6]), ("after", DAYS[7])]
    assert stage.edges(plan, {"after": _EDGES["after"], "before": ()}) == found[1:]
    return found


@pytest.mark.req("Q10")
@pytest.mark.parametrize("key", [["d", "k"], ["k"]])
@pytest.mark.parametrize("shifted", [False, True])
def test_the_edge_shows_what_would_be_counted_twice_or_lost(
    lake: Lake, daily: Daily, shifted: bool, key: list[str]
) -> None:
    job = copy_of("date_add(d, 1) as d" if shifted else "d", "k", "v * 100 as v")
    measures = [{"name": "total", "sum": "v"}, {"name": "rows", "count": "k"}]
    maker = daily(job, contract={"measures": measures, "key": key})
    maker.warm_up_days = maker.cool_down_days = 1
    found = edges_of(lake, maker)
    assert [(e.added, e.removed, e.changed) for e in found] == [
        (4, 4, 0) if shifted else (0, 0, 0)
    ] * 3
    # The day before the range moves into it; its last day moves to the day after it.
    in_and_out = [(4, 0), (0, 4), (0, 0)] if shifted else [(0, 0)] * 3
    assert [(e.moved_in, e.moved_out) for e in found] == in_and_out
    before, last = 100 * (3 + 13 + 23 + 33), 100 * (5 + 15 + 25 + 35)
    nothing = {"total": 0, "rows": 0}
    twice = {"total": before, "rows": 4} if shifted else nothing
    lost = {"total": last, "rows": 4} if shifted else nothing
    assert [(e.counted_twice, e.lost) for e in found] == [
        (twice, nothing), (nothing, lost), (nothing, nothing),
    ]  # fmt: skip


@pytest.mark.req("Q10")
@pytest.mark.parametrize("key", [["d", "k"], ["k"], ["d"], []])
def test_rows_that_vanish_everywhere_did_not_move_across_the_edge(
    lake: Lake, daily: Daily, key: list[str]
) -> None:
    contract = {"measures": [{"name": "rows", "count": "k"}], "key": key}
    job = copy_of("d", "k", "IF(k = 6, -1, v * 100) as v", where="k < 20")
    found = edges_of(lake, daily(job, contract=contract))
    by_key = bool(set(key) - {"d"})
    assert [(e.moved_in, e.moved_out) for e in found] == [(0, 0) if by_key else (None, None)] * 3
    if by_key:
        assert [(e.added, e.removed, e.changed) for e in found] == [(0, 2, 0), (0, 2, 1), (0, 2, 0)]
        assert {(e.counted_twice["rows"], e.lost["rows"]) for e in found} == {(0, 0)}
    else:  # Nothing tells whether they moved; no row of the other side has their key or hash.
        assert [e.removed - e.added for e in found] == [2, 2, 2]


@pytest.mark.req("Q10")
def test_what_would_be_computed_beyond_the_edges_has_the_checksums_of_what_is_accepted(
    lake: Lake, daily: Daily
) -> None:
    job = copy_of("d", "k", "v * IF(d = date'2024-01-08', 7, 100) as v")
    plan, beyond = daily(job).make(), (DAYS[3], DAYS[6], DAYS[7])
    around = {"inside": (), "before": beyond[:1], "after": beyond[1:]}
    found = lake.staging().edge_checksums(plan, around)
    scope = Scope(field=plan.resolved.scope.field, partitions=beyond)
    accepted = lake.sums("out", scope)
    assert {day: found[day] == accepted[day] for day in beyond} == {
        DAYS[3]: True, DAYS[6]: True, DAYS[7]: False,
    }  # fmt: skip
    assert lake.staging().edge_checksums(plan, {"after": ("2024-03-01",)}) == {}
    assert lake.staging().begin_edges(plan, around).result() == found


@pytest.mark.req("Q4")
def test_chunk_checksums_add_up_to_those_of_the_stored_partitions(lake: Lake, daily: Daily) -> None:
    maker = daily(per_chunk=1)
    plan = maker.make()
    stage = lake.staging()
    records = [stage.stage(plan, chunk, 1) for chunk in plan.resolved.chunks]
    stored = lake.sums("shadow", plan.resolved.scope)
    assert [record.checksum for record in records] == [stored[day].text for day in DAYS[4:6]]
    assert sum(stored.values(), Checksum.empty(stored[DAYS[4]].shape)).rows == 8


def test_days_of_instants_are_utc_days_and_null_is_a_partition(lake: Lake) -> None:
    lake.job(copy_job("return src"))
    for short in ("src", "out", "shadow"):
        lake.sql(f"CREATE TABLE {{ns}}.{short} (ts timestamp, k bigint) PARTITIONED BY (days(ts))")
        lake.sql(
            f"INSERT INTO {{ns}}.{short} VALUES (timestamp'2024-01-01 23:59:59.999999Z', 1), "
            "(timestamp'2024-01-02 00:00:00Z', 2), (timestamp'2024-01-02 23:59:59.999999Z', 3), "
            "(timestamp'2024-01-03 00:00:00Z', 4), (null, 5)"
        )
    by_day = ScopeField(column="ts", transform="day", type="timestamptz")
    maker = PlanMaker(lake, scope_field=by_day, partitions=("2024-01-02",), source_column="ts")
    plan = maker.make()
    record = lake.stage(plan)
    assert (record.input_rows, record.output_rows, record.outside_rows) == (2, 2, 0)
    assert len(lake.rows("shadow")) == 5
    scope = Scope(field=by_day, partitions=("null", "2024-01-01", "2024-01-02", "2024-01-03"))
    rows = {label: one.rows for label, one in lake.sums("shadow", scope).items()}
    assert rows == {"null": 1, "2024-01-01": 1, "2024-01-02": 2, "2024-01-03": 1}


@pytest.mark.req("Q10")
@pytest.mark.parametrize(
    ("column", "field", "value"),
    [
        ("date", ScopeField(column="d", transform="identity", type="date"), "date'{}'"),
        (
            "timestamp",
            ScopeField(column="d", transform="day", type="timestamptz"),
            "timestamp'{} 23:59:59.999999Z'",
        ),
    ],
)
def test_days_before_the_year_1000_are_days_like_others(
    lake: Lake, column: str, field: ScopeField, value: str
) -> None:
    lake.job(copy_of("d", "k", "v * 10 as v"))
    labels = ("0001-01-01", "0582-10-05", "0999-12-31", "1000-01-01")
    by = "d" if field.transform == "identity" else "days(d)"
    for short in ("src", "out", "shadow"):
        lake.sql(
            f"CREATE TABLE {{ns}}.{short} (d {column}, k bigint, v bigint) PARTITIONED BY ({by})"
        )
        rows = ", ".join(f"({value.format(day)}, {k}, {k})" for k, day in enumerate(labels))
        lake.sql(f"INSERT INTO {{ns}}.{short} VALUES {rows}")
    maker = PlanMaker(lake, scope_field=field, partitions=labels[:3], range_from=date(1, 1, 1))
    plan = maker.make()
    record = lake.stage(plan)
    assert (record.input_rows, record.output_rows, record.outside_rows) == (3, 3, 0)
    # Without the days: PySpark cannot show a time of the year 1.
    staged = lake.sql("SELECT k, v FROM {ns}.shadow ORDER BY k").collect()
    assert [tuple(row) for row in staged] == [(0, 0), (1, 10), (2, 20), (3, 3)]
    found = lake.sums("shadow", Scope(field=field, partitions=labels))
    assert {label: one.rows for label, one in found.items()} == dict.fromkeys(labels, 1)
    (edge,) = lake.staging().edges(plan, {"after": (labels[3],)})
    assert (edge.partition, edge.changed) == (labels[3], 1)


@pytest.mark.req("X2")
def test_a_concurrent_write_to_the_same_partitions_is_a_conflict(lake: Lake, daily: Daily) -> None:
    daily()
    stale = lake.head("shadow")
    lake.sql("INSERT INTO {ns}.shadow VALUES (date'2024-01-05', 1000, 1)")

    class Stale(ShadowWriter):
        def _require_epoch(self, *_: Any) -> int | None:
            return stale

    rows = range_filter((RowRange("d", date(2024, 1, 5), date(2024, 1, 6)),))
    frame = lake.sql("SELECT * FROM {ns}.src WHERE d = date'2024-01-05'")
    before = lake.rows("shadow")
    with pytest.raises(Conflict):
        Stale(lake.tables).overwrite(
            frame, lake.table("shadow"), rows, {"lakehouse-backfill.attempt-id": "a1"}, 1
        )
    assert lake.rows("shadow") == before


def test_the_first_chunk_of_an_empty_shadow_needs_no_base_snapshot(
    lake: Lake, daily: Daily
) -> None:
    maker = daily()
    lake.sql("CREATE TABLE {ns}.fresh (d date, k bigint, v bigint) PARTITIONED BY (d)")
    maker.shadow = "fresh"
    plan = maker.make()
    lake.stage(plan)
    assert lake.rows("fresh") == of_days(lake.rows("src"), *DAYS[4:6])


@pytest.mark.req("D1")
def test_the_context_tells_the_same_to_every_execution(lake: Lake, daily: Daily) -> None:
    import sys

    job = copy_job("SEEN.append(context)", "return src", above="SEEN = []")
    plan = daily(job, config={"a": 1}, references=("out",)).make("bf-9")
    lake.stage(plan)
    lake.stage(plan)
    module = next(
        value
        for name, value in sys.modules.items()
        if name.startswith("lakehouse_backfill_job_") and hasattr(value, "SEEN")
    )
    first, second = module.SEEN
    assert first == second
    moment = datetime(2024, 2, 1, tzinfo=timezone.utc)
    assert (first.run_id, first.mode, first.clock) == ("bf-9", "backfill", moment)
    bounds = date(2024, 1, 5), date(2024, 1, 7)
    assert (dict(first.config), first.publish_from, first.publish_to) == ({"a": 1}, *bounds)
    assert first.transform_version == plan.resolved.manifest.transform.version
    assert first.config_hash == hashlib.sha256(b'{"a":1}').hexdigest()
    assert first.reference_versions == {"out": lake.head("out")}
