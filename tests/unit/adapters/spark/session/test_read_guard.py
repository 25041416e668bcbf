"""Reads that act outside are known by format and by address; reads of files and tables are not."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session import read_guard

pytestmark = pytest.mark.req("E1")


@pytest.mark.parametrize(
    "source",
    ["jdbc", "JDBC", "org.apache.spark.sql.execution.datasources.jdbc.JdbcRelationProvider"],
)
def test_a_format_whose_reading_acts_is_known_by_any_of_its_names(source: str) -> None:
    assert "jdbc" in read_guard.describe_format(source)
    assert "jdbc" in read_guard.describe_places("t", format=source)


@pytest.mark.parametrize(
    ("check", "args", "named"),
    [
        (read_guard.describe_places, ("http://127.0.0.1/a",), {}),
        (read_guard.describe_places, (["/tmp/a", "HTTPS://example.org/a"],), {}),
        (read_guard.describe_places, (), {"path": "webhdfs://host/a"}),
        (read_guard.describe_places, ("text.`ftp://host/a`",), {}),
        (read_guard.describe_options, ("path", "http://host/"), {}),
        (read_guard.describe_options, (), {"key": "Path", "value": "http://host/"}),
        (read_guard.describe_options, (), {"path": "sftp://host/", "header": "true"}),
        (read_guard.describe_options, ("fs.own.impl", "org.apache.hadoop.fs.FileSystem"), {}),
        (read_guard.describe_options, (), {"key": "FS.S3A.endpoint", "value": "host"}),
        (read_guard.describe_options, (), {"header": "true", "dfs.namenode.rpc-address": "host"}),
    ],
)
def test_the_address_of_a_server_is_found_wherever_a_reader_takes_it(
    check: read_guard.ReadCheck, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert check(*args, **named).startswith("to read from a server (")


@pytest.mark.parametrize(
    ("check", "args", "named"),
    [
        (read_guard.describe_format, ("iceberg",), {}),
        (read_guard.describe_places, ("/tmp/http:file",), {}),
        (read_guard.describe_places, ("s3a://bucket/a", None), {"format": "parquet"}),
        (read_guard.describe_places, ("lake.silver.orders",), {}),
        (read_guard.describe_options, ("timestampFormat", "http://is no place"), {}),
        (read_guard.describe_options, (), {"header": True}),
    ],
)
def test_files_and_tables_are_read(
    check: read_guard.ReadCheck, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert check(*args, **named) == ""


def test_the_session_has_no_file_system_for_servers_but_the_warehouse() -> None:
    settings = read_guard.without_servers("webhdfs://store/warehouse")
    assert set(settings) == {
        "spark.sql.runSQLOnFiles",
        *(f"spark.hadoop.fs.{name}.impl" for name in ("http", "https", "ftp", "sftp", "swebhdfs")),
    }
