"""Columns that are added, widened and renamed by one run, from manifest to readers, and back."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.errors import ConfigError
from tests.support.spark.lake import Lake
from tests.support.spark.modes import Modes

pytestmark = pytest.mark.lake

CHANGE = [
    {"add": "note", "type": "string", "doc": "what was put right"},
    {"widen": "n", "to": "long"},
    {"rename": "v", "to": "amount"},
]
CONTRACT = {
    "columns": [
        {"name": "d", "type": "date"}, {"name": "k", "type": "long"},
        {"name": "tenant", "type": "string"}, {"name": "amount", "type": "long"},
        {"name": "ver", "type": "long"}, {"name": "n", "type": "int"},
    ],
    "measures": [{"name": "total", "sum": "amount"}, {"name": "n", "sum": "n"}],
    "consumers": [{"name": "board", "tolerates_restatement": True}],
}  # fmt: skip
JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="wider", version="1.0.0", inputs=("src",))
def job(context, src):
    big = F.when(F.col("ver") == 2, F.lit(2 ** 40)).otherwise(F.lit(0))
    note = F.when((F.col("k") == 1) & (F.col("ver") == 2), F.lit("right"))
    return src.select(
        "d", "k", "tenant", F.col("v").alias("amount"), "ver",
        (F.col("k") + big).alias("n"), note.alias("note"),
    )
"""
COLUMNS = ("d", "k", "amount", "n", "note")


@pytest.fixture(params=[2, 3], ids=["format 2", "format 3"])
def modes(request: pytest.FixtureRequest, lake: Lake) -> Modes:
    """Four days of keys 1 and 2; the source puts `v` of days 2 and 3 right."""
    modes = Modes(lake, request.param, **CONTRACT)
    modes.holds(*(f"{d}, {k}, A, {10 * d + k}, 1" for d in range(1, 5) for k in (1, 2)))
    lake.sql("ALTER TABLE {ns}.out ADD COLUMN n int")
    lake.sql("UPDATE {ns}.out SET n = k")
    for d in range(1, 5):
        more, version = (1000, 2) if d in (2, 3) else (0, 1)
        modes.source(*(f"{d}, {k}, A, {10 * d + k + more}, {version}" for k in (1, 2)))
    lake.job(JOB)
    modes.transform = "wider"
    return modes


def rows(days: set[int]) -> list[tuple[Any, ...]]:
    """What readers must see once these days are restated."""
    found = []
    for d in range(1, 5):
        for k in (1, 2):
            new = d in days
            note = "right" if new and k == 1 else None
            found.append((d, k, 10 * d + k + 1000 * new, k + 2**40 * new, note))
    return sorted(found, key=repr)


@pytest.mark.req("U1", "U12", "Q5")
def test_columns_change_with_the_rows_and_stay_when_the_rows_go_back(modes: Modes) -> None:
    lake = modes.lake
    run_id, found = modes.validated(
        target={"schema_change": CHANGE}, validation={"edge_partitions": 1}
    )
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    shown = modes.project.plan("jobs/run.yaml", by="ann")
    assert shown.schema_change == ("add note string", "widen n to long", "rename v to amount")
    said = " ".join(shown.notes)
    assert "the contract does not list note" in said
    assert "the contract says n as before" in said
    assert "consumers who see other columns: board" in said
    assert lake.spark.table(f"{lake.name}.{modes.product}").columns[:5] == [
        "d", "k", "tenant", "v", "ver",
    ]  # fmt: skip
    assert modes.gate(found, "columns that consumers rely on") == (True, "6 columns kept")
    for engine in ("local", "spark"):
        diff = modes.project.diff(run_id, engine=engine)
        changed = {each.name: each.changed for each in diff.columns}
        assert changed == {"tenant": 0, "amount": 4, "ver": 4, "n": 4}
        assert diff.summary.changed == 4
        assert [(each.name, each.rows) for each in diff.added_columns] == [("note", 2)]
    before = modes.head()
    modes.publish(run_id)
    assert modes.rows(*COLUMNS) == rows({2, 3})
    head = modes.head()
    table = lake.catalog.load_table(modes.product)
    assert (head.parent_snapshot_id, head.schema_id) == (
        before.snapshot_id, table.metadata.current_schema_id,
    )  # fmt: skip
    # A live writer that knows the new columns goes on.
    lake.sql("INSERT INTO {ns}.out (d, k, tenant, amount, ver, n, note) "
             "VALUES (date'2024-01-05', 1, 'A', 51, 1, 1099511627776, 'live')")  # fmt: skip
    preview = modes.project.preview_rollback(modes.product, by="lead")
    assert preview.columns_stay == shown.schema_change
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    assert modes.rows(*COLUMNS) == sorted([*rows(set()), (5, 1, 51, 2**40, "live")], key=repr)
    with pytest.raises(ConfigError, match="has a column note already"):
        modes.plan(target={"schema_change": CHANGE})
