"""A SQL transform is parsed, and its columns are resolved, when the run is planned."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.guards.queries import parse_query
from lakehouse_backfill.core.guards.sql_columns import (
    column_sources,
    require_resolved_columns,
    unresolved_columns,
)
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.manifest import TransformRef
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.tables.table import Column
from lakehouse_backfill.errors import ConfigError
from tests.support.fakes.context import PRODUCT, context, declared, lake

INPUTS = {
    "orders": ("id", "day", "amount", "currency", "tags", "place"),
    "rates": ("currency", "day", "rate"),
}
WRONG = {
    "SELECT idd FROM {orders}": [(1, "idd")],
    "SELECT id,\n  amuont\nFROM {orders}": [(2, "amuont")],
    "SELECT o.id, o.rate FROM {orders} o": [(1, "o.rate")],
    "SELECT x.id FROM {orders} o": [(1, "x.id")],
    "SELECT o.id FROM {orders} o JOIN {rates} r ON o.currency = r.curency": [(1, "r.curency")],
    "SELECT id FROM {orders}\nWHERE day > :publish_from\n  AND nope = 1": [(3, "nope")],
    "SELECT day, sum(amount) AS total FROM {orders} GROUP BY dai": [(1, "dai")],
    "WITH a AS (SELECT id AS key FROM {orders}) SELECT id FROM a": [(1, "id")],
    "WITH a AS (SELECT * FROM {orders})\nSELECT rate FROM a": [(2, "rate")],
    "SELECT b FROM (SELECT id AS a FROM {orders} UNION ALL SELECT 1 AS b) u": [(1, "b")],
    "SELECT t.b FROM (SELECT id AS a FROM {orders}) t": [(1, "t.b")],
    "SELECT id FROM {orders} UNION ALL SELECT rate FROM {orders}": [(1, "rate")],
    "SELECT id FROM {orders} o WHERE EXISTS (SELECT 1 FROM {rates} r WHERE r.x = o.y)": [
        (1, "o.y"),
        (1, "r.x"),
    ],
}
RIGHT = (
    "SELECT * FROM {orders}",
    "SELECT ID, Amount FROM {Orders}",
    "SELECT o.*, r.rate FROM {orders} o JOIN {rates} r USING (currency, day)",
    "SELECT id, amount * 2 AS twice, twice + 1 AS more FROM {orders} ORDER BY more",
    "SELECT day, count(*) AS n FROM {orders} GROUP BY day HAVING n > 1",
    "SELECT place.city, o.place.street.number FROM {orders} o",
    "SELECT id, :run_id AS r, current_date, current_user FROM {orders}",
    "SELECT transform(tags, x -> upper(x)) AS t, exists(tags, y -> y > 1) FROM {orders}",
    "SELECT id, tag FROM {orders} LATERAL VIEW explode(tags) t AS tag",
    "SELECT id, e.col FROM {orders}, LATERAL explode(tags) AS e",
    "SELECT timestampadd(MONTH, 1, day), date_add(day, 1), extract(YEAR FROM day) FROM {orders}",
    "SELECT dateadd(DAY, 1, day), datediff(HOUR, day, day) FROM {orders}",
    "SELECT * FROM {orders} PIVOT (sum(amount) FOR currency IN ('EUR' AS eur, 'USD' AS usd))",
    "SELECT eur FROM (SELECT * FROM {orders} PIVOT (sum(amount) FOR currency IN ('EUR' eur)))",
    "SELECT id FROM {orders} o WHERE amount > (SELECT avg(rate) FROM {rates} WHERE o.day = day)",
    "SELECT a FROM (SELECT id AS a FROM {orders} UNION (SELECT 1 UNION ALL SELECT 2)) u",
    "SELECT id, tags FROM (SELECT * FROM {orders} UNION ALL SELECT * FROM {orders})",
    "SELECT n FROM (SELECT count(*) AS n FROM {orders} UNION ALL SELECT count(*) FROM {rates})",
    "SELECT a, b FROM VALUES (1, 2) AS t(a, b)",
    "SELECT t.a FROM (SELECT id FROM {orders}) AS t(a)",
    "WITH a(k) AS (SELECT id FROM {orders}) SELECT k FROM a",
    "SELECT id FROM range(10)",
    "SELECT * FROM (SELECT count(*) FROM {orders})",
    "SELECT `count(1)` FROM (SELECT count(*) FROM {orders})",
    "SELECT id, row_number() OVER w AS n FROM {orders} WINDOW w AS (PARTITION BY day ORDER BY id)",
    "SELECT * EXCEPT (amount) FROM {orders}",
    "SELECT id, _file FROM {orders}",
    "SELECT unknown.x FROM {unknown} AS unknown",
    "SELECT id FROM {orders} UNION SELECT rate FROM {rates} ORDER BY id",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
    "SELECT CASE WHEN amount > 1 THEN 'a' END AS kind FROM {orders} GROUP BY kind",
    "SELECT struct(id AS a, day AS b).a FROM {orders}",
    "SELECT cast(amount AS decimal(10, 2)), amount::int, tags[0], place['city'] FROM {orders}",
    "SELECT id FROM {orders} TABLESAMPLE (10 PERCENT) REPEATABLE (1)",
    "SELECT max_by(id, amount) FILTER (WHERE day IS NOT NULL) FROM {orders}",
    "SELECT stack(2, id, day, amount, day) AS (a, b) FROM {orders}",
    "SELECT a FROM (SELECT stack(2, id, day, amount, day) AS (a, b) FROM {orders})",
    "SELECT posexplode(tags) AS (p, c) FROM {orders} ORDER BY p",
    "SELECT grouping(day), day FROM {orders} GROUP BY GROUPING SETS ((day), ())",
    "SELECT l.id FROM {orders} l LEFT ANTI JOIN {rates} r ON l.day = r.day",
    "FROM {orders} SELECT id",
    "SELECT id FROM {orders} |> WHERE amount > 1",
    "SELECT inline(arrays_zip(tags, tags)) FROM {orders}",
    "SELECT /*+ BROADCAST(r), MERGE(x), REPARTITION(3) */ o.id FROM {orders} o JOIN {rates} r",
    "SELECT day, sum(amount) FROM {orders} GROUP BY ALL ORDER BY ALL",
    "SELECT day, id FROM {orders} GROUP BY CUBE (day, id) SORT BY id",
    "SELECT id, rank() OVER (ORDER BY day) AS n FROM {orders} QUALIFY n = 1",
    "SELECT u.v, n FROM {orders} UNPIVOT (v FOR n IN (id, amount)) AS u",
    "SELECT id, INTERVAL 1 DAY, DATE '2020-01-01', day - INTERVAL '1' MONTH FROM {orders}",
    "SELECT from_json(tags, 'a INT').a, o.place.x[1].y FROM {orders} o DISTRIBUTE BY id",
    "SELECT o.id, x.k FROM {orders} o, LATERAL (SELECT o.amount AS k) x",
    "SELECT aggregate(tags, 0, (acc, one) -> acc + one, acc -> acc * 10) FROM {orders}",
    "SELECT trim(BOTH ' ' FROM currency), position('a' IN currency) FROM {orders}",
    "SELECT id FROM {orders} NATURAL JOIN {rates} ORDER BY rate NULLS LAST",
    "SELECT date_trunc('MONTH', day), trunc(day, 'MM'), unix_timestamp() FROM {orders}",
    "SELECT k, v FROM (SELECT explode(map('a', id)) AS (k, v) FROM {orders})",
)  # fmt: skip


def places(text: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name, _ in unresolved_columns(parse_query(text), INPUTS)]


@pytest.mark.parametrize("text", WRONG)
def test_a_column_that_no_input_has_is_named_with_its_line(text: str) -> None:
    assert places(text) == WRONG[text]


@pytest.mark.parametrize("text", RIGHT)
def test_what_spark_resolves_is_never_refused(text: str) -> None:
    assert places(text) == []


def pin(name: str) -> SourcePin:
    columns = [Column(field_id=n, name=one, type="long") for n, one in enumerate(INPUTS[name])]
    fields: dict[str, Any] = {
        "name": name, "role": "source", "table": f"bronze.{name}", "requested": name,
        "snapshot_id": 1, "mode": "tag", "columns": tuple(columns),
    }  # fmt: skip
    return SourcePin(**fields)


def refused(text: str, **changes: Any) -> ConfigError:
    ref = TransformRef(name="daily", version="1.0.0", file="jobs/daily.sql", **changes)
    with pytest.raises(ConfigError) as caught:
        require_resolved_columns({ref.file: text}, ref, [pin("orders"), pin("rates")])
    return caught.value


def test_the_error_has_file_line_and_what_may_be_meant() -> None:
    error = refused("-- inputs: orders\nSELECT id,\n  amuont,\n  o.nothing_here\nFROM {orders} o")
    assert [(one.file, one.line, one.field, one.fix) for one in error.faults] == [
        ("jobs/daily.sql", 3, "amuont", "perhaps amount"),
        ("jobs/daily.sql", 4, "o.nothing_here",
         "there are id, day, amount, currency, tags, place"),
    ]  # fmt: skip
    assert "names 2 columns that its pinned inputs do not have" in error.problem
    assert "jobs/daily.sql:3: amuont: no input has such a column (perhaps amount)" in error.problem
    assert "nothing was" in error.state


@pytest.mark.parametrize(
    ("text", "line"),
    [("SELECT id\nFROM (SELECT 1\nWHERE", 3), ("DELETE FROM x", 1), ("SELECT 1; SELECT 2", 1)],
)
def test_a_file_that_is_no_query_is_refused_with_its_line(text: str, line: int) -> None:
    error = refused(text)
    assert ("is no query" in error.problem, error.faults[0].line) == (True, line)


def test_an_input_without_braces_is_refused_with_its_line() -> None:
    error = refused("-- inputs: orders, rates\nSELECT id FROM {rates}\nJOIN orders USING (id)")
    assert [(one.line, one.field, one.fix) for one in error.faults] == [
        (3, "orders", "write {orders}")
    ]


def test_plan_refuses_a_query_that_the_pinned_columns_do_not_fit() -> None:
    text = "-- inputs: raw\nSELECT day, id,\n  amuont AS amount\nFROM {raw}"
    found = context(lake(), file_text=lambda file: text)
    sql = declared(transform={"file": "jobs/daily.sql"})
    with pytest.raises(ConfigError, match=r"jobs/daily\.sql:3: amuont.*perhaps amount"):
        make_plan(found, sql, "bob", None)
    right = context(lake(), file_text=lambda file: text.replace("amuont", "amount"))
    assert make_plan(right, sql, "bob", None).product == PRODUCT


def test_python_and_code_of_another_engine_are_not_looked_at() -> None:
    for changes in ({"file": "a.sql", "writer": "external"}, {"file": "a.py"}):
        ref = TransformRef(name="daily", version="1.0.0", **changes)
        require_resolved_columns({ref.file: "no query at all ("}, ref, [])


def _pin(name: str, **columns: str) -> SourcePin:
    return SourcePin(
        name=name, role="source", table=f"bronze.{name}", requested="", snapshot_id=1, mode="tag",
        columns=tuple(
            Column(field_id=number, name=column, type=kind)
            for number, (column, kind) in enumerate(columns.items(), start=1)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("query", "sources"),
    [
        (
            "WITH a AS (SELECT day, sum(x.amount * r.rate) AS s FROM src x JOIN rates r "
            "ON x.cur = r.cur GROUP BY day) SELECT day, s AS amount, 1 AS one FROM a",
            {"day": ("src.day",), "amount": ("rates.rate", "src.amount"), "one": ()},
        ),
        ("SELECT day FROM src UNION ALL SELECT day FROM src", {"day": ("src.day",)}),
        ("SELECT day, amount FROM src UNION SELECT current_date AS day, rate FROM rates",
         {"day": ("src.day",), "amount": ("rates.rate", "src.amount")}),
        ("SELECT * FROM src",
         {"day": ("src.day",), "amount": ("src.amount",), "cur": ("src.cur",)}),
        ("SELECT s.*, r.rate FROM src s JOIN rates r USING (cur)",
         {"day": ("src.day",), "amount": ("src.amount",), "cur": ("src.cur",),
          "rate": ("rates.rate",)}),
        ("WITH a AS (SELECT * FROM src) SELECT day, amount + 1 AS amount FROM a",
         {"day": ("src.day",), "amount": ("src.amount",)}),
        ("SELECT day, count(*) AS n FROM src GROUP BY day", {"day": ("src.day",), "n": ()}),
        ("SELECT day, sum(amount) OVER (PARTITION BY cur ORDER BY day) AS total FROM src",
         {"day": ("src.day",), "total": ("src.amount", "src.cur", "src.day")}),
        ("SELECT day, row_number() OVER (ORDER BY amount) AS place FROM src",
         {"day": ("src.day",), "place": ("src.amount",)}),
        ("SELECT CASE WHEN cur = 'EUR' THEN amount ELSE 0 END AS euros FROM src",
         {"euros": ("src.amount", "src.cur")}),
        ("SELECT amount * (SELECT max(rate) FROM rates) AS most FROM src",
         {"most": ("rates.rate", "src.amount")}),
        ("SELECT x.day FROM (SELECT day, amount FROM src WHERE amount > 0) x",
         {"day": ("src.day",)}),
        ("SELECT day FROM src s WHERE EXISTS (SELECT 1 FROM rates r WHERE r.cur = s.cur)",
         {"day": ("src.day",)}),
        ("SELECT cast(amount AS decimal(10, 2)) AS amount, upper(cur) AS cur FROM src",
         {"amount": ("src.amount",), "cur": ("src.cur",)}),
        ("SELECT DISTINCT l.day, r.amount FROM src l LEFT JOIN src r ON l.day = r.day",
         {"day": ("src.day",), "amount": ("src.amount",)}),
        ("WITH a AS (SELECT cur, amount FROM src), b AS (SELECT cur, amount * 2 AS d FROM a) "
         "SELECT cur, d FROM b", {"cur": ("src.cur",), "d": ("src.amount",)}),
        ("SELECT * FROM unknown", {}),
        ("DELETE FROM src", {}),
    ],
    ids=[
        "join in a CTE", "union", "union of two inputs", "star", "star of a join", "star in a CTE",
        "count of all", "window", "rank", "case", "scalar query", "nested query", "semi-join",
        "casts", "self-join", "chain of CTEs", "star of the unknown", "no query",
    ],
)  # fmt: skip
def test_the_input_columns_of_each_column_are_read_from_the_query(query, sources):
    pins = [
        _pin("src", day="date", amount="long", cur="string"),
        _pin("rates", cur="string", rate="double"),
    ]  # fmt: skip
    assert column_sources(query, pins) == sources
