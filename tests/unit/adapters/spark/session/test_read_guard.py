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
        (read_guard.describe_places, ("file:///tmp/a", None), {"format": "parquet"}),
        (read_guard.describe_places, ("lake.silver.orders",), {}),
        (read_guard.describe_options, ("timestampFormat", "http://is no place"), {}),
        (read_guard.describe_options, (), {"header": True}),
    ],
)
def test_files_and_tables_are_read(
    check: read_guard.ReadCheck, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert check(*args, **named) == ""


@pytest.mark.parametrize(
    ("check", "args", "named"),
    [
        (read_guard.describe_places, ("s3a://bucket/a", None), {"format": "parquet"}),
        (read_guard.describe_places, ("abfss://box@account/a",), {}),
        (read_guard.describe_places, ("hdfs:/a",), {}),
        (read_guard.describe_places, ("file:/a", "gs://bucket/a"), {}),
        (read_guard.describe_places, (["/a", "oss://bucket/a"],), {}),
        (read_guard.describe_places, ("{file:/a,hdfs://host/a}",), {}),
        (read_guard.describe_places, ("parquet.`s3://bucket/a`",), {}),
        (read_guard.describe_places, (), {"basePath": "viewfs://cluster/a"}),
        (read_guard.describe_options, ("avroSchemaUrl", "hdfs://host/a"), {}),
        (read_guard.describe_options, (), {"rowValidationXSDPath": "har://hdfs-host/a"}),
        (read_guard.describe_query, ("SELECT * FROM orc . `abfs://b@a/c`",), {}),
    ],
)
def test_the_address_of_a_store_is_found_before_the_store_is_asked(
    check: read_guard.ReadCheck, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert check(*args, **named).startswith("to read from a store (")


@pytest.mark.parametrize("text", ["url LIKE 's3a://%'", "SELECT a.`b` FROM t", "concat('hdfs:/')"])
def test_a_value_that_looks_like_an_address_is_no_read(text: str) -> None:
    assert read_guard.describe_query(text) == ""
    assert read_guard.describe_call("expr", (text,)) == ""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("load", ("hdfs://host/model",)),
        ("loadVectors", (object(), "s3a://bucket/a")),
        ("refreshByPath", ("hdfs://host/a",)),
        ("from_xml", (object(), "b string", {"rowValidationXSDPath": "hdfs://host/a"})),
        ("from_avro", (object(), "{}", {"AVROSCHEMAURL": "s3a://bucket/a"})),
        ("expr", ("from_xml(x, y, map('rowvalidationXSDpath', 'hdfs' || '://host'))",)),
        ("lit", ("rowValidationXSDPath",)),
        ("filter", ("(SELECT max(value) FROM text.`s3a://bucket/a`) > k",)),
    ],
)
def test_what_pyspark_would_read_by_java_is_known(name: str, arguments: tuple[Any, ...]) -> None:
    assert read_guard.describe_call(name, arguments).startswith("to read ")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("lit", ("s3a://bucket/a",)),
        ("regexp_replace", (object(), "https://a", "b")),
        ("from_xml", (object(), "b string", {"mode": "FAILFAST"})),
        ("option", ("rowValidationXSDPath", "/tmp/a.xsd")),
    ],
)
def test_what_pyspark_does_with_values_is_no_read(name: str, arguments: tuple[Any, ...]) -> None:
    assert read_guard.describe_call(name, arguments) == ""


@pytest.mark.parametrize(
    ("member", "args", "named"),
    [
        ("load", ("data", "parquet"), {}),
        ("load", (), {"path": "/data"}),
        ("text", (["file:/a", "b"],), {}),
        ("parquet", ("file:/a", "b"), {}),
        ("option", ("path", "data"), {}),
        ("options", (), {"header": "true", "Path": "data"}),
    ],
)
def test_a_path_without_a_scheme_leads_to_the_default_store(
    member: str, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    found = read_guard.describe_default("hdfs://cluster", member, *args, **named)
    assert found == "to read from a store (hdfs)"
    assert read_guard.describe_default("file:///", member, *args, **named) == ""
    assert read_guard.describe_default("", member, *args, **named) == ""


@pytest.mark.parametrize(
    ("member", "args", "named"),
    [
        ("load", ("file:/data", "parquet"), {}),
        ("option", ("header", "true"), {}),
        ("options", (), {"sep": "/"}),
        ("json", (object(),), {}),
    ],
)
def test_what_names_no_place_leads_to_no_default_store(
    member: str, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert read_guard.describe_default("hdfs://cluster", member, *args, **named) == ""


def test_the_session_has_no_file_system_for_servers_but_the_warehouse() -> None:
    settings = read_guard.without_servers("webhdfs://store/warehouse")
    assert set(settings) == {
        "spark.sql.runSQLOnFiles",
        *(f"spark.hadoop.fs.{name}.impl" for name in ("http", "https", "ftp", "sftp", "swebhdfs")),
    }
