"""Metadata files are parsed once while chunks are computed; what is loaded is never stale."""

from __future__ import annotations

import gzip
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.adapters.iceberg import parsed_metadata
from lakehouse_backfill.adapters.iceberg.control import schemas
from lakehouse_backfill.adapters.iceberg.parsed_metadata import parse_file, parsing_once
from tests.contract.test_read_view import NAMESPACE, count, log_of
from tests.support.lakes.catalogs import catalog_of

TABLE = f"{NAMESPACE}.{schemas.PROCESSED_EVENT.name}"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the metadata files that are parsed."""
    files: list[str] = []
    through = FromInputFile.table_metadata

    def noted(file: Any) -> TableMetadata:
        files.append(file.location)
        return through(file)

    def noted_next(io: Any, name: str, before: Any = None) -> Any:
        files.append(name)
        return parse_file(io, name, before)

    monkeypatch.setattr(FromInputFile, "table_metadata", noted)
    monkeypatch.setattr(parsed_metadata, "parse_file", noted_next)
    return files


def test_a_file_is_parsed_once_and_what_another_process_commits_is_seen(
    tmp_path: Path, parsed: list[str]
):
    mine, other = catalog_of(tmp_path), catalog_of(tmp_path)
    log = log_of(mine)
    theirs = log_of(other)
    log.append(count)
    with parsing_once(mine), parsing_once(mine):
        mine.load_table(TABLE)
        parsed.clear()
        assert [log.append(count) for _ in range(3)] == [2, 3, 4]
        assert mine.load_table(TABLE).properties["n"] == "4"
        assert parsed == []
        assert theirs.append(count) == 5
        parsed.clear()
        assert log.append(count) == 6
        assert len(parsed) == 1
    parsed.clear()
    assert mine.load_table(TABLE).properties["n"] == mine.load_table(TABLE).properties["n"] == "6"
    assert len(parsed) == 2


def test_what_a_commit_leaves_is_what_its_file_holds(tmp_path: Path):
    mine, other = catalog_of(tmp_path), catalog_of(tmp_path)
    log = log_of(mine)
    with parsing_once(mine):
        for _ in range(34):  # with a compaction
            log.append(count)
            known, stored = mine.load_table(TABLE), other.load_table(TABLE)
            assert known.metadata_location == stored.metadata_location
            assert known.metadata == stored.metadata


def test_what_one_caller_sets_on_a_loaded_table_no_other_sees(tmp_path: Path):
    mine = catalog_of(tmp_path)
    log = log_of(mine)
    with parsing_once(mine):
        log.append(count)
        mine.load_table(TABLE).metadata.properties["n"] = "edited"
        assert mine.load_table(TABLE).properties["n"] == "1"


def test_snapshots_that_another_process_adds_are_all_that_is_made_anew(tmp_path: Path):
    mine, other = catalog_of(tmp_path), catalog_of(tmp_path)
    rows, shared = pa.table({"n": [1]}), {"engine": "of the other process " * 3}
    other.create_namespace("ns")
    other.create_table("ns.t", rows.schema)

    def loaded() -> TableMetadata:
        found, stored = mine.load_table("ns.t").metadata, other.load_table("ns.t").metadata
        assert found == stored
        assert found.model_dump_json() == stored.model_dump_json()
        return found

    with parsing_once(mine):
        assert loaded().snapshots == []
        other.load_table("ns.t").append(rows, shared)
        before = loaded()
        other.load_table("ns.t").append(rows, shared)
        found = loaded()
        first, second = found.snapshots
        assert first is before.snapshots[0]
        assert found.snapshot_log[0] is before.snapshot_log[0]
        assert first.summary["engine"] is second.summary["engine"]
        assert [each.snapshot_id for each in before.snapshots] == [first.snapshot_id]
        other.load_table("ns.t").maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
        assert [each.snapshot_id for each in loaded().snapshots] == [second.snapshot_id]
        with other.load_table("ns.t").update_schema() as change:
            change.add_column("snapshots", found.schema().fields[0].field_type)
        loaded()
        mine.load_table("ns.t").append(rows, shared)
        assert len(loaded().snapshots) == 2


def document(snapshots: int) -> dict[str, Any]:
    """A table with so many snapshots, whose texts try to look like lists."""
    listed = [
        {
            "snapshot-id": number, "sequence-number": number, "timestamp-ms": 1_700_000_000_000,
            "manifest-list": f"größer-{number}.avro", "schema-id": 0,
            "summary": {"operation": "append", "engine": "e" * 9, "ü": "ü" * number},
        }
        for number in range(1, snapshots + 1)
    ]  # fmt: skip
    return {
        "format-version": 2, "table-uuid": str(uuid.UUID(int=5)), "location": "file:///t",
        "last-sequence-number": snapshots, "last-updated-ms": 1_700_000_000_000,
        "last-column-id": 1, "current-schema-id": 0, "default-spec-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [
            {"id": 1, "name": "snapshots", "required": False, "type": "long"},
        ]}],
        "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}], "default-sort-order-id": 0,
        "properties": {"note": '"snapshots": [{"snapshot-id": 1}], ü', "snapshots": "["},
        "current-snapshot-id": snapshots, "snapshots": listed,
        "snapshot-log": [
            {"timestamp-ms": one["timestamp-ms"], "snapshot-id": one["snapshot-id"]}
            for one in listed
        ],
        "metadata-log": [],
    }  # fmt: skip


@pytest.mark.parametrize("ending", [".metadata.json", ".gz.metadata.json"])
def test_texts_of_all_writers_are_parsed_as_pyiceberg_does(tmp_path: Path, ending: str):
    io, before = PyArrowFileIO(), None
    changed = document(4)
    changed["snapshots"][1]["summary"]["engine"] = "f"
    unknown = {name: one for name, one in changed.items() if name != "snapshot-log"}
    tables = [*map(document, (1, 2, 4, 4)), changed, unknown, document(5), document(3)]
    for indent in (None, 2):
        for number, table in enumerate(tables):
            text = json.dumps(table, indent=indent, ensure_ascii=number in (0, 3)).encode()
            file = tmp_path / f"{number}-{indent}{ending}"
            file.write_bytes(gzip.compress(text) if ".gz." in ending else text)
            before = parse_file(io, str(file), before)
            found, stored = before.metadata, FromInputFile.table_metadata(io.new_input(str(file)))
            assert found == stored
            assert found.model_dump_json() == stored.model_dump_json()
            assert [one.model_fields_set for one in found.snapshots] == [
                one.model_fields_set for one in stored.snapshots
            ]


@pytest.mark.parametrize(
    ("where", "put"),
    [
        *((-cut, b"") for cut in (1, 40, 300, 1_000, 2_000)),
        # The first half of a letter.
        (-1, b"\xc3"),
        (b"}, {", b"} {"),
        (b'"snapshots": [{', b'"snapshots": [, {'),
        (b"}}]", b"}},]"),
    ],
)
def test_a_broken_file_is_refused_as_pyiceberg_refuses_it(
    tmp_path: Path, where: int | bytes, put: bytes
):
    io, file = PyArrowFileIO(), tmp_path / "broken.metadata.json"
    text = json.dumps(document(4)).encode()
    broken = text.replace(where, put) if isinstance(where, bytes) else text[:where] + put
    assert broken != text
    file.write_bytes(broken)
    with pytest.raises(ValidationError) as error:
        parse_file(io, str(file))
    with pytest.raises(ValidationError) as known:
        FromInputFile.table_metadata(io.new_input(str(file)))
    assert str(error.value) == str(known.value)
