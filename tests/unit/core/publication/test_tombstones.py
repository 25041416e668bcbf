"""Tombstone tables are looked at when a run is planned: they exist, and their columns fit."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.steps import planned_run, world

TABLE = "privacy.gone"


@pytest.mark.req("E3")
def test_tombstones_are_pinned_like_reference_data() -> None:
    where, found = world()
    where.add(TABLE, all="p1")
    wanted = declared(contract=contract(tombstones=[{"table": TABLE, "columns": {"id": "id"}}]))
    plan = found.runs.plan(planned_run(found, wanted))
    assert [(pin.table, pin.snapshot_id) for pin in plan.resolved.tombstones] == [(TABLE, 1)]
    assert where.tables[TABLE].refs == {f"lhb-pin-{plan.run_id}-tombstones-1": 1}


@pytest.mark.req("E3")
@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": "person"}, "has no column person"),
        ({"day": "id"}, "day is date there"),
        ({"other": "id"}, "other is not among its columns"),
    ],
)
def test_columns_that_could_never_match_are_refused(columns: dict[str, str], says: str) -> None:
    where = lake()
    where.add(TABLE, all="p1")
    wanted = declared(contract=contract(tombstones=[{"table": TABLE, "columns": columns}]))
    with pytest.raises(ConfigError, match=says):
        make_plan(context(where), wanted, "bob", None)


@pytest.mark.req("E3")
def test_a_tombstone_table_that_is_not_there_is_named() -> None:
    wanted = declared(contract=contract(tombstones=[{"table": TABLE, "columns": {"id": "id"}}]))
    with pytest.raises(NotFound, match=TABLE):
        make_plan(context(lake()), wanted, "bob", None)


@pytest.mark.req("U11")
def test_catching_up_is_refused_where_partitions_cannot_be_made_again() -> None:
    wanted = declared(
        contract=contract(publication="pinned"),
        target={"publish_mode": "pointer_swap"},
        safety={"on_conflict": "catch_up"},
    )
    with pytest.raises(Unsupported, match="which pointer_swap does not"):
        make_plan(context(lake()), wanted, "bob", None)
