"""Where staged files lie, and what that costs."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.planning.write_path import staging_folder, staging_location_notes
from lakehouse_backfill.domain.table import TableInfo


def a_table(location: str, **properties: str) -> TableInfo:
    return TableInfo(
        table="silver.t", uuid="u", location=location, format_version=2, snapshot_id=None,
        schema_id=0, spec_id=0, columns=(), partitioning=(), spec_count=1,
        properties={name.replace("_", "."): text for name, text in properties.items()}, refs={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "path"),
    [
        (a_table("s3://b/silver/t"), "s3://b/silver/t/data/bf-1"),
        (a_table("s3://b/silver/t/"), "s3://b/silver/t/data/bf-1"),
        (a_table("s3://b/t", write_data_path="s3://c/files/"), "s3://c/files/bf-1"),
    ],
    ids=["plain", "slash", "data elsewhere"],
)
def test_files_under_the_target_lie_among_its_own(table: TableInfo, path: str):
    assert staging_folder(table, "bf-1") == path


@pytest.mark.parametrize(
    ("choice", "table", "word"),
    [
        ("under_target", a_table("file:///w/t"), "remove_orphan_files on silver.t"),
        ("under_target", a_table("s3://b/t"), "remove_orphan_files on silver.t"),
        ("shadow", a_table("s3://b/t"), "cannot read them once published"),
        ("shadow", a_table("file:///w/t"), None),
        ("shadow", None, None),
        ("under_target", None, None),
    ],
    ids=str,
)
def test_the_plan_says_what_the_place_costs(choice: str, table: TableInfo | None, word: str | None):
    texts = staging_location_notes(choice, table)
    assert (word is None) == (texts == ())
    assert word is None or word in texts[0]
