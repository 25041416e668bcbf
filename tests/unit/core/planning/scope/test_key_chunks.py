"""Chunks of a whole table by key: each row is in exactly one, and what cannot be cut is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.planning import estimates
from lakehouse_backfill.core.planning.inputs import pins
from lakehouse_backfill.core.planning.inputs.read_windows import window_to_read
from lakehouse_backfill.core.planning.scope import key_chunks
from lakehouse_backfill.core.planning.scope.key_chunks import (
    cut_by_key,
    describe_chunk,
    plan_key_chunks,
)
from lakehouse_backfill.core.planning.target.catch_up import recut_chunks
from lakehouse_backfill.core.staging.checks import judge_chunk
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import key_ranges
from lakehouse_backfill.domain.labels.key_ranges import KeyBounds, KeyRanges
from lakehouse_backfill.domain.labels.values import bucket_number
from lakehouse_backfill.domain.manifest import InputRange, RunManifest
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_FIELD,
    Chunk,
    RowRange,
    Scope,
    scope_row_ranges,
)
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import BackfillError, ConfigError
from tests.support.examples.plans import NOON, a_plan, columns_of, with_fields
from tests.support.fakes.context import contract, declared

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "date": st.dates(),
    "timestamptz": st.datetimes(timezones=st.just(timezone.utc)),
    "decimal(10, 2)": st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-2)),
    "binary": st.binary(max_size=20),
}


def unpartitioned(kind: str = "long", **changes: Any) -> Contract:
    columns = [{"name": "id", "type": kind}, {"name": "amount", "type": "double"}]
    fields = {"key": ["id", "amount"], "partitioning": [], "columns": columns} | changes
    return contract(**fields)


def run_of(cut: int | list[Any], column: str = "id", **changes: Any) -> RunManifest:
    """Declare chunks: so many buckets, or ranges between bounds."""
    target = {"partitions": {"whole_table": True}} | changes.pop("target", {})
    limits: dict[str, Any] = {"key_buckets": {"column": column, "count": cut}}
    if isinstance(cut, list):
        limits = {"key_ranges": {"column": column, "bounds": cut}}
    fields = declared().manifest.model_dump(mode="json", by_alias=True)
    return RunManifest.model_validate(fields | {"target": target, "limits": limits} | changes)


def holds(chunk: Chunk, kind: str, value: Any) -> bool:
    """Say whether a row is in the chunk, by the ranges that engines filter rows with."""
    assert chunk.keys is not None
    return any(
        value is None
        if rows.is_null
        else value is not None
        and (
            rows.equals == bucket_number(f"bucket[{rows.buckets}]", kind, value)
            if rows.buckets
            else (rows.lower is None or rows.lower <= value)
            and (rows.upper is None or value < rows.upper)
        )
        for rows in scope_row_ranges(chunk.keys)
    )


@pytest.mark.req("P3")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), count=st.integers(1, 40))
def test_each_row_is_in_exactly_one_chunk_also_one_without_a_key(
    kind: str, data: Any, count: int
) -> None:
    chunks = cut_by_key(run_of(count), unpartitioned(kind), None)
    value = data.draw(st.none() | KINDS[kind])
    assert len(chunks) == len({chunk.chunk_id for chunk in chunks}) == count
    assert sum(holds(chunk, kind, value) for chunk in chunks) == 1


_FIRST, _LAST = (datetime(year, 12, 31, 23, 59, 59, 999_999) for year in (1, 9999))  # noqa: DTZ001
#: Types that are cut into ranges, with their smallest and largest values.
ENDS: dict[str, tuple[Any, Any]] = {
    "long": (-(2**63), 2**63 - 1),
    "int": (-(2**31), 2**31 - 1),
    "string": ("", "\U0010ffff" * 20),
    "date": (date.min, date.max),
    "timestamp": (_FIRST, _LAST),
    "timestamptz": (_FIRST.replace(tzinfo=timezone.utc), _LAST.replace(tzinfo=timezone.utc)),
    "decimal(10, 2)": (Decimal("-99999999.99"), Decimal("99999999.99")),
}


@pytest.mark.req("P3")
@pytest.mark.parametrize("kind", ENDS)
@given(data=st.data())
def test_each_key_is_in_exactly_one_range_also_extremes_and_none(kind: str, data: Any) -> None:
    values = (KINDS | {"timestamp": st.datetimes()})[kind] | st.sampled_from(ENDS[kind])
    bounds = sorted(data.draw(st.sets(values, min_size=1, max_size=8)))
    written = [str(one) if isinstance(one, Decimal) else one for one in bounds]
    stored = RunManifest.model_validate_json(run_of(written).model_dump_json(by_alias=True))
    chunks = cut_by_key(run_of(written), unpartitioned(kind), None)
    assert len(chunks) == len({chunk.chunk_id for chunk in chunks}) == len(bounds) + 1
    if kind != "string":  # A text that is an ISO date is a date in what is stored.
        assert cut_by_key(stored, unpartitioned(kind), None) == chunks
    kept = [Chunk.model_validate_json(chunk.model_dump_json()) for chunk in chunks]
    for value in (None, *ENDS[kind], *bounds, data.draw(values)):
        below = 0 if value is None else sum(bound <= value for bound in bounds)
        assert [holds(chunk, kind, value) for chunk in kept] == [
            number == below for number in range(len(kept))
        ]


@dataclass
class Keys:
    """A table of known keys, each in a row; cut as if its column was read."""

    keys: tuple[Any, ...]
    by: Any = "column"
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def key_bounds(self, table: str, snapshot_id: int, wanted: KeyRanges) -> KeyBounds:
        self.asked.append((table, snapshot_id))
        held = sorted(key for key in self.keys if key is not None)
        places = key_ranges.quantile_places(len(held), wanted.count_of(len(held))) if held else []
        bounds = key_ranges.bounds_of_firsts(held[place] for place in places)
        return KeyBounds(bounds, len(held), self.by)


def chosen(
    keys: Keys, by: dict[str, Any], kind: str = "long", snapshot_id: int | None = 7
) -> tuple[tuple[Chunk, ...], tuple[str, ...]]:
    """Cut the table by `size` or `count`, as `plan` does."""
    base = TableInfo(
        table="silver.daily", uuid="u", location="l", format_version=2, snapshot_id=snapshot_id,
        schema_id=0, spec_id=0, columns=columns_of({"id": kind}), partitioning=(),
        spec_count=1, properties={}, refs={},
    )  # fmt: skip
    manifest = run_of([1], limits={"key_ranges": {"column": "id", **by}})
    tables: Any = keys
    return plan_key_chunks(tables, manifest, unpartitioned(kind), base)


@pytest.mark.req("P3")
@pytest.mark.parametrize("kind", ENDS)
@given(data=st.data(), by=st.sampled_from(["size", "count"]), number=st.integers(1, 9))
def test_each_key_is_in_exactly_one_range_of_chosen_bounds_also_new_ones_and_none(
    kind: str, data: Any, by: str, number: int
) -> None:
    values = (KINDS | {"timestamp": st.datetimes()})[kind] | st.sampled_from(ENDS[kind])
    drawn = data.draw(st.lists(st.none() | values, max_size=20))
    few = data.draw(st.lists(st.sampled_from([*drawn, None]), max_size=20))
    keys = Keys((data.draw(values), *drawn, *few))
    chunks, _ = chosen(keys, {by: number}, kind)
    assert chosen(keys, {by: number}, kind)[0] == chunks
    assert len(chunks) == len({chunk.chunk_id for chunk in chunks})
    assert 1 <= len(chunks) <= (number if by == "count" else len(keys.keys))
    kept = [Chunk.model_validate_json(chunk.model_dump_json()) for chunk in chunks]
    for value in (None, *ENDS[kind], *keys.keys, data.draw(values)):
        assert sum(holds(chunk, kind, value) for chunk in kept) == 1


@pytest.mark.req("P3")
def test_bounds_are_chosen_from_the_pinned_snapshot_and_the_plan_tells_from_what() -> None:
    keys = Keys((*range(100), None), by="statistics")
    chunks, (note,) = chosen(keys, {"size": 30})
    assert keys.asked == [("silver.daily", 7)]
    assert [describe_chunk(chunk) for chunk in chunks] == [
        "all, id below 25 and null", "all, id from 25 to before 50",
        "all, id from 50 to before 75", "all, id from 75 on",
    ]  # fmt: skip
    assert note == (
        "4 ranges of about 25 rows of silver.daily each, bounds from the statistics of its "
        "files at snapshot 7; they are part of the plan"
    )
    chunks, (note,) = chosen(Keys((4,) * 50 + (5, 6)), {"count": 3})
    assert [describe_chunk(chunk) for chunk in chunks] == ["all, id of any value and null"]
    assert note == (
        "1 range of about 52 rows of silver.daily each (3 were wanted: rows of one value stay "
        "together), bounds from the column id, read in this process at snapshot 7; they are part "
        "of the plan"
    )
    assert plan_key_chunks(Any, run_of([5]), unpartitioned(), None) == (  # type: ignore[arg-type]
        cut_by_key(run_of([5]), unpartitioned(), None), (),
    )  # fmt: skip


@pytest.mark.req("P3")
@pytest.mark.parametrize(
    ("keys", "by", "snapshot_id", "problem", "fix"),
    [
        ((), {"count": 4}, 7, "count chooses bounds from the rows of", "key_ranges.bounds, or cut"),
        ((None,), {"size": 4}, 7, "none has a value of id", "limits.key_buckets"),
        ((1, 2), {"size": 4}, None, "size chooses bounds from the rows of", "key_ranges.bounds"),
        (range(30_000), {"size": 2}, 7, "30,000 rows are 15,000 chunks of 2", "at least 3: a run"),
    ],
    ids=["no rows", "no values", "no snapshot", "too many"],
)
def test_bounds_that_cannot_be_chosen_are_refused(
    keys: Any, by: dict[str, int], snapshot_id: int | None, problem: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen(Keys(tuple(keys)), by, snapshot_id=snapshot_id)
    assert problem in refused.value.problem
    assert fix in refused.value.fix
    assert refused.value.state == "nothing was planned, pinned or changed"
    assert refused.value.field == f"limits.key_ranges.{next(iter(by))}"


def test_a_run_that_declares_no_buckets_has_no_chunks_by_key() -> None:
    assert cut_by_key(declared().manifest, contract(), None) == ()


def test_chunks_and_their_cost_are_described() -> None:
    chunks = cut_by_key(run_of(3), unpartitioned(), None)
    assert [chunk.chunk_id for chunk in chunks][2] == "c0003-bucket-2-of-3"
    assert [describe_chunk(chunk) for chunk in chunks][:2] == [
        "all, bucket 0 and null of bucket[3](id)", "all, bucket 1 of bucket[3](id)",
    ]  # fmt: skip
    note = key_chunks.chunks_note(whole_plan(3).resolved)
    assert note.startswith("3 chunks by bucket[3](id), each one commit and at least one file: each")
    assert "read and computed 3 times" in note
    chunks = cut_by_key(run_of([10, 20]), unpartitioned(), None)
    assert [chunk.chunk_id for chunk in chunks][2] == "c0003-range-3-of-3"
    assert [describe_chunk(chunk) for chunk in chunks] == [
        "all, id below 10 and null", "all, id from 10 to before 20", "all, id from 20 on",
    ]  # fmt: skip
    assert key_chunks.chunks_note(whole_plan([10, 20]).resolved).startswith(
        "3 chunks by ranges of id (the first holds all below 10 and rows without a value, the last "
        "all from 20 on), each one commit and at least one file: each computes the whole output "
        "and keeps the rows of its range"
    )


EXTERNAL = {"name": "x", "version": "1.0.0", "file": "jobs/x.py", "writer": "external"}
ONE_CHUNK = "remove limits.key_buckets: the table is staged as one chunk"


@pytest.mark.req("P3")
@pytest.mark.parametrize(
    ("manifest", "of", "problem", "fix"),
    [
        (run_of(4, "name"), unpartitioned(), "name is not in the key of", "the key: id; or"),
        (run_of(4, "amount"), unpartitioned(), "amount is double, which Iceberg cuts", "key: id"),
        (
            run_of(4), contract(), "is partitioned, and each chunk would leave",
            "target.partitions.column: day",
        ),
        (
            run_of(4, target={"partitions": {"column": "day", "values": [date(2020, 1, 2)]}}),
            contract(), "the run restates partitions, which are its chunks",
            "limits.partitions_per_chunk says how many",
        ),
        (
            run_of(4, target={"publish_mode": "merge", "merge": {"version": "amount"}}),
            unpartitioned(), "a merge counts for each chunk", ONE_CHUNK,
        ),
        (
            run_of(4, target={"row_predicate": {"id": 1}}), unpartitioned(),
            "rows beside target.row_predicate are carried over", ONE_CHUNK,
        ),
        (
            run_of(4, target={"columns": ["amount"]}), unpartitioned(),
            "columns beside target.columns are carried over", ONE_CHUNK,
        ),
        (run_of([4], "amount"), unpartitioned(), "amount is double, which not all", "key: id"),
        (run_of([4, 4]), unpartitioned(), "bounds[1] is 4, not above 4", "in ascending order"),
        (run_of([4, 3]), unpartitioned(), "bounds[1] is 3, not above 4", "in ascending order"),
        (run_of([None]), unpartitioned(), "bounds[0] is null", "without null"),
        (run_of([2**31]), unpartitioned("int"), "no value of id", "at most 32 bits"),
        (run_of(["a"]), unpartitioned(), "'a' is no value of id", "a whole number"),
        (
            run_of(4, transform=EXTERNAL), unpartitioned(),
            "another engine writes the whole shadow", ONE_CHUNK,
        ),
    ],
    ids=[
        "not in the key", "type", "partitioned", "partitions", "merge", "rows", "columns",
        "floats", "a bound twice", "descending", "null", "beyond the type", "text", "writer",
    ],
)  # fmt: skip
def test_what_cannot_be_cut_by_key_is_refused(
    manifest: RunManifest, of: Contract, problem: str, fix: str
) -> None:
    with pytest.raises(BackfillError) as refused:
        cut_by_key(manifest, of, None)
    assert problem in refused.value.problem
    assert fix in refused.value.fix
    assert refused.value.state
    assert str(refused.value.field).startswith(manifest.limits.key_chunks_field)


@pytest.mark.req("P3")
def test_a_revision_computes_chunks_by_key_again_or_takes_the_table_over_as_one() -> None:
    old = cut_by_key(run_of(3), unpartitioned(), None)
    assert recut_chunks(old, (), ("all",), 16) == (old, {})
    (left,), origins = recut_chunks(old, ("all",), (), 16)
    assert (left.partitions, left.keys) == (("all",), None)
    assert origins == {left.chunk_id: old[0].chunk_id}


def whole_plan(cut: int | list[Any]) -> Plan:
    chunks = cut_by_key(run_of(cut), unpartitioned(), None)
    scope = Scope(field=WHOLE_TABLE_FIELD, partitions=("all",))
    return with_fields(a_plan(), resolved__chunks=chunks, resolved__scope=scope)


def checksum(rows: int) -> Checksum:
    return Checksum(rows=rows, xor=rows, total=rows * 1000, shape="12345678")


def records(plan: Plan, *rows: int) -> tuple[ChunkRecord, ...]:
    return tuple(
        ChunkRecord(
            run_id=plan.run_id,
            chunk_id=chunk.chunk_id,
            partitions=chunk.partitions,
            status="done",
            input_rows=9,
            output_rows=count,
            outside_rows=0,
            checksum=checksum(count).text if count else "lhb-rowhash-1:0:0:" + "0" * 32,
            seconds=1.0,
            snapshot_id=1,
            finished_at=NOON,
            epoch=1,
        )
        for chunk, count in zip(plan.resolved.chunks, rows, strict=True)
    )


@pytest.mark.req("P3", "Q1")
@pytest.mark.parametrize(
    ("rows", "stored", "passed"),
    [
        ((2, 0, 5), checksum(2) + checksum(5), True),
        ((2, 1, 5), checksum(2) + checksum(5), False),
        ((2, 0, 5), checksum(2) + checksum(5) + checksum(5), False),
        ((2, 0, 5), None, False),
        ((0, 0, 0), None, True),
    ],
    ids=["sum", "a chunk is missing", "a chunk twice", "nothing stored", "no rows"],
)
def test_the_whole_table_holds_the_sum_of_its_chunks(
    rows: tuple[int, ...], stored: Checksum | None, passed: bool
) -> None:
    plan = whole_plan(3)
    held = {} if stored is None else {"all": stored}
    result = gates.check_stored_as_computed(plan, records(plan, *rows), held, "12345678")
    assert result.passed is passed
    assert result.detail.startswith("sum of 3 chunk checksums, against the whole table")


def test_chunks_by_key_are_estimated_to_hold_equal_shares_and_to_read_all() -> None:
    resolved = whole_plan(4).resolved
    file = LiveFile(path="f", spec_id=0, partition="all", rows=10, size_bytes=101)
    found = estimates.estimate_outputs(resolved, (file,), None).by_chunk
    assert [(one.files, one.rows, one.size_bytes) for one in found] == [(1, 3, 26)] * 4
    empty = estimates.estimate_outputs(resolved, (), None).by_chunk
    assert [(one.files, one.rows) for one in empty] == [(0, 0)] * 4
    read = estimates.read_for_chunks(resolved, estimates.Inputs(2, 30, 400))
    assert read == estimates.Inputs(8, 120, 1600)


def own_source(name: str, column: str | None) -> SourcePin:
    return SourcePin(
        name=name,
        role="source",
        table=f"bronze.{name}",
        requested="head",
        snapshot_id=1,
        mode="tag",
        partition_column=column,
        columns=columns_of({"own": "long", "at": "date"}),
    )


@pytest.mark.req("P3")
def test_a_source_that_names_the_key_is_read_by_bucket_and_once() -> None:
    plan = whole_plan(4)
    pin = own_source("raw", "own")
    resolved = plan.resolved.model_copy(update={"sources": (pin,)})
    keys = resolved.chunks[0].keys
    assert keys is not None
    assert pins.own_rows_notes(resolved.scope, (pin,), keys.field) == (
        "raw: a chunk reads only rows whose own is in its own buckets",
    )
    assert pins.own_rows(pin, keys) == (
        RowRange("own", is_null=True), RowRange("own", equals=0, buckets=4),
    )  # fmt: skip
    assert estimates.read_for_chunks(resolved, estimates.Inputs(2, 30, 400)) == (2, 30, 400)
    assert "a row of another one fails it" in key_chunks.chunks_note(resolved)
    with pytest.raises(ConfigError, match=r"sources.other is read whole by chunks by key"):
        pins.own_rows_notes(resolved.scope, (pin, own_source("other", None)), keys.field)


@pytest.mark.req("P3")
def test_a_source_that_names_the_key_is_read_by_range_and_in_its_whole_time_window() -> None:
    """A range of days of the key says nothing of the times by which the source is cut."""
    chunks = cut_by_key(run_of([date(2024, 1, 5), date(2024, 1, 9)]), unpartitioned("date"), None)
    window = {"column": "at", "from": date(2020, 1, 1), "to": date(2021, 1, 1)}
    pin = own_source("raw", "at").model_copy(update={"range": InputRange.model_validate(window)})
    keys = chunks[1].keys
    assert keys is not None
    assert pins.own_rows_notes(keys, (pin,), keys.field) == (
        "raw: a chunk reads only rows whose at is in its own ranges",
    )
    assert pins.own_rows(pin, keys) == (RowRange("at", date(2024, 1, 5), date(2024, 1, 9)),)
    assert [str(end.date()) for end in window_to_read(pin, keys)] == ["2020-01-01", "2021-01-01"]


@pytest.mark.req("P3", "Q9")
@pytest.mark.parametrize("is_recovered", [False, True])
def test_a_row_that_the_chunk_of_its_key_does_not_read_halts_the_run(is_recovered: bool) -> None:
    plan = whole_plan(2)
    (record, _) = records(plan, 5, 5)
    lost = record.model_copy(update={"outside_rows": 1, "recovered": is_recovered})
    facts = ChunkFacts(rows={"all": 5}, null_keys={}, duplicate_keys=0)
    failed = [one for one in judge_chunk(plan, lost, facts, 0, ()) if not one.passed]
    assert [(one.name, one.blocking) for one in failed] == [("rows lie inside the chunk", True)]
