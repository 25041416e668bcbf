"""Metadata files of tables that were parsed, for commands that load the same tables many times.

A chunk loads the shadow three times and control tables four times, and PyIceberg takes 50 ms to
parse the metadata of a shadow with 2,200 snapshots. A metadata file never changes and its name is
not used again, so it is parsed once. Which file is the newest one is asked of the catalog each
time: unlike in a view of the catalog, nothing that is loaded is older than the call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata

#: The metadata of a table with a long history takes tens of megabytes.
_MAX_TABLES = 16
#: The methods of a catalog that are replaced.
_LOADS_ROW, _COMMITS = "_convert_orm_to_iceberg", "commit_table"


class _ParsedFiles:
    """The newest parsed metadata file of each table; the least recently used table goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, ...], tuple[str, TableMetadata]] = OrderedDict()

    def find(self, table: tuple[str, ...], file: str) -> TableMetadata | None:
        """Return what the file of a table holds, if it was parsed; the caller may change it."""
        with self._lock:
            known_file, metadata = self._found.get(table, ("", None))
            if metadata is None or known_file != file:
                return None
            self._found.move_to_end(table)
        return _own_copy(metadata)

    def keep(self, table: tuple[str, ...], file: str, metadata: TableMetadata) -> None:
        """Keep what a file of a table holds in place of what its earlier file held."""
        with self._lock:
            self._found[table] = file, _own_copy(metadata)
            self._found.move_to_end(table)
            while len(self._found) > _MAX_TABLES:
                self._found.popitem(last=False)


def _own_copy(metadata: TableMetadata) -> TableMetadata:
    """Return metadata with properties of its own: writers set some for the length of a commit."""
    return metadata.model_copy(update={"properties": dict(metadata.properties)})


@contextmanager
def parsing_once(catalog: Catalog) -> Iterator[None]:
    """Parse each metadata file of the catalog's tables once until the block ends.

    What its own commits write is known, too. Only catalogs in a database name the file of a table
    without sending what it holds; for others nothing changes, nor inside another such block.
    """
    if not hasattr(catalog, _LOADS_ROW) or _LOADS_ROW in vars(catalog):
        yield
        return
    commit_before = vars(catalog).get(_COMMITS)
    vars(catalog).update(_parsing_methods(catalog, _ParsedFiles()))
    try:
        yield
    finally:
        del vars(catalog)[_LOADS_ROW], vars(catalog)[_COMMITS]
        if commit_before is not None:
            vars(catalog)[_COMMITS] = commit_before


def _parsing_methods(catalog: Any, files: _ParsedFiles) -> dict[str, Callable[..., Any]]:
    """Return the catalog's methods that look for parsed files first, and keep new ones."""
    load: Callable[[Any], Table] = getattr(catalog, _LOADS_ROW)
    commit: Callable[..., CommitTableResponse] = getattr(catalog, _COMMITS)

    def load_row(row: Any) -> Table:
        name = (*Catalog.identifier_to_tuple(row.table_namespace or ""), row.table_name)
        file = row.metadata_location
        if known := files.find(name, file):
            return Table(name, known, file, catalog._load_file_io(known.properties, file), catalog)
        loaded = load(row)
        files.keep(name, file, loaded.metadata)
        return loaded

    def commit_table(table: Table, *arguments: Any, **named: Any) -> CommitTableResponse:
        response = commit(table, *arguments, **named)
        files.keep(table.name(), response.metadata_location, response.metadata)
        return response

    return {_LOADS_ROW: load_row, _COMMITS: commit_table}
