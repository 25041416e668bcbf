"""A reader's own query on two states of a real table: what it can reach, and what is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.local.row_reader import LocalRowReader
from lakehouse_backfill.domain.catch_up import TableState
from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery
from lakehouse_backfill.errors import ConfigError
from tests.support.lakes.tables import TARGET, Kit, row

pytestmark = pytest.mark.req("U8")


class World:
    """Two states of a table."""

    def __init__(self, root: Path) -> None:
        self.kit = Kit(root)
        self.kit.create(("d", "identity"))
        self.old = self.kit.append(*(row(n, "2024-01-01") for n in range(10)))
        self.new = self.kit.append(row(10, "2024-01-02"))
        self.port = LocalRowReader(self.kit.catalog)

    def ask(self, sql: str, tolerance: float = 0.0, old: int | None = None) -> QueryComparison:
        query = ReaderQuery(reader="app", sql=sql, tolerance=tolerance)
        states = [TableState(table=TARGET, snapshot_id=n) for n in (old or self.old, self.new)]
        return self.port.compare_query(query, *states)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_equal_results_are_equal_and_have_one_digest(world: World) -> None:
    found = world.ask("SELECT id, v FROM product WHERE d = DATE '2024-01-01'")
    assert (found.equal, found.only_old, found.only_new) == (True, (), ())
    assert found.old_answer == found.new_answer
    assert (found.old_answer.rows, found.columns) == (10, ("id", "v"))


def test_rows_of_one_side_only_are_shown(world: World) -> None:
    found = world.ask("SELECT d, count(*) AS n FROM product GROUP BY d")
    assert (found.equal, found.only_old) == (False, ())
    assert found.only_new == ({"d": "2024-01-02", "n": 1},)
    assert found.old_answer.digest != found.new_answer.digest


def test_results_are_multisets(world: World) -> None:
    found = world.ask("SELECT 1 AS one FROM product")
    assert (found.equal, found.only_new) == (False, ({"one": 1},))


@pytest.mark.parametrize(("tolerance", "equal"), [(0.0, False), (0.05, False), (0.11, True)])
def test_inexact_columns_may_differ_by_the_tolerance(
    world: World, tolerance: float, *, equal: bool
) -> None:
    found = world.ask("SELECT 'all' AS what, count(*)::DOUBLE AS n FROM product", tolerance)
    assert found.equal is equal


def test_exact_columns_are_exact_whatever_the_tolerance(world: World) -> None:
    assert not world.ask("SELECT count(*) AS n, 1.5::DOUBLE AS x FROM product", 0.9).equal


def test_a_state_without_rows_has_the_columns_of_the_table(world: World) -> None:
    query = ReaderQuery(reader="app", sql="SELECT id FROM product")
    nothing = TableState(table=TARGET, snapshot_id=None)
    found = world.port.compare_query(
        query, nothing, TableState(table=TARGET, snapshot_id=world.new)
    )
    assert (found.old_answer.rows, found.new_answer.rows) == (0, 11)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT content FROM read_text('/etc/hostname')",
        "SELECT * FROM read_parquet('http://example.com/x.parquet')",
        "COPY product TO '/tmp/stolen.csv'",
        "ATTACH '/tmp/other.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "DROP TABLE product",
        "SELECT nothing FROM product",
        "not sql",
    ],
)
def test_a_query_reaches_nothing_but_the_product(world: World, sql: str) -> None:
    with pytest.raises(ConfigError) as refused:
        world.ask(sql)
    assert "app" in refused.value.problem
    assert "product" in refused.value.fix
