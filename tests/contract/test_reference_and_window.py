"""Versions of reference data, and windows of wrong rows, on tables that PyIceberg wrote."""

from __future__ import annotations

import time
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.planning.scope.corruption_window import examine_window, parse_window
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import ContractColumn
from lakehouse_backfill.domain.plan import CorruptionWindow, Plan
from lakehouse_backfill.domain.sources.declaration import FileSource, SourceDeclaration
from lakehouse_backfill.domain.sources.landings import (
    LandingRequest,
    LandingState,
    new_landing_id,
    next_state,
)
from lakehouse_backfill.domain.tables.files import ColumnSpan
from lakehouse_backfill.errors import ConfigError
from tests.support.fakes.context import PRODUCT, context, declared, lake
from tests.support.lakes.catalogs import catalog_of

RAW, RATES = "bronze.raw", "bronze.rates"
SCHEMA = Schema(
    NestedField(1, "day", DateType()),
    NestedField(2, "id", LongType()),
    NestedField(3, "amount", LongType()),
)
BY_DAY = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))


def append(catalog: Catalog, table: str, *days: int) -> int:
    """Add a row on each of some days of January; return the snapshot."""
    rows = [{"day": date(2020, 1, day), "id": day, "amount": 1} for day in days]
    loaded = catalog.load_table(table)
    loaded.append(pa.Table.from_pylist(rows, SCHEMA.as_arrow()))
    time.sleep(0.01)  # snapshots of one millisecond have no order in time
    snapshot = loaded.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


class World:
    """Rates, then the product, then newer rates; the raw rows of 2 January came twice."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        for name in ("bronze", "silver"):
            catalog.create_namespace_if_not_exists(name)
        catalog.create_table(RAW, SCHEMA, partition_spec=BY_DAY)
        catalog.create_table(PRODUCT, SCHEMA, partition_spec=BY_DAY)
        catalog.create_table(RATES, SCHEMA, partition_spec=UNPARTITIONED_PARTITION_SPEC)
        self.rates = [append(catalog, RATES, 1)]
        self.product = [append(catalog, PRODUCT, 1, 2, 3)]
        self.raw = [append(catalog, RAW, *days) for days in ((1, 3), (2,), (3,), (2, 3))]
        self.rates.append(append(catalog, RATES, 2))
        publisher = IcebergPublisher(catalog, 30)
        self.context: Context = context(lake(), tables=IcebergTables(catalog), publisher=publisher)

    def plan(self, *days: str, **changes: Any) -> Plan:
        return make_plan(self.context, declared(*days, **changes), "bob", None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(catalog_of(tmp_path))


def rated(semantics: str) -> dict[str, Any]:
    return {"rates": {"table": RATES, "semantics": semantics}}


def rates_of(plan: Plan) -> int:
    return next(pin.snapshot_id for pin in plan.resolved.sources if pin.name == "rates")


@pytest.mark.req("D4")
def test_as_recorded_is_found_by_the_times_of_real_commits(world: World) -> None:
    assert rates_of(world.plan(reference_data=rated("as_recorded"))) == world.rates[0]
    assert rates_of(world.plan(reference_data=rated("corrected_truth"))) == world.rates[1]
    append(world.catalog, PRODUCT, 3)
    with pytest.raises(ConfigError, match="more than one version for these partitions"):
        world.plan(reference_data=rated("as_recorded"))


def test_rows_of_no_run_have_no_version_that_a_run_used(world: World) -> None:
    with pytest.raises(ConfigError, match="were made by no published run"):
        world.plan(reference_data=rated("as_used_by_original"))


@pytest.mark.req("P6")
def test_the_commits_of_a_window_are_those_that_wrote_its_rows(world: World) -> None:
    plan = examine_window(world.context, world.plan(), parse_window("2020-01-02..2020-01-02"))
    window = plan.window
    assert isinstance(window, CorruptionWindow)
    (source,) = window.sources
    assert [one.snapshot_id for one in source.commits] == [world.raw[1], world.raw[3]]
    assert window.partitions == ("2020-01-02", "2020-01-03")
    good = window.last_good
    assert good is not None
    assert (good.table, good.snapshot_id) == (PRODUCT, world.product[0])


@pytest.mark.req("P6")
def test_commits_of_a_window_are_found_on_the_branch_that_is_read_and_on_main(world: World) -> None:
    table = world.catalog.load_table(RAW)
    table.manage_snapshots().create_branch(world.raw[1], "audit").commit()
    rows = pa.Table.from_pylist(
        [{"day": date(2020, 1, 2), "id": 9, "amount": 1}], SCHEMA.as_arrow()
    )
    table.refresh().append(rows, branch="audit")
    staged = table.refresh().snapshot_by_name("audit")
    assert staged is not None
    plan = world.plan(sources={"raw": {"at": "audit"}})
    found = examine_window(world.context, plan, parse_window("2020-01-02..2020-01-02")).window
    assert found is not None
    (source,) = found.sources
    carried = [one.snapshot_id for one in source.commits]
    assert carried == [world.raw[1], world.raw[3], staged.snapshot_id]


@pytest.mark.req("P6")
def test_a_product_that_was_made_after_the_rows_starts_cold(world: World) -> None:
    world.catalog.drop_table(PRODUCT)
    world.catalog.create_table(PRODUCT, SCHEMA, partition_spec=BY_DAY)
    append(world.catalog, PRODUCT, 1, 2, 3)
    plan = examine_window(world.context, world.plan(), parse_window("2020-01-02..2020-01-02"))
    assert plan.window is not None
    assert plan.window.last_good is None
    assert any("a cold start" in note for note in plan.notes)


@pytest.mark.req("P6")
def test_commits_of_a_table_without_partitions_of_time_are_found_by_statistics_of_files(
    world: World,
) -> None:
    world.catalog.create_table("bronze.flat", SCHEMA)
    flat = [append(world.catalog, "bronze.flat", *days) for days in ((1, 3), (3,), (1,), (2,))]
    wanted: DeclaredRun = declared(sources={"raw": {"table": "bronze.flat"}})
    plan = make_plan(world.context, wanted, "bob", None)
    found = examine_window(world.context, plan, parse_window("2020-01-02..2020-01-02"))
    assert found.window is not None
    (source,) = found.window.sources
    # A file from the first to the third day may hold rows of the second.
    assert [one.snapshot_id for one in source.commits] == [flat[0], flat[3]]
    assert (source.unknown, source.last_good_snapshot_id) == ("", None)
    # Files that no known commit added, as after a compaction, are not attributed.
    tables: Any = world.context.tables
    tables.column_spans = lambda *_: (
        ColumnSpan(path="f", first=None, last=None, least_rows=1, most_rows=1, added_by=7),
    )
    lost = examine_window(world.context, plan, parse_window("2020-01-02..2020-01-02")).window
    assert lost is not None
    assert "was compacted, or its history has expired: 1" in lost.sources[0].unknown


LANDED = SourceDeclaration(
    api_version="lakehouse-backfill/v1", source="landed", kind="files", table="bronze.landed",
    columns=(
        ContractColumn(name="day", type="date"), ContractColumn(name="id", type="long"),
        ContractColumn(name="amount", type="long"),
    ),
    files=FileSource(location="inbox", format="csv"),
)  # fmt: skip


def landed(catalog: Catalog, *days: int) -> tuple[int, str]:
    """Land a row on each of some days; return the snapshot and the landing."""
    tables = IcebergRawTables(catalog)
    tables.ensure(LANDED)
    before, now = tables.state(LANDED.table), datetime.now(timezone.utc)
    request = LandingRequest()
    began = LandingState(
        landing_id=new_landing_id("landed", request, now), source="landed", request=request,
        started_at=now, token=before.token if before else "",
    )  # fmt: skip
    state = next_state(began, is_complete=True)
    rows = pa.Table.from_pylist(
        [{"day": date(2020, 1, day), "business_date": date(2020, 1, day)} for day in days],
        IcebergRawTables.record_schema(LANDED),
    )
    staged = tables.stage(LANDED.table, [rows], state)
    snapshot = tables.commit(LANDED.table, (staged,), state).snapshot_id
    assert snapshot is not None
    time.sleep(0.01)
    return snapshot, state.landing_id


@pytest.mark.req("P6")
@pytest.mark.parametrize("column", ["day", "business_date"])
def test_a_window_names_the_landings_that_carried_it_and_the_good_state_before_them(
    world: World, column: str
) -> None:
    landings = [landed(world.catalog, *days) for days in ((1,), (2,), (3,), (2, 3))]
    wanted = declared(
        sources={"raw": {"table": LANDED.table, "range": {
            "column": column, "from": "2019-12-01", "to": "2020-02-01"}}}
    )  # fmt: skip
    plan = make_plan(world.context, wanted, "bob", None)
    found = examine_window(world.context, plan, parse_window("2020-01-02..2020-01-02"))
    assert found.window is not None
    (source,) = found.window.sources
    assert [(one.snapshot_id, one.writer) for one in source.commits] == [
        (landings[place][0], f"landing {landings[place][1]}") for place in (1, 3)
    ]
    assert source.last_good_snapshot_id == landings[0][0]
    assert source.reaches_to == date(2020, 1, 3)
    notes = [note for note in found.notes if note.startswith("raw: ")]
    assert f"before the first of these commits is snapshot {landings[0][0]}" in notes[1]
    assert notes[2].endswith("rows up to 2020-01-03 00:00")
    # What lies behind what was landed is said: here the raw rows end in the middle.
    world.catalog.drop_table(LANDED.table)
    landed(world.catalog, 1)
    plan = make_plan(world.context, wanted, "bob", None)
    found = examine_window(world.context, plan, parse_window("2020-01-02..2020-01-02"))
    assert any("the window goes on behind them: land what is missing" in one for one in found.notes)
    assert "raw: no commit of bronze.landed carried rows of the window" in found.notes


@pytest.mark.req("P7")
def test_the_share_of_the_table_is_read_from_its_summary(world: World) -> None:
    notes = world.plan("2020-01-02", "2020-01-04").notes
    assert any("hold 67% of the table's rows" in note for note in notes)
