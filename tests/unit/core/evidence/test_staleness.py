"""What makes a partition stale, as tables of cases."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest

from lakehouse_backfill.cli.render import render_result
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.inputs.changes import (
    InputReader,
    change_kind,
    changed_labels,
)
from lakehouse_backfill.core.evidence.inputs.rows import (
    ExpectedPartitions,
    RowSpans,
    expected_labels,
    rows_overlap,
)
from lakehouse_backfill.core.evidence.staleness import (
    PartitionStatus,
    ProductStatus,
    find_stale,
    find_stale_products,
)
from lakehouse_backfill.core.versions.pointer import runs_by_partition
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.partitions import RowRange, ScopeField
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.results.origins import StaleResult
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract, declared

DAY = ScopeField(column="day", transform="identity", type="date")
WINDOW = (
    datetime(2020, 1, 2, tzinfo=timezone.utc),
    datetime(2020, 1, 4, tzinfo=timezone.utc),
)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (RowRange("d", date(2020, 1, 1), date(2020, 1, 2)), False),
        (RowRange("d", date(2020, 1, 1), date(2020, 1, 3)), True),
        (RowRange("d", date(2020, 1, 4), date(2020, 1, 5)), False),
        (RowRange("d", date(2020, 1, 3), None), True),
        (RowRange("d", is_null=True), False),
        (RowRange("d", equals=datetime(2020, 1, 4)), False),  # noqa: DTZ001 (as the column)
        (RowRange("d", equals="EU"), True),
    ],
    ids=["before", "into", "after", "open", "null", "instant", "no time"],
)
def test_rows_are_of_a_window_that_is_half_open(rows: RowRange, expected: bool) -> None:
    assert rows_overlap(rows, WINDOW) is expected


def test_the_index_of_ranges_finds_what_a_look_at_each_of_them_finds() -> None:
    chance = random.Random(7)
    first = date(2020, 1, 1)

    def day(most: int) -> date:
        return first + timedelta(days=chance.randrange(most))

    ranges: list[RowRange | None] = [None, RowRange("d", is_null=True), RowRange("d", day(40))]
    for _ in range(60):
        lower = day(40)
        ranges.append(RowRange("d", lower, lower + timedelta(days=chance.choice((1, 1, 31)))))
    spans = RowSpans((rows, place) for place, rows in enumerate(ranges))
    for _ in range(40):
        start = as_instant(day(45))
        window = start, start + timedelta(days=chance.randrange(1, 4))
        assert set(spans.within(window)) == {
            place for place, rows in enumerate(ranges) if rows is None or rows_overlap(rows, window)
        }


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"operation": "append"}, "late rows"),
        ({"operation": "append", "writer": "run bf-1"}, "upstream restatement"),
        ({"operation": "delete", "only_deletes": True}, "deletion"),
        ({"operation": "overwrite"}, "changed rows"),
    ],
)
def test_a_commit_is_named_by_what_it_did(fields: dict[str, Any], kind: str) -> None:
    drift = {"writer": "spark", "only_deletes": False, **fields}
    at = datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert change_kind(Drift(snapshot_id=1, at=at, partitions=(), **drift)) == kind


def test_the_files_of_a_coarser_spec_count_for_all_days_that_they_span() -> None:
    def file(path: str, day: str, **more: Any) -> LiveFile:
        return LiveFile(path=path, spec_id=0, partition=day, rows=1, size_bytes=1, **more)

    then = [file("a", "2020-01-01"), file("b", "2020-01-02")]
    now = [file("a", "2020-01-01"), file("b", "2020-01-02", deletes=("x",))]
    assert changed_labels(then, now) == {"2020-01-02"}
    month = file("m", "2020-01", spans=("2020-01-01", "2020-01-02"))
    assert changed_labels(then, [*then, month]) == {"2020-01-01", "2020-01-02"}


def test_hours_of_an_input_make_the_day_of_the_product() -> None:
    hour = ScopeField(column="at", transform="hour", type="timestamptz")
    assert expected_labels(DAY, hour, ["2020-01-02T23", "2020-01-03T00", "null"]) == {
        "2020-01-02", "2020-01-03",
    }  # fmt: skip
    month = ScopeField(column="m", transform="month", type="date")
    assert expected_labels(month, DAY, ["2020-01-02", "2020-02-01"]) == {"2020-01", "2020-02"}


def test_a_partition_goes_back_to_the_run_that_a_rollback_leads_to() -> None:
    _, found = steps.world()
    first = steps.published_run(found)
    second = steps.published_run(found, declared("2020-01-03", "2020-01-05"))

    def made_by(**partial: bool) -> dict[str, tuple[str, ...]]:
        history = found.versions.history(contract().product)
        return runs_by_partition(
            history, lambda run: partial.get("second", False) and run == second
        )

    days = [f"2020-01-0{number}" for number in (2, 3, 4)]
    assert made_by() == {days[0]: (first,), days[1]: (second,), days[2]: (second,)}
    assert made_by(second=True)[days[1]] == (first, second)
    steps.roll_back(found, to=1, only=(days[1],))
    assert made_by() == {days[0]: (first,), days[1]: (first,), days[2]: (second,)}
    steps.roll_back(found, to=1)
    assert made_by() == {days[0]: (first,), days[1]: (first,)}


def test_an_open_run_gives_its_partitions_the_words_of_its_state() -> None:
    _, found = steps.world()
    steps.published_run(found)
    waiting = steps.planned_run(found, declared("2020-01-04", "2020-01-05"))
    states = {
        one.partition: (one.state, one.run_id)
        for one in find_stale(found, contract(), lambda file: {}).partitions
    }
    made = states["2020-01-02"]
    assert made[0] == "complete"
    assert states == {
        "2020-01-01": ("unknown", None), "2020-01-02": made, "2020-01-03": made,
        "2020-01-04": ("waiting for approval", waiting), "2020-01-05": ("unknown", None),
    }  # fmt: skip


@pytest.mark.parametrize(
    "never", [{"run": {"mode": "dry_run"}}, {"target": {"publish_mode": "shadow_only"}}]
)
def test_an_open_run_that_is_never_published_hides_no_stale_partition(never: Any) -> None:
    where, found = steps.world()
    made = steps.published_run(found)
    where.write("bronze.raw", "2020-01-03", "late")
    steps.planned_run(found, declared("2020-01-03", "2020-01-04", **never))
    (stale,) = find_stale(found, contract(), lambda file: {}).to_repair
    assert (stale.partition, stale.state, stale.run_id) == ("2020-01-03", "stale", made)


def test_after_a_rollback_the_code_that_was_rolled_back_is_not_asked_for() -> None:
    _, found = steps.world()
    versions = {"daily": "1.0.0"}
    first = steps.published_run(found)
    newer = {"transform": {"version": "1.1.0"}}
    steps.published_run(found, declared("2020-01-02", "2020-01-04", **newer))
    steps.roll_back(found, to=1)
    seen = find_stale(found, contract(), lambda file: versions)
    assert (seen.to_repair, seen.code) == ((), "1.0.0")
    assert seen.repair_of is not None
    assert seen.repair_of.run_id == first
    steps.roll_back(found, to=0)
    seen = find_stale(found, contract(), lambda file: versions)
    assert {one.state for one in seen.partitions} == {"unknown"}
    assert seen.notes[0].startswith("readers see rows of no run")
    assert seen.repair_of is None


def test_an_error_of_one_product_is_its_note_and_the_next_one_is_judged() -> None:
    _, found = steps.world()
    steps.published_run(found)

    def load(product: str) -> Contract:
        if product == "silver.odd":
            raise Unsupported("its column is odd", fix="drop it")
        return contract()

    odd, good = find_stale_products(found, ("silver.odd", PRODUCT), load, lambda file: {})
    assert (odd.is_judged, odd.notes) == (False, ("not judged: its column is odd",))
    assert good.is_judged
    assert good.partitions


def test_a_rejected_run_hides_nothing_and_an_open_one_on_old_inputs_is_named() -> None:
    where, found = steps.world()
    steps.published_run(found)
    rejected = steps.validated_run(found, declared("2020-01-02", "2020-01-03"))
    decisions.reject(found, rejected, "ana", "wrong")
    waiting = steps.planned_run(found, declared("2020-01-03", "2020-01-04"))
    where.write("bronze.raw", "2020-01-02", "raw-2")
    seen = find_stale(found, contract(), lambda file: {})
    assert [(one.partition, one.state, one.run_id) for one in seen.to_repair] == [
        ("2020-01-02", "stale", rejected)
    ]
    assert seen.to_repair[0].remarks == (f"run {rejected} on it is rejected",)
    (other,) = (one for one in seen.partitions if one.run_id == waiting)
    assert other.state == "waiting for approval"
    assert other.remarks[0].startswith(f"run {waiting} reads inputs of before: ")


@pytest.mark.req("X4")
@pytest.mark.parametrize(
    ("days", "stale"), [(0, ["2020-01-02", "2020-01-03"]), (1, ["2020-01-02"])]
)
def test_a_late_row_makes_all_stale_whose_state_holds_rows_of_its_time(
    days: int, stale: list[str]
) -> None:
    where, found = steps.world()
    stateful = {
        "state": {"derived_from_input": True, "key": ["id"]}, "start_boundary": "empty",
        "timers": "event_time", "late": "include", "watermark": {"policy": "batch_equivalent"},
        "warm_up_days": days,
    }  # fmt: skip
    sources = {"raw": {"warm_up_days": days}}
    steps.published_run(found, declared(stateful=stateful, sources=sources))
    where.write("bronze.raw", "2020-01-01", "raw-2")
    seen = find_stale(found, contract(), lambda file: {})
    assert [one.partition for one in seen.to_repair] == stale


def test_rows_or_a_table_that_are_gone_are_not_complete() -> None:
    where, found = steps.world()
    steps.published_run(found)
    where.write(PRODUCT, "2020-01-02")
    seen = find_stale(found, contract(), lambda file: {})
    assert [(one.partition, one.state, one.causes[0].text) for one in seen.to_repair] == [
        ("2020-01-02", "missing", "its rows were deleted since")
    ]
    del where.tables[PRODUCT]
    seen = find_stale(found, contract(), lambda file: {})
    assert {one.state for one in seen.partitions} == {"missing"}
    assert seen.repair_of is None
    assert seen.notes[0].startswith(f"its table {PRODUCT} does not exist any more: make it again")


def test_an_input_that_is_gone_is_named_without_a_kind() -> None:
    where, found = steps.world()
    steps.published_run(found)
    del where.tables["bronze.raw"]
    seen = find_stale(found, contract(), lambda file: {})
    texts = {cause.text for one in seen.partitions for cause in one.causes if one.run_id}
    assert texts == {"raw: bronze.raw does not exist any more"}


def test_where_nothing_can_be_drafted_a_note_says_why() -> None:
    where, found = steps.world()
    run = steps.published_run(found)
    runs: Any = found.runs
    wanted = declared(target={"row_predicate": {"id": 1}}).manifest
    resolved = runs.plans[run].resolved.model_copy(update={"manifest": wanted})
    runs.plans[run] = runs.plans[run].model_copy(update={"resolved": resolved})
    assert find_stale(found, contract(), lambda file: {}).notes == ()
    where.write("bronze.raw", "2020-01-02", "raw-2")
    (note,) = find_stale(found, contract(), lambda file: {}).notes
    assert note.startswith(f"--draft writes nothing: run {run} changed only some rows, by a row")


def test_only_neighbours_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    days = tuple(
        PartitionStatus(f"2020-01-0{day}", "complete" if day == 3 else "stale")
        for day in range(1, 9)
    )
    result = StaleResult.of((ProductStatus(PRODUCT, days),), {}, is_drafted=False)
    stream = StringIO()
    render_result(result, stream)
    shown = stream.getvalue()
    assert "2020-01-01, 2020-01-02" in shown
    assert "5 partitions, 2020-01-04 to 2020-01-08" in shown


def test_days_of_a_coarser_input_may_be_missing_and_are_not_to_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, found = steps.world()
    steps.published_run(found)
    days = frozenset(f"2020-01-{day:02d}" for day in range(1, 32))
    monkeypatch.setattr(
        InputReader,
        "expected_partitions",
        lambda self, pin, by: ExpectedPartitions(possibly=days),
    )
    seen = find_stale(found, contract(), lambda file: {})
    assert seen.to_repair == ()
    assert seen.notes[0].startswith("may be missing: 26 partitions, 2020-01-06 to 2020-01-31")


def test_without_a_published_run_nothing_is_said_to_be_complete() -> None:
    _, found = steps.world()
    seen = find_stale(found, contract(), lambda file: {})
    assert (seen.partitions, seen.to_repair) == ((), ())
    assert seen.notes[0].startswith("no run of it is published")
