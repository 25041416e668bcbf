"""Declared migrations as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.config.migrations import find_migration
from lakehouse_backfill.errors import ConfigError, NotFound

WHOLE = """\
api_version: lakehouse-backfill/v1
migration: trips
product: silver.trips
reason: why
parquet: {location: old}
"""
DATABASE = "postgres: {dsn: DSN, table: public.trips, key: id}\n"


def declare(folder: Path, text: str, name: str = "trips") -> None:
    (folder / "catalog/migrations").mkdir(parents=True, exist_ok=True)
    (folder / f"catalog/migrations/{name}.yaml").write_text(text)


def test_a_migration_without_options_blocks_on_bad_files_and_copies_what_it_must(
    tmp_path: Path,
) -> None:
    declare(tmp_path, WHOLE)
    found = find_migration(tmp_path, "trips")
    assert (found.kind, found.bad_parts, found.copy_files) == ("migration", "block", "when_needed")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WHOLE + DATABASE, "names both places to migrate from"),
        (WHOLE.replace("parquet: {location: old}\n", ""), "names no place to migrate from"),
        (WHOLE.replace("migration: trips", "migration: other"), "is other, but the file"),
        (WHOLE + "bad_parts: ignore\n", "bad_parts"),
        (WHOLE + "files_per_commit: 0\n", "files_per_commit"),
        (WHOLE.replace("location: old", "folder: old"), "parquet"),
    ],
)
def test_what_is_wrong_is_named_with_its_field(text: str, problem: str, tmp_path: Path) -> None:
    declare(tmp_path, text)
    with pytest.raises(ConfigError, match=problem):
        find_migration(tmp_path, "trips")


def test_an_unknown_name_is_no_path_and_near_names_are_told(tmp_path: Path) -> None:
    declare(tmp_path, WHOLE)
    with pytest.raises(NotFound) as missing:
        find_migration(tmp_path, "trip")
    assert missing.value.fix == "lakehouse-backfill product migrate trips"
    with pytest.raises(NotFound):
        find_migration(tmp_path, "../migrations/trips")
