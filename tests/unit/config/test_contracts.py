"""What is wrong in a contract is named with file, line, field, and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.config.contracts import (
    find_contract,
    find_contracts_of_tables,
    list_contracts,
    load_contract,
)
from lakehouse_backfill.errors import ConfigError, Fault, NotFound
from tests.support.examples.declarations import CONTRACT, changed, project

pytestmark = pytest.mark.req("M2")

NAME = "catalog/contracts/silver.arrivals_daily.yaml"


def faults(folder: Path, text: str) -> tuple[Fault, ...]:
    path = project(folder) / NAME
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_contract(path)
    return caught.value.faults


def test_a_contract_is_found_by_its_product(tmp_path: Path) -> None:
    contract = find_contract(project(tmp_path), "silver.arrivals_daily")
    assert contract.key == ("arrival_date", "dest")
    assert list_contracts(tmp_path) == ("silver.arrivals_daily",)


MEASURE = "measures:\n  - {name: flights, sum: flights}"
COUNTED = "measures:\n  - {name: flights, counts_by: dest}\nsource_totals:\n  - "
WRONG = {
    "key twice": (
        ("key: [arrival_date, dest]", "key: [dest, dest]"),
        (6, "key[1]", "dest is in the key twice", "remove one"),
    ),
    "partitioned by no column": (
        ("  - column: arrival_date", "  - column: day"),
        (8, "partitioning[0].column", "is no column of this contract", "known: arrival_date, d"),
    ),
    "no such transform": (
        ("  - column: arrival_date", "  - {column: arrival_date, transform: week}"),
        (8, "partitioning[0].transform", "is 'week'", "write identity, year, month"),
    ),
    "a grain within a partition": (
        ("  - column: arrival_date", "  - {column: arrival_date, transform: month, grain: day}"),
        (8, "partitioning[0].grain", "is day: a day is finer than", "write a coarser unit"),
    ),
    "no such grain": (
        ("  - column: arrival_date", "  - {column: arrival_date, grain: week}"),
        (8, "partitioning[0].grain", "is 'week'", "write"),
    ),
    "a type with a length": (
        ("{name: dest, type: string}", "{name: dest, type: varchar(3)}"),
        (11, "columns[1].type", "is no Iceberg type", "write string"),
    ),
    "a column twice": (
        ("{name: dest, type: string}", "{name: arrival_date, type: string}"),
        (11, "columns[1].name", "arrival_date is listed twice", "remove one"),
    ),
    "a measure of both": (
        ("sum: flights}", "sum: flights, count: dest}"),
        (14, "measures[0]", "has sum and count", "give exactly one"),
    ),
    "counts by value without partitions": (
        (MEASURE, COUNTED + "{measure: flights, source: s, counts_by: x}"),
        (16, "source_totals[0]", "without partitions", "add `partition:`"),
    ),
    "counts by value against one total": (
        (MEASURE, COUNTED + "{measure: flights, source: s, sum: x, partition: d}"),
        (16, "source_totals[0]", "with a single total", "give `counts_by:`"),
    ),
    "counts by value with a sum": (
        (MEASURE, COUNTED + "{measure: flights, source: s, counts_by: x, sum: y, partition: d}"),
        (16, "source_totals[0]", "has sum and counts_by", "give one of them"),
    ),
    "a total of several measures": (
        (MEASURE, COUNTED + "{measure: [flights], source: s, sum: x}"),
        (16, "source_totals[0].measure", "is a list", "write text"),
    ),
    "counts by no column": (
        (MEASURE, "measures:\n  - {name: flights, counts_by: destt}"),
        (14, "measures[0].counts_by", "is no column of this contract", "did you mean `dest`?"),
    ),
    "a measure of nothing": (
        ("{name: flights, sum: flights}", "{name: flights}"),
        (14, "measures[0]", "has none of sum, count, counts_by", "give exactly one"),
    ),
    "a measure of no column": (
        ("sum: flights}", "sum: flight}"),
        (14, "measures[0].sum", "is no column", "did you mean `flights`?"),
    ),
    "a sum of text": (
        ("sum: flights}", "sum: dest}"),
        (14, "measures[0].sum", "sums dest, which is string", "use count"),
    ),
    "a threshold of nothing": (
        ("measure: flights", "measure: flghts"),
        (16, "thresholds[0].measure", "is no measure", "did you mean `flights`?"),
    ),
    "a suite outside": (
        ("expectations/arrivals.json", "../../arrivals.json"),
        (18, "suites[0].file", "outside the project", "without .."),
    ),
    "no columns": (
        ("columns:\n", "columns: []\nold:\n"),
        (9, "columns", "is empty", "write at least one entry"),
    ),
    "an unquoted boolean": (
        ("owner: ana", "owner: true"),
        (5, "owner", "is true (true/false)", "write text (quote it)"),
    ),
}


@pytest.mark.parametrize(
    ("change", "expected"), [pytest.param(*case, id=name) for name, case in WRONG.items()]
)
def test_a_wrong_contract_is_refused_with_line_field_and_fix(tmp_path, change, expected) -> None:
    line, field, problem, fix = expected
    found = faults(tmp_path, changed(CONTRACT, *change))
    (fault,) = [fault for fault in found if fault.field == field]
    assert (fault.file, fault.line) == (NAME, line)
    assert problem in fault.problem
    assert fix in fault.fix


def test_an_unknown_product_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        find_contract(project(tmp_path), "silver.arrivals_dayly")
    assert "did you mean `silver.arrivals_daily`?" in caught.value.problem
    assert caught.value.fix == (
        "the same command with silver.arrivals_daily; or, for another table: "
        "lakehouse-backfill product add silver.arrivals_dayly"
    )


@pytest.mark.parametrize("name", ["../../etc/passwd", "silver", "", "silver.a/../b", "a.b\n"])
def test_a_product_name_never_becomes_another_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        find_contract(project(tmp_path), name)


def test_a_contract_of_another_product_than_its_file_is_refused(tmp_path: Path) -> None:
    path = project(tmp_path) / NAME
    path.rename(path.with_name("gold.arrivals.yaml"))
    with pytest.raises(ConfigError, match=r"is silver\.arrivals_daily, but the file is called"):
        find_contract(tmp_path, "gold.arrivals")


def test_contracts_that_were_read_once_are_found_by_table_as_in_the_files(tmp_path: Path) -> None:
    folder = project(tmp_path)
    known = {one: find_contract(folder, one) for one in list_contracts(folder)}
    table = next(iter(known.values())).table
    shadow = f"lakehouse_backfill.{table.rpartition('.')[2]}__bf_1"
    tables = (table, shadow, "bronze.nobody")
    found = find_contracts_of_tables(tmp_path / "elsewhere", tables, known)
    assert found == find_contracts_of_tables(folder, tables)
    assert set(found) == {table, shadow}
