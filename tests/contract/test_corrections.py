"""`ports.rollout.Corrections`, on the fake and on a SQLite catalog: one append for each act."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from lakehouse_backfill.adapters.iceberg.commit.corrections import IcebergCorrections
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.core.versions.corrections import CORRECTION_COLUMNS
from lakehouse_backfill.domain.guards.outside import CorrectionSink
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.comparison import DiffRequest
from tests.contract.differ_cases import CASES, Case, Maker
from tests.support.examples.plans import a_publication
from tests.support.fakes.rollout import FakeCorrections
from tests.support.lakes.tables import TARGET, Kit, row

pytestmark = pytest.mark.req("U9", "V2")
SINK = "silver.events"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
ROWS = (
    DifferingRow("2024-01-01", {"id": 1}, {"id": 1, "v": "old"}, {"id": 1, "v": "new"}),
    DifferingRow("2024-01-01", {"id": 2}, None, {"id": 2, "v": "new"}),
    DifferingRow("2024-01-02", {"id": 3}, {"id": 3, "v": "old"}, None),
)


@pytest.fixture(params=["fake", "sqlite"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Callable[[], list[Any]]]:
    """The port, and a look at all events in the order of their acts."""
    if request.param == "fake":
        fake = FakeCorrections()
        return fake, lambda: fake.events(SINK)
    kit = Kit(tmp_path)

    def look() -> list[Any]:
        table = kit.live.load_table(SINK)
        order = [s.summary["lakehouse-backfill.publication"] for s in table.snapshots()]  # type: ignore[index]
        assert {s.summary and s.summary[MODE_PROPERTY] for s in table.snapshots()} <= {"replay"}
        found = table.scan().to_arrow().to_pylist()
        return sorted(found, key=lambda e: (order.index(e["publication"]), e["position"]))

    return IcebergCorrections(kit.catalog), look


def _request(
    token: str = "t1", version: int = 1, how: str = "correction"
) -> CorrectionEventsRequest:
    return CorrectionEventsRequest(
        sink=CorrectionSink.model_validate({"table": SINK, "as": how}),
        reason_code="bug_fix",
        mode="replay",
        publication=a_publication(version, product=TARGET, run_id="bf-1", token=token, at=AT),
    )


def _back(
    *tokens: str, token: str = "t9", only: tuple[str, ...] | None = None
) -> CompensationRequest:
    return CompensationRequest(
        table=SINK, tokens=tokens, partitions=only, by_run="bf-1", mode="replay",
        publication=a_publication(0, "rollback", product=TARGET, token=token, at=AT),
    )  # fmt: skip


def test_the_events_of_an_act_come_by_one_append_and_a_second_time_by_none(port: Any) -> None:
    corrections, look = port
    assert corrections.find(SINK, "t1") is None
    first = corrections.write(_request(), ROWS)
    assert (first.table, first.rows_added, first.files_removed) == (SINK, 3, 0)

    def never() -> Iterator[DifferingRow]:
        raise AssertionError("rows are not read again")
        yield

    again = corrections.write(_request(), never())
    assert again.snapshot_id == first.snapshot_id
    assert corrections.find(SINK, "t1").snapshot_id == first.snapshot_id
    assert [(e["event_type"], e["key"], e["old"], e["new"]) for e in look()] == [
        ("correction", '{"id":1}', '{"id":1,"v":"old"}', '{"id":1,"v":"new"}'),
        ("correction", '{"id":2}', None, '{"id":2,"v":"new"}'),
        ("correction", '{"id":3}', '{"id":3,"v":"old"}', None),
    ]
    assert {name for name, _, _ in CORRECTION_COLUMNS} == set(look()[0])
    assert look()[0]["produced_at"] == AT


def test_an_act_without_a_difference_leaves_its_token_all_the_same(port: Any) -> None:
    corrections, look = port
    assert corrections.write(_request(), ()).rows_added == 0
    assert corrections.find(SINK, "t1") is not None
    assert look() == []


def test_what_is_taken_back_is_the_reverse_last_ones_first(port: Any) -> None:
    corrections, look = port
    corrections.write(_request(how="retraction"), ROWS)
    corrections.compensate(_back("t1"))
    assert corrections.compensate(_back("t1")).rows_added == 4
    told, taken = look()[:4], look()[4:]
    assert [(e["old"], e["new"]) for e in taken] == [(e["new"], e["old"]) for e in told[::-1]]
    assert [e["corrects_event_id"] for e in taken] == [e["event_id"] for e in told[::-1]]
    turned = {"addition": "retraction", "retraction": "addition"}
    assert [e["event_type"] for e in taken] == [turned[e["event_type"]] for e in told[::-1]]


def test_only_some_partitions_can_be_taken_back(port: Any) -> None:
    corrections, look = port
    corrections.write(_request(), ROWS)
    corrections.compensate(_back("t1", only=("2024-01-02",)))
    assert [e["partition"] for e in look()[3:]] == ["2024-01-02"]


def test_rows_that_are_alike_are_events_of_their_own(port: Any) -> None:
    corrections, look = port
    twin = DifferingRow("2024-01-01", {"v": "x"}, None, {"v": "x"})
    corrections.write(_request(), (twin, twin))
    assert len({e["event_id"] for e in look()}) == 2


def test_the_same_publication_names_its_events_the_same(port: Any) -> None:
    corrections, look = port
    corrections.write(_request("t1"), ROWS)
    corrections.write(_request("t2"), ROWS)
    corrections.write(_request("t3", version=2), ROWS)
    ids = [e["event_id"] for e in look()]
    assert ids[:3] == ids[3:6]
    assert not set(ids[:3]) & set(ids[6:])


def test_a_table_with_other_columns_is_refused_before_anything_is_written(kit: Kit) -> None:
    kit.live.create_namespace_if_not_exists("silver")
    kit.live.create_table(SINK, Schema(NestedField(1, "event_id", StringType())))
    with pytest.raises(Unsupported, match="event_type string is missing"):
        IcebergCorrections(kit.catalog).write(_request(), ROWS)
    assert kit.head(SINK) is None


def test_token_tag_and_property_are_in_the_commit_of_the_events(kit: Kit) -> None:
    done = IcebergCorrections(kit.catalog).write(_request(), ROWS)
    metadata = kit.live.load_table(SINK).metadata
    assert metadata.properties["lakehouse-backfill.publication"] == "t1"
    assert metadata.refs["lhb-v1-t1"].snapshot_id == done.snapshot_id
    (snapshot,) = metadata.snapshots
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "append"
    assert snapshot.summary["lakehouse-backfill.run-id"] == "bf-1"


def test_a_writer_that_is_faster_loses_nothing(kit: Kit) -> None:
    port = IcebergCorrections(kit.catalog)
    port.write(_request("t1"), ROWS)
    beside = IcebergCorrections(kit.live)

    def rows() -> Iterator[DifferingRow]:
        yield ROWS[0]
        beside.write(_request("t2", version=2), ROWS[1:])
        yield ROWS[2]

    port.write(_request("t3", version=3), rows())
    found = kit.live.load_table(SINK).scan().to_arrow().to_pylist()
    assert sorted(e["publication"] for e in found) == ["t1", "t1", "t1", "t2", "t2", "t3", "t3"]


def test_every_differing_row_comes_whatever_their_number(kit: Kit) -> None:
    kit.create(("d", "identity"))
    old = kit.append(*(row(n, "2024-01-01") for n in range(500)), row(7, "2024-01-02"))
    kit.create(("d", "identity"), name="silver.new")
    new = kit.append(
        *(row(n, "2024-01-01", "new") for n in range(1, 501)),
        row(8, "2024-01-02"),
        row(8, "2024-01-02", "twin"),
        name="silver.new",
    )
    field = ScopeField(column="d", transform="identity", type="date")
    request = DiffRequest(
        old_table=TARGET, old_snapshot_id=old, new_table="silver.new", new_snapshot_id=new,
        key=("id",), scope=Scope(field=field, partitions=("2024-01-01", "2024-01-02")),
        ignore=("ts",),
    )  # fmt: skip
    found = list(LocalDiffer(kit.catalog, batch_rows=100).differing(request))
    assert len(found) == 501 + 3
    kinds = [(each.old is None, each.new is None) for each in found]
    assert kinds.count((False, False)) == 499
    assert found[0] == DifferingRow(
        "2024-01-01", {"id": 0},
        {"id": 0, "d": "2024-01-01", "region": "EU", "v": "old"}, None,
    )  # fmt: skip
    assert [(each.key["id"], each.new and each.new["v"]) for each in found[501:]] == [
        (7, None), (8, "old"), (8, "twin"),
    ]  # fmt: skip


#: A publication has no condition.
LOCAL = [
    pytest.param(case, id=case.name)
    for case in CASES
    if "local" in case.engines and "condition" not in case.name
]


@pytest.mark.parametrize("case", LOCAL)
def test_the_rows_are_those_that_the_diff_counts(
    catalog: SqlCatalog, make: Maker, case: Case
) -> None:
    built = case.build(make)
    assert built.request.where is None
    differ = LocalDiffer(catalog)
    rows, diff = list(differ.differing(built.request)), differ.diff(built.request)
    kinds = [(row.old is None, row.new is None) for row in rows]
    counted = diff.summary
    assert (kinds.count((True, False)), kinds.count((False, True))) == (
        counted.added, counted.removed,
    )  # fmt: skip
    assert kinds.count((False, False)) == counted.changed
