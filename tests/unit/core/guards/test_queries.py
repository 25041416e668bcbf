"""A query is told from everything else by parsing it."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.guards.queries import (
    NotAQuery,
    parse_query,
    referenced_tables,
)

QUERIES = [
    "SELECT 1",
    "-- a comment\nSELECT * FROM {flights} WHERE d >= :publish_from",
    "WITH x AS (SELECT 1 AS a) SELECT a FROM x UNION ALL (SELECT 2)",
    "SELECT explode(l) FROM a LATERAL VIEW explode(b) t AS c",
]
OTHERS = [
    "",
    "SELECT 1; SELECT 2",
    "INSERT INTO t SELECT 1",
    "/* SELECT */ INSERT INTO t SELECT 1",
    "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
    "FROM x INSERT INTO t SELECT *",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT 1",
    "SELECT * INTO t FROM x",
    "MERGE INTO a USING b ON a.i = b.i WHEN MATCHED THEN DELETE",
    "DELETE FROM t",
    "UPDATE t SET a = 1",
    "TRUNCATE TABLE t",
    "DROP TABLE t",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TABLE t AS SELECT 1",
    "ALTER TABLE t ADD COLUMN a int",
    "CALL lake.system.rollback_to_snapshot('t', 1)",
    "SET a = b",
    "USE lake",
    "CACHE TABLE t",
    "REFRESH TABLE t",
    "LOAD DATA INPATH 'x' INTO TABLE t",
    "BEGIN DROP TABLE t; END",
    "EXECUTE IMMEDIATE 'DROP TABLE t'",
    "SELECT TRANSFORM(a) USING 'sh' AS (b) FROM t",
    "SELECT reflect('java.lang.System', 'gc')",
    "SELECT java_method('a', 'b')",
]


@pytest.mark.parametrize("text", QUERIES)
def test_one_query_passes(text: str) -> None:
    parse_query(text)


@pytest.mark.req("X1")
@pytest.mark.parametrize("text", OTHERS)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(NotAQuery):
        parse_query(text)


def test_the_tables_that_a_query_reads_are_named() -> None:
    text = "WITH x AS (SELECT * FROM {src}) SELECT * FROM x JOIN lake.ns.t USING (a)"
    assert referenced_tables(parse_query(text)) == {"src", "lake.ns.t"}
