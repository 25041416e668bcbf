"""Job code cannot commit through PyIceberg, while the toolkit's own commits go on beside it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.spark.session.write_guard import (
    allow_own_writes,
    forbid_job_writes,
)
from lakehouse_backfill.errors import WriteForbidden
from lakehouse_backfill.fault_points import commit_window
from tests.support.lakes.tables import TARGET, Kit, row

DAYS = ("2013-02-01", "2013-02-02")


@pytest.fixture
def days(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    kit.create_days(DAYS)
    return kit


def append(catalog: Catalog) -> None:
    table = catalog.load_table(TARGET)
    table.append(table.scan().to_arrow())


def delete(catalog: Catalog) -> None:
    catalog.load_table(TARGET).delete("id = 0")


def tag(catalog: Catalog) -> None:
    table = catalog.load_table(TARGET)
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "mine").commit()


def set_property(catalog: Catalog) -> None:
    with catalog.load_table(TARGET).transaction() as change:
        change.set_properties({"mine": "yes"})


def drop(catalog: Catalog) -> None:
    catalog.drop_table(TARGET)


def create(catalog: Catalog) -> None:
    catalog.create_table("silver.mine", pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize("change", [append, delete, tag, set_property, drop, create])
def test_a_job_that_commits_through_pyiceberg_is_refused_and_nothing_changes(
    days: Kit, change: Callable[[Catalog], None]
) -> None:
    before = days.live.load_table(TARGET).metadata
    with forbid_job_writes(), pytest.raises(WriteForbidden, match="through PyIceberg"):
        change(days.live)
    assert days.live.load_table(TARGET).metadata == before
    assert not days.live.table_exists("silver.mine")
    change(days.live)


def test_a_thread_of_the_job_is_refused_and_own_commits_beside_it_are_not(days: Kit) -> None:
    refused: list[Exception] = []

    def of_the_job() -> None:
        try:
            append(days.live)
        except WriteForbidden as error:
            refused.append(error)

    def of_ours() -> None:
        with commit_window("ControlLog.run_event"):
            tag(days.live)

    with forbid_job_writes():
        for act in (of_the_job, of_ours):
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()
        with allow_own_writes():
            set_property(days.live)
    table = days.live.load_table(TARGET)
    assert len(refused) == 1
    assert ("mine" in table.metadata.refs, table.properties["mine"]) == (True, "yes")
    assert days.total_rows() == len([row(n, day) for n, day in enumerate(DAYS)])


def test_an_import_of_spark_connect_that_fails_on_another_thread_does_not_stop_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half_imported = ModuleType("pyspark.sql.connect.session")
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", half_imported)
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.dataframe", None)

    with forbid_job_writes():
        pass
