"""Migrations of Parquet folders on a real lake, without Spark; DuckDB judges."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lakehouse_backfill import fault_points
from lakehouse_backfill.core.evidence.verification.audit import audit_verify
from lakehouse_backfill.domain.publication import MODE_PROPERTY, Pointer, Publication
from lakehouse_backfill.errors import Blocked, ChecksFailed, Conflict, SourceDown, Unsupported
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.migrations import MigrateResult
from tests.support.examples.plans import a_first_event, a_plan
from tests.support.oracles import row_hash as oracle
from tests.support.sources.migration import NEWEST, MigrationCase, trip

pytestmark = pytest.mark.in_turn(2, of="file")

LEAVE_OUT = "bad_parts: leave_out\n"


def mixed(case: MigrationCase) -> None:
    """Write three generations of files, as a warehouse has them after some years."""
    first = pa.schema([("id", pa.int32()), ("fare", pa.decimal128(8, 2))])
    case.write("day=2023-01-01/a.parquet", [trip(1), trip(2)], first)
    second = pa.schema(
        [("km", pa.float32()), ("id", pa.int64()), ("city", pa.string()),
         ("fare", pa.decimal128(8, 2))]
    )  # fmt: skip
    case.write("day=2023-01-02/b.parquet", [trip(3), trip(4)], second)
    case.write("day=2024-01-01/c.parquet", [trip(5), trip(6, city=None)])
    case.write("day=__HIVE_DEFAULT_PARTITION__/d.parquet", [trip(7)])


def bad(case: MigrationCase) -> dict[str, str]:
    """Write files that are bad in different ways; return the reason of each."""
    folder = case.old / "day=2024-02-02"
    whole = case.write("day=2024-02-02/cut.parquet", [trip(n) for n in range(900, 1900)])
    content = whole.read_bytes()
    whole.write_bytes(content[:-40])
    # The footer is whole, and the values before it are not.
    (folder / "hole.parquet").write_bytes(
        b"PAR1" + bytes(len(content) - 4 - 2000) + content[-2000:]
    )
    (folder / "none.parquet").write_bytes(b"")
    (folder / "text.parquet").write_text("id,city\n1,Rome\n")
    (folder / "locked.parquet").write_bytes(
        b"PARE" + bytes(50) + (20).to_bytes(4, "little") + b"PARE"
    )
    clash = pa.schema([("id", pa.int64()), ("km", pa.string())])
    case.write("day=2024-02-02/clash.parquet", [trip(901, km="far")], clash)
    many = pa.schema([("id", pa.int64()), ("fare", pa.decimal128(20, 4))])
    case.write("day=2024-02-02/exact.parquet", [trip(902, fare=Decimal("0.0001"))], many)
    dated = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    case.write("day=2024-02-02/liar.parquet", [trip(903, day=date(2024, 2, 3))], dated)
    extra = pa.schema([("id", pa.int64()), ("tip", pa.int64())])
    case.write("day=2024-02-02/extra.parquet", [trip(904, tip=1)], extra)
    case.write("day=2024-02-02/null.parquet", [trip(905, id=None)])
    case.write("day=someday/word.parquet", [trip(906)])
    case.write("day=2024-02-02/day=2024-02-03/twice.parquet", [trip(907)])
    case.write("day=2024-02-04/linked.parquet", [trip(908)])
    (case.old / "day=2024-02-05").mkdir()
    link = case.old / "day=2024-02-05/link.parquet"
    link.symlink_to(case.old / "day=2024-02-04/linked.parquet")
    return {
        "day=2024-02-02/cut.parquet": "it is no Parquet file, or is cut off",
        "day=2024-02-02/hole.parquet": "it cannot be read",
        "day=2024-02-02/none.parquet": "it has no bytes",
        "day=2024-02-02/text.parquet": "it is no Parquet file, or is cut off",
        "day=2024-02-02/locked.parquet": "it is encrypted",
        "day=2024-02-02/clash.parquet": "column km is string in the file and double in the table",
        "day=2024-02-02/exact.parquet": "column fare has a value that does not fit into decimal128",
        "day=2024-02-02/liar.parquet": "column day contradicts the path",
        "day=2024-02-02/extra.parquet": "column tip is not in the contract",
        "day=2024-02-02/null.parquet": "the required column id has a null",
        "day=someday/word.parquet": "its path has no date32[day] for day",
        "day=2024-02-02/day=2024-02-03/twice.parquet": "its path names a column twice",
        "day=2024-02-04/linked.parquet": "the same file is also reached as day=2024-02-05/link",
        "day=2024-02-05/link.parquet": "the same file is also reached as day=2024-02-04/linked",
    }


def proof(case: MigrationCase, migration_id: str) -> dict[str, Any]:
    """Return the newest proof of a migration from the evidence."""
    evidence = Project.open(case.project).wiring.context.evidence
    found = evidence.newest(migration_id, "migration_proof")
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[MigrationCase, MigrateResult]:
    """A folder that was migrated; no test changes it."""
    case = MigrationCase(tmp_path_factory.mktemp("migrated") / "p")
    mixed(case)
    case.expected_hashes = case.hashes()
    return case, case.migrate()


@pytest.mark.req("T10", "V2")
def test_a_folder_of_mixed_schemas_becomes_a_table_without_a_copy(
    migrated: tuple[MigrationCase, MigrateResult],
) -> None:
    case, done = migrated
    before = case.expected_hashes
    assert (done.accepted, done.rows, done.adopted, done.rewritten) == (True, 7, 4, 0)
    assert case.rows() == case.expected()
    assert case.hashes() == before
    table = case.catalog().load_table(case.table)
    files = {task.file.file_path for task in table.scan().plan_files()}
    assert files == {f"file://{case.old}/{name}" for name in before}
    assert table.properties["gc.enabled"] == "false"
    assert {one.summary and one.summary[MODE_PROPERTY] for one in table.snapshots()} == {"backfill"}
    # Readers with a filter get the rows too: by partition, and by a column with statistics.
    assert table.scan("day = '2023-01-02'").to_arrow().num_rows == 2
    assert table.scan("day IS NULL").to_arrow()["id"].to_pylist() == [7]
    assert table.scan("fare = 2").to_arrow()["id"].to_pylist() == [2]
    assert table.scan("km > 0.5 and km < 1").to_arrow()["id"].to_pylist() == [3]
    # The same again changes nothing.
    assert case.migrate().snapshot_id == done.snapshot_id


@pytest.mark.req("T10")
def test_the_first_accepted_version_has_its_proof_in_the_evidence(
    migrated: tuple[MigrationCase, MigrateResult],
) -> None:
    case, done = migrated
    project = Project.open(case.project)
    accepted = project.wiring.context.versions.pointer("silver.trips").accepted
    assert accepted is not None
    assert (accepted.version, accepted.snapshot_id) == (0, done.snapshot_id)
    assert (accepted.token, accepted.evidence_digest) == (done.migration_id, done.evidence_digest)
    document = proof(case, str(done.migration_id))
    assert document["differing"] == []
    assert document["partitions"]["day=2023-01-01"]["rows"] == [2, 2]
    # The checksum is that of the definition, worked out by plain Python.
    kinds = {
        "id": "long", "day": "date", "city": "string", "fare": "decimal18:2", "km": "double",
    }  # fmt: skip
    names = "id, day, city, fare, km"
    rows = [dict(zip(names.split(", "), row, strict=True)) for row in case.expected(names)]
    for label, day in (("day=2024-01-01", date(2024, 1, 1)), ("day is null", None)):
        own = [row for row in rows if row["day"] == day]
        count, xor, total = oracle.checksum(kinds, own)
        old, new = document["partitions"][label]["checksums"]
        assert old == new
        assert new.split(":")[2:] == [str(count), f"{xor:016x}{total:016x}"]
    assert audit_verify(project.wiring.context).first_bad is None
    assert project.versions("silver.trips")


@pytest.mark.req("T10")
def test_bad_files_block_everything_and_each_is_named_with_its_reason(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    mixed(case)
    reasons = bad(case)
    before = case.hashes()
    done = case.migrate()
    error = done.error()
    assert error is not None
    assert (error.exit_code, done.accepted) == (3, False)
    named = {part.name: part.because for part in done.rejected_parts}
    assert named.keys() == reasons.keys()
    assert {name: because[: len(reasons[name])] for name, because in named.items()} == reasons
    assert "0.0001" not in str(done.to_dict())  # no reason quotes a value
    assert not case.catalog().table_exists(case.table)
    assert case.hashes() == before


@pytest.mark.req("T10")
def test_without_the_bad_files_all_good_rows_are_there_and_the_evidence_names_the_others(
    tmp_path: Path,
) -> None:
    case = MigrationCase(tmp_path / "p", LEAVE_OUT)
    mixed(case)
    expected = case.expected()
    reasons = bad(case)
    done = case.migrate()
    assert (done.accepted, done.error()) == (True, None)
    assert case.rows() == expected
    assert proof(case, str(done.migration_id))["rejected"].keys() == reasons.keys()


@pytest.mark.req("T10")
def test_what_iceberg_cannot_read_in_place_is_written_again_and_says_why(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    case.write("day=2024-01-01/a b%20c.parquet", [trip(1)])
    case.write("day=2024-01-01/q?x#y;z.parquet", [trip(2)])
    case.write("day=2024-01-01/short.parquet", [{"id": 3}], pa.schema([("id", pa.uint32())]))
    numbered = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"2"})])
    case.write("day=2024-01-01/theirs.parquet", [{"id": 4}], numbered)
    done = case.migrate()
    assert {part.name.partition("/")[2]: part.because for part in done.rewritten_parts} == {
        "q?x#y;z.parquet": "its path has a character that a location cannot hold",
        "short.parquet": "column id is uint32 in the file and int64 in the table",
        "theirs.parquet": "it has field ids of another table",
    }
    assert case.rows() == case.expected()


def test_rows_of_several_partitions_and_a_column_only_in_the_path_are_written_again(
    tmp_path: Path,
) -> None:
    case = MigrationCase(tmp_path / "p", partitioning="[{column: day, transform: month}]")
    case.write("day=2024-01-01/a.parquet", [trip(1)])
    dated = NEWEST.append(pa.field("day", pa.date32()))
    case.write("one.parquet", [trip(2, day=date(2024, 1, 1)), trip(3, day=date(2024, 1, 9))], dated)
    case.write("two.parquet", [trip(4, day=date(2024, 1, 1)), trip(5, day=date(2024, 2, 9))], dated)
    done = case.migrate()
    assert {part.name: part.because for part in done.rewritten_parts} == {
        "day=2024-01-01/a.parquet": "column day is only in its path, and the table is not "
        "partitioned by it",
        "two.parquet": "its rows belong to 2 partitions",
    }
    assert [row[0] for row in case.rows()] == [1, 2, 3, 4, 5]
    scan = case.catalog().load_table(case.table).scan("day = '2024-01-09'")
    assert scan.to_arrow()["id"].to_pylist() == [3]


def test_old_instants_are_read_as_utc(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", partitioning="[]")
    contract = case.project / "catalog/contracts/silver.trips.yaml"
    contract.write_text(contract.read_text().replace("km, type: double", "at, type: timestamptz"))
    moments = [
        datetime(2024, 1, 1, 5, tzinfo=timezone.utc),
        datetime(9999, 12, 31, tzinfo=timezone.utc),
    ]
    naive = [moment.replace(tzinfo=None) for moment in moments]
    table = pa.table({"id": [1, 2], "at": pa.array(naive, pa.timestamp("us"))})
    pq.write_table(table, case.old / "spark.parquet", use_deprecated_int96_timestamps=True)
    done = case.migrate()
    assert done.rewritten_parts[0].because == "column at is stored as INT96"
    found = case.catalog().load_table(case.table).scan().to_arrow().sort_by("id")
    assert found["at"].cast(pa.int64()).to_pylist() == [
        int(moment.timestamp()) * 1_000_000 for moment in moments
    ]


#: Each process goes on where the one before it died: the order is that of the side effects.
KILLS = (
    "ControlLog.evidence:committed 1",
    "Catalog.create_table:committed 1",
    "MigratedTables.commit:committing 1",  # makes the branch
    "MigratedTables.commit:committed 1",
    "MigratedTables.stage:after 1",
    "MigratedTables.commit:committing 1",  # the first files
    "MigratedTables.commit:committed 1",
    "MigratedTables.stage:after 1",
    "ControlLog.evidence:committing 1",  # the proof
    "ControlLog.evidence:committed 1",
    "MigratedTables.commit:committing 1",  # its digest
    "MigratedTables.commit:committed 1",
    "MigratedTables.commit:committing 1",  # makes the branch the main one
    "MigratedTables.commit:committed 1",
    "ControlLog.accepted_output_version:committing 1",
    "ControlLog.accepted_output_version:committed 1",
)


@pytest.mark.req("T10")
def test_a_migration_that_was_killed_anywhere_loses_no_row_and_doubles_none(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", "files_per_commit: 2\n" + LEAVE_OUT)
    mixed(case)
    odd = pa.schema([("id", pa.uint16())])
    for number in range(20, 24):
        case.write(f"day=2024-03-0{number % 2 + 1}/f{number}.parquet", [trip(number)], odd)
    expected = case.expected()
    bad(case)
    before = case.hashes()
    for place, moment in enumerate(KILLS):
        case.kill_at(moment)
        if 2 <= place <= 12:
            assert case.rows("id") == []  # nobody sees a part of it
    done = case.migrate()
    assert (done.accepted, done.resumed) == (True, True)
    assert case.rows() == expected
    assert (done.adopted, done.rewritten) == (4, 4)
    assert case.hashes() == before


def _change_size(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([trip(99), trip(98)], schema=NEWEST), path)


def _change_content(path: Path) -> None:
    """Write another content of the same size, at the same time."""
    was = path.stat()
    pq.write_table(pa.Table.from_pylist([trip(8)], schema=NEWEST), path)
    assert path.stat().st_size == was.st_size
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.req("T10")
@pytest.mark.parametrize(
    ("change", "point"),
    [
        (_change_content, "MigratedTables.stage:before"),
        (Path.unlink, "MigratedTables.stage:after"),
        (_change_size, "MigratedTables.commit:after"),
        (Path.unlink, "MigratedTables.commit:after"),
    ],
)
def test_a_file_that_changes_or_vanishes_meanwhile_is_seen(
    change: Callable[[Path], None], point: str, tmp_path: Path
) -> None:
    case = MigrationCase(tmp_path / "p")
    path = case.write("day=2024-01-01/a.parquet", [trip(7)])
    with _once(point, lambda: change(path)), pytest.raises(Conflict, match=r"a\.parquet"):
        case.migrate()
    with pytest.raises(Conflict, match=r"a\.parquet"):
        case.migrate()
    assert case.rows("id") == []
    # Taken back, it begins anew with what is there.
    case.write("day=2024-01-01/a.parquet", [trip(3)])
    case.undo()
    assert case.migrate().accepted
    assert case.rows() == case.expected()


def test_a_file_that_is_added_meanwhile_is_seen(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    case.write("day=2024-01-01/a.parquet", [trip(7)])

    def add() -> None:
        case.write("day=2024-01-01/late.parquet", [trip(8)])

    with (
        _once("MigratedTables.commit:after", add),
        pytest.raises(Conflict, match=r"late\.parquet are new"),
    ):
        case.migrate()
    assert case.rows("id") == []


@pytest.mark.req("T10")
def test_a_bad_file_may_vanish_meanwhile_but_not_become_good(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", LEAVE_OUT)
    case.write("day=2024-01-01/a.parquet", [trip(7)])
    path = case.write("day=2024-01-01/half.parquet", [trip(8)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with (
        _once("MigratedTables.commit:after", lambda: path.write_bytes(whole)),
        pytest.raises(Conflict, match=r"half\.parquet changed"),
    ):
        case.migrate()
    case.undo()
    path.write_bytes(whole[:-9])
    with _once("MigratedTables.commit:after", path.unlink):
        assert case.migrate().accepted
    assert [row[0] for row in case.rows()] == [7]


@pytest.mark.long
@pytest.mark.req("T10")
def test_ten_thousand_files_with_one_percent_bad_ones(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", LEAVE_OUT)
    case.write("day=2024-01-01/f0.parquet", [trip(1), trip(2)])
    first = case.old / "day=2024-01-01/f0.parquet"
    broken = case.old / "day=2024-01-01/f1.parquet"
    broken.write_bytes(first.read_bytes()[:-9])
    for number in range(2, 10_000):
        name = case.old / f"day=2024-01-{number % 20 + 1:02d}/f{number}.parquet"
        name.parent.mkdir(exist_ok=True)
        os.link(broken if number % 100 == 1 else first, name)
    case.kill_at("MigratedTables.commit:committing 5", wait_s=280)
    done = case.migrate()
    assert (done.accepted, done.resumed, done.adopted, done.rows) == (True, True, 9900, 19_800)
    bad_names = {part.name for part in done.rejected_parts}
    wanted = [number for number in range(10_000) if number % 100 == 1]
    assert bad_names == {f"day=2024-01-{n % 20 + 1:02d}/f{n}.parquet" for n in wanted[1:]} | {
        "day=2024-01-01/f1.parquet"
    }
    found = case.catalog().load_table(case.table).inspect.files()["file_path"].to_pylist()
    assert len(found) == len(set(found)) == 9900
    assert not {path.partition("old/trips/")[2] for path in found} & bad_names


@contextmanager
def _once(point: str, act: Callable[[], object]) -> Iterator[None]:
    def reach(reached: str) -> None:
        if reached == point:
            fault_points.install_hook(None)
            act()

    fault_points.install_hook(reach)
    try:
        yield
    finally:
        fault_points.install_hook(None)


@pytest.mark.req("T10")
def test_a_migration_that_is_taken_back_leaves_the_old_place_byte_for_byte(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    mixed(case)
    before = case.hashes()
    first = case.migrate()
    versions = Project.open(case.project).wiring.context.versions
    case.undo()
    assert not case.catalog().table_exists(case.table)
    assert case.hashes() == before
    accepted = versions.pointer("silver.trips").accepted
    assert accepted is not None
    assert (accepted.version, accepted.snapshot_id) == (0, None)
    case.undo()
    again = case.migrate()
    assert again.migration_id != first.migration_id
    assert case.rows() == case.expected()
    assert audit_verify(Project.open(case.project).wiring.context).first_bad is None


@pytest.mark.req("T10")
@pytest.mark.parametrize("goes_on", ["undo", "migrate"])
def test_an_undo_that_was_killed_goes_on_or_is_taken_back(goes_on: str, tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    mixed(case)
    before = case.hashes()
    case.migrate()
    case.kill_at("MigratedTables.drop:before 1", act="undo_migration")
    accepted = Project.open(case.project).wiring.context.versions.pointer("silver.trips").accepted
    assert accepted is not None
    assert accepted.snapshot_id is None
    if goes_on == "undo":
        case.undo()
        assert not case.catalog().table_exists(case.table)
    assert case.migrate().accepted
    assert (case.rows(), case.hashes()) == (case.expected(), before)


@pytest.mark.req("T10")
def test_a_table_that_holds_other_rows_since_is_not_taken_back(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    mixed(case)
    case.migrate()
    table = case.catalog().load_table(case.table)
    table.append(table.scan("id = 1").to_arrow())
    with pytest.raises(Blocked, match="was committed since"):
        case.undo()
    assert case.migrate().accepted  # it is, and nothing more is done
    assert case.catalog().table_exists(case.table)


def test_once_a_run_was_published_the_migration_stays_as_it_is(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    mixed(case)
    done = case.migrate()
    context = Project.open(case.project).wiring.context
    versions, plan = context.versions, a_plan(product="silver.trips")
    context.runs.register(plan, a_first_event(plan))
    with pytest.raises(Blocked, match=r"bf-1 is an open run of silver.trips"):
        case.undo()

    def publish_and_roll_back(pointer: Pointer) -> tuple[Publication, ...]:
        row = pointer.accepted
        assert row is not None
        first = {"version": 1, "action": "publish", "token": "run", "supersedes": 0}
        back = {"action": "rollback", "token": "back", "returns_to": 0}
        return row.model_copy(update=first), row.model_copy(update=back)

    versions.move("silver.trips", publish_and_roll_back)
    before = versions.history("silver.trips")
    assert case.migrate().snapshot_id == done.snapshot_id
    assert versions.history("silver.trips") == before
    with pytest.raises(Blocked, match="a run was published since"):
        case.undo()


def test_whoever_deletes_an_adopted_file_breaks_the_table_and_a_copy_is_safe(
    tmp_path: Path,
) -> None:
    case = MigrationCase(tmp_path / "p")
    copied = MigrationCase(tmp_path / "q", "copy_files: always\n")
    for one in (case, copied):
        mixed(one)
        one.expected_rows = one.expected()
        one.migrate()
        shutil.rmtree(one.old)
    with pytest.raises(FileNotFoundError):
        case.rows()
    assert copied.rows() == copied.expected_rows
    properties = copied.catalog().load_table(copied.table).properties
    assert "gc.enabled" not in properties


@pytest.mark.req("U8")
def test_readers_compare_both_sides_before_the_switch(tmp_path: Path) -> None:
    query = 'readers: [{{reader: fin, sql: "{sql}"}}]\n'
    case = MigrationCase(
        tmp_path / "p", query.format(sql="SELECT day, sum(fare) FROM product GROUP BY 1")
    )
    mixed(case)
    done = case.migrate()
    assert done.readers == ({"reader": "fin", "equal": True},)
    assert proof(case, str(done.migration_id))["readers"][0]["old"]["table"].endswith("old/trips")
    other = MigrationCase(tmp_path / "q", query.format(sql="SELECT random() FROM product"))
    mixed(other)
    with pytest.raises(ChecksFailed, match="the query of fin has another answer"):
        other.migrate()
    assert other.rows("id") == []
    other.declare("")
    assert other.migrate().accepted


def test_in_production_somebody_else_accepts(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", environment="prod")
    mixed(case)
    assert not case.migrate("ana").accepted
    assert not case.migrate("ana").accepted
    assert case.rows("id") == []
    assert case.migrate("ben").accepted
    assert case.rows() == case.expected()


def test_what_is_no_plain_folder_or_no_own_table_is_refused(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    with pytest.raises(Blocked, match="nothing that can be migrated"):
        case.migrate()
    case.write("day=2024-01-01/a.parquet", [trip(7)])
    (case.old / "_delta_log").mkdir()
    with pytest.raises(Blocked, match="is a Delta table"):
        case.migrate()
    (case.old / "_delta_log").rmdir()
    catalog = case.catalog()
    catalog.create_namespace("silver")
    catalog.create_table(case.table, pa.schema([("id", pa.int64())]))
    with pytest.raises(Unsupported, match="no migration made it"):
        case.migrate()
    with pytest.raises(Unsupported, match="no migration made it"):
        case.undo()
    shutil.rmtree(case.old)
    catalog.drop_table(case.table)
    with pytest.raises(SourceDown, match="no folder that can be read"):
        case.migrate()


def test_a_declaration_that_changed_in_between_does_not_go_on(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", environment="prod")
    mixed(case)
    case.migrate()
    case.declare("copy_files: always\n")
    with pytest.raises(Conflict, match="changed since"):
        case.migrate("ben")


def test_looking_changes_nothing_and_makes_no_lake(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    mixed(case)
    bad(case)
    seen = Project.open(case.project).preview_migration("trips")
    assert (seen.adopted, seen.rewritten, seen.rejected, seen.rows) == (4, 0, 14, 7)
    assert not (case.project / ".lakehouse").exists()
