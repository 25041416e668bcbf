"""What is read in this process takes the same memory, however many rows there are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse_backfill.adapters.local.inspecting import LocalInspector
from lakehouse_backfill.adapters.local.measuring.measuring import LocalMeasurer
from lakehouse_backfill.adapters.local.reader import rows_by_key
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from tests.support.examples.plans import a_plan

FEW, MANY = 80_000, 320_000
FIELD = ScopeField.model_validate({"column": "d", "transform": "month", "type": "date"})
SCOPE = Scope(field=FIELD, partitions=("2025-01",))


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> SqlCatalog:
    """Tables of few and of many rows, each in one file, in no order of their key."""
    folder: Path = tmp_path_factory.mktemp("lake")
    made = SqlCatalog("lake", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    made.create_namespace("n")
    for rows in (FEW, MANY):
        ids = np.random.default_rng(1).permutation(rows)
        texts = {f"text_{n}": pa.array([f"{id_:024d}" for id_ in ids]) for n in range(3)}
        days = pa.array(np.datetime64("2025-01-01") + ids % 31)
        table = pa.table(
            {"d": days, "id": pa.array(ids), "state": pa.repeat("open", rows), **texts}
        )
        made.create_table(f"n.t{rows}", table.schema).append(table)
    return made


def _count(catalog: SqlCatalog, table: str, head: int) -> Any:
    made = a_plan()
    contract = made.resolved.contract.model_copy(update={"key": ("id", "text_0")})
    resolved = made.resolved.model_copy(update={"scope": SCOPE, "contract": contract})
    of = made.model_copy(update={"shadow_table": table, "resolved": resolved})
    chunk = Chunk(chunk_id="c1", partitions=SCOPE.partitions)
    facts = LocalInspector(catalog).chunk(of, chunk, head)
    return facts.duplicate_keys, sum(facts.rows.values())


def _fetch(catalog: SqlCatalog, table: str, head: int) -> Any:
    keys = [{"id": str(number)} for number in range(0, FEW, 1_000)]
    rows, _ = rows_by_key(catalog, table, head, keys)
    return sorted(row["id"] for row in rows)[:3], len(rows)


def _measure(catalog: SqlCatalog, table: str, head: int) -> Any:
    states = (Measure(name="states", counts_by="state"), Measure(name="sum", sum="id"))
    measured = LocalMeasurer(catalog).measure((table, None), (table, head), SCOPE, states)
    return [(one.name, one.new) for one in measured.totals]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (_count, lambda rows: (0, rows)),
        (_fetch, lambda rows: ([0, 1_000, 2_000], FEW // 1_000)),
        (_measure, lambda rows: [("states: open", rows), ("sum", rows * (rows - 1) // 2)]),
    ],
    ids=["a chunk is counted", "rows are fetched by key", "partitions are measured"],
)
def test_four_times_the_rows_take_no_more_memory_of_arrow(
    catalog: SqlCatalog,
    read: Callable[[SqlCatalog, str, int], Any],
    expected: Callable[[int], Any],
) -> None:
    peaks = {}
    for rows in (FEW, MANY):
        head = catalog.load_table(f"n.t{rows}").metadata.current_snapshot_id or 0
        before = pa.default_memory_pool()
        counting = pa.proxy_memory_pool(before)
        # Buffers are given back to their pool, and may outlive all else: it is never freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(counting))
        pa.set_memory_pool(counting)
        try:
            assert read(catalog, f"n.t{rows}", head) == expected(rows)
        finally:
            pa.set_memory_pool(before)
        peaks[rows] = counting.max_memory()
    # Pages and dictionaries of a larger file are larger, up to a limit; all rows take 4 times.
    assert 0 < peaks[MANY] < 1.5 * peaks[FEW], peaks
