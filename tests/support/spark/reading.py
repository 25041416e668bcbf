"""What readers see of a table, worked out from its data files and delete files by DuckDB.

Neither Spark nor the program has a part in it.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import duckdb
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table

Rows = set[tuple[str, int, int]]


def rows_of(table: Table) -> Rows:
    """Give day, id and value of each row that no delete file hides."""
    found, hidden, equal = [], {}, []
    for file, sequence in live(table):
        if file.content == DataFileContent.DATA:
            found.append((file, sequence))
        elif file.content == DataFileContent.EQUALITY_DELETES:
            equal += [(day_of(file), row[0], sequence) for row in _read(file)]
        else:
            for path, at in _read_deletes(table.io, file).items():
                hidden.setdefault(path, set()).update(at.to_pylist())
    return {
        (day, key, value)
        for file, sequence in found
        for key, day, value, place in _read(file)
        if place not in hidden.get(file.file_path, ())
        and not any(
            (day, key) == (where, which) and sequence < since for where, which, since in equal
        )
    }


def live(table: Table) -> list[tuple[DataFile, int]]:
    """Give the live files of all kinds with their data sequence numbers."""
    snapshot = table.current_snapshot()
    return [
        (entry.data_file, entry.sequence_number or 0)
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def day_of(file: DataFile) -> str:
    return str(date.fromordinal(date(1970, 1, 1).toordinal() + file.partition[0]))


def _read(file: DataFile) -> list[tuple[Any, ...]]:
    """Give id, day, value and place of each row of a data file; of an equality delete, ids."""
    path = file.file_path.removeprefix("file://").removeprefix("file:")
    is_data = file.content == DataFileContent.DATA
    wanted = "id, CAST(d AS varchar), v, file_row_number" if is_data else "id"
    query = f"SELECT {wanted} FROM read_parquet(?, file_row_number = true)"
    return duckdb.execute(query, [path]).fetchall()
