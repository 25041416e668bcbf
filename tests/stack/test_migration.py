"""Migrations from real servers: a table of PostgreSQL, and files of an object store.

The database itself is the judge of its rows, DuckDB of the files.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pyarrow as pa
import pytest
from pyarrow.fs import S3FileSystem, copy_files

from lakehouse_backfill import fault_points
from lakehouse_backfill.errors import Blocked, ConfigError, SourceDown
from tests.stack.servers import BUCKET, Postgres, Seaweed
from tests.support.sources.migration import MigrationCase, trip

DSN = "LHB_TEST_DSN"
CONTRACT = """\
api_version: lakehouse-backfill/v1
product: silver.trips
table: silver.trips
description: One row for each trip.
owner: ana
publication: follow
key: [id]
partitioning: [{column: at, transform: day}]
columns:
  - {name: id, type: long, required: true}
  - {name: at, type: timestamptz}
  - {name: local, type: timestamp}
  - {name: fare, type: "decimal(12, 2)"}
  - {name: km, type: float}
  - {name: ref, type: uuid}
  - {name: more, type: string}
  - {name: tags, type: list<string>}
  - {name: raw, type: binary}
  - {name: open, type: boolean}
  - {name: day, type: date}
consumers: []
"""
MAKE = """
CREATE TABLE "Old %Trips" (id bigint PRIMARY KEY, at timestamptz, local timestamp,
  fare numeric(12, 2), km real, ref uuid, more jsonb, tags text[], raw bytea, open boolean,
  day date);
INSERT INTO "Old %Trips" SELECT n, timestamptz '2024-01-01 23:00+01' + n * interval '7 hours',
  timestamp '2024-01-01 00:00:00.000001' + n * interval '1 day', n * 1.25, n / 7.0,
  md5(n::text)::uuid, jsonb_build_object('n', n, 'text', 'é'), ARRAY['a', NULL, n::text],
  decode(md5(n::text), 'hex'), n % 2 = 0, date '2024-01-01' + n FROM generate_series(1, 95) n;
INSERT INTO "Old %Trips" (id) VALUES (-5), (1000);
"""


class DatabaseCase(MigrationCase):
    """A project whose old place is a table of a database."""

    def __init__(self, folder: Path, database: str, more: str = "") -> None:
        super().__init__(folder)
        (folder / "catalog/contracts/silver.trips.yaml").write_text(CONTRACT)
        self.database = database
        declared = folder / "catalog/migrations/trips.yaml"
        place = f"postgres: {{dsn: {DSN}, table: '\"Old %Trips\"', key: id, rows_per_part: 10}}\n"
        text = declared.read_text().replace("parquet: {location: old/trips}\n", place)
        declared.write_text(f"{text}files_per_commit: 3\n{more}")

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own."""
        connection = psycopg2.connect(self.database)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(text)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def truth(self) -> list[tuple[Any, ...]]:
        """Return the rows as the database has them now."""
        return self.execute(
            "SELECT id, (extract(epoch FROM at) * 1000000)::bigint, local::text, fare::text, "
            "km::float8, ref::text, more::text, tags, encode(raw, 'hex'), open, day::text "
            'FROM "Old %Trips" ORDER BY id'
        )

    def found(self) -> list[tuple[Any, ...]]:
        """Return the rows of the table in the same form."""
        import duckdb

        rows = self.catalog().load_table(self.table).scan().to_arrow()
        with duckdb.connect() as connection:
            connection.register("found", rows)
            return connection.execute(
                'SELECT id, epoch_us("at"), local::VARCHAR, fare::VARCHAR, km::DOUBLE, '
                "ref::UUID::VARCHAR, more, tags, lower(hex(raw)), open, day::VARCHAR "
                "FROM found ORDER BY id"
            ).fetchall()


@pytest.fixture
def database(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    uri = postgres.database()
    plain = uri.replace("+psycopg2", "")
    monkeypatch.setenv(DSN, plain)
    yield plain
    postgres.drop(uri)


@pytest.mark.req("T10")
def test_a_table_is_copied_as_of_one_snapshot_of_the_database(
    database: str, tmp_path: Path
) -> None:
    query = 'readers: [{reader: fin, sql: "SELECT count(*), sum(fare) FROM product"}]\n'
    case = DatabaseCase(tmp_path / "p", database, query)
    case.execute(MAKE)
    expected = case.truth()

    def meddle(point: str) -> None:
        """Change the table once the copy has begun."""
        if point == "MigratedTables.commit:after":
            fault_points.install_hook(None)
            case.execute('DELETE FROM "Old %Trips" WHERE id > 50')
            case.execute('INSERT INTO "Old %Trips" (id) VALUES (60)')

    fault_points.install_hook(meddle)
    try:
        done = case.migrate()
    finally:
        fault_points.install_hook(None)
    assert (done.accepted, done.rows, done.adopted) == (True, 97, 0)
    assert case.found() == expected != case.truth()
    assert not done.keeps_files
    assert done.readers == ({"reader": "fin", "equal": True},)


@pytest.mark.req("T10")
def test_a_copy_that_was_killed_begins_again_with_a_new_snapshot(
    database: str, tmp_path: Path
) -> None:
    case = DatabaseCase(tmp_path / "p", database)
    case.execute(MAKE)
    for moment in (
        "Catalog.create_table:committed 1",
        "MigratedTables.commit:committed 3",
        "MigratedTables.note:before 1",
    ):
        case.kill_at(moment, {DSN: os.environ[DSN]})
        case.execute('UPDATE "Old %Trips" SET fare = fare + 1')
    done = case.migrate()
    assert done.accepted
    assert "a new snapshot of the database was taken" in done.warnings[0]
    assert case.found() == case.truth()


def test_once_both_sides_agreed_the_database_is_not_read_again(
    database: str, tmp_path: Path
) -> None:
    case = DatabaseCase(tmp_path / "p", database)
    case.execute(MAKE)
    expected = case.truth()
    case.kill_at("MigratedTables.note:after 1", {DSN: os.environ[DSN]})
    case.execute('TRUNCATE "Old %Trips"')
    done = case.migrate()
    assert (done.accepted, done.warnings) == (True, ())
    assert case.found() == expected


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('ALTER TABLE "Old %Trips" ADD since interval', "column since is not in the contract"),
        ('ALTER TABLE "Old %Trips" ALTER km TYPE text', "column km is text, which does not become"),
        ('ALTER TABLE "Old %Trips" ALTER local TYPE timestamptz', "column local is timestamp with"),
    ],
)
def test_a_table_whose_columns_do_not_fit_is_refused(
    change: str, problem: str, database: str, tmp_path: Path
) -> None:
    case = DatabaseCase(tmp_path / "p", database)
    case.execute(MAKE)
    case.execute(change)
    with pytest.raises(Blocked, match=problem):
        case.migrate()
    assert not case.catalog().table_exists(case.table)


def test_values_that_do_not_fit_are_named_by_their_column(database: str, tmp_path: Path) -> None:
    case = DatabaseCase(tmp_path / "p", database)
    case.execute(MAKE)
    case.execute('ALTER TABLE "Old %Trips" ALTER fare TYPE numeric')
    case.execute("""UPDATE "Old %Trips" SET fare = 'NaN' WHERE id = 7""")
    case.execute('UPDATE "Old %Trips" SET fare = 0.001 WHERE id = 27')
    case.execute("""UPDATE "Old %Trips" SET tags = '{{a,b},{c,d}}' WHERE id = 47""")
    case.execute("""UPDATE "Old %Trips" SET at = 'infinity' WHERE id = 67""")
    done = case.migrate()
    assert not done.accepted
    assert {part.name: part.because.partition(" that ")[0] for part in done.rejected_parts} == {
        "range 000001": "column fare has a value",
        "range 000003": "column fare has a value",
        "range 000005": "column tags has a value",
        "range 000007": "column at has a value",
    }


def test_a_database_that_does_not_answer_is_down_and_a_key_has_no_nulls(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = DatabaseCase(tmp_path / "p", database)
    case.execute(MAKE)
    declared = case.project / "catalog/migrations/trips.yaml"
    declared.write_text(declared.read_text().replace("key: id", "key: fare"))
    with pytest.raises(Blocked, match="the key fare is null in 2 rows"):
        case.migrate()
    monkeypatch.setenv(DSN, "postgresql://lake:secret@127.0.0.1:1/none")
    with pytest.raises(SourceDown) as down:
        case.migrate()
    assert "secret" not in str(down.value)
    monkeypatch.delenv(DSN)
    with pytest.raises(ConfigError, match="is not set"):
        case.migrate()


@pytest.mark.req("T10")
def test_files_of_an_object_store_are_adopted_where_they_lie_and_bad_ones_are_named(
    seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = seaweed.s3()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["s3.access-key-id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["s3.secret-access-key"])
    case = MigrationCase(tmp_path / "p", "bad_parts: leave_out\n")
    place = f"{BUCKET}/old {uuid.uuid4().hex}"
    case.write("day=2024-01-01/a.parquet", [trip(1), trip(2)])
    case.write("day=2024-01-02/b.parquet", [trip(3, city=None)])
    older = pa.schema([("id", pa.int64()), ("fare", pa.decimal128(20, 4))])
    case.write("day=2024-01-03/c.parquet", [trip(4)], older)
    (case.old / "day=2024-01-03/cut.parquet").write_bytes(b"PAR1")
    store = S3FileSystem(
        endpoint_override=keys["s3.endpoint"].partition("://")[2], scheme="http",
        region=keys["s3.region"], access_key=keys["s3.access-key-id"],
        secret_key=keys["s3.secret-access-key"],
    )  # fmt: skip
    copy_files(str(case.old), place, destination_filesystem=store)
    (case.old / "day=2024-01-03/cut.parquet").unlink()
    expected = case.expected()
    shutil.rmtree(case.old)  # Nothing is read from here.
    declared = case.project / "catalog/migrations/trips.yaml"
    address = f"s3://{quote(place)}?endpoint_override={quote(keys['s3.endpoint'], safe='')}"
    declared.write_text(
        declared.read_text().replace("location: old/trips", f'location: "{address}&scheme=http"')
    )
    profiles = case.project / "catalog/profiles.yaml"
    options = "".join(f"      {name}: {value}\n" for name, value in keys.items())
    profiles.write_text(profiles.read_text() + options)
    done = case.migrate()
    assert (done.accepted, done.rows, done.adopted, done.rewritten) == (True, 4, 2, 1)
    assert [part.name for part in done.rejected_parts] == ["day=2024-01-03/cut.parquet"]
    assert case.rows() == expected
    files = {
        one.file.file_path for one in case.catalog().load_table(case.table).scan().plan_files()
    }
    kept = {one for one in files if one.startswith("s3://")}
    assert kept == {
        f"s3://{place}/day=2024-01-0{n}/{name}.parquet" for n, name in enumerate("ab", 1)
    }
