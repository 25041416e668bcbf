"""The rules of `lakehouse_backfill/ports/control.py`, on the fakes and on PyIceberg."""

from __future__ import annotations

from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType, LongType, StringType

from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
from lakehouse_backfill.adapters.iceberg.control.schemas import FILE_FINGERPRINT
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.files import IcebergStoredFiles
from lakehouse_backfill.domain.comparison.checksums import Checksum, FileBytes, FileFingerprint
from lakehouse_backfill.errors import NotFound, Tampered
from lakehouse_backfill.ports.control import Evidence
from tests.support.fakes.control import FakeEvidence
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.tables import TARGET, Kit, row

NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
NAMESPACE = "lakehouse_backfill"


def one(path: str, mark: int = 1, **changes: Any) -> FileFingerprint:
    fields: dict[str, Any] = {
        "path": path, "table": "s.t", "reading": "r" * 64, "partition": "2013-02-15",
        "size_bytes": 4711, "sha256": sha256(path.encode()).hexdigest(), "run_id": "bf-1",
        "checksum": Checksum(rows=3, xor=(1 << 64) - mark, total=mark, shape="5" * 64),
        "at": NOON,
    }  # fmt: skip
    return FileFingerprint(**(fields | changes))


@pytest.fixture(params=["fake", "iceberg"])
def port(request: Any, tmp_path: Path) -> Evidence:
    if request.param == "fake":
        return FakeEvidence()
    return IcebergEvidence(ControlTables(catalog_of(tmp_path), NAMESPACE))


@pytest.mark.req("Q4", "C1")
def test_what_was_recorded_is_found_by_path_and_nothing_else(port: Evidence) -> None:
    assert port.find_fingerprints(["a"]) == ()
    first, second = one("a"), one("b", 2, partition=None, run_id=None)
    port.record_fingerprints((first, second))
    assert port.find_fingerprints([]) == ()
    assert port.find_fingerprints(["a", "nowhere"]) == (first,)
    assert set(port.find_fingerprints({"a", "b"})) == {first, second}


@pytest.mark.req("Q4", "T3")
def test_the_same_again_changes_nothing_whoever_says_it(port: Evidence) -> None:
    port.record_fingerprints((one("a"),))
    port.record_fingerprints((one("a", table="shadow.x", run_id="bf-2"), one("b")))
    port.record_fingerprints((one("a"), one("b")))
    port.record_fingerprints(())
    assert port.find_fingerprints(["a", "b"]) == (one("a"), one("b"))


@pytest.mark.req("Q4")
def test_a_file_has_one_fingerprint_for_each_reading_of_it(port: Evidence) -> None:
    other = one("a", 7, reading="q" * 64)
    port.record_fingerprints((one("a"),))
    port.record_fingerprints((other,))
    assert port.find_fingerprints(["a"]) == (one("a"), other)


@pytest.mark.req("Q4")
def test_a_file_has_one_fingerprint_for_each_partition_that_it_was_read_in(
    port: Evidence,
) -> None:
    other = one("a", 7, partition="2013-02-16")
    port.record_fingerprints((one("a"),))
    port.record_fingerprints((other, one("a")))
    assert port.find_fingerprints(["a"]) == (one("a"), other)


@pytest.mark.req("Q4")
@pytest.mark.parametrize(
    "wrong",
    [
        one("a", 2),
        one("a", sha256="0" * 64),
        one("a", size_bytes=1),
        one("a", 7, reading="q" * 64, sha256="0" * 64),
    ],
    ids=["rows", "bytes", "size", "bytes under another reading"],
)
def test_a_file_with_another_content_than_before_is_named_as_tampered(
    port: Evidence, wrong: FileFingerprint
) -> None:
    port.record_fingerprints((one("a"),))
    with pytest.raises(Tampered, match="a is not what was hashed"):
        port.record_fingerprints((one("b"), wrong))
    assert port.find_fingerprints(["a", "b"]) == (one("a"),)


@pytest.mark.req("Q4")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("checksum", Checksum(rows=3, xor=1, total=1, shape="5" * 64).text),
        ("row_count", 4),
        ("shape", "6" * 64),
        ("sha256", "0" * 64),
        ("size_bytes", 1),
    ],
)
def test_a_row_that_was_edited_is_named(tmp_path: Path, column: str, value: Any) -> None:
    catalog = catalog_of(tmp_path)
    port = IcebergEvidence(ControlTables(catalog, NAMESPACE))
    port.record_fingerprints((one("a"),))
    table = catalog.load_table(f"{NAMESPACE}.{FILE_FINGERPRINT.name}")
    (stored,) = table.scan().to_arrow().to_pylist()
    table.overwrite(pa.Table.from_pylist([stored | {column: value}], table.schema().as_arrow()))
    with pytest.raises(Tampered, match="a is not what was hashed"):
        port.record_fingerprints((one("a"),))


def test_many_files_are_asked_for_at_once(tmp_path: Path) -> None:
    port = IcebergEvidence(ControlTables(catalog_of(tmp_path), NAMESPACE))
    made = tuple(one(f"s3://bucket/data/{number}.parquet", number + 1) for number in range(2000))
    port.record_fingerprints(made)
    wanted = [fingerprint.path for fingerprint in made[::3]]
    assert {each.path for each in port.find_fingerprints(wanted)} == set(wanted)


@pytest.mark.req("Q4", "O4")
def test_the_bytes_of_files_are_read_as_they_lie_in_the_store(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    kit.append(row(1, "2013-02-15"), row(2, "2013-02-16"))
    table = kit.live.load_table(TARGET)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    expected = {}
    for path in paths:
        with table.io.new_input(path).open() as stream:
            held = stream.read()
        expected[path] = FileBytes(size_bytes=len(held), sha256=sha256(held).hexdigest())
    port = IcebergStoredFiles(kit.catalog)
    assert port.digests(TARGET, [*paths, f"{paths[0]}-gone"]) == expected
    assert port.digests(TARGET, []) == {}
    assert len(expected) == 2


@pytest.mark.req("Q4")
def test_a_reading_changes_with_what_columns_are_to_a_file_only(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    port = IcebergStoredFiles(kit.catalog)

    def reading() -> str:
        head = kit.append(row(1, "2013-02-15"))
        return port.reading(TARGET, head)

    first = reading()
    head = kit.head() or 0
    kit.evolve(lambda update: update.add_column("n", IntegerType()))
    added = reading()
    with kit.live.load_table(TARGET).update_schema() as update:
        update.update_column("n", LongType(), doc="how many")
        update.move_first("n")
        update.add_column("produced_by_run_id", StringType())
    alike = reading()
    kit.evolve(lambda update: update.delete_column("n"))
    kit.evolve(lambda update: update.add_column("n", LongType()))
    again = reading()
    assert (added, len({first, added, again})) == (alike, 3)
    assert port.reading(TARGET, head) == first
    with pytest.raises(NotFound):
        port.reading(TARGET, 4711)
