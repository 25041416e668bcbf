"""The stored rows of all runs, for verification; files that no control table reaches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.catalog import translate_errors
from lakehouse_backfill.adapters.iceberg.control import schemas
from lakehouse_backfill.adapters.iceberg.control.log_files import drop_cached_rows, reachable_paths
from lakehouse_backfill.adapters.iceberg.control.runs import read_event_chains, read_seal
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import read_products
from lakehouse_backfill.adapters.iceberg.rest.vended_files import plain_files
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.core.staging import rejects
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.retention import OrphanFiles
from lakehouse_backfill.domain.run import Event, RejectedCount, RejectedGroup
from lakehouse_backfill.domain.sources.migration import MIGRATION_ID_PREFIX
from lakehouse_backfill.errors import Tampered
from lakehouse_backfill.fault_points import commit_window

_PLAN_COLUMNS = ("run_id", "plan", "manifest_hash")
#: What is shown of a run without its plan, by column.
_RUN_COLUMNS = {
    "data_product": "product",
    "target_table": "target",
    "shadow_table": "shadow",
    "requested_by": "owner",
    "reason": "reason",
}
#: The control tables that every run which came far enough has rows in.
_TABLES_OF_RUNS = (
    schemas.PIPELINE_RUN,
    schemas.ACCEPTED_OUTPUT_VERSION,
    schemas.BACKFILL_CHUNK_RUN,
    schemas.EVIDENCE,
)


class IcebergAudit:
    """`ports.control.Audit` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._tables = tables
        self._plans = tables.log(schemas.PIPELINE_RUN)
        self._events = tables.log(schemas.RUN_EVENT)
        self._evidence = tables.log(schemas.EVIDENCE)
        self._chunks = tables.log(schemas.BACKFILL_CHUNK_RUN)
        self._rejects = tables.log(schemas.REJECT_RECORD)
        self._all_tables = tuple(tables.log(table) for table in schemas.CONTROL_TABLES)

    def recorded_runs(self) -> dict[str, frozenset[str]]:
        """Return, by control table whose rows are the work of runs, the runs that have rows.

        Migrations have evidence, and no log of events.

        Raises Tampered when any control table is gone.
        """
        heads = {log.name: log.head() for log in self._all_tables}
        return {
            table.name: frozenset(
                row["run_id"]
                for row in heads[table.name].rows(columns=("run_id",))
                if row["run_id"] and not row["run_id"].startswith(MIGRATION_ID_PREFIX)
            )
            for table in _TABLES_OF_RUNS
        }

    def drafts(self) -> tuple[Plan, ...]:
        """Return plans that are stored without a first event: their registration was interrupted.

        A plan that is being registered right now is included; an edited plan is left out.
        """
        # Plans are read first: a plan registered in between then has its event in the second read.
        plans = self._plans.head().rows(columns=_PLAN_COLUMNS)
        registered = {row["run_id"] for row in self._events.head().rows(columns=("run_id",))}
        plans_or_errors = (
            _open_plan_or_error(row) for row in plans if row["run_id"] not in registered
        )
        return tuple(plan for plan in plans_or_errors if isinstance(plan, Plan))

    def bad_plans(self) -> dict[str, str]:
        """Return, by run, what is wrong with each stored plan that was edited."""
        rows = self._plans.head().iter_rows(columns=_PLAN_COLUMNS)
        opened = ((row["run_id"], _open_plan_or_error(row)) for row in rows)
        return {run_id: plan.problem for run_id, plan in opened if isinstance(plan, Tampered)}

    def chains(self) -> dict[str, tuple[Event, ...]]:
        """Return the events of each run as they are stored, in the order of appending."""
        drop_cached_rows()
        return read_event_chains(self._events.head().iter_rows())

    def seal(self) -> tuple[int, str] | None:
        """Return the number of events and the sum of all runs' newest hashes, as last written."""
        return read_seal(self._events.head())

    def products(self) -> dict[str, tuple[tuple[Publication, ...], Pointer | None]]:
        """Return the rows of each product, oldest first, and its pointer, as they are stored.

        All are of one moment. None: the pointer is missing or not readable. Raises Tampered when
        any control table is gone.
        """
        heads = {log.name: log.head() for log in self._all_tables}
        return read_products(heads[schemas.ACCEPTED_OUTPUT_VERSION.name])

    def bad_documents(self) -> dict[str, str]:
        """Return, by run, which document of its evidence was edited and not recorded again."""
        intact, edited = set[tuple[str, str]](), dict[tuple[str, str], str]()
        columns = ("run_id", "kind", "digest", "document")
        for row in self._evidence.head().iter_rows(columns=columns):
            mark = row["run_id"], row["digest"]
            if event_log.matches_digest(row["document"], row["digest"]):
                intact.add(mark)
            else:
                edited[mark] = row["kind"]
        return {
            mark[0]: f"the document {kind!r} of {mark[0]} in evidence was edited since"
            for mark, kind in edited.items()
            if mark not in intact
        }

    def rejected_counts(self) -> tuple[RejectedCount, ...]:
        """Return what the newest row of each chunk in the ledger says of its rejected rows."""
        columns = ("run_id", "chunk_id", "rejected_rows", "rejects_seal")
        newest = {
            (row["run_id"], row["chunk_id"]): row
            for row in self._chunks.head().iter_rows(columns=columns)
        }
        return tuple(
            RejectedCount(
                run_id=run_id, chunk_id=chunk_id, rows=row["rejected_rows"],
                seal=row.get("rejects_seal"),
            )
            for (run_id, chunk_id), row in newest.items()
            if row.get("rejected_rows") is not None
        )  # fmt: skip

    def rejected_groups(self) -> tuple[RejectedGroup, ...]:
        """Return the stored rejected rows by run, chunk and attempt, with their seals."""
        return rejects.group_rows(self._rejects.head().iter_rows())

    def describe_runs(self) -> dict[str, dict[str, str]]:
        """Return product, target, shadow, owner and reason of each run, without its plan."""
        rows = self._plans.head().rows(columns=("run_id", *_RUN_COLUMNS))
        return {
            row["run_id"]: {name: row[column] for column, name in _RUN_COLUMNS.items()}
            for row in rows
        }

    def pending_deletions(self) -> tuple[str, ...]:
        """Return the runs whose `retire` event names staged files, and that did not delete them."""
        head, columns = self._events.head(), ("run_id", "detail")
        ended = {row["run_id"] for row in head.rows({"verb": "delete files"}, columns)}
        retired = head.rows({"verb": "retire"}, columns)
        named = {row["run_id"] for row in retired if '"staged"' in row["detail"]}
        return tuple(sorted(named - ended))

    def count_orphans(self, before: datetime) -> OrphanFiles:
        """Count the files written before then that no snapshot of a control table reaches."""
        return self._visit_orphans(before, delete=False)

    def delete_orphans(self, before: datetime) -> OrphanFiles:
        """Delete the files that `count_orphans` counts.

        Only in the control tables' own folders, whose files no other table lists.
        """
        return self._visit_orphans(before, delete=True)

    def _visit_orphans(self, before: datetime, *, delete: bool) -> OrphanFiles:
        files = size = 0
        with translate_errors():
            for table in self._tables.existing():
                for path, length in _orphan_files(table, before):
                    if delete:
                        with commit_window("ControlFiles.delete"):
                            table.io.delete(path)
                    files, size = files + 1, size + length
        return OrphanFiles(files=files, size_bytes=size)


def _open_plan_or_error(row: dict[str, Any]) -> Plan | Tampered:
    try:
        return event_log.open_plan(row["run_id"], row["plan"], row["manifest_hash"])
    except Tampered as error:
        return error


def _orphan_files(table: Table, before: datetime) -> list[tuple[str, int]]:
    """List the table's unreachable files that are older than `before`.

    The folder is listed before the table is read again, so that a new file is in neither result.
    """
    location = table.location().rstrip("/")
    old_files = list(_list_files(table.io, location, before))
    if not old_files:
        return []
    reached = reachable_paths(table.refresh())
    return [
        (f"{location}/{name}", size)
        for name, size in old_files
        if f"{location}/{name}" not in reached
    ]


def _list_files(io: FileIO, place: str, before: datetime) -> Iterator[tuple[str, int]]:
    """List the files under a folder with their sizes, by names relative to it."""
    io = plain_files(io)
    if not isinstance(io, PyArrowFileIO):
        return  # another library reads the store, so it cannot be listed here
    scheme, netloc, path = io.parse_location(place)
    system: FileSystem = io.fs_by_scheme(scheme, netloc)
    for folder in ("metadata", "data"):
        root = f"{path}/{folder}"
        selector = FileSelector(root, recursive=True, allow_not_found=True)
        for info in system.get_file_info(selector):
            if info.is_file and info.mtime is not None and info.mtime < before:
                yield f"{folder}/{info.path.partition(f'{root}/')[2]}", info.size
