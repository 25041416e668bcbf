"""All control tables of one lake: creation, fences of runs, and upkeep.

A fence refuses writes of an overtaken process. It is a table property, the smallest epoch that may
write for a run, and is set with a new snapshot: a commit prepared before requires the old head, so
it is refused, and the next decision reads the fence.

Upkeep removes fences of closed runs, and files that no snapshot reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.catalog import (
    commit_with_retry,
    is_outage,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.control.log import (
    ControlLog,
    LogAppend,
    LogHead,
    restore_error,
)
from lakehouse_backfill.adapters.iceberg.control.log_files import reachable_paths
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    ACCEPTED_OUTPUT_VERSION,
    BACKFILL_CHUNK_RUN,
    CONTROL_TABLE_NAMES,
    CONTROL_TABLES,
    EVIDENCE,
    PIPELINE_RUN,
    RUN_EVENT,
    ControlTable,
)
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.rollout import OrphanFiles
from lakehouse_backfill.errors import CatalogDown
from lakehouse_backfill.fault_points import commit_window

#: How long an append retries against other writers.
APPEND_BUDGET_S = 30.0


class ControlTables:
    """Opens the control tables of `namespace`; reading never creates them, writing does."""

    def __init__(self, catalog: Catalog, namespace: str, budget_s: float = APPEND_BUDGET_S) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._budget_s = budget_s
        self._are_all_there = False

    def log(self, table: ControlTable) -> ControlLog:
        """Open one control table."""
        return ControlLog(self._catalog, self._namespace, table, self, self._budget_s)

    def ensure(self) -> None:
        """Create the missing namespace, control tables, and columns of older releases' tables.

        Several processes may do so at once. Raises CatalogDown.
        """
        try:
            self._ensure_namespace()
            for table in CONTROL_TABLES:
                self._ensure_table(table)
        except Exception as error:
            if not is_outage(error):
                raise
            raise CatalogDown(
                f"the control tables in {self._namespace} cannot be made: {error}",
                state="no run and no version was recorded",
                fix="lakehouse-backfill doctor",
            ) from error

    def require_all(self) -> None:
        """Raise Tampered when a control table is gone; each process looks until all are there.

        All are created before the first row is written. So one that is missing beside one with rows
        was dropped, and to read it as empty would forget runs, versions or evidence.
        """
        if self._are_all_there:
            return
        missing = CONTROL_TABLE_NAMES - self._present()
        self._are_all_there = not missing
        if not missing:
            return
        written = next(filter(self._has_rows, sorted(CONTROL_TABLE_NAMES - missing)), None)
        # Another process may have created them since: those that were written to came last.
        if written is not None and (gone := sorted(missing - self._present())):
            raise restore_error(
                f"the control table {self._namespace}.{gone[0]} is gone, and {written} has rows"
            )

    def _present(self) -> frozenset[str]:
        try:
            return frozenset(name for *_, name in self._catalog.list_tables(self._namespace))
        except NoSuchNamespaceError:
            return frozenset()

    def _has_rows(self, name: str) -> bool:
        try:
            table = self._catalog.load_table((self._namespace, name))
        except NoSuchTableError:
            return False
        return table.current_snapshot() is not None

    def _ensure_namespace(self) -> None:
        try:
            with commit_window("Catalog.create_namespace"):
                self._catalog.create_namespace(self._namespace)
        except NamespaceAlreadyExistsError:
            return
        except Exception:
            # The SQL catalog checks and then inserts: an IntegrityError means that another process
            # inserted in between.
            if not self._catalog.namespace_exists(self._namespace):
                raise

    def _ensure_table(self, table: ControlTable) -> None:
        identifier = (self._namespace, table.name)
        if not self._catalog.table_exists(identifier):
            try:
                schema, properties = table.schema(), table.properties()
                with commit_window("Catalog.create_table"):
                    self._catalog.create_table(identifier, schema, properties=properties)
            except TableAlreadyExistsError:
                pass
            else:
                return
        commit_with_retry(lambda: self._add_columns(table), f"columns for {table.name}")

    def _add_columns(self, table: ControlTable) -> None:
        """Add the missing columns as nullable ones; existing rows have null."""
        loaded = self._catalog.load_table((self._namespace, table.name))
        missing = table.missing_columns(loaded.schema())
        if missing:
            with commit_window("Catalog.update_schema"), loaded.update_schema() as update:
                for name, kind, doc in missing:
                    update.add_column(name, kind, doc)


_FENCE_PREFIX = "fence."
#: The tables that a run's driver writes to. Its events in `run_event` need no fence: each is
#: conditional on the number of the previous one.
_FENCED_TABLES = (ACCEPTED_OUTPUT_VERSION, BACKFILL_CHUNK_RUN, EVIDENCE)


class IcebergFences:
    """`ports.control.Fences` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._logs = [tables.log(table) for table in _FENCED_TABLES]

    def fence(self, run_id: str, epoch: int) -> None:
        """Refuse rows of the run with an earlier epoch from now on, also in commits under way.

        One commit per table; none where the fence is already as high. The property stays until the
        run is closed and its lease has ended: only runs that were taken over have one.
        """
        for log in self._logs:
            log.append(lambda head: _raise_fence(head, run_id, epoch))


def _raise_fence(head: LogHead, run_id: str, epoch: int) -> LogAppend[None]:
    if _current_fence(head, run_id) >= epoch:
        return LogAppend(result=None)
    return LogAppend(
        result=None, set_properties={f"{_FENCE_PREFIX}{run_id}": str(epoch)}, moves_head=True
    )


def _current_fence(head: LogHead, run_id: str) -> int:
    return int(head.properties.get(f"{_FENCE_PREFIX}{run_id}", "0"))


def require_not_fenced(head: LogHead, run_id: str | None, epoch: int) -> None:
    """Raise RunMoved when a later epoch has fenced the run in this table; no run: no check."""
    if run_id is not None and epoch < (fence := _current_fence(head, run_id)):
        raise event_log.overtaken_error(run_id, epoch, fence)


_RUN_COLUMNS = ("run_id", "data_product", "target_table", "shadow_table", "requested_by", "reason")


class IcebergControlUpkeep:
    """`ports.control.ControlUpkeep` on PyIceberg."""

    def __init__(self, catalog: Catalog, namespace: str, tables: ControlTables) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._tables = tables

    def runs(self) -> dict[str, dict[str, str]]:
        """Return product, target, shadow, owner and reason of each run, without its plan."""
        rows = self._tables.log(PIPELINE_RUN).head().rows(columns=_RUN_COLUMNS)
        return {
            row["run_id"]: {
                "product": row["data_product"],
                "target": row["target_table"],
                "shadow": row["shadow_table"],
                "owner": row["requested_by"],
                "reason": row["reason"],
            }
            for row in rows
        }

    def undeleted(self) -> tuple[str, ...]:
        """Return the runs whose `retire` event names staged files, and that did not delete them."""
        head, columns = self._tables.log(RUN_EVENT).head(), ("run_id", "detail")
        ended = {row["run_id"] for row in head.rows({"verb": "delete files"}, columns)}
        retired = head.rows({"verb": "retire"}, columns)
        named = {row["run_id"] for row in retired if '"staged"' in row["detail"]}
        return tuple(sorted(named - ended))

    def fenced(self) -> tuple[str, ...]:
        """Return the runs that have a fence in one of the tables."""
        heads = [self._tables.log(table).head() for table in _FENCED_TABLES]
        keys = {key for head in heads for key in head.properties if key.startswith(_FENCE_PREFIX)}
        return tuple(sorted(key.removeprefix(_FENCE_PREFIX) for key in keys))

    def lift(self, run_ids: tuple[str, ...]) -> None:
        """Remove the fences of closed runs; one commit per table that has one of them."""
        keys = tuple(f"{_FENCE_PREFIX}{run_id}" for run_id in run_ids)

        def change(head: LogHead) -> LogAppend[None]:
            present = tuple(key for key in keys if key in head.properties)
            return LogAppend(result=None, remove_properties=present, moves_head=bool(present))

        for table in _FENCED_TABLES:
            self._tables.log(table).append(change)

    def litter(self, before: datetime) -> OrphanFiles:
        """Count the files written before then that no snapshot of a control table reaches."""
        return self._sweep_orphans(before, delete=False)

    def sweep(self, before: datetime) -> OrphanFiles:
        """Delete these files.

        Only in the control tables' own folders, whose files no other table lists.
        """
        return self._sweep_orphans(before, delete=True)

    def _sweep_orphans(self, before: datetime, *, delete: bool) -> OrphanFiles:
        files = size = 0
        with translate_errors():
            for control in CONTROL_TABLES:
                try:
                    table = self._catalog.load_table((self._namespace, control.name))
                except (NoSuchTableError, NoSuchNamespaceError):
                    continue
                for path, length in _orphan_files(table, before):
                    if delete:
                        with commit_window("ControlFiles.delete"):
                            table.io.delete(path)
                    files, size = files + 1, size + length
        return OrphanFiles(files=files, size_bytes=size)


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
