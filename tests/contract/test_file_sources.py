"""Sources of files on a real lake: duplicate policies, landing manifest, archive, dates."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.sources.files.config import FilePlaces
from lakehouse_backfill.adapters.sources.files.ledger import archive_files
from lakehouse_backfill.config.sources import find_source
from lakehouse_backfill.domain.manifest import InputRange
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.sources.landings import LandingState
from lakehouse_backfill.domain.tables.table import Column
from lakehouse_backfill.errors import (
    Blocked,
    ConfigError,
    Conflict,
    RejectedInput,
    SourceDown,
    Unsupported,
)
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.sources import record_accepted_files
from tests.support.sources.case import land as land_case
from tests.support.sources.case import landed_rows
from tests.support.sources.files import ARCHIVE, FileCase, trips

DATED = "  business_date: '(\\d{4}-\\d{2}-\\d{2})'\n"
BY_ATTEMPT = "id, source_attempt"


def case_of(folder: Path, more: str) -> FileCase:
    return FileCase(folder / "project", "csv", more)


def statuses(case: FileCase) -> list[tuple[str, int, str]]:
    return [(one.path, one.attempt, one.status) for one in case.ledger()]


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    ("policy", "status", "rows"),
    [
        ("ignore", "duplicate", [(1, 1), (2, 1)]),
        ("reprocess", "imported", [(2, 2), (3, 2)]),
        ("correction", "correction", [(1, 1), (2, 1), (2, 2), (3, 2)]),
        ("reject", "rejected", [(1, 1), (2, 1)]),
    ],
)
def test_a_file_that_comes_again_with_other_content_is_what_its_policy_says(
    policy: str, status: str, rows: list[tuple[int, int]], tmp_path: Path
) -> None:
    case = case_of(tmp_path, f"  on_duplicate: {policy}\n")
    case.write("t", trips(1, 2))
    case.write("other", trips(9, 1))
    land_case(case)
    case.write("t", trips(2, 2))
    done = land_case(case)
    assert [(one.path, one.status, one.attempt) for one in done.files] == [("t.csv", status, 2)]
    assert sorted(landed_rows(case, BY_ATTEMPT)) == [*rows, (9, 1)]
    assert statuses(case)[-1] == ("t.csv", 2, status)
    error = done.error()
    assert isinstance(error, RejectedInput) is (policy == "reject")
    # What stays in place is judged again, and recorded once.
    assert land_case(case).landing_id is None
    assert sorted(landed_rows(case, BY_ATTEMPT)) == [*rows, (9, 1)]


@pytest.mark.req("S4")
def test_a_replacement_that_is_bad_leaves_the_rows_that_were_landed(tmp_path: Path) -> None:
    case = case_of(tmp_path, ARCHIVE + "  on_duplicate: reprocess\n")
    case.write("t", trips(1, 2))
    land_case(case)
    (case.inbox / "t.csv").write_text("id,city,fare\nx,,\n")
    done = land_case(case)
    assert [(one.status, one.row_count) for one in done.files] == [("rejected", None)]
    assert sorted(landed_rows(case, BY_ATTEMPT)) == [(1, 1), (2, 1)]
    case.write("t", trips(5, 1))
    assert land_case(case).rows == 1
    assert landed_rows(case, BY_ATTEMPT) == [(5, 3)]
    there = sorted((case.project / "archive").rglob("*.csv"))
    assert [path.parent.parent.name for path in there] == ["accepted", "accepted", "rejected"]


@pytest.mark.req("S4")
def test_the_archive_takes_only_the_content_that_was_landed(tmp_path: Path) -> None:
    case = case_of(tmp_path, ARCHIVE + "  on_duplicate: correction\n")
    path = case.write("t", trips(1, 1))
    other = path.read_text().replace("city 1", "town 9")

    def deliver_again(point: str) -> None:
        if point == "RawTables.commit:committed":
            fault_points.install_hook(None)
            path.write_text(other)  # of the same size

    fault_points.install_hook(deliver_again)
    try:
        land_case(case)
    finally:
        fault_points.install_hook(None)
    assert path.read_text() == other
    land_case(case)
    assert sorted(landed_rows(case, "city, source_attempt")) == [("city 1", 1), ("town 9", 2)]
    assert not path.exists()


def test_a_copy_into_the_archive_that_was_cut_off_is_completed(tmp_path: Path) -> None:
    case = case_of(tmp_path, ARCHIVE)
    declared = find_source(case.project, "trips").files
    assert declared is not None
    places = FilePlaces.open(declared, case.project)
    path = case.write("t", trips(1, 1))
    land_case(case)
    (moved,) = (case.project / "archive/accepted").rglob("t.csv")
    path.write_bytes(moved.read_bytes())
    state = Project.open(case.project).wiring.catalog.load_table("bronze.trips").properties
    landing = LandingState.model_validate_json(state["lakehouse-backfill.landing"])
    landing = landing.model_copy(update={"deliveries": case.ledger()})
    archive_files(places, landing)
    assert not path.exists()
    # Another delivery of the path to the same landing gets a name of its own.
    case.write("t", trips(5, 1))
    again = landing.deliveries[0].model_copy(
        update={"attempt": 2, "content_hash": hashlib.sha256(path.read_bytes()).hexdigest()}
    )
    archive_files(places, landing.model_copy(update={"deliveries": (again,)}))
    there = sorted(one.name for one in (case.project / "archive/accepted").rglob("t.csv*"))
    assert there == ["t.csv", "t.csv.2"]


@pytest.mark.parametrize("accepted", ["inbox", ".", "archive/../inbox"])
def test_an_archive_that_would_hide_the_files_is_refused(accepted: str, tmp_path: Path) -> None:
    case = case_of(tmp_path, f"  archive: {{accepted: {accepted}, rejected: archive}}\n")
    case.write("t", trips(1, 1))
    with pytest.raises(ConfigError, match=r"files\.archive\.accepted is the folder of the files"):
        Project.open(case.project).preview_landing("trips")


def test_a_name_without_the_optional_group_has_no_business_date(tmp_path: Path) -> None:
    case = case_of(tmp_path, "  business_date: 't(?:-(\\d{8}))?'\n")
    case.write("t", trips(1, 1))
    assert Project.open(case.project).preview_landing("trips").parts[0].action == "import"


def listed(case: FileCase, *paths: Path, **facts: Any) -> None:
    files = [
        {"path": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **facts}
        for path in paths
    ]
    text = json.dumps({"id": "delivery 1", "files": files})
    (case.inbox / "manifest.json").write_text(text)


@pytest.mark.req("S4")
def test_a_delivery_is_landed_once_it_is_as_its_landing_manifest_says(tmp_path: Path) -> None:
    case = case_of(tmp_path, ARCHIVE + "  landing_manifest: {file: manifest.json}\n")
    first, second = case.write("a", trips(1, 2)), case.inbox / "b.csv"
    with pytest.raises(Blocked, match=r"the landing manifest manifest\.json is not there"):
        land_case(case)
    case.write("b", trips(3, 1))
    listed(case, first, second, rows=2, business_date="2026-01-31", schema_version="v7")
    second.rename(case.inbox / "c.csv")
    with pytest.raises(Blocked, match=r"1 missing: b\.csv; 1 not listed: c\.csv") as caught:
        land_case(case)
    assert caught.value.state == "nothing was landed"
    assert Project.open(case.project).preview_landing is not None
    (case.inbox / "c.csv").rename(second)
    done = land_case(case)
    reason = "b.csv: has 1 rows; its landing manifest says 2"
    assert [(one.path, one.status, one.reason) for one in done.files] == [
        ("a.csv", "imported", None), ("b.csv", "rejected", reason),
    ]  # fmt: skip
    row = case.ledger()[0]
    assert (row.landing_manifest_id, row.business_date, row.schema_version, row.row_count) == (
        "delivery 1", "2026-01-31", "v7", 2,
    )  # fmt: skip
    assert row.source == "trips"
    assert row.landing_id == done.landing_id
    (case.inbox / "manifest.json").write_text("[]")
    with pytest.raises(Blocked, match="is no landing manifest"):
        land_case(case)


@pytest.mark.req("S4")
def test_a_range_lands_the_files_of_its_business_dates_only(tmp_path: Path) -> None:
    case = case_of(tmp_path, DATED)
    declared = case.project / "catalog/sources/trips.yaml"
    partitioned = "partitioning: [{column: business_date}, {column: id, transform: 'bucket[4]'}]"
    declared.write_text(f"{declared.read_text()}{partitioned}\n")
    for day in (1, 2, 3):
        case.write(f"t-2026-01-0{day}", trips(day, 1))
    case.write("undated", trips(9, 1))
    (case.inbox / ".t-2026-01-02.csv").write_text("being written")
    (case.inbox / "t-2026-01-02.csv.tmp").write_text("being written")
    assert land_case(case, from_="2026-01-02", to="2026-01-03").rows == 1
    assert landed_rows(case, "id, CAST(business_date AS VARCHAR), source_file, source_row") == [
        (2, "2026-01-02", "t-2026-01-02.csv", 1)
    ]
    assert land_case(case).rows == 3
    undated = landed_rows(case, "id, business_date")
    assert (9, None) in undated


def test_a_landing_that_was_cut_off_is_continued_with_its_own_range(tmp_path: Path) -> None:
    case = case_of(tmp_path, DATED)
    for day in (1, 2, 3, 4):
        case.write(f"t-2026-01-0{day}", trips(day, 1))

    def stop(point: str) -> None:
        if point == "RawTables.commit:committed":
            raise KeyboardInterrupt

    fault_points.install_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        land_case(case, to="2026-01-04")
    fault_points.install_hook(None)
    with pytest.raises(Conflict, match="was cut off, has another range"):
        land_case(case, to="2026-01-03")
    done = land_case(case)
    assert (done.rows, done.resumed) == (3, True)
    assert sorted(row[0] for row in landed_rows(case)) == [1, 2, 3]


def test_what_cannot_be_landed_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    case = case_of(tmp_path, "")
    case.write("t", trips(1, 1))
    land_case(case)
    catalog = Project.open(case.project).wiring.catalog
    older = catalog.load_table("bronze.trips").metadata_location
    declared = case.project / "catalog/sources/trips.yaml"
    text = declared.read_text()
    # Another type, and another source on the same table.
    declared.write_text(text.replace("city, type: string", "city, type: long"))
    (case.inbox / "u.csv").write_text("id,city,fare\n2,3,4\n")
    with pytest.raises(Unsupported, match="city is string, not long"):
        land_case(case)
    other = text.replace("source: trips", "source: rides")
    (case.project / "catalog/sources/rides.yaml").write_text(other)
    with pytest.raises(Unsupported, match=r"bronze\.trips is the raw table of the source trips"):
        Project.open(case.project).land("rides")
    # A table whose rows are of something else.
    control = Project.open(case.project).wiring.profile.control_namespace
    ledger = f"{control}.file_import_ledger"
    (case.project / "catalog/sources/rides.yaml").write_text(other.replace("bronze.trips", ledger))
    with pytest.raises(Unsupported, match="has snapshots that are of no landing"):
        Project.open(case.project).land("rides")
    # A column that is new and optional is added.
    declared.write_text(text.replace("files:", "  - {name: tip, type: long}\nfiles:", 1))
    (case.inbox / "u.csv").write_text("id,city,fare,tip\n2,Rome,4,1\n")
    assert land_case(case).rows == 1
    assert sorted(landed_rows(case, "id, tip")) == [(1, None), (2, 1)]
    # A table with older metadata, or none, is not taken for the one that was landed in.
    catalog.drop_table("bronze.trips")
    catalog.register_table("bronze.trips", older)
    with pytest.raises(Blocked, match="was set back to older metadata"):
        land_case(case)
    catalog.drop_table("bronze.trips")
    with pytest.raises(Blocked, match="the ledger names 2 landed files"):
        land_case(case)
    for path in case.inbox.iterdir():
        path.unlink()
    case.inbox.rmdir()
    with pytest.raises(SourceDown, match="is no folder"):
        Project.open(case.project).preview_landing("trips")


@pytest.mark.req("S4")
def test_a_run_is_named_in_the_ledger_of_the_files_whose_rows_it_could_read(
    tmp_path: Path,
) -> None:
    case = case_of(tmp_path, DATED)
    for day in (1, 2):
        case.write(f"t-2026-01-0{day}", trips(day, 1))
    pinned = land_case(case).snapshot_id
    case.write("late-2026-01-01", trips(7, 1))
    land_case(case)
    assert pinned is not None
    wiring = Project.open(case.project).wiring
    dated = Column(field_id=1, name="business_date", type="date")
    pin = SourcePin(
        name="trips", role="source", table="bronze.trips", requested="", snapshot_id=pinned,
        mode="tag", columns=(dated,),
        range=InputRange(column="business_date", from_=date(2026, 1, 1), to=date(2026, 1, 2)),
    )  # fmt: skip
    pins = {"bf-1": pin, "bf-2": pin.model_copy(update={"range": None, "role": "reference"})}
    runs = SimpleNamespace(
        plan=lambda run: SimpleNamespace(resolved=SimpleNamespace(sources=(pins[run],)))
    )
    wiring.__dict__["context"] = SimpleNamespace(runs=runs)
    for run in ("bf-1", "bf-1", "bf-2"):
        record_accepted_files(wiring, (run,))
    named = [(one.path, one.accepted_run_id) for one in case.ledger() if one.accepted_run_id]
    assert named == [
        ("t-2026-01-01.csv", "bf-1"), ("t-2026-01-01.csv", "bf-2"), ("t-2026-01-02.csv", "bf-2"),
    ]  # fmt: skip
    # The further rows are no deliveries: nothing is landed again.
    assert land_case(case).landing_id is None
