"""DuckDB in this process: started when something needs it, kept for the next question."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def start_duckdb(spill: str, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Start an in-memory DuckDB that reaches no file and no network but `spill`, in UTC."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"temp_directory": spill})
    connection.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
    # The texts of rows that differ may be more than 2 GiB.
    connection.execute("SET arrow_large_buffer_size = true")
    if threads:
        connection.execute(f"SET threads = {threads:d}")
    # Last: it also locks the folder for spilling.
    connection.execute("SET enable_external_access = false")
    return connection


def is_duckdb_error(error: Exception) -> bool:
    """Tell whether DuckDB raised an error."""
    known = sys.modules.get("duckdb")
    return known is not None and isinstance(error, known.Error)


class LazyDuckDB:
    """A DuckDB that starts with the first use of `db`: doing without saves its start."""

    def __init__(self, start: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._start = start

    @cached_property
    def db(self) -> duckdb.DuckDBPyConnection:
        """The connection."""
        return self._start()

    @property
    def is_started(self) -> bool:
        """Whether anything has used it."""
        return "db" in vars(self)
