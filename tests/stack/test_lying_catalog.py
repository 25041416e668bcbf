"""SeaweedFS's own REST catalog: it answers 200 to register_table and gives an empty table."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.iceberg.capabilities import probe_capabilities
from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.adapters.iceberg.metadata import BUILT_BECAUSE_PROPERTY
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from tests.support.examples.plans import a_first_event, a_plan
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import PRODUCT, a_row, bare, move
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row


@pytest.fixture
def kit(named, tmp_path: Path) -> Kit:
    named("seaweed")
    kit = Kit(tmp_path)
    kit.create_days(DAYS)
    return kit


@pytest.mark.req("U1", "X1")
def test_a_shadow_is_built_where_a_clone_came_back_empty(kit: Kit):
    made = kit.shadows.open(TARGET, kit.head(), "shadow.r1", {})

    assert "does not keep what is registered" in made.properties[BUILT_BECAUSE_PROPERTY]
    assert (made.snapshot_id, kit.rows("shadow.r1")) == (kit.head(), kit.rows())
    assert kit.tables.files(TARGET, kit.head(), DAY) == kit.tables.files(
        "shadow.r1", kit.head(), DAY
    )


@pytest.mark.req("U1", "U12")
def test_a_retired_shadow_keeps_its_files_though_a_drop_would_delete_them(kit: Kit):
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    kit.publisher.adopt(request)

    kit.shadows.retire(request.shadow)
    kit.shadows.retire(request.shadow)

    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]
    assert request.shadow not in IcebergShadows(kit.catalog, "shadow").list()


@pytest.mark.req("S1")
def test_pins_are_kept(kit: Kit):
    head = kit.head() or 0
    kit.pins.pin(TARGET, head, "base")
    kit.append(row(7, DAYS[0]))
    assert kit.pins.pinned(TARGET, "base") == head
    kit.pins.unpin(TARGET, "base")
    assert kit.pins.pinned(TARGET, "base") is None


@pytest.mark.req("U12", "V3", "C1")
def test_control_tables_work(named, tmp_path: Path):
    named("seaweed")
    tables = ControlTables(catalog_of(tmp_path), "lakehouse_backfill")
    runs, versions, evidence = (
        IcebergRuns(tables), IcebergVersions(tables), IcebergEvidence(tables),
    )  # fmt: skip
    runs.register(a_plan(), a_first_event(a_plan()))
    move(runs, "bf-1", "approve")
    rows = tuple(a_row(number, "publish") for number in (1, 2, 3))
    for one in rows:
        versions.move(PRODUCT, lambda _, one=one: (one,))
    mark = evidence.record("bf-1", "validation", {"n": 1}, 0)
    assert [one.verb for one in runs.events("bf-1")] == ["plan", "approve"]
    assert bare(versions.history(PRODUCT)) == tuple(reversed(rows))
    assert evidence.document("bf-1", mark) == {"n": 1}


@pytest.mark.req("U11")
def test_a_commit_that_lost_the_race_with_400_is_run_again(kit: Kit):
    """It says "sequence number" with 400, which clients take for a mistake of theirs."""
    head = kit.head() or 0
    kit.before_commit(lambda: kit.append(row(7, DAYS[0])))
    kit.pins.pin(TARGET, head, "base")
    assert kit.pins.pinned(TARGET, "base") == head


def test_doctor_says_what_it_does(named, tmp_path: Path):
    named("seaweed")
    found = probe_capabilities(catalog_of(tmp_path), "shadow")
    assert found.model_copy(update={"seen": {}}) == Capabilities(
        tags=True,
        branches=True,
        branch_commits=False,
        register_table=False,
        built_clones=True,
        new_uuid=True,
        data_path=True,
        views=False,
        multi_table_commit=False,
    )
    assert "what is registered" in found.seen["register_table"]
    assert "sequence number" in found.seen["branch_commits"]
