"""Answers of a REST catalog get lost, or say that it failed: look first, nothing doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.capabilities import probe_capabilities
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.adapters.iceberg.metadata import (
    BUILT_BECAUSE_PROPERTY,
    DROP_DELETES_PROPERTY,
)
from lakehouse_backfill.errors import CatalogDown, OutcomeUnknown
from tests.stack.catalogs import Catalogs
from tests.stack.proxy import Fault, Proxy
from tests.support.examples.plans import a_first_event, a_plan
from tests.support.lakes.catalogs import NAMES_CATALOG, catalog_of
from tests.support.lakes.control import PRODUCT, a_row, bare, move
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

#: How a commit may fail: what the server did, and what was answered.
AFTER = [pytest.param("after", status, id=f"after-{status}") for status in (500, 503, None)]
BEFORE = [pytest.param("before", status, id=f"before-{status}") for status in (503, None)]


@pytest.fixture
def proxy(catalogs: Catalogs, tmp_path: Path) -> Iterator[Proxy]:
    """The test's folder means a REST catalog behind the proxy; live writers go past it."""
    properties = catalogs.make("rest")
    with Proxy(properties["uri"]) as made:
        behind = {**properties, "uri": made.uri}
        (tmp_path / NAMES_CATALOG).write_text(json.dumps(behind), encoding="utf-8")
        yield made


@pytest.fixture
def kit(proxy: Proxy, tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    kit.create_days(DAYS)
    return kit


def commits_of(kit: Kit, token: str) -> list[int]:
    key = "lakehouse-backfill.publication"
    found = kit.live.load_table(TARGET).metadata.snapshots
    return [one.snapshot_id for one in found if one.summary and one.summary.get(key) == token]


@pytest.mark.req("T4", "U10")
@pytest.mark.parametrize(("when", "status"), AFTER)
def test_a_swap_whose_answer_was_lost_is_found(kit: Kit, proxy: Proxy, when: Any, status: Any):
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    fault = proxy.fail(Fault("POST", "/silver/tables/t$", when, status))

    swap = kit.publisher.adopt(request)

    assert fault.met == 1
    assert (swap.attempts, commits_of(kit, request.token)) == (1, [swap.snapshot_id])
    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]


@pytest.mark.req("T4", "U10")
@pytest.mark.parametrize(("when", "status"), BEFORE)
def test_a_swap_that_did_not_land_is_of_unknown_outcome_and_keeps_every_file(
    kit: Kit, proxy: Proxy, when: Any, status: Any
):
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    fault = proxy.fail(Fault("POST", "/silver/tables/t$", when, status))
    files = sorted(Path(kit.live.load_table(TARGET).location().removeprefix("file://")).rglob("*"))

    with pytest.raises(OutcomeUnknown, match="may or may not have landed"):
        kit.publisher.adopt(request)

    assert fault.met == 1
    assert [one[3] for one in kit.rows()] == ["old", "old", "old"]
    assert all(file.exists() for file in files)
    swap = kit.publisher.adopt(request)
    assert commits_of(kit, request.token) == [swap.snapshot_id]
    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]


@pytest.mark.req("T4", "U10")
def test_a_server_that_stays_away_after_the_swap_leaves_it_unknown_and_it_is_found_later(
    kit: Kit, proxy: Proxy
):
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    lost = proxy.fail(Fault("POST", "/silver/tables/t$", "after", None))
    # The first load of the target that follows is the look whether the swap landed.
    away = proxy.fail(Fault("GET", "/silver/tables/t$", "before", 503, times=99, since=lost))

    with pytest.raises(OutcomeUnknown):
        kit.publisher.adopt(request)
    assert away.met == 1
    away.met = away.times
    before = commits_of(kit, request.token)

    swap = kit.publisher.adopt(request)

    assert before == [swap.snapshot_id]
    assert commits_of(kit, request.token) == [swap.snapshot_id]


@pytest.mark.req("T4", "U12")
@pytest.mark.parametrize(("when", "status"), [*AFTER, *BEFORE])
def test_a_pointer_move_lands_once_whatever_was_answered(
    proxy: Proxy, tmp_path: Path, when: Any, status: Any
):
    versions = IcebergVersions(ControlTables(catalog_of(tmp_path), "lakehouse_backfill"))
    first, second = a_row(1, "publish"), a_row(2, "publish")
    versions.move(PRODUCT, lambda _: (first,))
    fault = proxy.fail(Fault("POST", "/tables/accepted_output_version$", when, status))

    def publish(pointer: Any) -> Any:
        return () if bare(pointer).accepted == second else (second,)

    try:
        versions.move(PRODUCT, publish)
    except OutcomeUnknown:
        versions.move(PRODUCT, publish)

    assert fault.met == 1
    assert bare(versions.history(PRODUCT)) == (second, first)
    assert bare(versions.pointer(PRODUCT)).accepted == second


@pytest.mark.req("T4", "V3")
@pytest.mark.parametrize(("when", "status"), [*AFTER, *BEFORE])
def test_a_run_event_lands_once_whatever_was_answered(
    proxy: Proxy, tmp_path: Path, when: Any, status: Any
):
    runs = IcebergRuns(ControlTables(catalog_of(tmp_path), "lakehouse_backfill"))
    runs.register(a_plan(), a_first_event(a_plan()))
    fault = proxy.fail(Fault("POST", "/tables/run_event$", when, status))

    try:
        move(runs, "bf-1", "approve")
    except OutcomeUnknown:
        if len(runs.events("bf-1")) == 1:
            move(runs, "bf-1", "approve")

    assert fault.met == 1
    assert [one.verb for one in runs.events("bf-1")] == ["plan", "approve"]
    assert runs.status("bf-1").seq == 2


@pytest.mark.req("U1", "X1")
@pytest.mark.parametrize("status", [400, 404, 405, 406, 501])
def test_a_server_that_refuses_to_register_gets_a_built_shadow(kit: Kit, proxy: Proxy, status: int):
    proxy.fail(Fault("POST", "/register$", "before", status))

    made = kit.shadows.open(TARGET, kit.head(), "shadow.r1", {})

    assert "refuses to register" in made.properties[BUILT_BECAUSE_PROPERTY]
    assert (made.snapshot_id, kit.rows("shadow.r1")) == (kit.head(), kit.rows())


@pytest.mark.req("T4", "X1")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_shadow_that_was_half_built_is_finished_by_the_next_try(
    kit: Kit, proxy: Proxy, when: Any
):
    proxy.fail(Fault("POST", "/register$", "before", 404, 9))
    proxy.fail(Fault("POST", "/shadow/tables/r1$", when, 503))
    head = kit.head()

    with pytest.raises(CatalogDown):
        kit.shadows.open(TARGET, head, "shadow.r1", {})

    assert kit.shadows.open(TARGET, head, "shadow.r1", {}).snapshot_id == head
    assert kit.rows("shadow.r1") == kit.rows()


@pytest.mark.req("T4", "X1")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_clone_whose_answer_was_lost_is_found_by_the_next_try(kit: Kit, proxy: Proxy, when: Any):
    proxy.fail(Fault("POST", "/register$", when, 503))
    head = kit.head()

    with pytest.raises(CatalogDown):
        kit.shadows.open(TARGET, head, "shadow.r1", {})

    assert kit.shadows.open(TARGET, head, "shadow.r1", {}).snapshot_id == head
    assert kit.rows("shadow.r1") == kit.rows()


@pytest.mark.req("X1")
def test_a_shadow_is_unregistered_where_the_server_can(tmp_path: Path, proxy: Proxy):
    proxy.knows_unregister = True
    kit = Kit(tmp_path)
    kit.create_days(DAYS)
    proxy.fail(Fault("DELETE", "/tables/r1", "before", 403))
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    # Also where a drop would delete its files.
    with kit.live.load_table(request.shadow).transaction() as change:
        change.set_properties({DROP_DELETES_PROPERTY: "yes"})
    kit.publisher.adopt(request)

    kit.shadows.retire(request.shadow)
    kit.shadows.retire(request.shadow)

    assert not kit.catalog.table_exists(request.shadow)
    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]
    assert probe_capabilities(kit.catalog, "shadow").unregister


@pytest.mark.req("T4", "S1")
@pytest.mark.parametrize(("when", "status"), [*AFTER, *BEFORE])
def test_a_pin_is_there_or_is_set_by_the_next_try(kit: Kit, proxy: Proxy, when: Any, status: Any):
    fault = proxy.fail(Fault("POST", "/silver/tables/t$", when, status))
    head = kit.head() or 0

    try:
        kit.pins.pin(TARGET, head, "base")
    except CatalogDown:
        kit.pins.pin(TARGET, head, "base")

    assert fault.met == 1
    assert kit.pins.pinned(TARGET, "base") == head


def test_a_slow_answer_is_waited_for(kit: Kit, proxy: Proxy):
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    proxy.faults.append(Fault("GET", "/silver/tables/t$", "before", 503, times=0, delay_s=1))

    assert kit.publisher.adopt(request).rows_added == 1


@pytest.mark.parametrize("status", [400, 404, 406])
def test_doctor_finds_out_that_a_server_refuses_to_register(kit: Kit, proxy: Proxy, status: int):
    proxy.fail(Fault("POST", "/register$", "before", status, times=9))

    found = probe_capabilities(kit.catalog, "shadow")

    assert (found.register_table, found.built_clones, found.clones) == (False, True, True)
    assert "refuses to register" in found.seen["register_table"]
    assert (found.tags, found.branches, found.new_uuid, found.views) == (True,) * 4


def test_doctor_takes_a_server_that_is_away_for_no_finding(kit: Kit, proxy: Proxy):
    proxy.fail(Fault("POST", "/register$", "before", 503, times=9))

    with pytest.raises(CatalogDown):
        probe_capabilities(kit.catalog, "shadow")

    assert kit.live.list_tables("shadow") == []
