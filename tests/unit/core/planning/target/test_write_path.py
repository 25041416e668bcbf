"""By which way a table is changed, where staged files lie, and what that costs."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.planning.target import write_path
from lakehouse_backfill.core.planning.target.write_path import (
    staging_folder,
    staging_location_notes,
)
from lakehouse_backfill.domain.plan import JvmState, TableFacts
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import Unsupported
from tests.support.fakes.context import declared

UP, REMOTE = JvmState(is_up=True), JvmState(is_connect=True)
MANY, VERY_MANY = write_path.HEAVY_ENTRIES_JVM_RUNNING + 1, write_path.HEAVY_ENTRIES + 1
CASES = {
    "no table yet": (None, JvmState(), "pyiceberg", "needs no JVM"),
    "format 1": (TableFacts(format_version=1), JvmState(), "pyiceberg", "format 1"),
    "no register_table": (
        TableFacts(format_version=2, registers=False), UP, "pyiceberg", "offers no register_table",
    ),
    "format 2": (TableFacts(format_version=2), UP, "pyiceberg", "needs no JVM"),
    "format 3": (TableFacts(format_version=3), JvmState(), "java", "row ids of the"),
    "format 3, Connect": (TableFacts(format_version=3), REMOTE, "rewrite", "Spark Connect"),
    "equality deletes": (
        TableFacts(format_version=2, equality_deletes=2),
        JvmState(),
        "java",
        "2 equality delete files may hide rows",
    ),
    "equality deletes, Connect": (
        TableFacts(format_version=2, equality_deletes=2), REMOTE, "rewrite", "Spark itself",
    ),
    "many entries, no JVM": (
        TableFacts(format_version=2, entries=MANY), JvmState(), "pyiceberg", f"{MANY} manifest",
    ),
    "many entries, JVM": (TableFacts(format_version=2, entries=MANY), UP, "java", "faster"),
    "very many entries": (
        TableFacts(format_version=2, entries=VERY_MANY), JvmState(), "java", "faster",
    ),
    "very many entries, Connect": (
        TableFacts(format_version=2, entries=VERY_MANY), REMOTE, "pyiceberg", "needs no JVM",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "engine", "way", "word"), CASES.values(), ids=CASES)
def test_the_way_follows_from_facts_and_says_why(facts, engine, way, word):
    chosen = write_path.choose_write_path(facts, engine)

    assert (chosen.way, word in chosen.why) == (way, True), chosen.why


@pytest.mark.req("U6")
@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("safety.freeze", {"safety": {"freeze": True}}),
        ("target.publish_mode", {"target": {"publish_mode": "append"}}),
    ],
)
def test_a_swap_by_rows_holds_no_freeze_and_is_no_append(field, changes):
    manifest = declared(**changes).manifest
    by_rows = write_path.choose_write_path(TableFacts(format_version=3), REMOTE)

    write_path.require_fitting_write_path(
        manifest, "silver.daily", write_path.choose_write_path(TableFacts(format_version=3), UP)
    )
    with pytest.raises(Unsupported, match=f"with this {field}: table format 3") as refused:
        write_path.require_fitting_write_path(manifest, "silver.daily", by_rows)

    assert refused.value.field == field


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
