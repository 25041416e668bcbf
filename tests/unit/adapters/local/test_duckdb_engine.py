"""DuckDB inside this process: it spills to a folder of its own, and reaches nothing else."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from lakehouse_backfill.adapters.local.duckdb_engine import start_with_spill_folder


def test_queries_may_exceed_memory_and_leave_nothing_behind() -> None:
    connection = start_with_spill_folder()
    (spill,) = connection.execute("SELECT current_setting('temp_directory')").fetchone() or ("",)
    assert Path(spill).is_dir()
    connection.execute("SET memory_limit = '20MB'; SET threads = 1")
    rows = "SELECT DISTINCT md5(range::VARCHAR) FROM range({})"
    query = f"SELECT count(*) FROM ({rows.format(600_000)} EXCEPT {rows.format(10)})"
    assert connection.execute(query).fetchall() == [(599_990,)]
    del connection
    assert not Path(spill).exists()


@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM read_csv('{file}')", "COPY (SELECT 1) TO '{file}'", "ATTACH '{file}' AS a"],
)
def test_no_other_file_is_read_or_written(tmp_path: Path, statement: str) -> None:
    file = tmp_path / "other.csv"
    file.write_text("a\n1\n", encoding="utf-8")
    with start_with_spill_folder() as connection, pytest.raises(duckdb.Error):
        connection.execute(statement.format(file=file))
    assert file.read_text(encoding="utf-8") == "a\n1\n"
