"""The rules of `Tables`, `Pins` and `Shadows` of `ports/tables.py`, on PyIceberg."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.types import StringType

from lakehouse_backfill.adapters.iceberg.capabilities import probe_capabilities
from lakehouse_backfill.adapters.iceberg.catalog import open_catalog, translate_errors
from lakehouse_backfill.adapters.iceberg.metadata import NEVER_EXPIRES_MS
from lakehouse_backfill.domain.contract import Contract, ContractColumn, ContractPartition
from lakehouse_backfill.domain.partitions import ScopeField, partition_row_range
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from lakehouse_backfill.domain.tables.commits import ChunkCommit
from lakehouse_backfill.domain.tables.files import ScanEstimate
from lakehouse_backfill.domain.tables.table import PartitionField, TableRef
from lakehouse_backfill.errors import CatalogDown, ConfigError, Conflict, NotFound, Unsupported
from tests.support.lakes.tables import (
    DAY,
    DAYS,
    SCHEMA,
    TARGET,
    Kit,
    field_of,
    read_text,
    row,
    write_text,
)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


@pytest.fixture
def days(kit: Kit) -> Kit:
    kit.create_days()
    return kit


# --- catalog


@pytest.mark.parametrize(
    ("catalog", "word"),
    [
        ({"uri": "sqlite:////x/c.db", "warehouse": "/w"}, "no name"),
        ({"name": "l", "uri": "sqlite:///c.db", "warehouse": "/w"}, "'sqlite:///c.db' is relative"),
        ({"name": "l", "uri": "sqlite:////x/c.db", "warehouse": "w"}, "warehouse 'w' is relative"),
        ({"name": "l", "uri": "sqlite:////x/c.db", "warehouse": "file:w"}, "is relative"),
        ({"name": "l", "type": "nonsense"}, "nonsense"),
        ({"name": "l", "type": "sql", "uri": "postgresql+pg8000://h/d"}, "not installed"),
    ],
)
def test_a_wrong_catalog_profile_is_a_configuration_error(catalog, word, tmp_path):
    with pytest.raises(ConfigError, match=word):
        open_catalog(Profile(catalog=catalog), tmp_path)


def test_writers_of_the_embedded_catalog_wait_for_each_other(kit):
    assert kit.catalog.properties["uri"].endswith("catalog.db?timeout=30")


def test_purging_is_refused_by_the_catalog_that_is_handed_out(days):
    with pytest.raises(Unsupported, match="purging"):
        days.catalog.purge_table(TARGET)
    with pytest.raises(Unsupported, match="purging"):
        days.catalog.load_table(TARGET).catalog.purge_table(TARGET)


def test_a_catalog_that_does_not_answer_is_said_so(tmp_path):
    profile = Profile(
        catalog={"name": "l", "type": "rest", "uri": "http://127.0.0.1:9", "warehouse": "w"}
    )
    with pytest.raises(CatalogDown):
        open_catalog(profile, tmp_path)
    with pytest.raises(CatalogDown), translate_errors():
        raise ServiceUnavailableError("503")


# --- tables


def test_describe_gives_the_state_or_none(days):
    info = days.tables.describe(TARGET)

    assert info.snapshot_id == days.head()
    assert (info.format_version, info.spec_count) == (2, 1)
    assert info.partitioning == (PartitionField(name="p0_d", column="d", transform="identity"),)
    assert [column.type for column in info.columns] == [
        "long", "date", "timestamptz", "string", "string",
    ]  # fmt: skip
    assert info.refs == {"main": info.snapshot_id}
    assert days.tables.describe("silver.none") is None
    assert days.tables.describe("none.none") is None


@pytest.mark.req("S1", "M3")
def test_a_reference_is_an_id_then_an_instant_then_a_name(days):
    first = days.head()
    between = datetime.now(timezone.utc).isoformat()
    second = days.append(row(7, DAYS[2]))
    days.pins.pin(TARGET, first, "march")

    def at(text: str | None) -> int:
        return days.tables.resolve(TableRef(table=TARGET, at=text)).snapshot_id

    assert at(None) == at("main") == at(str(second)) == at("2100-01-01") == second
    assert at("march") == at(str(first)) == at(between) == first


@pytest.mark.req("S1")
@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("17", ["no snapshot 17"]),
        ("2001-01-01", ["no snapshot at or before 2001-01-01", "that is its oldest snapshot"]),
        ("marhc", ["no tag or branch 'marhc'", "one of march"]),
        ("zzz", ["one of main, march"]),
    ],
)
def test_a_reference_that_names_nothing_says_what_there_is(days, at, words):
    days.pins.pin(TARGET, days.head(), "march")

    with pytest.raises(NotFound) as missing:
        days.tables.resolve(TableRef(table=TARGET, at=at))

    for word in words:
        assert word in str(missing.value)


def test_a_table_without_snapshot_resolves_to_none(kit):
    kit.create(("d", "identity"))
    with pytest.raises(NotFound, match="no snapshot yet"):
        kit.tables.resolve(TableRef(table=TARGET))
    assert kit.tables.files(TARGET, None, DAY) == []
    assert kit.tables.estimate(TARGET, None, ()) == ScanEstimate(files=0, rows=0, size_bytes=0)


def test_files_carry_their_labels(kit):
    kit.create(("ts", "day"), ("region", "identity"))
    kit.append(row(0, DAYS[0]), row(1, DAYS[0], region="US"), row(2, DAYS[1]), row(3, None))

    files = kit.tables.files(TARGET, kit.head(), field_of("ts", "day"))

    assert sorted((f.partition, f.rows, f.spec_id) for f in files) == [
        (DAYS[0], 1, 0), (DAYS[0], 1, 0), (DAYS[1], 1, 0), ("null", 1, 0),
    ]  # fmt: skip
    io = kit.live.load_table(TARGET).io
    assert all(f.size_bytes == len(io.new_input(f.path)) for f in files)


@pytest.mark.parametrize("text", ["null", "=x", "a/b c", "ü"])
def test_texts_are_told_apart_from_the_null_partition(kit, text):
    kit.create(("region", "identity"))
    kit.append(row(0, DAYS[0], region=text), row(1, DAYS[0], region=None))
    field = field_of("region")

    labels = {f.partition for f in kit.tables.files(TARGET, kit.head(), field)}

    assert labels == {"null", f"={text}" if text in ("null", "=x") else text}


def test_dates_before_1970_are_labelled_right(kit):
    kit.create(("ts", "month"))
    kit.append(row(0, "1969-12-31"), row(1, "1969-01-01"))

    files = kit.tables.files(TARGET, kit.head(), field_of("ts", "month"))

    assert {f.partition for f in files} == {"1969-12", "1969-01"}


def test_estimate_counts_the_files_that_a_pruned_scan_reads(days):
    one = days.tables.estimate(TARGET, days.head(), (partition_row_range(DAY, DAYS[0]),))
    every = days.tables.estimate(TARGET, days.head(), ())
    many = tuple(partition_row_range(DAY, label) for label in (DAYS[0], DAYS[2], "null"))

    assert (one.files, one.rows) == (1, 1)
    assert (every.files, every.rows) == (3, 3)
    assert days.tables.estimate(TARGET, days.head(), many).files == 2
    assert 0 < one.size_bytes < every.size_bytes


@pytest.mark.parametrize(
    ("partitioning", "column", "expected"),
    [
        ([("d", "identity")], "d", ScopeField(column="d", transform="identity", type="date")),
        ([("ts", "day")], "ts", ScopeField(column="ts", transform="day", type="timestamptz")),
        (
            [("ts", "bucket[4]"), ("ts", "month")],
            "ts",
            ScopeField(column="ts", transform="month", type="timestamptz"),
        ),
        (
            [("id", "bucket[4]"), ("d", "month")],
            "id",
            ScopeField(column="id", transform="bucket[4]", type="long"),
        ),
        (
            [("region", "truncate[2]"), ("d", "month")],
            "region",
            ScopeField(column="region", transform="truncate[2]", type="string"),
        ),
        ([("d", "month")], "region", "it is not a partition column"),
        ([("d", "month")], "none", "there is no such column"),
        ([], "d", "it is not a partition column"),
    ],
)
def test_a_scope_needs_a_field_that_tells_its_values_apart(kit, partitioning, column, expected):
    kit.create(*partitioning)
    info = kit.tables.describe(TARGET)

    if isinstance(expected, ScopeField):
        assert kit.tables.scope_field(info, column) == expected
        return
    with pytest.raises(Unsupported, match=expected) as refused:
        kit.tables.scope_field(info, column)
    assert refused.value.fix.startswith("scope by one of")


def a_contract(**changes) -> Contract:
    values = {
        "api_version": "lakehouse-backfill/v1",
        "product": TARGET,
        "table": TARGET,
        "description": "Arrivals.",
        "owner": "owner",
        "key": ("id",),
        "partitioning": (
            ContractPartition(column="ts", transform="day"),
            ContractPartition(column="id", transform="bucket[8]"),
        ),
        "columns": (
            ContractColumn(name="id", type="long", required=True, description="Key."),
            ContractColumn(name="ts", type="timestamptz"),
            ContractColumn(name="price", type="decimal(10,2)"),
            ContractColumn(name="deep", type="map<string, list<struct<a: int, b: decimal(4, 1)>>>"),
            ContractColumn(name="raw", type="fixed[4]"),
        ),
    }
    return Contract(**{**values, **changes})


@pytest.mark.req("D3")
def test_create_makes_the_table_of_the_contract_once(kit):
    info = kit.tables.create(a_contract(lineage_columns=True))
    # Spark writes gzip into a table that does not say so, at half as much cost again.
    assert info.properties["write.parquet.compression-codec"] == "zstd"

    assert [(c.name, c.required, c.doc) for c in info.columns][:2] == [
        ("id", True, "Key."), ("ts", False, None),
    ]  # fmt: skip
    assert [c.type for c in info.columns][2:5] == [
        "decimal(10, 2)",
        "map<string, list<struct<19: a: optional int, 20: b: optional decimal(4, 1)>>>",
        "fixed[4]",
    ]
    assert tuple((c.name, c.type) for c in info.columns[5:]) == LINEAGE_COLUMNS
    assert info.partitioning == (
        PartitionField(name="ts_day", column="ts", transform="day"),
        PartitionField(name="id_bucket", column="id", transform="bucket[8]"),
    )
    assert (info.format_version, info.snapshot_id) == (2, None)
    assert kit.tables.create(a_contract()) == info


def test_a_described_type_can_be_written_into_a_contract(kit):
    first = kit.tables.create(a_contract())
    columns = tuple(ContractColumn(name=c.name, type=c.type) for c in first.columns)

    again = kit.tables.create(a_contract(table="silver.copy", columns=columns))

    assert [c.name for c in again.columns] == [c.name for c in first.columns]
    assert "b: optional decimal(4, 1)" in again.columns[3].type


@pytest.mark.parametrize(
    "text",
    [
        "varchar",
        "decimal",
        "decimal(99,2)",
        "list<long",
        "map<long>",
        "struct<>",
        "fixed",
        "list<>",
    ],
)
def test_a_wrong_type_is_a_configuration_error(kit, text):
    columns = (ContractColumn(name="ts", type="timestamptz"), ContractColumn(name="x", type=text))

    with pytest.raises(ConfigError, match="is no Iceberg type"):
        kit.tables.create(a_contract(columns=columns, key=()))


@pytest.mark.parametrize(
    ("partition", "word"),
    [
        (ContractPartition(column="none"), "none"),
        (ContractPartition(column="ts", transform="weekly"), "weekly"),
        (ContractPartition(column="id", transform="day"), "day does not apply to id"),
    ],
)
def test_a_wrong_partition_is_a_configuration_error(kit, partition, word):
    with pytest.raises(ConfigError, match=word):
        kit.tables.create(a_contract(partitioning=(partition,)))


# --- pins


@pytest.mark.req("S1")
def test_a_pin_is_a_tag_that_never_ages(days):
    head = days.head()

    days.pins.pin(TARGET, head, "base")
    days.pins.pin(TARGET, head, "base")

    assert days.pins.pinned(TARGET, "base") == head
    ref = days.live.load_table(TARGET).metadata.refs["base"]
    assert (ref.snapshot_ref_type, ref.max_ref_age_ms) == ("tag", NEVER_EXPIRES_MS)
    days.pins.unpin(TARGET, "base")
    days.pins.unpin(TARGET, "base")
    assert days.pins.pinned(TARGET, "base") is None


def test_a_tag_that_would_age_is_made_a_pin(days):
    with days.live.load_table(TARGET).manage_snapshots() as change:
        change.create_tag(days.head(), "base", max_ref_age_ms=1)

    days.pins.pin(TARGET, days.head(), "base")

    assert days.live.load_table(TARGET).metadata.refs["base"].max_ref_age_ms == NEVER_EXPIRES_MS


def test_a_pin_survives_live_commits_that_race_it(days):
    head = days.head()
    days.before_commit(lambda: days.append(row(7, DAYS[0])), lambda: days.append(row(8, DAYS[0])))

    days.pins.pin(TARGET, head, "base")

    assert days.pins.pinned(TARGET, "base") == head


# --- shadows


@pytest.mark.req("X1")
def test_a_shadow_shows_the_base_and_leaves_the_target_alone(days):
    base = days.head()
    before = days.live.load_table(TARGET).metadata_location
    info = days.shadows.open(TARGET, base, "shadow.r1", {"lakehouse-backfill.run-id": "r1"})
    target = days.tables.describe(TARGET)

    assert days.rows("shadow.r1") == days.rows()
    assert (info.columns, info.partitioning, info.snapshot_id) == (
        target.columns, target.partitioning, base,
    )  # fmt: skip
    assert info.uuid != target.uuid
    assert info.refs == {"main": base}
    assert info.location.endswith("/shadow/r1")
    assert not f"{info.location}/".startswith(f"{target.location}/")
    told = {k: v for k, v in info.properties.items() if ".built-" not in k}
    assert told == {
        **target.properties,
        "gc.enabled": "false",
        "commit.retry.num-retries": "30",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "5",
        "lakehouse-backfill.run-id": "r1",
        "lakehouse-backfill.base-snapshot-id": str(base),
        "lakehouse-backfill.target": TARGET,
        "lakehouse-backfill.target-uuid": target.uuid,
    }
    assert days.live.load_table(TARGET).metadata_location == before


def test_column_ids_of_a_shadow_are_the_targets_even_after_drop_and_add(days):
    days.evolve(lambda update: update.delete_column("region"))
    days.evolve(lambda update: update.add_column("region", StringType()))

    info = days.shadows.open(TARGET, days.head(), "shadow.r1", {})

    assert {c.name: c.field_id for c in info.columns} == {
        "id": 1, "d": 2, "ts": 3, "v": 5, "region": 6,
    }  # fmt: skip


def test_places_of_the_target_are_not_inherited_and_given_ones_are_kept(days):
    with days.live.load_table(TARGET).transaction() as change:
        change.set_properties(
            {"write.data.path": "/elsewhere", "write.metadata.path": "/elsewhere", "keep": "me"}
        )

    plain = days.shadows.open(TARGET, days.head(), "shadow.a", {})
    given = days.shadows.open(TARGET, days.head(), "shadow.b", {"write.data.path": "/mine"})

    assert "write.data.path" not in plain.properties
    assert "write.metadata.path" not in plain.properties
    assert (plain.properties["keep"], given.properties["write.data.path"]) == ("me", "/mine")


@pytest.mark.req("X2")
def test_the_chunk_ledger_is_the_shadows_snapshot_log(days):
    request = days.stage(DAY, {DAYS[0]: [row(9, DAYS[0]), row(8, DAYS[0])], DAYS[1]: []})

    chunks = days.shadows.chunks(request.shadow)

    added = [(c.chunk_id, c.added_rows) for c in chunks if c.added_rows or c.chunk_id == "c1"]
    assert added == [("c0", 2), ("c1", 0)]
    assert chunks[-1] == ChunkCommit(
        chunk_id="c1",
        snapshot_id=request.shadow_snapshot_id,
        added_rows=0,
        properties={"lakehouse-backfill.chunk-id": "c1"},
    )


def test_a_retired_shadow_is_gone_and_its_files_stay(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.publisher.adopt(request)
    files = [file.path for file in days.tables.files(TARGET, days.head(), DAY)]

    days.shadows.retire(request.shadow)
    days.shadows.retire(request.shadow)

    assert days.tables.describe(request.shadow) is None
    io = days.live.load_table(TARGET).io
    assert all(io.new_input(path).exists() for path in files)
    assert [row[3] for row in days.rows()] == ["old", "new", "old"]


def test_only_shadows_are_opened_and_retired_in_the_namespace_of_shadows(days):
    with pytest.raises(Unsupported, match="outside the namespace"):
        days.shadows.retire(TARGET)
    with pytest.raises(Unsupported, match="outside the namespace"):
        days.shadows.open(TARGET, days.head(), "silver.other", {})
    days.catalog.create_namespace_if_not_exists("shadow")
    days.catalog.create_table("shadow.mine", days.live.load_table(TARGET).schema())
    with pytest.raises(Unsupported, match="not a shadow of ours"):
        days.shadows.retire("shadow.mine")
    with pytest.raises(Conflict):
        days.shadows.open(TARGET, days.head(), "shadow.mine", {})
    assert days.tables.describe("shadow.mine") is not None


def test_a_shadow_inside_its_target_is_refused(kit):
    kit.live.create_namespace("silver")
    kit.live.create_table(
        TARGET,
        SCHEMA,
        location=kit.live.create_table("silver.beside", SCHEMA).location().rsplit("/", 2)[0],
    )
    with pytest.raises(Unsupported, match="would lie inside its target"):
        kit.shadows.open(TARGET, None, "shadow.r1", {})


def registering(kit: Kit, *, is_kept: bool = True, is_killed: bool = False) -> None:
    """Let the catalog keep no snapshot of what it registers, or the process end after it."""
    register = type(kit.catalog).register_table.__get__(kit.catalog)

    def register_table(name: str, file: str) -> object:
        if not is_kept:
            table = kit.live.load_table(TARGET)
            metadata = json.loads(read_text(table, file))
            metadata.update({"snapshots": [], "refs": {}, "current-snapshot-id": -1})
            write_text(table, file, json.dumps(metadata))
        made = register(name, file)
        if is_killed:
            raise KeyboardInterrupt
        return made

    vars(kit.catalog)["register_table"] = register_table


@pytest.mark.req("U1")
def test_where_a_catalog_keeps_something_else_the_shadow_is_built(days):
    registering(days, is_kept=False)

    made = days.shadows.open(TARGET, days.head(), "shadow.r1", {})

    assert "register" in made.properties["lakehouse-backfill.built-because"]
    assert (made.snapshot_id, days.rows("shadow.r1")) == (days.head(), days.rows())


@pytest.mark.req("U1", "T3")
def test_what_was_registered_and_not_compared_is_compared_by_the_next(days):
    registering(days, is_kept=False, is_killed=True)
    with pytest.raises(KeyboardInterrupt):
        days.shadows.open(TARGET, days.head(), "shadow.r1", {})
    days.catalog.create_table("shadow.r2", days.live.load_table(TARGET).schema())
    for shadow in ("shadow.r1", "shadow.r2"):
        with pytest.raises(Conflict, match="and is no clone") as refused:
            days.shadows.open(TARGET, days.head(), shadow, {})
        assert f"DROP TABLE {shadow} (in Spark SQL, without PURGE)" in refused.value.fix


@pytest.mark.req("U1", "T3")
def test_what_was_registered_and_not_compared_is_taken_up_also_when_the_target_moved_on(days):
    head = days.head()
    registering(days, is_killed=True)
    with pytest.raises(KeyboardInterrupt):
        days.shadows.open(TARGET, head, "shadow.r1", {})
    days.evolve(lambda change: change.add_column("more", StringType()))
    with days.live.load_table(TARGET).transaction() as change:
        change.set_properties({"owner": "ana"})
    days.append(row(7, DAYS[0]))
    assert days.shadows.open(TARGET, head, "shadow.r1", {}).snapshot_id == head


def test_a_crash_before_the_registration_leaves_only_a_stray_metadata_file(days):
    def crash(name: str, file: str) -> None:
        raise KeyboardInterrupt

    vars(days.catalog)["register_table"] = crash
    with pytest.raises(KeyboardInterrupt):
        days.shadows.open(TARGET, days.head(), "shadow.r1", {})
    del vars(days.catalog)["register_table"]

    assert days.shadows.open(TARGET, days.head(), "shadow.r1", {}).snapshot_id == days.head()


def test_format_v3_is_refused(days):
    table = days.live.load_table(TARGET)
    text = read_text(table, table.metadata_location)
    metadata = {**json.loads(text), "format-version": 3, "next-row-id": 0}
    third = f"{table.location()}/metadata/00009-{uuid.uuid4()}.metadata.json"
    write_text(table, third, json.dumps(metadata))
    days.live.register_table("silver.v3", third)
    with pytest.raises(Unsupported, match="table format v3"):
        days.shadows.open("silver.v3", days.head(), "shadow.r3", {})
    with pytest.raises(Unsupported, match="table format v3"):
        days.pins.pin("silver.v3", days.head(), "base")


def test_what_doctor_tries_out_leaves_nothing_behind(days):
    found = probe_capabilities(days.catalog, "shadow")
    assert (found.clones, found.tags, found.branches, found.rights_beside) == (True,) * 4
    assert set(found.seen) <= {
        "branch_commits", "multi_table_commit", "register_table", "idempotency_keys", "unregister",
        *({"data_path", "overlap"} if not found.data_path else ()),
    }  # fmt: skip
    assert days.catalog.list_tables("shadow") == []
    assert not list((days.root / "lake").rglob("*probe*/**/*.*"))


def test_a_pin_of_another_snapshot_and_of_none_is_refused(days):
    first = days.head()
    days.pins.pin(TARGET, first, "base")
    second = days.append(row(7, DAYS[0]))

    with pytest.raises(Conflict, match=f"base already names snapshot {first}"):
        days.pins.pin(TARGET, second, "base")
    with pytest.raises(NotFound):
        days.pins.pin(TARGET, 17, "other")
    days.pins.unpin(TARGET, "main")
    assert days.head() == second


@pytest.mark.req("X1")
def test_an_open_shadow_is_given_back_and_another_runs_is_refused(days):
    base = days.head()
    first = days.shadows.open(TARGET, base, "shadow.r1", {"lakehouse-backfill.run-id": "r1"})

    assert (
        days.shadows.open(TARGET, base, "shadow.r1", {"lakehouse-backfill.run-id": "r1"}) == first
    )
    with pytest.raises(Conflict, match="run-id is r1"):
        days.shadows.open(TARGET, base, "shadow.r1", {"lakehouse-backfill.run-id": "r2"})
    later = days.append(row(7, DAYS[0]))
    with pytest.raises(Conflict, match=f"base-snapshot-id is {base}"):
        days.shadows.open(TARGET, later, "shadow.r1", {"lakehouse-backfill.run-id": "r1"})
