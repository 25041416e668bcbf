"""The conditional log under the control tables."""

from __future__ import annotations

import fcntl
import itertools
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ServiceUnavailableError,
)
from pyiceberg.expressions import EqualTo
from pyiceberg.types import StringType

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg.control import advisory_lock, log_files, schemas
from lakehouse_backfill.adapters.iceberg.control.audit import IcebergAudit
from lakehouse_backfill.adapters.iceberg.control.log import ControlLog, LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from tests.support.examples.plans import NOON, a_first_event, a_plan
from tests.support.lakes.catalogs import Commit, TroubledCatalog, troubled
from tests.support.lakes.control import begun

NAMESPACE = "lakehouse_backfill"


@pytest.fixture
def catalog(tmp_path: Path) -> TroubledCatalog:
    return troubled(tmp_path, schemas.PROCESSED_EVENT.name)


@pytest.fixture
def tables(catalog: TroubledCatalog) -> ControlTables:
    return ControlTables(catalog, NAMESPACE)


@pytest.fixture
def log(tables: ControlTables) -> ControlLog:
    return tables.log(schemas.PROCESSED_EVENT)


def commit_rows(*staged: Any) -> None:
    """Prepare and make one commit, as a process without a retry of its own does."""
    log_files.stage_commit(*staged).transaction.commit_transaction()


def row(event_id: int | str) -> dict[str, Any]:
    return {
        "handler": "h", "event_id": str(event_id), "outcome": "done", "run_id": None,
        "processed_at": NOON,
    }  # fmt: skip


def add(log: ControlLog, event_id: int | str) -> None:
    log.append(lambda _: LogAppend(result=None, rows=(row(event_id),)))


def count(head: LogHead) -> LogAppend[int]:
    """Append a row that bears the next number of the property `n`."""
    number = int(head.properties.get("n", "0")) + 1
    return LogAppend(result=number, rows=(row(number),), set_properties={"n": str(number)})


def ids(log: ControlLog) -> list[str]:
    return [one["event_id"] for one in log.head().rows()]


# --- making the tables ------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_the_first_row_makes_all_control_tables_with_documented_columns(
    catalog: TroubledCatalog, log: ControlLog
):
    add(log, 1)
    made = {identifier[-1] for identifier in catalog.list_tables(NAMESPACE)}
    assert made == {
        "pin_lease",
        "pipeline_run",
        "run_event",
        "accepted_output_version",
        "backfill_chunk_run",
        "file_fingerprint",
        "evidence",
        "reject_record",
        "file_import_ledger",
        "replay_job",
        "processed_event",
    }
    for name in made:
        table = catalog.load_table((NAMESPACE, name))
        assert all(column.doc for column in table.schema().fields)
        assert table.spec().is_unpartitioned()
        assert table.format_version == 2
        assert table.properties["commit.retry.num-retries"] == "0"
        assert table.properties["comment"]


def test_reading_makes_nothing(catalog: TroubledCatalog, log: ControlLog):
    assert log.head().rows() == []
    assert log.head().properties == {}
    assert catalog.list_namespaces() == []


def test_a_decision_without_rows_writes_nothing(log: ControlLog):
    assert log.append(lambda _: LogAppend(result="seen", set_properties={"n": "1"})) == "seen"
    assert log.head().snapshot_id is None


def test_making_the_tables_again_changes_nothing(catalog: TroubledCatalog, tables: ControlTables):
    tables.ensure()
    before = {name: catalog.load_table(name).metadata_location for name in _all(catalog)}
    tables.ensure()
    assert before == {name: catalog.load_table(name).metadata_location for name in _all(catalog)}
    assert len(before) == len(schemas.CONTROL_TABLES)


def _all(catalog: SqlCatalog) -> list[tuple[str, ...]]:
    return sorted(catalog.list_tables(NAMESPACE))


def test_a_missing_store_is_reported_as_such(tmp_path: Path, catalog: TroubledCatalog):
    (tmp_path / "lake" / "warehouse").write_text("a file where the warehouse should be")
    with pytest.raises(errors.CatalogDown, match="cannot be made"):
        add(ControlTables(catalog, NAMESPACE).log(schemas.PROCESSED_EVENT), 1)


def test_a_column_of_another_release_is_refused_not_dropped(log: ControlLog):
    with pytest.raises(errors.Unsupported, match="no column colour"):
        log.append(lambda _: LogAppend(result=None, rows=({**row(1), "colour": "red"},)))
    assert ids(log) == []


# --- one commit, or none ----------------------------------------------------------------------


def test_rows_and_properties_come_in_one_commit(log: ControlLog):
    assert [log.append(count) for _ in range(3)] == [1, 2, 3]
    head = log.head()
    assert head.properties["n"] == "3"
    assert ids(log) == ["1", "2", "3"]
    log.append(
        lambda _: LogAppend(result=None, rows=(row("x"),), remove_properties=("n", "absent"))
    )
    assert "n" not in log.head().properties


def test_a_decision_without_rows_may_move_the_head_with_its_properties(log: ControlLog):
    add(log, 1)
    before = log.head()
    log.append(lambda _: LogAppend(result=None, set_properties={"n": "7"}, moves_head=True))
    after = log.head()
    assert after.properties["n"] == "7"
    assert after.snapshot_id != before.snapshot_id
    assert ids(log) == ["1"]
    with pytest.raises(CommitFailedException):
        commit_rows(before.table, (row("late"),), {}, (), "t")


def test_heads_moved_without_rows_are_folded_and_let_go_like_the_others(
    log: ControlLog, tmp_path: Path
):
    log.append(lambda _: LogAppend(result=None, set_properties={"n": "0"}, moves_head=True))
    assert ids(log) == []
    for number in range(2 * log_files.COMPACT_EVERY_COMMITS):
        if number % 3 == 0:
            add(log, number)
        else:
            log.append(
                lambda head: LogAppend(result=None, set_properties={"n": "1"}, moves_head=True)
            )
    assert ids(log) == [str(number) for number in range(0, 2 * log_files.COMPACT_EVERY_COMMITS, 3)]
    table = log.head().table
    assert len(table.metadata.snapshots) <= log_files.KEEP_SNAPSHOTS
    assert len(list(table.scan().plan_files())) <= log_files.COMPACT_EVERY_COMMITS
    assert len(table.current_snapshot().manifests(table.io)) <= log_files.COMPACT_EVERY_COMMITS


@pytest.mark.parametrize("rows_before", [0, 1], ids=["empty table", "table with rows"])
def test_the_second_of_two_commits_on_one_head_is_refused(
    tables: ControlTables, log: ControlLog, rows_before: int
):
    tables.ensure()
    for number in range(rows_before):
        add(log, number)
    first, second = log.head(), log.head()
    commit_rows(first.table, (row("a"),), {}, (), "t1")
    with pytest.raises(CommitFailedException):
        commit_rows(second.table, (row("b"),), {}, (), "t2")
    assert ids(log) == [*map(str, range(rows_before)), "a"]


def test_a_blind_retry_is_off_even_if_somebody_removed_the_property(
    tables: ControlTables, log: ControlLog
):
    tables.ensure()
    table = log.head().table
    table.transaction().remove_properties("commit.retry.num-retries").commit_transaction()
    add(log, 1)
    stale = log.head()
    add(log, 2)
    with pytest.raises(CommitFailedException):
        commit_rows(stale.table, (row("b"),), {}, (), "t")


def test_the_loser_decides_again_on_what_the_winner_left(tables: ControlTables, log: ControlLog):
    other = tables.log(schemas.PROCESSED_EVENT)
    seen: list[str] = []

    def decide(head: LogHead) -> LogAppend[int]:
        seen.append(head.properties.get("n", "0"))
        if len(seen) == 1:
            # As another process does, which has its own lock handle or none.
            commit_rows(other.head().table, (row(1),), {"n": "1"}, (), "t")
        return count(head)

    assert log.append(decide) == 2
    assert seen == ["0", "1"]
    assert ids(log) == ["1", "2"]


# --- commits of unknown outcome -----------------------------------------------------------------


def answer_lost(_: str, commit: Commit) -> Any:
    commit()
    raise ServiceUnavailableError("503")


def down(_: str, commit: Commit) -> Any:
    raise ServiceUnavailableError("503")


@pytest.mark.parametrize("trouble", [answer_lost, down], ids=["landed", "did not land"])
def test_a_commit_without_an_answer_is_repeated_only_where_it_did_not_land(
    catalog: TroubledCatalog, log: ControlLog, trouble: Any
):
    add(log, "first")
    catalog.troubles = iter([trouble])
    assert log.append(count) == 1
    assert ids(log) == ["first", "1"]


def test_a_lost_answer_is_found_again_behind_many_later_commits(
    catalog: TroubledCatalog, tables: ControlTables, log: ControlLog
):
    def lose_the_answer(_: str, commit: Commit) -> Any:
        commit()
        for number in range(log_files.KEEP_SNAPSHOTS + 3):
            head = tables.log(schemas.PROCESSED_EVENT).head()
            commit_rows(head.table, (row(f"other-{number}"),), {}, (), "t")
        raise ServiceUnavailableError("503")

    catalog.troubles = iter([lose_the_answer])
    assert log.append(count) == 1
    assert ids(log).count("1") == 1


def test_a_commit_that_lands_late_is_not_made_twice(catalog: TroubledCatalog, log: ControlLog):
    late: list[Commit] = []

    def wait(_: str, commit: Commit) -> Any:
        late.append(commit)
        raise ServiceUnavailableError("504")

    def land(_: str, commit: Commit) -> Any:
        late[0]()
        return commit()

    catalog.troubles = iter([wait, land])
    assert log.append(count) == 1
    assert ids(log) == ["1"]


@pytest.mark.req("X9")
def test_who_was_stopped_in_its_first_attempt_for_longer_than_its_time_tries_again(
    catalog: TroubledCatalog,
):
    log = ControlTables(catalog, NAMESPACE, budget_s=0.01).log(schemas.PROCESSED_EVENT)

    def come_late(_: str, commit: Commit) -> Any:
        time.sleep(0.02)
        raise CommitFailedException("moved")

    catalog.troubles = iter([come_late, come_late])
    assert log.append(count) == 1
    assert ids(log) == ["1"]


# SeaweedFS says 400 where it means that the head moved (pitfall 37).
MOVED = "Cannot add snapshot with sequence number 3 older than last 4"
BUSY = "processed_event kept winning"
ALWAYS: dict[str, tuple[Exception, type[Exception], str]] = {
    "no answer": (
        ServiceUnavailableError("503"),
        errors.OutcomeUnknown,
        "may or may not have landed",
    ),
    "moved": (CommitFailedException("moved"), errors.TooBusy, BUSY),
    "moved, as 400": (BadRequestError(MOVED), errors.TooBusy, BUSY),
    "a bug": (ZeroDivisionError("bug"), ZeroDivisionError, "bug"),
}


@pytest.mark.parametrize(("error", "expected", "words"), ALWAYS.values(), ids=ALWAYS)
def test_a_trouble_that_stays_is_reported_as_what_it_is(
    catalog: TroubledCatalog, error: Exception, expected: type[Exception], words: str
):
    log = ControlTables(catalog, NAMESPACE, budget_s=1.0).log(schemas.PROCESSED_EVENT)

    def fail(_: str, commit: Commit) -> Any:
        raise error

    catalog.troubles = itertools.repeat(fail)
    started = time.monotonic()
    with pytest.raises(expected, match=words):
        log.append(count)
    if expected is errors.TooBusy:
        assert 1.0 <= time.monotonic() - started < 3.0
        assert ids(log) == []


# --- bounded size -------------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_folding_keeps_every_row_in_order_and_bounds_files_and_metadata(
    tmp_path: Path, log: ControlLog
):
    rounds = 3 * log_files.COMPACT_EVERY_COMMITS + 5
    for _ in range(rounds):
        log.append(count)
    table = log.head().table
    assert ids(log) == [str(number + 1) for number in range(rounds)]
    assert len(list(table.scan().plan_files())) == 1 + 5
    assert len(table.metadata.snapshots) <= log_files.KEEP_SNAPSHOTS
    assert len(table.metadata.metadata_log) <= 5
    # Manifests that hold deleted entries only are not carried along (pitfall 47).
    assert len(table.current_snapshot().manifests(table.io)) <= 8
    metadata = Path(table.metadata_location.removeprefix("file://")).parent
    assert len(list(metadata.glob("*.metadata.json"))) <= 6
    numbers = [one["log_seq"] for one in log.head().rows()]
    assert numbers == sorted(set(numbers))


def test_a_fold_that_lost_the_race_loses_no_row(tables: ControlTables, log: ControlLog):
    for number in range(log_files.COMPACT_EVERY_COMMITS - 1):
        add(log, number)
    folding, other = log.head(), log.head()
    transaction = log_files.stage_commit(folding.table, (row("fold"),), {}, (), "t1").transaction
    commit_rows(other.table, (row("other"),), {}, (), "t2")
    with pytest.raises(CommitFailedException):
        transaction.commit_transaction()
    assert ids(log) == [*map(str, range(log_files.COMPACT_EVERY_COMMITS - 1)), "other"]


def test_a_tagged_snapshot_of_a_control_table_stays(log: ControlLog):
    add(log, 1)
    table = log.head().table
    tagged = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(tagged, "keep").commit()
    for _ in range(log_files.KEEP_SNAPSHOTS + 3):
        log.append(count)
    assert log.head().table.snapshot_by_id(tagged) is not None


# --- taking turns -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:////lake/c.db?timeout=30", Path("/lake/c.db.x.lock")),
        ("sqlite:///:memory:", None),
        ("postgresql+psycopg2://host/db", None),
        ("https://catalog.example/api", None),
    ],
)
def test_only_a_local_sqlite_catalog_has_a_lock_file(tmp_path: Path, uri: str, expected):
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.properties["uri"] = uri
    assert advisory_lock.lock_file_path(catalog, "x") == expected


def test_a_lock_that_is_never_given_back_costs_time_only(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(advisory_lock, "LOCK_TIMEOUT_S", 0.5)
    path = tmp_path / "x.lock"
    waited = []
    with path.open("w") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX)
        for _ in range(2):
            started = time.monotonic()
            with advisory_lock.FileAdvisoryLock(path).hold():
                waited.append(time.monotonic() - started)
    assert waited[0] >= 0.5 > waited[1]


def test_a_folder_without_room_for_a_lock_file_is_no_obstacle(tmp_path: Path):
    with advisory_lock.FileAdvisoryLock(tmp_path / "absent" / "x.lock").hold():
        pass


# --- runs on the log ----------------------------------------------------------------------------


@pytest.mark.req("V3")
def test_a_registration_killed_between_plan_and_event_is_completed_by_the_same_run(
    catalog: TroubledCatalog, tables: ControlTables
):
    runs = IcebergRuns(tables)
    plan = a_plan()

    class Killed(BaseException):
        """As SIGKILL: nothing after it runs."""

    def killed(decide):
        raise Killed

    events = runs._events
    events.append = killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        runs.register(plan, a_first_event(plan))
    again = IcebergRuns(tables)
    assert again.list() == ()
    assert IcebergAudit(tables).drafts() == (plan,)
    with pytest.raises(errors.RunMoved, match="with another intent"):
        again.register(a_plan(reason="other"), a_first_event(plan))
    assert again.register(plan, a_first_event(plan)).seq == 1
    assert again.plan(plan.run_id) == plan
    assert IcebergAudit(tables).drafts() == ()
    planned = catalog.load_table((NAMESPACE, "pipeline_run")).scan(
        EqualTo("run_id", plan.run_id), selected_fields=("run_id",)
    )
    assert planned.to_arrow().num_rows == 1


def test_open_runs_are_known_without_reading_any_row(tables: ControlTables, tmp_path: Path):
    runs = IcebergRuns(tables)
    status = begun(runs)
    for file in (tmp_path / "lake" / "warehouse").rglob("*.parquet"):
        file.unlink()
    assert runs.list() == (status,)
    assert runs.status(status.run_id) == status
    with pytest.raises(errors.LostFile):
        runs.events(status.run_id)


# --- the view -----------------------------------------------------------------------------------


def test_the_view_takes_plain_identifiers_only():
    text = schemas.current_view_select("my-lake", NAMESPACE)
    assert "FROM `my-lake`.`lakehouse_backfill`.accepted_output_version" in text
    for bad in ("a`b", "a.b", "", "a;b"):
        with pytest.raises(ValueError, match="plain identifier"):
            schemas.current_view_select("lake", bad)


# --- cached rows ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [{}, {"event_id": "7"}, {"event_id": frozenset({"1", "33", "none"})}, {"handler": "other"}],
)
def test_cached_rows_equal_those_of_the_scan_of_pyiceberg(log: ControlLog, where: dict[str, Any]):
    for event_id in range(log_files.COMPACT_EVERY_COMMITS + 5):
        add(log, event_id)
        log.head().rows()  # some rows are cached now, those of the next commit are not
    head = log.head()
    assert head.table is not None
    scan = head.table.scan(log_files._row_filter(where)).to_arrow().sort_by(schemas.LOG_SEQ)
    assert head.rows(where) == scan.to_pylist()
    assert [one["event_id"] for one in head.rows(where, ("event_id",))] == (
        scan["event_id"].to_pylist()
    )


@pytest.mark.parametrize(
    "where", [{}, {"event_id": "450"}, {"event_id": frozenset({"1", "999"})}, {"handler": "other"}]
)
def test_rows_of_a_large_file_equal_those_of_the_scan_of_pyiceberg(
    log: ControlLog, tmp_path: Path, where: dict[str, Any]
):
    chance = random.Random(1)
    rows = tuple(row(number) | {"run_id": chance.randbytes(60).hex()} for number in range(1000))
    log.append(lambda _: LogAppend(result=None, rows=rows))
    (file,) = (tmp_path / "lake" / "warehouse").rglob("*processed_event/data/*.parquet")
    assert file.stat().st_size > 32 * 1024
    assert pq.ParquetFile(file).num_row_groups == 5
    head = log.head()
    assert head.table is not None
    head.table.update_schema().add_column("later", StringType()).commit()
    head = log.head()
    scan = head.table.scan(log_files._row_filter(where)).to_arrow().sort_by(schemas.LOG_SEQ)
    assert head.rows(where) == scan.to_pylist()
    assert [one["later"] for one in head.rows(where, ("later",))] == [None] * len(scan)


#: Reads rows of a folder's lake, and prints them with the threads that the process has since.
_READ_IN_NEW_PROCESS = """
import os, sys
from pathlib import Path
import pyarrow.parquet
from lakehouse_backfill.adapters.iceberg.control import schemas
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from tests.support.lakes.catalogs import catalog_of

log = ControlTables(catalog_of(Path(sys.argv[1])), sys.argv[2]).log(schemas.PROCESSED_EVENT)
threads = set(os.listdir("/proc/self/task"))
found = [row["event_id"] for row in log.head().rows({"event_id": frozenset({"small", "450"})})]
print(found, len(set(os.listdir("/proc/self/task")) - threads))
"""


def test_rows_are_read_in_the_thread_that_asks(log: ControlLog, tmp_path: Path):
    """Threads of Arrow keep the memory of what they read, and nothing makes them give it back."""
    chance = random.Random(1)
    rows = tuple(row(number) | {"run_id": chance.randbytes(60).hex()} for number in range(1000))
    log.append(lambda _: LogAppend(result=None, rows=rows))
    add(log, "small")
    done = subprocess.run(
        [sys.executable, "-c", _READ_IN_NEW_PROCESS, str(tmp_path), NAMESPACE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "['450', 'small'] 0\n", done.stderr


def test_an_audit_looks_at_files_again_that_were_edited_in_place(log: ControlLog, tmp_path: Path):
    add(log, "before")
    assert ids(log) == ["before"]
    (file,) = (tmp_path / "lake" / "warehouse").rglob("*processed_event/data/*.parquet")
    rows = pq.ParquetFile(file).read()
    at = rows.column_names.index("event_id")
    field = rows.schema.field(at)
    pq.write_table(rows.set_column(at, field, pa.array(["after!"], field.type)), file)
    log_files.drop_cached_rows()
    assert ids(log) == ["after!"]
