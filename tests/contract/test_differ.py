"""The port `Differ`: every engine gives the oracle's answer for every case.

Here the local engine; `tests/lake` runs the same cases on Spark.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.types import LongType, StringType

from lakehouse_backfill.adapters.local.diff import compare
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.distributed import parallel
from lakehouse_backfill.adapters.local.distributed.parallel import ParallelDiffer
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.errors import EnvironmentDown, NotFound, Unsupported
from lakehouse_backfill.ports.comparison import PartFunction
from tests.contract.differ_cases import (
    BAD_REQUESTS,
    CASES,
    SIMPLE,
    Built,
    Case,
    Maker,
    append,
    arrow,
    check,
    day,
    days,
    evolve,
    overwrite,
    simple,
)
from tests.contract.differ_more_cases import MORE_CASES
from tests.support.oracles.diff import Row

pytestmark = [pytest.mark.req("Q5"), pytest.mark.in_turn]

LOCAL_CASES = [
    pytest.param(case, id=case.name) for case in (*CASES, *MORE_CASES) if "local" in case.engines
]


class Here:
    """Works on one part after the other, as bytes that know nothing of each other."""

    def __init__(self, number: int = 3) -> None:
        self._number = number
        self.tasks: list[int] = []

    def count(self, work: PartFunction) -> int:
        assert callable(work)
        return self._number

    def run_all(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        self.tasks = [len(parts) for parts in tasks]
        sent = pickle.loads(pickle.dumps(work))
        yield from (sent(common, parts) for parts in tasks)


def parts_differ(catalog: SqlCatalog, limit_bytes: int = 1 << 40) -> ParallelDiffer:
    """Compare every partition by itself."""
    return ParallelDiffer(LocalDiffer(catalog), Here(), limit_bytes, least_rows=1)


@pytest.fixture
def built(make: Maker) -> Built:
    """A table by day beside nothing."""
    return CASES.named("empty old side").build(make)


@pytest.mark.parametrize("batch_rows", [1, 1_000_000])
@pytest.mark.parametrize("case", LOCAL_CASES)
def test_a_diff_is_what_comparing_row_by_row_gives(
    catalog: SqlCatalog, kept: Callable[[Case], Built], case: Case, batch_rows: int
) -> None:
    check(LocalDiffer(catalog, batch_rows), kept(case))


@pytest.mark.parametrize("case", LOCAL_CASES)
def test_a_join_gives_what_sorting_does(
    catalog: SqlCatalog, kept: Callable[[Case], Built], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "are_sortable", lambda columns: False)
    check(LocalDiffer(catalog), kept(case))


@pytest.mark.parametrize("case", LOCAL_CASES)
def test_partitions_compared_apart_add_up_to_the_same(
    catalog: SqlCatalog, kept: Callable[[Case], Built], case: Case
) -> None:
    built = kept(case)
    check(parts_differ(catalog), built)
    whole, apart = (
        LocalDiffer(catalog).diff(built.request),
        parts_differ(catalog).diff(built.request),
    )
    for name in ("summary", "partitions", "samples", "files", "duplicate_keys", "cells", "columns"):
        assert getattr(apart, name) == getattr(whole, name)


def test_every_partition_is_a_part_of_its_own(catalog: SqlCatalog, built: Built) -> None:
    workers = Here()
    found = ParallelDiffer(LocalDiffer(catalog), workers, 1 << 40, least_rows=1).diff(built.request)
    assert sum(workers.tasks) == len(found.partitions) > 1
    assert found.how == f"whole partitions in {sum(workers.tasks)} parts, 3 at a time"


def test_a_partition_that_is_too_large_for_a_worker_is_named(
    catalog: SqlCatalog, built: Built
) -> None:
    with pytest.raises(Unsupported, match=r"partition 2024-01-01 has .* MiB to compare"):
        parts_differ(catalog, limit_bytes=10).diff(built.request)


def test_small_partitions_beside_a_large_one_do_not_hide_it(
    catalog: SqlCatalog, built: Built
) -> None:
    for limit in (0, 10):
        with pytest.raises(Unsupported, match="more than a worker takes"):
            ParallelDiffer(LocalDiffer(catalog), Here(), limit).diff(built.request)


def test_partitions_that_are_too_large_together_are_parts_apart(
    catalog: SqlCatalog, built: Built
) -> None:
    files = catalog.load_table(built.request.new_table).scan().plan_files()
    largest = max(task.file.file_size_in_bytes for task in files)
    workers = Here()
    check(ParallelDiffer(LocalDiffer(catalog), workers, largest), built)
    assert sum(workers.tasks) > 1


def test_a_part_that_does_not_come_back_is_missed(catalog: SqlCatalog, built: Built) -> None:
    class Lossy(Here):
        def run_all(
            self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
        ) -> Iterator[bytes]:
            yield from [*super().run_all(work, common, tasks)][:-1]

    differ = ParallelDiffer(LocalDiffer(catalog), Lossy(), 1 << 40, least_rows=1)
    with pytest.raises(EnvironmentDown, match="parts came back"):
        differ.diff(built.request)


def test_a_way_to_files_that_cannot_be_sent_is_left_to_the_shuffle(
    catalog: SqlCatalog, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(self: object) -> None:
        raise TypeError("cannot pickle a lock")

    monkeypatch.setattr(PyArrowFileIO, "__getstate__", locked)
    with pytest.raises(Unsupported, match="cannot be sent to workers"):
        parts_differ(catalog).diff(built.request)


def test_a_file_that_is_gone_is_named_by_the_worker(catalog: SqlCatalog, built: Built) -> None:
    for task in catalog.load_table(built.request.new_table).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(NotFound, match="is gone"):
        parts_differ(catalog).diff(built.request)


def test_what_else_fails_in_a_worker_is_told(
    catalog: SqlCatalog, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("no access")

    monkeypatch.setattr(parallel, "read_both_sides", refused)
    with pytest.raises(EnvironmentDown, match="PermissionError: no access"):
        parts_differ(catalog).diff(built.request)


def test_files_that_both_sides_share_are_not_read(catalog: SqlCatalog, make: Maker) -> None:
    built = CASES.named("same snapshot").build(make)
    table = catalog.load_table(built.request.old_table)
    for task in table.scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    check(LocalDiffer(catalog), built)


def test_samples_are_the_first_rows_by_partition_and_key(catalog: SqlCatalog, built: Built) -> None:
    wanted = [{"d": row["d"].isoformat(), "k": row["k"]} for row in simple()[:5]]
    for large_rows in (1, 1000):
        differ = LocalDiffer(catalog, batch_rows=1, large_rows=large_rows)
        assert [sample.key for sample in differ.diff(built.request).samples] == wanted


def test_a_large_file_without_a_row_of_the_scope_is_compared_as_no_rows(
    catalog: SqlCatalog, make: Maker
) -> None:
    table = make.table(SIMPLE)
    before = append(table, [{"d": day(d), "k": d, "v": 0} for d in (0, 2)])
    overwrite(table, [{"d": day(1), "k": k, "v": 0} for k in range(3)])
    after = table.metadata.current_snapshot_id
    request = make.request(table, before, after, ("k",), scope=days(1))
    found = LocalDiffer(catalog, batch_rows=1, large_rows=1).diff(request).summary
    assert (found.removed, found.added, found.changed) == (0, 3, 0)


def test_a_full_disk_of_temporary_files_is_named_and_nothing_stays_there(
    catalog: SqlCatalog, built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def new_full_stream(_: str, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        return pa.RecordBatchStreamWriter("/dev/full", schema)

    monkeypatch.setattr("pyarrow.ipc.new_stream", new_full_stream)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(EnvironmentDown, match=f"do not fit on the disk of {tmp_path}"):
        LocalDiffer(catalog, batch_rows=1, large_rows=1).diff(built.request)
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("lhb-diff-")] == []


@pytest.mark.parametrize("rows", [4_000, 40_000])
def test_ten_times_the_rows_of_a_partition_are_ten_times_as_many_buckets_of_one_size(
    catalog: SqlCatalog, make: Maker, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    table = make.table({"k": LongType(), "s": StringType()})
    made = [{"k": number, "s": f"{number % 7}"} for number in range(rows)]
    before = append(table, made[: rows // 2])
    table.overwrite(arrow(table, made[1:]))
    request = make.request(table, before, table.metadata.current_snapshot_id, ("k",))
    sizes: list[int] = []
    whole = compare.BatchComparison.compare_batch

    def compare_batch(self: compare.BatchComparison, old: pa.Table, new: pa.Table) -> None:
        sizes.append(old.num_rows + new.num_rows)
        whole(self, old, new)

    monkeypatch.setattr(compare.BatchComparison, "compare_batch", compare_batch)
    found = LocalDiffer(catalog, batch_rows=1_000, large_rows=2_000).diff(request).summary
    assert (found.removed, found.added, found.changed) == (1, rows // 2, 0)
    assert (len(sizes), sum(sizes)) == (rows * 3 // 1000, rows * 3 // 2 - 1)
    assert max(sizes) < 700


def test_one_differ_serves_many_diffs(catalog: SqlCatalog, make: Maker) -> None:
    differ = LocalDiffer(catalog)
    built = CASES.named("duplicate keys").build(make)
    assert differ.diff(built.request) == differ.diff(built.request)


@pytest.mark.parametrize(("change", "error", "words"), BAD_REQUESTS)
def test_a_request_that_does_not_fit_says_why(
    catalog: SqlCatalog, make: Maker, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    table = make.table(SIMPLE)
    first, second = append(table, simple()), append(table, simple(1))
    request = replace(make.request(table, first, second, ("d", "k")), **change)
    with pytest.raises(error, match=words):
        LocalDiffer(catalog).diff(request)


@pytest.mark.req("E7")
@pytest.mark.parametrize("engine", [LocalDiffer, parts_differ], ids=["local", "parts"])
def test_values_of_redacted_columns_are_in_no_result(
    catalog: SqlCatalog, make: Maker, engine: Callable[[SqlCatalog], Any]
) -> None:
    table = make.table(SIMPLE)
    first, second = append(table, simple()), overwrite(table, simple(1))
    request = make.request(table, first, second, ("d", "k"))
    shown = engine(catalog).diff(request)
    hidden = engine(catalog).diff(replace(request, redaction=Redaction.of(["K", "v"])))
    assert hidden.summary == shown.summary
    assert hidden.cells == shown.cells
    assert [sample.kind for sample in hidden.samples] == [sample.kind for sample in shown.samples]
    for sample in hidden.samples:
        assert sample.key["k"] == "restricted"
        assert {side["v"] for side in (sample.old, sample.new) if side} == {"restricted"}
    column = next(column for column in hidden.columns if column.name == "v")
    assert (column.old, column.shift) == ({"nulls": 0, "distinct": None}, None)
    assert column.distribution is None or column.distribution.bars == ()


@pytest.mark.req("E7")
def test_values_of_redacted_columns_are_in_no_differing_row(
    catalog: SqlCatalog, make: Maker
) -> None:
    table = make.table(SIMPLE)
    first, second = append(table, simple()), overwrite(table, simple(1))
    request = make.request(table, first, second, ("d", "k"), redaction=Redaction.of(["k", "v"]))
    rows = list(LocalDiffer(catalog).differing(request))
    assert rows
    values = {
        value
        for row in rows
        for cells in (row.key, row.old or {}, row.new or {})
        for name, value in cells.items()
        if name != "d"
    }
    assert values == {"restricted"}


def test_a_nested_key_is_refused(catalog: SqlCatalog, make: Maker) -> None:
    built = CASES.named("nested types").build(make)
    request = replace(built.request, key=("st",))
    with pytest.raises(Unsupported, match="key column st"):
        LocalDiffer(catalog).diff(request)


@pytest.mark.parametrize("case", LOCAL_CASES)
def test_distributions_do_not_depend_on_batches(
    catalog: SqlCatalog, kept: Callable[[Case], Built], case: Case
) -> None:
    request = kept(case).request
    one, whole = (LocalDiffer(catalog, rows).diff(request).columns for rows in (1, 1_000_000))
    assert [c.distribution for c in one] == [c.distribution for c in whole]
    for column in whole:
        found = column.distribution
        if found is not None and found.bars:
            assert found.value >= 0
            for side in ("old", "new"):
                assert math.isclose(sum(getattr(b, side) for b in found.bars), 1.0, abs_tol=1e-4)


def test_a_shift_far_from_zero_is_found_by_the_bounds_of_the_files(
    catalog: SqlCatalog, make: Maker
) -> None:
    """Moments within a day, two hours later; one column's old files are of a narrower type."""
    kinds = {"i": "int", "n": "long", "x": "double", "f": "float", "m": "decimal(15, 2)"}
    table = make.table({"k": "long", **kinds})

    def moments(first: int) -> list[Row]:
        values = (first + 60 * k for k in range(1440))
        return [
            {"k": value, "i": value, "n": -value, "x": value + 0.5, "f": value % 2**20 - 2.0**21,
             "m": Decimal(value)}
            for value in values
        ]  # fmt: skip

    before = append(table, moments(1_700_000_000))
    evolve(table, lambda update: update.update_column("i", field_type=LongType()))
    request = make.request(table, before, overwrite(table, moments(1_700_007_200)), ("k",))
    for column in LocalDiffer(catalog).diff(request).columns:
        assert column.distribution is not None
        assert column.distribution.value == pytest.approx(120 / 1440, abs=0.01), column.name
        assert not column.distribution.is_unjudged


def test_a_diff_that_is_not_asked_for_distributions_has_none(
    catalog: SqlCatalog, make: Maker
) -> None:
    request = CASES.named("duplicate keys").build(make).request
    found = LocalDiffer(catalog).diff(replace(request, distributions=False)).columns
    assert [column.distribution for column in found] == [None] * len(found)
