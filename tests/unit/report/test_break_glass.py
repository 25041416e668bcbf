"""Break-glass programs and the next steps of a run."""

from __future__ import annotations

import html
import re
import shlex
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from lakehouse_backfill.domain.partitions import WHOLE_TABLE_FIELD, RowRange, Scope, ScopeField
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.report import break_glass
from lakehouse_backfill.report.break_glass import pyiceberg_program
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.page import render_section
from tests.support.examples.plans import a_publication

FIELD = ScopeField(column="day", transform="identity", type="date")


def publication(before: int | None, field: ScopeField, *labels: str) -> Publication:
    return a_publication(
        1, product="silver.t", token="t" * 32, run_id="bf-1", table="silver.t", snapshot_id=2,
        before_snapshot_id=before, scope=Scope(field=field, partitions=labels),
    )  # fmt: skip


def rows(day: str, value: int) -> pa.Table:
    days = pa.array([day], pa.string()).cast(pa.date32())
    return pa.table({"day": days, "value": pa.array([value], pa.int64())})


class Restored:
    """A table whose state of before is restored by the printed program."""

    def __init__(self, catalog: SqlCatalog, *before: pa.Table) -> None:
        self.catalog = catalog
        self.table = catalog.create_table("silver.t", schema=rows("2013-02-15", 1).schema)
        if before:
            self.table.append(pa.concat_tables(before))
        snapshot = self.table.current_snapshot()
        self.before = snapshot.snapshot_id if snapshot else None

    def run(self, *labels: str, field: ScopeField = FIELD) -> list[tuple[str, int]]:
        """Run the program, as a user would; give the rows by day."""
        program = pyiceberg_program(publication(self.before, field, *labels))
        exec("\n".join(program or ()), {})
        return sorted((row["day"].isoformat(), row["value"]) for row in self.rows())

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            self.catalog.load_table("silver.t").scan().to_arrow().to_pylist()
        )
        return found


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    """A lake that `load_catalog` gives to the printed program, as a user's settings would."""
    (tmp_path / "w").mkdir()
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    made.create_namespace("silver")
    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", lambda _name: made)
    return made


@pytest.mark.req("O4")
def test_the_printed_program_restores_old_rows_and_keeps_live_ones(catalog: SqlCatalog) -> None:
    found = Restored(catalog, rows("2013-02-14", 10), rows("2013-02-15", 1))
    found.table.overwrite(rows("2013-02-15", 2), overwrite_filter="day = '2013-02-15'")
    found.table.append(rows("2013-03-01", 30))
    restored = found.run("2013-02-15", "2013-02-16")
    assert restored == [("2013-02-14", 10), ("2013-02-15", 1), ("2013-03-01", 30)]


@pytest.mark.req("O4", "U16")
def test_the_printed_program_restores_a_whole_table(catalog: SqlCatalog) -> None:
    found = Restored(catalog, rows("2013-02-14", 10), rows("2013-02-15", 1))
    found.table.overwrite(rows("2013-02-15", 2))
    assert found.run("all", field=WHOLE_TABLE_FIELD) == [("2013-02-14", 10), ("2013-02-15", 1)]
    statements = break_glass.sql_statements(publication(7, WHOLE_TABLE_FIELD, "all")) or []
    assert statements[-1] == "WHERE true;"


@pytest.mark.req("O4", "U16")
def test_the_printed_program_finds_tables_and_fields_of_structs_by_odd_names(
    catalog: SqlCatalog,
) -> None:
    odd = pa.schema([("s", pa.struct([("x y", pa.string())])), ("value", pa.int64())])
    table = catalog.create_table(("silver", "it's a.`t`"), schema=odd)
    places = ({"x y": "EU"}, {"x y": "US"}, None)
    old, new = (
        [{"s": place, "value": number * factor} for number, place in enumerate(places, 1)]
        for factor in (1, 10)
    )
    table.append(pa.Table.from_pylist(old, odd))
    before = table.refresh().current_snapshot()
    table.overwrite(pa.Table.from_pylist(new, odd))
    field = ScopeField(column="s.x y", transform="identity", type="string", path=("s", "x y"))
    row = publication(before and before.snapshot_id, field, "EU", "null")
    row = row.model_copy(update={"table": "silver.`it's a.``t```"})
    exec("\n".join(pyiceberg_program(row) or ()), {})
    found = catalog.load_table(("silver", "it's a.`t`")).scan().to_arrow().to_pylist()
    assert sorted(one["value"] for one in found) == [1, 3, 20]


@pytest.mark.req("O4", "U16")
def test_a_column_with_a_dot_in_its_name_has_the_way_back_in_sql_only(
    document: dict[str, Any],
) -> None:
    # PyIceberg splits the names of filters at each dot when it writes.
    document["publication"]["scope"] = {
        "field": {"column": "a.b", "transform": "identity", "type": "string"},
        "partitions": ["EU"],
    }
    page = render_section(Dossier.model_validate(document), "next")
    assert "PyIceberg does not find columns with a dot in their name" in page
    (sql,) = blocks(document)[2:]
    assert "REPLACE WHERE `a.b` = 'EU'" in sql


def test_only_the_tuples_of_a_run_are_put_back(catalog: SqlCatalog) -> None:
    by = ScopeField(column="value", transform="identity", type="long")
    values = Scope(field=by, partitions=("null", "1", "2"))
    field = FIELD.model_copy(update={"only": (values,)})
    restored = Restored(catalog, rows("2013-02-15", 1), rows("2013-02-16", 2))
    restored.table.append(pa.concat_tables([rows("2013-02-15", 2), rows("2013-02-15", 7)]))
    assert restored.run("2013-02-15", field=field) == [
        ("2013-02-15", 1), ("2013-02-15", 7), ("2013-02-16", 2),
    ]  # fmt: skip
    lines = break_glass.sql_statements(publication(1, field, "2013-02-15")) or []
    assert "\n".join(lines).count("(`value` IS NULL\n  OR `value` IN (1L, 2L))") == 2


def test_rows_of_a_bucket_have_no_program() -> None:
    bucket = ScopeField(column="day", transform="bucket[4]", type="date")
    assert pyiceberg_program(publication(7, bucket, "3")) is None
    assert break_glass.sql_statements(publication(7, bucket, "3")) is None


@pytest.mark.req("O4")
def test_partitions_that_had_no_rows_before_become_empty_in_one_commit(catalog: SqlCatalog) -> None:
    found = Restored(catalog, rows("2013-02-14", 10))
    found.table.append(pa.concat_tables([rows("2013-02-15", 1), rows("2013-02-17", 2)]))
    found.table.append(rows("2013-03-01", 30))
    commits = len(found.table.metadata.metadata_log)
    assert found.run("2013-02-15", "2013-02-17") == [("2013-02-14", 10), ("2013-03-01", 30)]
    assert len(catalog.load_table("silver.t").metadata.metadata_log) == commits + 1


@pytest.mark.req("O4")
def test_columns_that_were_moved_or_added_since_are_matched_by_name(catalog: SqlCatalog) -> None:
    found = Restored(catalog, rows("2013-02-15", 1))
    found.table.overwrite(rows("2013-02-15", 2), overwrite_filter="day = '2013-02-15'")
    with found.table.update_schema() as update:
        update.add_column("note", StringType())
        update.move_first("value")
    found.run("2013-02-15")
    assert found.rows() == [{"value": 1, "day": date(2013, 2, 15), "note": None}]


@pytest.mark.req("O4")
def test_a_product_that_was_empty_before_becomes_empty_there(catalog: SqlCatalog) -> None:
    found = Restored(catalog)
    found.table.append(pa.concat_tables([rows("2013-02-15", 1), rows("2013-03-01", 30)]))
    assert found.run("2013-02-15") == [("2013-03-01", 30)]


def test_hostile_partition_values_stay_values() -> None:
    region = ScopeField(column="region", transform="identity", type="string")
    hostile = "'); import os; os.abort(); ('"
    program = pyiceberg_program(publication(7, region, "EU", hostile, "null"))
    assert program is not None
    which = next(line for line in program if line.startswith("restated"))
    assert repr(hostile) in which
    assert "IsNull('region')" in which
    compile("\n".join(program), "program", "exec")


def test_a_program_that_nobody_would_read_is_not_printed() -> None:
    region = ScopeField(column="region", transform="identity", type="string")
    assert (
        pyiceberg_program(publication(7, region, *(f"r{number}" for number in range(51)))) is None
    )


def test_a_release_has_no_way_back() -> None:
    row = publication(7, FIELD, "2013-02-15").model_copy(update={"action": "release"})
    assert pyiceberg_program(row) is None


#: Plain characters and escapes: no quote, backslash, dollar, brace, line end of its own.
LITERAL = re.compile(r"'(?:[A-Za-z0-9 _.,:+\-/=()\[\]<>@#%&*!?|]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*'")
REGION = ScopeField(column="a`b", transform="identity", type="string")


def blocks(document: dict[str, Any]) -> list[str]:
    page = render_section(Dossier.model_validate(document), "next")
    found = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    return [html.unescape(block) for block in found]


@pytest.mark.req("O4")
def test_the_page_prints_the_same_rollback_in_pyiceberg_and_in_sql(document) -> None:
    python, sql = blocks(document)[2:]
    days = "`arrival_date` >= DATE '2013-02-15' AND `arrival_date` < DATE '2013-04-01'"
    assert "snapshot_id=8080" in python
    assert sql.splitlines() == [
        "-- NAME: the catalog, as your Spark session calls it",
        "USE NAME;",
        "REFRESH TABLE `silver`.`arrivals_daily`;",
        "-- goes by position: when columns were moved since, use the PyIceberg program",
        "INSERT INTO `silver`.`arrivals_daily`",
        f"REPLACE WHERE ({days})",
        "SELECT * FROM `silver`.`arrivals_daily` VERSION AS OF 8080",
        f"WHERE ({days});",
    ]


@pytest.mark.req("O4")
def test_a_pinned_product_gets_what_to_read_and_no_program(document: dict[str, Any]) -> None:
    document["plan"]["resolved"]["contract"]["publication"] = "pinned"
    document["publication"] |= {"table": "lhb_shadow.x", "snapshot_id": 42}
    page = render_section(Dossier.model_validate(document), "next")
    assert "No table was changed, so none has to be changed back." in page
    assert "Readers read <code>lhb_shadow.x</code> at snapshot <code>42</code> now." in page
    assert blocks(document)[2].splitlines()[1:] == [
        "catalog.load_table('silver.arrivals_daily').scan(snapshot_id=7171)",
        "-- Spark SQL",
        "SELECT * FROM `silver`.`arrivals_daily` VERSION AS OF 7171;",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"publication": None}, "there is nothing to take back"),
        ({"run": {"state": "rolled_back"}}, "the old partitions are there already"),
    ],
)
def test_where_nothing_is_to_be_taken_back_no_program_is_printed(document, change, said) -> None:
    document |= change | {"run": document["run"] | change.get("run", {})}
    assert said in render_section(Dossier.model_validate(document), "next")
    assert len(blocks(document)) == 2


def test_too_many_ranges_are_said_and_not_printed(document: dict[str, Any]) -> None:
    document["publication"]["scope"] = {
        "field": {"column": "r", "transform": "identity", "type": "string"},
        "partitions": [f"r{number}" for number in range(51)],
    }
    page = render_section(Dossier.model_validate(document), "next")
    assert "make no program that a person would read" in page
    assert "VERSION AS OF" not in page


@pytest.mark.req("O4")
def test_a_hostile_product_stays_one_word_of_a_command(document: dict[str, Any]) -> None:
    hostile = "x'; rm -rf ~ #"
    document["plan"]["resolved"]["manifest"]["product"] = "silver.t"
    found = Dossier.model_validate(document)
    object.__setattr__(found.plan.resolved.manifest, "product", hostile)
    block = html.unescape(
        re.findall(r"<pre><code>(.*?)</code></pre>", render_section(found, "next"), re.DOTALL)[0]
    )
    assert shlex.split(block.splitlines()[-2]) == ["lakehouse-backfill", "versions", hostile]


@pytest.mark.req("O4")
@pytest.mark.parametrize(
    "hostile",
    [
        "'; DROP TABLE t; --",
        "\\' OR 1=1 --",
        "${spark:x}",
        "a\nb",
        "\x1b[2J",
        "\u202e",
        "\U0001f600",
    ],
)
def test_a_hostile_value_is_one_literal_without_any_sign_of_its_own(hostile: str) -> None:
    text = break_glass.sql_condition(REGION, (RowRange("a`b", equals=hostile),))
    name, _, literal = text.partition(" = ")
    assert name == "`a``b`"
    assert LITERAL.fullmatch(literal)
    plain = re.sub(r"\\[uU]([0-9a-f]{8}|[0-9a-f]{4})", lambda m: chr(int(m[1], 16)), literal[1:-1])
    assert plain == hostile


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("date", date(2024, 1, 2), "DATE '2024-01-02'"),
        ("timestamp", datetime(2024, 1, 2, 3), "TIMESTAMP_NTZ '2024-01-02 03:00:00'"),  # noqa: DTZ001
        (
            "timestamptz", datetime(2024, 1, 2, 3, tzinfo=timezone.utc),
            "TIMESTAMP '2024-01-02 03:00:00+00:00'",
        ),
        ("int", -7, "-7"),
        ("long", 7, "7L"),
        ("string", "EU", "'EU'"),
    ],
)  # fmt: skip
def test_values_are_typed_literals(kind: Any, value: Any, text: str) -> None:
    field = ScopeField(column="c", transform="identity", type=kind)
    assert break_glass.sql_literal(field, value) == text
