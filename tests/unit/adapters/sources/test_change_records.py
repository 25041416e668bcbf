"""Records of Debezium become rows; what is no change is refused without its values."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
from lakehouse_backfill.adapters.sources.files.formats import parse
from lakehouse_backfill.domain.contract import ContractColumn
from lakehouse_backfill.domain.sources.declaration import (
    FILE_COLUMNS,
    ChangeLog,
    FileSource,
    SourceDeclaration,
)
from lakehouse_backfill.errors import RejectedInput
from tests.support.sources.changes import Change, envelope, lines

KINDS = {
    "id": "long", "name": "string", "fare": "decimal(10, 2)", "day": "date", "at": "timestamptz",
    "local": "timestamp",
}  # fmt: skip
SOURCE = SourceDeclaration(
    api_version="lakehouse-backfill/v1", source="trips", kind="files", table="bronze.trips",
    columns=tuple(
        ContractColumn(name=name, type=kind, required=name == "id") for name, kind in KINDS.items()
    ),
    change_log=ChangeLog(key=("id",), position=("lsn",), instants="us"),
    files=FileSource(location="inbox", format="debezium"),
)  # fmt: skip
ROW = {"id": 1, "name": "Zoë", "fare": "2.50", "day": 20455, "at": 1_767_225_600_000_001}
SECRET = "s3cret"


def rows(records: list[Any], log: ChangeLog | None = None) -> list[dict[str, Any]]:
    whole = IcebergRawTables.record_schema(SOURCE)
    own = pa.schema([f for f in whole if f.name not in {name for name, _, _ in FILE_COLUMNS}])
    assert SOURCE.files is not None
    found = parse(SOURCE.files, "f", lines(records), own, log or SOURCE.change_log)
    assert found.schema == own
    return list(found.to_pylist())


@pytest.mark.req("S3")
def test_each_operation_is_a_fact_of_its_own() -> None:
    records = [
        envelope(Change(1, "r", 1, mark="first"), ROW),
        envelope(Change(2, "c", 2), {"id": 2, "name": None}),
        {"schema": {"type": "struct"}, "payload": envelope(Change(3, "u", 1), ROW)},
        envelope(Change(4, "d", 1), {"id": 1}),
        {"key": {"schema": {}, "payload": {"id": 2}}, "value": {
            **envelope(Change(5, "d", 2)), "before": None}},
        {"key": {"id": 2}, "value": None},
        None,
    ]  # fmt: skip
    found = rows(records)
    assert [(one["change_op"], one["id"]) for one in found] == [
        ("r", 1), ("c", 2), ("u", 1), ("d", 1), ("d", 2), ("tombstone", 2), ("tombstone", None),
    ]  # fmt: skip
    first = found[0]
    assert {name: first[name] for name in KINDS} == {
        "id": 1, "name": "Zoë", "fare": Decimal("2.50"), "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 1, microsecond=1, tzinfo=timezone.utc), "local": None,
    }  # fmt: skip
    assert json.loads(first["change_after"]) == ROW
    assert json.loads(first["change_origin"])["connector"] == "postgresql"
    assert (first["change_snapshot"], first["change_before"]) == ("first", None)
    assert first["change_transaction"] == "0"
    assert first["change_at"] == datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=timezone.utc)
    assert [one["change_position"] for one in found] == [*map(Decimal, range(1, 6)), None, None]
    # Of a deletion the row before it stays.
    assert json.loads(found[3]["change_before"]) == {"id": 1}
    assert found[3]["change_after"] is None


def changed(**fields: Any) -> dict[str, Any]:
    return {**envelope(Change(1, "c", 1), {"id": 1, "name": SECRET}), **fields}


@pytest.mark.req("S3")
@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (SECRET, "is no object"),
        ([changed()], "is no object"),
        ({"id": 1, "name": SECRET}, "has an op that is none of c, r, u and d"),
        (changed(op="t"), "has an op that is none of"),
        (changed(op=["c"]), "has an op that is none of"),
        (changed(after=None), "has op c and no row after it"),
        (changed(after=SECRET), "has op c and no row after it"),
        (changed(op="d"), "is a deletion with a row after it"),
        (changed(before={"id": 1}), "has op c and a row before it"),
        (changed(before=[SECRET]), "has a row before that is no object"),
        (changed(op="u", before={"id": 2}), "is an update that changes the key"),
        (changed(after={"name": SECRET}), "has no value of its key: id"),
        (changed(op="d", after=None), "has no value of its key: id"),
        (changed(after={"id": 1, "more": SECRET}), "has columns that are not declared: more"),
        (changed(source=None), "has no source"),
        (changed(source={"ts_ms": 1}), "has no source.lsn"),
        (changed(source={"lsn": 1}), "has no source.ts_ms"),
        (changed(source={"lsn": SECRET, "ts_ms": 1}), "part 1 of the position has no order"),
        (changed(after={"id": 1, "at": 2**80}), "has an instant in at that no calendar has"),
        (changed(after={"id": 1, "day": 2**40}), "has a date in day that no calendar has"),
        (changed(after={"id": 1, "name": "__debezium_unavailable_value"}), "REPLICA IDENTITY FULL"),
        (changed(after={"id": 1, "name": "\ud800"}), "holds a character that is no text"),
        (changed(after={"id": 1, "name": {"is": SECRET}}), "JSON"),
        (changed(after={"id": 1, "fare": f"1{SECRET}"}), "f: "),
    ],
)
def test_a_record_that_is_no_change_rejects_the_file_without_its_values(
    record: Any, problem: str
) -> None:
    with pytest.raises(RejectedInput, match=problem) as caught:
        rows([changed(), record])
    assert SECRET not in str(caught.value)
    assert "f: record 2" in str(caught.value) or problem in ("JSON", "f: ")


def test_a_number_in_a_column_of_instants_needs_its_unit() -> None:
    log = ChangeLog(key=("id",), position=("lsn",))
    with pytest.raises(RejectedInput, match=r"change_log\.instants"):
        rows([envelope(Change(1, "c", 1), {"id": 1, "at": 5})], log)
    found = rows([envelope(Change(1, "c", 1), {"id": 1, "at": "2026-01-01T00:00:00Z"})], log)
    assert found[0]["at"] == datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_a_number_in_a_column_without_a_zone_is_the_clock_of_the_database() -> None:
    found = rows([envelope(Change(1, "c", 1), {"id": 1, "local": 1_767_225_600_000_001})])
    assert found[0]["local"] == datetime(2026, 1, 1, microsecond=1)  # noqa: DTZ001 (it has none)


@pytest.mark.parametrize(
    "line",
    [
        b"{", b'{"op": NaN}', b"\xff", b"[" * 100_000,
        b'{"op": 1e99999999999999999999}', b'{"op": 1e999999999}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_json_rejects_the_file(line: bytes) -> None:
    assert SOURCE.files is not None
    whole = IcebergRawTables.record_schema(SOURCE)
    with pytest.raises(RejectedInput, match="record 1 is no JSON"):
        parse(SOURCE.files, "f", line, whole, SOURCE.change_log)
