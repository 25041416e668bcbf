"""Files of an old place that are not what they seem: no row is lost, hidden or changed."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyarrow.fs import LocalFileSystem

from lakehouse_backfill.adapters.iceberg.landing.migrated_tables import _written_files
from lakehouse_backfill.core.migration import fit
from lakehouse_backfill.errors import Blocked, Conflict, SourceDown, Unsupported
from lakehouse_backfill.project import Project
from tests.support.sources.migration import NEWEST, MigrationCase, trip


def retyped(case: MigrationCase, column: str) -> None:
    """Give the contract another last column."""
    contract = case.project / "catalog/contracts/silver.trips.yaml"
    contract.write_text(contract.read_text().replace("name: km, type: double", column))


@pytest.mark.req("T10")
def test_a_row_group_without_statistics_hides_no_row_from_a_filter(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", partitioning="[]")
    # Writers leave the bounds of long values out, here those of the second group.
    rows = [trip(1, city="a"), trip(2, city="b"), trip(3, city="z" * 5000), trip(4, city="c")]
    path = case.old / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=NEWEST), path, row_group_size=2)
    group = pq.read_metadata(path).row_group(1).column(1).statistics
    assert group is None or not group.has_min_max
    assert case.migrate().adopted == 1
    table = case.catalog().load_table(case.table)
    assert table.scan("city >= 'c'").to_arrow().sort_by("id")["id"].to_pylist() == [3, 4]
    assert table.scan("id = 4").to_arrow()["id"].to_pylist() == [4]


@pytest.mark.req("T10")
def test_negative_decimals_are_found_by_filters(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", partitioning="[]")
    rows = [trip(n, fare=Decimal(fare)) for n, fare in enumerate(("-5.25", "3", "-0.01"))]
    table = pa.Table.from_pylist(rows, schema=NEWEST)
    pq.write_table(table, case.old / "a.parquet")
    pq.write_table(table, case.old / "b.parquet", store_decimal_as_integer=True)
    assert case.migrate().adopted == 2
    scan = case.catalog().load_table(case.table).scan("fare < 0")
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [0, 0, 2, 2]


@pytest.mark.req("T10")
@pytest.mark.parametrize("nanoseconds", [1, 999])
def test_an_old_instant_of_nanoseconds_is_not_cut(nanoseconds: int, tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", partitioning="[]")
    retyped(case, "name: at, type: timestamptz")
    at = pa.array(np.array([0, nanoseconds - 10**12]), pa.timestamp("ns"))
    pq.write_table(
        pa.table({"id": [1, 2], "at": at}), case.old / "spark.parquet",
        use_deprecated_int96_timestamps=True,
    )  # fmt: skip
    (part,) = case.migrate().rejected_parts
    assert part.because.startswith("column at has a value that does not fit into timestamp[us")


def nested(case: MigrationCase, kind: str, values: pa.Array) -> tuple[str, str]:
    """Write one file with a nested column; return what was done with it, and why."""
    retyped(case, f'name: at, type: "{kind}"')
    pq.write_table(pa.table({"id": [1], "at": values}), case.old / "a.parquet")
    done = case.migrate()
    (part,) = [*done.rejected_parts, *done.rewritten_parts]
    return part.action, part.because


@pytest.mark.req("T10")
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("struct<a: long>", pa.array([{"a": 1, "b": 2}])),
        ("list<string>", pa.array([[7]])),
        ("list<float>", pa.array([[0.1]])),
        ("list<timestamptz>", pa.array([[0]], pa.list_(pa.timestamp("us")))),
    ],
)
def test_nested_values_are_held_to_the_same_rules(
    kind: str, values: pa.Array, tmp_path: Path
) -> None:
    action, because = nested(MigrationCase(tmp_path / "p", partitioning="[]"), kind, values)
    assert (action, because[:12]) == ("reject", "column at is")


def test_a_field_id_within_a_column_is_one(tmp_path: Path) -> None:
    # One id anywhere makes readers take columns by id alone: the others would be null.
    inner = pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "7"})
    values = pa.array([{"a": 1}], pa.struct([inner]))
    case = MigrationCase(tmp_path / "p", partitioning="[]")
    assert nested(case, "struct<a: long>", values) == (
        "rewrite", "it has field ids of another table",
    )  # fmt: skip
    assert case.rows('"at".a') == [(1,)]


def test_a_path_that_is_no_text_is_bad(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", partitioning="[{column: city}]")
    schema = NEWEST.remove(1)
    case.write("city=%FF/a.parquet", [trip(1)], schema)
    case.write("city=%C3%A9%20%2F/b.parquet", [trip(2)], schema)
    case.declare("bad_parts: leave_out\n")
    (part,) = case.migrate().rejected_parts
    assert (part.name, part.because) == ("city=%FF/a.parquet", "its path is no UTF-8")
    assert [row[2] for row in case.rows()] == ["é /"]


def test_a_day_after_the_year_9999_in_a_partition_makes_the_file_bad(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    dated = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    table = pa.table({"id": [1], "day": pa.array([3_000_000], pa.int32()).cast(pa.date32())}, dated)
    pq.write_table(table, case.old / "a.parquet")
    (part,) = case.migrate().rejected_parts
    assert part.because.startswith("a value of its partition")


@pytest.mark.req("T10")
def test_what_is_added_between_proof_and_acceptance_is_seen(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", environment="prod")
    case.write("day=2024-01-01/a.parquet", [trip(1)])
    assert not case.migrate("ana").accepted
    case.write("day=2024-01-01/late.parquet", [trip(2)])
    with pytest.raises(Conflict, match=r"late\.parquet"):
        case.migrate("ben")
    assert case.rows("id") == []


@pytest.mark.req("T10")
def test_not_a_number_as_a_partition_stays_where_it_lies_or_makes_its_file_bad(
    tmp_path: Path,
) -> None:
    """PyIceberg writes no rows of a partition NaN: it failed with a ZeroDivisionError."""
    case = MigrationCase(tmp_path / "p", "bad_parts: leave_out\n", partitioning="[{column: km}]")
    nan = float("nan")
    case.write("same.parquet", [trip(1, km=nan), trip(2, km=nan)])
    case.write("mixed.parquet", [trip(3, km=nan), trip(4, km=1.5)])
    done = case.migrate()
    (bad,) = done.rejected_parts
    assert (bad.name, done.adopted, done.rows) == ("mixed.parquet", 1, 2)
    assert bad.because == (
        "column km has NaN, which is no partition that can be written, and the file cannot stay "
        "as it is: its rows belong to 2 partitions"
    )
    assert sorted(row[0] for row in case.rows()) == [1, 2]


@pytest.mark.req("T10")
def test_rows_that_are_copied_with_such_a_partition_are_refused_by_name(tmp_path: Path) -> None:
    """Rows of a database are not surveyed before, so it is seen when they are written."""
    case = MigrationCase(tmp_path / "p", partitioning="[{column: km}]")
    case.write("a.parquet", [trip(1, km=0.5)])
    case.migrate()
    table = case.catalog().load_table(case.table)
    rows = pa.Table.from_pylist([trip(2, km=float("nan"))], schema=table.schema().as_arrow())
    with pytest.raises(Unsupported, match="column km has NaN, and the table is partitioned by it"):
        list(_written_files(table, rows.to_batches()))


@pytest.mark.req("T10")
def test_what_pyiceberg_does_not_read_is_written_again_with_the_same_values(
    tmp_path: Path,
) -> None:
    """It failed after rows were committed: other zones, decimals of 256 bits, required columns."""
    case = MigrationCase(tmp_path / "p", partitioning="[{column: city}, {column: id}]")
    retyped(case, "name: at, type: timestamptz")
    moment = pa.array([1_704_078_000_000_000], pa.timestamp("us", "America/New_York"))
    wide, whole = pa.array([Decimal("1.50")], pa.decimal256(10, 2)), pa.array([3], pa.int64())
    for number, columns in enumerate(({"at": moment}, {"fare": wide}, {"fare": whole}, {})):
        path = case.old / f"city=Rome/id={number}/a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"day": pa.nulls(1, pa.date32()), **columns}), path)
    done = case.migrate()
    assert [part.because.partition(" in the file")[0] for part in done.rewritten_parts] == [
        "column at is timestamp[us, tz=America/New_York]",
        "column fare is decimal256(10, 2)",
        "column fare is int64",
        "the required column id is only in its path, where PyIceberg reads none",
    ]
    columns = 'id, city, fare::DECIMAL(12, 2), epoch_us("at")'
    assert case.rows(columns) == case.expected(columns)


@pytest.mark.req("T10")
def test_nested_columns_are_adopted_also_before_others(tmp_path: Path) -> None:
    """A catalog counts the ids of nested columns last, the contract's schema in between."""
    case = MigrationCase(tmp_path / "p", partitioning="[]")
    kinds = (
        "list<string>", "map<string, long>", "struct<a: long, b: string>", "string",
        "list<struct<a: long>>",
    )  # fmt: skip
    retyped(
        case, "\n".join(f'name: c{n}, type: "{kind}"}}\n  - {{' for n, kind in enumerate(kinds))
        + "name: km, type: double",
    )  # fmt: skip
    rows = {
        "c4": pa.array([None, []], pa.list_(pa.struct([("a", pa.int64())]))),
        "c3": ["note", None],
        "c2": pa.array([{"a": 1, "b": "x"}, None]),
        "c1": pa.array([[("k", 7)], None], pa.map_(pa.string(), pa.int64())),
        "c0": pa.array([["y", None], []]),
    }
    pq.write_table(pa.table({"id": [1, 2], **rows}), case.old / "a.parquet")
    pq.write_table(pa.table({"id": [3], "c3": ["other"]}), case.old / "b.parquet")
    assert case.migrate().adopted == 2
    columns = "id, c0, c1, c2, c3, c4"
    assert case.rows(columns) == case.expected(columns)
    table = case.catalog().load_table(case.table)
    assert table.scan("c3 = 'note'").to_arrow()["id"].to_pylist() == [1]


@pytest.mark.req("T10")
def test_what_cannot_be_a_part_of_the_table_is_named(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", "bad_parts: leave_out\n", partitioning="[]")
    case.write("good.parquet", [trip(1)])
    (case.old / "link.parquet").symlink_to(case.old / "nothing.parquet")
    os.mkfifo(case.old / "pipe.parquet")
    (case.old / "_SUCCESS").touch()
    (case.old / ".good.parquet.crc").touch()
    binary = pa.array([b"\xff\xfe"])
    pq.write_table(pa.table({"id": [2], "city": binary.view(pa.string())}), case.old / "text")
    large = binary.cast(pa.large_binary()).view(pa.large_string())
    pq.write_table(pa.table({"id": [2], "city": large}), case.old / "large")
    assert {part.name: part.because for part in case.migrate().rejected_parts} == {
        "link.parquet": "it is no file, or a link that leads to none",
        "pipe.parquet": "it is no file, or a link that leads to none",
        "text": "column city has a value that does not fit into large_string",
        "large": "column city has a value that does not fit into large_string",
    }
    assert [row[0] for row in case.rows()] == [1]


@pytest.mark.req("T10")
@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("**/*.parquet", ["day=2024-01-02", "day=2024-02-02"]),
        ("day=2024-01-*/*.parquet", ["day=2024-01-02"]),
        ("day=2024-01-0?/**", ["day=2024-01-02"]),
        ("day=2024-01-01/**/*.parquet", []),
    ],
)
def test_a_partition_whose_disk_is_away_is_named_if_its_files_may_fit(
    tmp_path: Path, pattern: str, named: list[str]
) -> None:
    case = MigrationCase(tmp_path / "p", "bad_parts: leave_out\n")
    declared = case.project / "catalog/migrations/trips.yaml"
    place = f"{{location: old/trips, pattern: '{pattern}'}}"
    declared.write_text(declared.read_text().replace("{location: old/trips}", place))
    case.write("day=2024-01-01/a.parquet", [trip(1)])
    for day in ("2024-01-02", "2024-02-02"):
        (case.old / f"day={day}").symlink_to(tmp_path / "unmounted")
    seen = Project.open(case.project).preview_migration("trips")
    assert seen.adopted == 1
    assert [part.name for part in seen.parts if part.action == "reject"] == named


@pytest.mark.req("T10")
def test_long_rows_are_read_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_BATCH_BYTES", 1 << 20)
    case = MigrationCase(tmp_path / "p", partitioning="[]")
    case.write("long.parquet", [trip(n, city=f"{n:03d}" * 40_000) for n in range(30)])
    # The file holds this text once.
    case.write("same.parquet", [trip(n, city="x" * 20_000) for n in range(200, 800)])
    case.write("short.parquet", [trip(n) for n in range(100, 120)])
    place = Project.open(case.project)._migration("trips")[2].place
    sizes = {
        part.name: [batch.num_rows for batch in place.batches(part)]
        for part in place.survey().good
    }  # fmt: skip
    same = sizes.pop("same.parquet")
    assert (sum(same), max(same)) == (600, 512)
    assert sizes == {"long.parquet": [8, 8, 8, 6], "short.parquet": [20]}


def test_a_location_that_is_no_text_is_refused(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p")
    case.write("city=%FF/a.parquet", [trip(1)])
    declared = case.project / "catalog/migrations/trips.yaml"
    declared.write_text(declared.read_text().replace("old/trips", "old/trips/city=%FF"))
    with pytest.raises(Blocked, match="names a partition by a text that is no UTF-8") as refused:
        case.migrate()
    assert (refused.value.state, bool(refused.value.fix)) == ("nothing was migrated", True)


@pytest.mark.req("T10")
def test_a_column_of_which_only_the_location_speaks_is_not_lost(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "p", "bad_parts: leave_out\n")
    case.write("day=2024-01-01/a.parquet", [trip(1)])
    dated = NEWEST.append(pa.field("day", pa.date32()))
    case.write("day=2024-01-01/b.parquet", [trip(2)], dated)
    declared = case.project / "catalog/migrations/trips.yaml"
    text = declared.read_text()
    declared.write_text(text.replace("old/trips", "old/trips/day=2024-01-01"))
    done = case.migrate()
    (part,) = done.rejected_parts
    assert (part.name, done.rows) == ("a.parquet", 1)
    assert part.because == "column day is only in the path above the location"


@pytest.mark.req("T10")
@pytest.mark.parametrize(
    ("sign", "what"),
    [
        ("_spark_metadata/0", "is the output of a Spark stream"),
        ("deep/below/_delta_log/0.json", "deep/below is a Delta table"),
        ("other/metadata/v1.metadata.json", "other is an Iceberg table"),
        ("../_delta_log/0.json", "old is a Delta table"),
        ("../metadata/v1.metadata.json", "old is an Iceberg table"),
        ("../metadata/a.txt", None),
        ("day=2024-01-01/metadata/a.txt", None),
        (".trash/_delta_log/0.json", None),
    ],
)
def test_folders_that_say_elsewhere_which_files_count_are_no_plain_ones(
    sign: str, what: str | None, tmp_path: Path
) -> None:
    case = MigrationCase(tmp_path / "p", "bad_parts: leave_out\n")
    if sign.startswith("../"):
        declared = case.project / "catalog/migrations/trips.yaml"
        declared.write_text(declared.read_text().replace("old/trips", "old/data"))
        case.old = case.old.rename(case.old.with_name("data"))
    case.write("day=2024-01-01/a.parquet", [trip(1)])
    (case.old / sign).parent.mkdir(parents=True)
    (case.old / sign).touch()
    seen = Project.open(case.project)
    if what is None:
        assert seen.preview_migration("trips").adopted == 1
        return
    with pytest.raises(Blocked, match=what):
        seen.preview_migration("trips")


@pytest.mark.req("T10")
def test_a_file_that_may_not_be_read_is_not_taken_for_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = MigrationCase(tmp_path / "p", "bad_parts: leave_out\n")
    case.write("day=2024-01-01/a.parquet", [trip(1)])

    class Closed(LocalFileSystem):  # type: ignore[misc]
        """A store that lists files and opens none."""

        def open_input_file(self, path: str) -> None:
            raise PermissionError(13, "no right to read", path)

    monkeypatch.setattr("pyarrow.fs.LocalFileSystem", Closed)
    with pytest.raises(SourceDown, match="no right to read"):
        case.migrate()
