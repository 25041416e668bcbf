"""Metadata files are parsed once while chunks are computed; what is loaded is never stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.adapters.iceberg.control import schemas
from lakehouse_backfill.adapters.iceberg.parsed_metadata import parsing_once
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

    monkeypatch.setattr(FromInputFile, "table_metadata", noted)
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
