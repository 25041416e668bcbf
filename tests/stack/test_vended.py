"""Where each table's credentials end at its prefix, runs write to branches and stay there (X12)."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.capabilities import probe_capabilities
from lakehouse_backfill.core.planning.target.isolation import choose_isolation
from lakehouse_backfill.errors import CatalogDown
from tests.stack.catalogs import Catalogs
from tests.support.lakes.catalogs import NAMES_CATALOG, catalog_of
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

pytestmark = pytest.mark.req("X12")


def named(catalogs: Catalogs, folder: Path, lasts_s: float = 3600.0) -> None:
    properties = {"name": "lake", **catalogs.vended([], lasts_s)}
    (folder / NAMES_CATALOG).write_text(json.dumps(properties), encoding="utf-8")


def test_doctor_finds_that_rights_end_at_a_table_and_a_branch_is_chosen(
    catalogs: Catalogs, tmp_path: Path
) -> None:
    named(catalogs, tmp_path)
    found = probe_capabilities(catalog_of(tmp_path), "shadow")
    assert (found.register_table, found.rights_beside) == (False, False)
    assert "ACCESS_DENIED" in found.seen["register_table"]
    assert "files outside of a table's location" in found.seen["rights_beside"]
    assert (found.built_clones, found.new_uuid, found.branches, found.tags) == (True,) * 4
    # All that was refused is what was tried out beside the probe's table.
    beside = [re.search("_(shadow|built)/", place) for _, _, place, _ in catalogs.door.refused()]
    assert beside
    assert all(beside)
    chosen = choose_isolation("auto", found)
    assert chosen.kind == "branch"
    assert "end at its location; live writers try again" in chosen.why


def test_a_clone_there_is_refused_with_what_helps(catalogs: Catalogs, tmp_path: Path) -> None:
    named(catalogs, tmp_path)
    kit = Kit(tmp_path)
    kit.create_days(DAYS)
    with pytest.raises(CatalogDown, match="the credentials do not reach a file") as refused:
        kit.shadows.open(TARGET, kit.head(), "shadow.r1", {})
    assert "isolation: auto" in refused.value.fix
    assert kit.live.list_tables("shadow") == []


def test_credentials_that_end_during_a_commit_are_renewed(
    catalogs: Catalogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasts_s = 2.0
    named(catalogs, tmp_path, lasts_s)
    kit = Kit(tmp_path, isolation="branch")
    kit.create_days(DAYS)
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    load = kit.catalog.load_table

    def load_long_ago(name: Any) -> Any:
        table = load(name)
        time.sleep(lasts_s + 0.1)
        return table

    monkeypatch.setattr(kit.catalog, "load_table", load_long_ago)
    keys = len(catalogs.door.grants)
    assert kit.publisher.adopt(request).rows_added == 1
    assert len(catalogs.door.grants) > keys
    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]
    assert catalogs.door.refused() == []
