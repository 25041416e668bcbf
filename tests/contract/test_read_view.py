"""One view of the catalog while a plan is worked out; commits of control tables decide without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from benchmarks import cascade as many
from lakehouse_backfill.adapters.iceberg.control import schemas
from lakehouse_backfill.adapters.iceberg.control.log import ControlLog, LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.metadata import ReadView, one_view, view_of
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.project import Project
from tests.support.examples.plans import NOON
from tests.support.lakes.catalogs import catalog_of

NAMESPACE = "lakehouse_backfill"


def count(head: LogHead) -> LogAppend[int]:
    """Append a row that bears the next number of the property `n`."""
    number = int(head.properties.get("n", "0")) + 1
    row = {
        "handler": "h", "event_id": str(number), "outcome": "done", "run_id": None,
        "processed_at": NOON,
    }  # fmt: skip
    return LogAppend(result=number, rows=(row,), set_properties={"n": str(number)})


def log_of(catalog: Catalog) -> ControlLog:
    return ControlTables(catalog, NAMESPACE).log(schemas.PROCESSED_EVENT)


def ids(log: ControlLog) -> list[str]:
    return [one["event_id"] for one in log.head().rows()]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often the catalog loads each table."""
    from pyiceberg.catalog.sql import SqlCatalog

    found, through = Counter[str](), SqlCatalog.load_table

    def counted(catalog: Any, identifier: Any) -> Any:
        found[identifier if isinstance(identifier, str) else ".".join(identifier)] += 1
        return through(catalog, identifier)

    monkeypatch.setattr(SqlCatalog, "load_table", counted)
    return found


def test_a_view_reads_a_control_table_once_and_ends(tmp_path: Path, loads: Counter[str]):
    mine, other = catalog_of(tmp_path), log_of(catalog_of(tmp_path))
    log = log_of(mine)
    log.append(count)
    loads.clear()
    with one_view(mine), one_view(mine):
        assert ids(log) == ids(log) == ["1"]
        assert loads == {f"{NAMESPACE}.{log.name}": 1}
        other.append(count)
        assert ids(log_of(mine)) == ["1"]
    assert view_of(mine) is None
    assert ids(log) == ["1", "2"]


def test_a_commit_inside_a_view_is_decided_by_the_newest_head_and_seen_after(tmp_path: Path):
    mine = catalog_of(tmp_path)
    log, other = log_of(mine), log_of(catalog_of(tmp_path))
    log.append(count)
    with one_view(mine):
        assert ids(log) == ["1"]
        other.append(count)
        assert log.append(count) == 3
        assert ids(log) == ["1", "2", "3"]


def test_a_refused_decision_leaves_the_newest_head_to_be_read(tmp_path: Path):
    mine = catalog_of(tmp_path)
    log, other = log_of(mine), log_of(catalog_of(tmp_path))
    log.append(count)

    def refuse(head: LogHead) -> LogAppend[int]:
        raise ValueError(f"{head.properties['n']} is there")

    with one_view(mine):
        assert ids(log) == ["1"]
        other.append(count)
        with pytest.raises(ValueError, match="2 is there"):
            log.append(refuse)
        assert ids(log) == ["1", "2"]


def test_a_view_keeps_no_errors_and_few_tables():
    view, made = ReadView(), list[int]()

    def load(number: int) -> int:
        made.append(number)
        return number

    with pytest.raises(ZeroDivisionError):
        view.tables.get("t", lambda: 1 // 0)
    for number in range(40):
        assert view.tables.get(number, lambda n=number: load(n)) == number
    assert [view.tables.get(number, lambda n=number: load(n)) for number in (39, 0)] == [39, 0]
    assert made == [*range(40), 0]


@pytest.mark.req("P4")
def test_a_plan_in_a_view_is_the_same_and_a_cascade_loads_each_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: Counter[str]
):
    monkeypatch.setattr(many, "PRODUCTS", 3)
    many._make(tmp_path)
    project = Project.open(tmp_path)
    project.cancel(project.plan("jobs/p0.yaml", by="ann").run_id, by="ann")
    declared = project.wiring.load_declaration(Path("jobs/p1.yaml"), known={}, is_template=True)
    wanted = declared.manifest.target.partitions.model_copy(update={"values": ("2024-01-10",)})
    target = declared.manifest.target.model_copy(update={"partitions": wanted})
    declared = replace(declared, manifest=declared.manifest.model_copy(update={"target": target}))
    outside = make_plan(project.wiring.context, declared, "ann", None)
    with one_view(project.wiring.catalog):
        inside = [make_plan(project.wiring.context, declared, "ann", None) for _ in range(2)]
    same = {"created_at": outside.created_at}
    assert [plan.model_copy(update=same) for plan in inside] == [outside] * 2
    loads.clear()
    planned = project.plan_cascade("jobs/p0.yaml", by="ann", dry_run=True)
    assert sum(bool(node.run_id) for node in planned.nodes) == 3
    assert max(loads.values()) == 1, loads
    assert {name for name in loads if name.startswith("silver")} == {
        f"silver.p{number}" for number in range(3)
    }
