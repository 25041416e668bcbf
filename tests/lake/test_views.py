"""SQL views of accepted versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill.adapters.spark.views import SparkViews
from lakehouse_backfill.errors import NotFound

if TYPE_CHECKING:
    from tests.support.spark.lake import Lake


def _rows(lake: Lake) -> list[tuple[int]]:
    return [tuple(row) for row in lake.sql("SELECT a FROM {ns}.seen ORDER BY a").collect()]


@pytest.mark.req("U13")
def test_a_view_shows_the_version_that_it_was_pointed_at_and_then_another(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.t (a bigint)")
    lake.sql("INSERT INTO {ns}.t VALUES (1)")
    first = lake.head("t")
    lake.sql("INSERT INTO {ns}.t VALUES (2)")
    views = SparkViews(lambda: lake.tables)
    views.show(lake.table("seen"), lake.table("t"), first)
    assert _rows(lake) == [(1,)]
    views.show(lake.table("seen"), lake.table("t"), None)
    assert _rows(lake) == [(1,), (2,)]
    lake.sql("INSERT INTO {ns}.t VALUES (3)")
    assert _rows(lake) == [(1,), (2,), (3,)]


@pytest.mark.req("U5")
def test_a_view_of_a_table_of_versions_shows_the_accepted_rows(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.t (a bigint, output_status string)")
    lake.sql("INSERT INTO {ns}.t VALUES (1, 'superseded'), (2, 'accepted'), (3, NULL)")
    views = SparkViews(lambda: lake.tables)
    views.show(lake.table("seen"), lake.table("t"), None, accepted_only=True)
    assert [row[0] for row in _rows(lake)] == [2]


@pytest.mark.req("U13")
def test_a_view_of_a_missing_table_is_refused_and_the_old_one_stays(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.t (a bigint)")
    views = SparkViews(lambda: lake.tables)
    views.show(lake.table("seen"), lake.table("t"), None)
    with pytest.raises(NotFound):
        views.show(lake.table("seen"), lake.table("gone"), None)
    assert _rows(lake) == []
