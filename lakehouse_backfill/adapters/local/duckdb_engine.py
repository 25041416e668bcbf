"""DuckDB inside this process, started on first use and kept for later queries."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def start_duckdb(spill: str, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Start an in-memory DuckDB in UTC that can access no network and no file except `spill`."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"temp_directory": spill})
    connection.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
    # The texts of differing rows may exceed 2 GiB.
    connection.execute("SET arrow_large_buffer_size = true")
    if threads:
        connection.execute(f"SET threads = {threads:d}")
    # This must come last: it also locks the spill folder.
    connection.execute("SET enable_external_access = false")
    return connection


def start_with_spill_folder() -> duckdb.DuckDBPyConnection:
    """Start a DuckDB whose queries may exceed memory; its folder goes with the connection."""
    spill = TemporaryDirectory(prefix="lhb-duckdb-")
    connection = start_duckdb(spill.name)
    weakref.finalize(connection, spill.cleanup)
    return connection


def is_duckdb_error(error: Exception) -> bool:
    """Return whether DuckDB raised an error."""
    module = sys.modules.get("duckdb")
    return module is not None and isinstance(error, module.Error)


class LazyDuckDB:
    """A DuckDB that starts on the first use of `db`, so that unused ones cost nothing."""

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
