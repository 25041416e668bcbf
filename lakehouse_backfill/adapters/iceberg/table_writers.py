"""Who writes a table's commits: PyIceberg, Iceberg's Java API, or Spark row by row.

The choice follows from the table's metadata (`core/planning/target/write_path.py`). Writers
that need a JVM are made by the given factories, and only for a table that needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table.refs import MAIN_BRANCH

from lakehouse_backfill.adapters.iceberg.catalog import (
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.clock import require_right_clock
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import snapshot_summary
from lakehouse_backfill.adapters.iceberg.rest.offers import advertised_endpoints
from lakehouse_backfill.core.planning.target.write_path import MAX_WRITTEN_FORMAT, choose_write_path
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import ChosenWritePath, JvmState, TableFacts
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.tables import (
    CloneCommitter,
    RowRewriter,
    SwapCommitter,
    TableCommitter,
)

_REGISTER_ENDPOINT = "POST /v1/{prefix}/namespaces/{namespace}/register"


@dataclass(frozen=True)
class TableWriters:
    """The writers of one catalog's tables; None stands for PyIceberg, which needs no JVM."""

    catalog: Catalog
    jvm_state: Callable[[], JvmState]
    #: With a JVM of this process; only this writer removes snapshots from such tables.
    java: Callable[[], TableCommitter]
    #: Through Spark Connect.
    rows: Callable[[], RowRewriter]

    def choose(self, table: str, scope: Scope | None = None) -> ChosenWritePath:
        """Choose from the table as it is now; no scope: for tags and clones."""
        return choose_write_path(survey_table(self.catalog, table, scope), self.jvm_state())

    def swap_committer(self, table: str, scope: Scope | None = None) -> SwapCommitter | None:
        """Return what commits swaps and tags on the table.

        Commits through Spark do not pass the catalog's own guard: raises WrongClock before them.
        Raises Unsupported for a branch of a table whose rows only Java can account for.
        """
        if parse_branch_shadow(table):
            facts = survey_table(self.catalog, table, scope)
            if facts and (facts.equality_deletes or facts.format_version > MAX_WRITTEN_FORMAT):
                raise Unsupported(
                    f"{table} is a branch, and its table needs Iceberg's Java API: format "
                    f"{facts.format_version}, {facts.equality_deletes} equality delete files",
                    state="nothing was committed",
                    fix="use isolation: clone for this run",
                )
            return None
        chosen = self.choose(table, scope).way
        if chosen == "pyiceberg":
            return None
        require_right_clock(self.catalog)
        return self.java() if chosen == "java" else self.rows()

    def clone_committer(self, table: str) -> CloneCommitter | None:
        """Return what commits clones of the table; through Spark Connect, metadata files do."""
        chosen = self.choose(table).way
        if chosen == "pyiceberg":
            return None
        require_right_clock(self.catalog)
        if chosen == "java":
            return self.java()
        from lakehouse_backfill.adapters.iceberg.shadow.clone import FileCloneCommitter

        return FileCloneCommitter(self.catalog)


def survey_table(catalog: Catalog, table: str, scope: Scope | None) -> TableFacts | None:
    """Return the facts for changing the scope; None when the table does not exist.

    Of the manifests of data files only the list is read; manifests of delete files are read where
    there are equality deletes. No scope: only the facts about the table itself.
    """
    loaded = load_table_or_none(catalog, table)
    if loaded is None:
        return None
    endpoints = advertised_endpoints(catalog)
    table_facts = TableFacts(
        format_version=loaded.metadata.format_version,
        # A server that advertises nothing is assumed to register tables.
        registers=not endpoints or _REGISTER_ENDPOINT in endpoints,
    )
    head = loaded.metadata.snapshot_by_name(MAIN_BRANCH)
    if scope is None or head is None:
        return table_facts
    with translate_errors():
        reader = ScopedReader(loaded, scope)
        manifests = list(filter(reader.may_list_scope_files, reader.manifests(head)))
        deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
        data = [m for m in manifests if m.content == ManifestContent.DATA]
        has_equality = snapshot_summary(head).get("total-equality-deletes", "1") != "0"
        counts = [(m.added_files_count or 0) + (m.existing_files_count or 0) for m in data]
        equality_deletes = _count_equality_deletes(reader, deletes) if has_equality else 0
    counted = {"equality_deletes": equality_deletes, "entries": sum(counts)}
    return table_facts.model_copy(update=counted)


def _count_equality_deletes(reader: ScopedReader, manifests: list[ManifestFile]) -> int:
    live = [entry.data_file for manifest in manifests for entry in reader.live_deletes(manifest)]
    return sum(file.content == DataFileContent.EQUALITY_DELETES for file in live)
