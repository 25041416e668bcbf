"""Control tables stay small, however many runs there were."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.control import log_files
from lakehouse_backfill.adapters.iceberg.control.audit import IcebergAudit
from lakehouse_backfill.adapters.iceberg.control.log_files import (
    COMPACT_EVERY_COMMITS,
    KEEP_SNAPSHOTS,
)
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from tests.support.examples.plans import an_event
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import a_row, begun

pytestmark = pytest.mark.req("U12", "C2")

NAMESPACE = "lakehouse_backfill"
ACTS, COMMITS = 10_000, 100


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return catalog_of(tmp_path)


def act(version: int, product: str) -> Publication:
    return a_row(version, "publish", product, run_id=f"bf-{version:010d}", scope=None)


def size_of(table: Table) -> dict[str, int]:
    """What a reader of the table meets: live files, manifests, snapshots, bytes of metadata."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return {
        "files": len(list(table.scan().plan_files())),
        "manifests": len(snapshot.manifests(table.io)),
        "snapshots": len(table.metadata.snapshots),
        "log": len(table.metadata.snapshot_log),
        "metadata log": len(table.metadata.metadata_log),
        "bytes": len(table.io.new_input(table.metadata_location)),
    }


@pytest.mark.long
def test_ten_thousand_moves_leave_a_small_table_and_a_pointer_of_one_load(catalog: Any) -> None:
    versions = IcebergVersions(ControlTables(catalog, NAMESPACE))
    per_commit = ACTS // COMMITS
    for commit in range(COMMITS):
        product = f"silver.p{commit % 4}"
        first = commit * per_commit
        rows = tuple(act(first + number, product) for number in range(per_commit))
        versions.move(product, lambda _, rows=rows: rows)
    found = size_of(catalog.load_table(f"{NAMESPACE}.accepted_output_version"))
    assert found.pop("bytes") < 40_000
    assert found.pop("files") == found.pop("manifests") <= COMPACT_EVERY_COMMITS + 1
    assert found.pop("snapshots") == found.pop("log") <= KEEP_SNAPSHOTS + 1
    assert found == {"metadata log": 5}
    assert sum(len(versions.history(f"silver.p{n}")) for n in range(4)) == ACTS
    newest = versions.pointer("silver.p3").accepted
    assert newest is not None
    assert newest.version == ACTS - 1


@pytest.mark.long
def test_files_that_compactions_replaced_are_deleted_and_no_other(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if compactions were far apart.
    monkeypatch.setattr(log_files, "_READ_MS", 0)
    versions = IcebergVersions(ControlTables(catalog, NAMESPACE))
    counts = []
    for number in range(5 * COMPACT_EVERY_COMMITS):
        versions.move("silver.p", lambda _, number=number: (act(number, "silver.p"),))
        folder = tmp_path.glob("**/accepted_output_version/*/*")
        counts.append(sum(path.is_file() for path in folder))
    # Two cycles of three files a commit, and the metadata files.
    assert max(counts) <= 3 * 3 * COMPACT_EVERY_COMMITS
    assert counts[-1] < max(counts)
    table = catalog.load_table(f"{NAMESPACE}.accepted_output_version")
    reached = log_files.reachable_paths(table)
    assert all(Path(path.removeprefix("file://")).is_file() for path in reached)
    assert len(versions.history("silver.p")) == 5 * COMPACT_EVERY_COMMITS


def test_an_edited_list_of_needless_files_deletes_nothing_else(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "_READ_MS", 0)
    versions = IcebergVersions(ControlTables(catalog, NAMESPACE))
    versions.move("silver.p", lambda _: (act(1, "silver.p"),))
    table = catalog.load_table(f"{NAMESPACE}.accepted_output_version")
    outside = tmp_path / "precious.parquet"
    outside.write_text("mine")
    folder = table.location().removeprefix("file://").rstrip("/")
    needed = [str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()]
    names = [*needed, "../../precious.parquet", str(outside), "data/../../../precious.parquet"]
    log_files.delete_doomed_files(table, tuple(names))
    assert outside.is_file()
    assert all((Path(folder) / name).is_file() for name in needed)
    for text in ("", "[]", "{}", '{"older": 1}', "not json"):
        table.transaction().set_properties(
            {log_files.UNREACHABLE_PROPERTY: text}
        ).commit_transaction()
        versions.move("silver.p", lambda _: (act(2, "silver.p"),))
        table = table.refresh()


def test_reading_a_pointer_opens_no_data_file_and_no_manifest(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = IcebergVersions(ControlTables(catalog, NAMESPACE))
    for number in range(1, 40):
        versions.move("silver.p", lambda _, number=number: (act(number, "silver.p"),))
    opened: list[str] = []
    table = catalog.load_table(f"{NAMESPACE}.accepted_output_version")
    kind = type(table.io)
    real = kind.new_input

    def counted(io: Any, location: str) -> Any:
        opened.append(location.rpartition(".")[2])
        return real(io, location)

    monkeypatch.setattr(kind, "new_input", counted)
    assert versions.pointer("silver.p").last_version == 39
    assert opened == ["json"]


def test_closed_runs_leave_no_property_behind(catalog: SqlCatalog) -> None:
    control = ControlTables(catalog, NAMESPACE)
    runs = IcebergRuns(control)
    named = [f"bf-{number}" for number in range(12)]
    for run_id in named:
        begun(runs, run_id)
        runs.fence(run_id, 2)
        runs.append(an_event(run_id, 2, RunState.PLANNED, RunState.CANCELLED))
    assert runs.fenced() == tuple(sorted(named))
    runs.lift_fences(runs.fenced())
    left = {
        key
        for name in catalog.list_tables(NAMESPACE)
        for key in catalog.load_table(name).properties
        if key.startswith(("run.", "fence.", "pointer."))
    }
    assert (left, runs.fenced(), len(runs.list(open_only=False))) == (set(), (), 12)


def test_files_that_no_snapshot_reaches_are_swept_and_no_row_is_lost(
    catalog: Any, tmp_path: Path
) -> None:
    control = ControlTables(catalog, NAMESPACE)
    versions = IcebergVersions(control)
    audit = IcebergAudit(control)
    for number in range(1, 70):
        versions.move("silver.p", lambda _, number=number: (act(number, "silver.p"),))
    history = versions.history("silver.p")
    stranger = tmp_path / "lake" / "warehouse" / NAMESPACE / "stranger.txt"
    stranger.write_text("not ours", encoding="utf-8")
    now = datetime.now(timezone.utc)
    assert audit.delete_orphans(now - timedelta(days=1)).files == 0
    later = now + timedelta(days=1)
    seen = audit.count_orphans(later)
    assert seen.files > 100
    assert audit.delete_orphans(later) == seen
    assert audit.count_orphans(later).files == 0
    assert versions.history("silver.p") == history
    versions.move("silver.p", lambda _: (act(70, "silver.p"),))
    on_disk = [path for path in (tmp_path / "lake" / "warehouse").rglob("*") if path.is_file()]
    assert (len(on_disk) < 70, stranger.exists()) == (True, True)
