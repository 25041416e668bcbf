"""SQL views of accepted versions on a real REST catalog, without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchViewError

from lakehouse_backfill.adapters.iceberg.views import RestViews
from lakehouse_backfill.errors import Unsupported
from tests.support.lakes.tables import TARGET, Kit, row

pytestmark = pytest.mark.req("U13")
VIEW = "silver.shown"


def _texts(kit: Kit) -> dict[str, str]:
    held = kit.catalog.load_view(VIEW)
    return {item.root.dialect: item.root.sql for item in held.current_version().representations}


@pytest.fixture
def kit(named: Callable[[str], dict[str, str]], tmp_path: Path) -> Kit:
    named("rest")
    made = Kit(tmp_path)
    made.create(("d", "identity"))
    made.append(row(1, "2013-02-01"))
    return made


def test_one_view_holds_both_dialects(kit: Kit) -> None:
    RestViews(kit.catalog).show(VIEW, TARGET, 17)
    assert _texts(kit) == {
        "spark": "SELECT * FROM `lake`.`silver`.`t` VERSION AS OF 17",
        "trino": 'SELECT * FROM "lake"."silver"."t" FOR VERSION AS OF 17',
    }


@pytest.mark.req("U5")
def test_a_view_of_a_table_of_versions_shows_the_accepted_rows(kit: Kit) -> None:
    RestViews(kit.catalog).show(VIEW, TARGET, None, accepted_only=True)
    assert _texts(kit) == {
        "spark": "SELECT * FROM `lake`.`silver`.`t` WHERE output_status = 'accepted'",
        "trino": 'SELECT * FROM "lake"."silver"."t" WHERE output_status = \'accepted\'',
    }


def test_a_view_moves_by_one_commit_and_readers_see_old_or_new(kit: Kit) -> None:
    views = RestViews(kit.catalog)
    views.show(VIEW, TARGET, 1)
    seen: list[Any] = []

    def read() -> None:
        for _ in range(40):
            try:
                seen.append(_texts(kit)["spark"].rpartition(" ")[2])
            except NoSuchViewError:
                seen.append(None)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for number in range(2, 12):
            views.show(VIEW, TARGET, number)
        reading.result()
    assert None not in seen
    assert seen == sorted(seen, key=int)
    assert _texts(kit)["spark"].endswith("VERSION AS OF 11")


def test_the_same_again_makes_no_version(kit: Kit) -> None:
    views = RestViews(kit.catalog)
    views.show(VIEW, TARGET, None)
    views.show(VIEW, TARGET, None)
    held = kit.catalog.load_view(VIEW)
    assert (len(held.versions), _texts(kit)["trino"]) == (1, 'SELECT * FROM "lake"."silver"."t"')


def test_a_catalog_without_views_is_named(
    named: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    named("seaweed")
    made = Kit(tmp_path)
    made.create(("d", "identity"))
    with pytest.raises(Unsupported, match="keeps no views"):
        RestViews(made.catalog).show(VIEW, TARGET, None)
