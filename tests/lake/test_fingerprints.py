"""Checksums as sums over files are those of a scan, and each file is hashed once in its life."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.files import IcebergStoredFiles
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
from lakehouse_backfill.core.comparison.diff import TableSides, reconcile
from lakehouse_backfill.core.comparison.fingerprints import partition_checksums
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import Tampered
from tests.support.fakes.context import context
from tests.support.fakes.lake import FakeLake
from tests.support.spark.lake import DAYS, Lake

if TYPE_CHECKING:
    from lakehouse_backfill.core.runs.context import Context

pytestmark = pytest.mark.req("Q4")

SCOPE = Scope(field=ScopeField(column="d", transform="identity", type="date"), partitions=DAYS[:4])


@dataclass
class Counting:
    """The measuring of Spark, which remembers which partitions it had to read file by file."""

    inner: SparkMeasuring
    scans: list[tuple[str, ...]] = field(default_factory=list)
    skipped: list[frozenset[str]] = field(default_factory=list)

    def by_file(self, table: str, at: int, scope: Scope, ignore: Any, skip: Any) -> Any:
        self.scans.append(scope.partitions)
        self.skipped.append(skip)
        return self.inner.by_file(table, at, scope, ignore, skip)


@dataclass
class Bench:
    """A workbench over the real lake, as far as fingerprints need one."""

    lake: Lake
    counting: Counting
    context: Context

    def by_files(self) -> dict[str, Checksum]:
        """Give the checksums of the head by files."""
        return partition_checksums(self.context, self.lake.table("t"), self.lake.head("t"), SCOPE)

    def sums(self) -> dict[str, Checksum]:
        """Give the checksums of the head by files, after comparing them with a scan."""
        table, found = self.lake.table("t"), self.by_files()
        inner = self.counting.inner
        assert found == inner.checksums(table, self.lake.head("t"), SCOPE, LINEAGE_NAMES)
        return found

    def scans(self) -> list[tuple[str, ...]]:
        """Give what was read since the last question."""
        found = list(self.counting.scans)
        self.counting.scans.clear()
        return found


@pytest.fixture
def real(lake: Lake) -> Bench:
    counting = Counting(SparkMeasuring(lake.tables))
    tables = ControlTables(lake.catalog, f"{lake.namespace}_control")

    class Compute:
        measuring = counting

    made = context(
        FakeLake(),
        tables=IcebergTables(lake.catalog),
        evidence=IcebergEvidence(tables),
        stored_files=IcebergStoredFiles(lake.catalog),
        compute=Compute,
    )
    return Bench(lake, counting, made)


def create(lake: Lake, version: int = 2, short: str = "t") -> None:
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update"))
    lake.sql(
        f"CREATE TABLE {{ns}}.{short} (d date, k bigint, v int, s string, x double) "
        f"PARTITIONED BY (d) TBLPROPERTIES ('format-version' = '{version}', {modes})"
    )


def insert(lake: Lake, rows: int, seed: int, extra: str = "", short: str = "t") -> None:
    lake.sql(
        f"INSERT INTO {{ns}}.{short} SELECT date_add(date'2024-01-01', CAST(id % 4 AS int)), "
        f"id + {seed}, IF(id % 5 = 0, NULL, CAST(id AS int)), IF(id % 3 = 0, NULL, 's'), "
        f"double(id) / 3{extra} FROM range({rows})"
    )


#: What a live table goes through; `{n}` differs from step to step.
STEPS = (
    "append",
    "INSERT OVERWRITE {ns}.t PARTITION (d = date'2024-01-02') SELECT k + {n}, v, s, x{more} "
    "FROM {ns}.t WHERE d = date'2024-01-02'",
    "DELETE FROM {ns}.t WHERE k % 7 = {n} % 7 AND d < date'2024-01-03'",
    "UPDATE {ns}.t SET s = 'u{n}' WHERE k % 11 = {n} % 11 AND d = date'2024-01-03'",
    "DELETE FROM {ns}.t WHERE d = date'2024-01-04'",
    "ALTER TABLE {ns}.t ADD COLUMN c{n} string",
    "ALTER TABLE {ns}.t RENAME COLUMN s TO s{n}",
)


@pytest.mark.long
@pytest.mark.parametrize(("version", "seed"), [(2, 1), (2, 2), (3, 3)])
def test_sums_over_files_are_those_of_a_scan_whatever_happened_to_the_table(
    real: Bench, version: int, seed: int
) -> None:
    dice, lake = random.Random(seed), real.lake
    create(lake, version)
    insert(lake, 40, 0)
    real.sums()
    name, more = "s", ""
    order = [*STEPS, *dice.choices(STEPS, k=3)]
    dice.shuffle(order)
    for number, step in enumerate(order, 1):
        if step == "append":
            insert(lake, 12, 100 * number, ", NULL" * more.count(","))
        else:
            text = step.replace("s = 'u", f"{name} = 'u").replace("v, s, x", f"v, {name}, x")
            lake.sql(
                text.replace("{n}", str(number))
                .replace("{more}", more)
                .replace("COLUMN s ", f"COLUMN {name} ")
            )
        if "ADD COLUMN" in step:
            more += f", c{number}"
        if "RENAME" in step:
            name = f"s{number}"
        found = real.sums()
        real.scans()
        # A second look reads only what delete files touch.
        assert real.by_files() == found
        touched = {label for labels in real.scans() for label in labels}
        files = IcebergTables(lake.catalog).files(lake.table("t"), lake.head("t"), SCOPE.field)
        assert touched == {each.partition for each in files if each.deletes}


def test_a_file_is_hashed_once_and_only_its_partition_is_read_again(real: Bench) -> None:
    create(real.lake)
    insert(real.lake, 40, 0)
    real.sums()
    assert real.scans() == [DAYS[:4]]
    known = real.lake.files("t")
    real.lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-02', 900, 1, 'new', 0)")
    real.sums()
    assert (real.scans(), real.counting.skipped[-1] < known) == ([DAYS[1:2]], True)
    real.sums()
    assert real.scans() == []


def test_under_other_columns_of_the_same_names_and_types_a_file_is_hashed_again(
    real: Bench,
) -> None:
    create(real.lake)
    real.lake.sql("ALTER TABLE {ns}.t ADD COLUMN w int")
    real.lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-01', 1, 2, 's', 0, 3)")
    first = real.sums()
    for old, new in (("v", "z"), ("w", "v"), ("z", "w")):
        real.lake.sql(f"ALTER TABLE {{ns}}.t RENAME COLUMN {old} TO {new}")
    real.lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-02', 1, 2, 's', 0, 3)")
    real.scans()
    second = real.sums()
    assert real.scans() == [DAYS[:2]]
    assert first[DAYS[0]] != second[DAYS[0]]


def test_promoted_columns_and_a_required_one_keep_what_is_known(real: Bench) -> None:
    create(real.lake)
    insert(real.lake, 40, 0)
    first = real.sums()
    real.scans()
    real.lake.sql("ALTER TABLE {ns}.t ALTER COLUMN v TYPE bigint")
    real.lake.sql("ALTER TABLE {ns}.t ALTER COLUMN v COMMENT 'promoted'")
    real.lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-09', 1, 2, 's', 0)")
    assert real.sums() == first
    assert real.scans() == []


def test_lineage_columns_are_no_part_of_what_a_file_holds(real: Bench) -> None:
    create(real.lake)
    insert(real.lake, 8, 0)
    first = real.sums()
    real.lake.sql("ALTER TABLE {ns}.t ADD COLUMN produced_by_run_id string")
    real.lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-09', 1, 2, 's', 0, 'bf-1')")
    real.scans()
    assert real.sums() == first
    assert real.scans() == []


def test_a_file_with_other_rows_than_were_hashed_is_named(real: Bench) -> None:
    create(real.lake)
    insert(real.lake, 4, 0)
    head = real.lake.head("t")
    real.sums()
    (one, *_) = real.context.evidence.find_fingerprints(real.lake.files("t"))
    edited = one.checksum.model_copy(update={"total": one.checksum.total ^ 1})
    with pytest.raises(Tampered, match="is not what was hashed") as named:
        real.context.evidence.record_fingerprints((one.model_copy(update={"checksum": edited}),))
    assert one.path in named.value.problem
    assert real.lake.head("t") == head


def test_reconciling_what_is_known_reads_no_row(real: Bench) -> None:
    create(real.lake)
    insert(real.lake, 40, 0)
    create(real.lake, short="copy")
    real.lake.sql("INSERT INTO {ns}.copy SELECT * FROM {ns}.t")
    old, new = (TableRef(table=real.lake.table(short)) for short in ("t", "copy"))
    first = reconcile(real.context, TableSides(old, new))
    assert all(row.equal and row.old_count == 10 for row in first)
    assert len(real.scans()) == 2

    def no_engine() -> Any:
        raise AssertionError("nothing has to be read")

    known = real.context.__class__(**{**vars(real.context), "compute": no_engine})
    assert reconcile(known, TableSides(old, new)) == first
