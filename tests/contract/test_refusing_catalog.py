"""On a catalog that refuses new UUIDs and data paths, runs write to branches (X12)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.capabilities import keep_capabilities, probe_capabilities
from lakehouse_backfill.adapters.iceberg.catalog import load_table
from lakehouse_backfill.adapters.iceberg.commit.multi_table import (
    MULTI_TABLE_ENDPOINT,
    commit_tables,
)
from lakehouse_backfill.adapters.iceberg.rest.offers import UNREGISTER_ENDPOINT
from lakehouse_backfill.core.planning.target.isolation import choose_isolation
from lakehouse_backfill.errors import Unsupported
from tests.support.lakes.refusing import refuse_as_lakekeeper
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import TableChange

pytestmark = pytest.mark.req("X12")


def test_the_probes_find_it_and_a_branch_is_chosen(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    assert kit.shadows.capabilities() is None
    refused = refuse_as_lakekeeper(kit.catalog)
    found = probe_capabilities(kit.catalog, "shadow")
    # The 409 is no lost race: each is asked for once, the path outside of the table and inside.
    assert refused == ["uuid", "data path", "data path"]
    assert (found.new_uuid, found.data_path, found.clones) == (False, False, False)
    assert (found.register_table, found.branches) == (True, True)
    keep_capabilities(kit.catalog, "shadow", found)
    kept = Kit(tmp_path).shadows.capabilities()
    assert kept == found.model_copy(update={"seen": {}})
    assert choose_isolation("auto", kept).kind == "branch"


def test_references_that_are_accepted_and_not_kept_are_found(tmp_path: Path) -> None:
    """As Nessie 0.99 answers: a tag, or a branch, is taken and never there."""
    catalog = Kit(tmp_path).catalog
    commit = catalog.commit_table

    def commit_without_references(table: Table, requirements: Any, updates: Any) -> Any:
        kept = tuple(one for one in updates if getattr(one, "ref_name", "main") == "main")
        return commit(table, requirements, kept)

    vars(catalog)["commit_table"] = commit_without_references
    found = probe_capabilities(catalog, "shadow")
    assert (found.tags, found.branches, found.branch_commits) == (False,) * 3
    assert found.seen["tags"] == "a tag was accepted and is not there"
    assert found.seen["branches"] == "a branch was accepted and is not there"


def test_server_side_planning_that_is_asked_for_by_the_table_is_found(tmp_path: Path) -> None:
    catalog = Kit(tmp_path).catalog
    load = catalog.load_table

    def load_configured(identifier: str) -> Table:
        table = load(identifier)
        table.config = {"scan-planning-mode": "server"}
        return table

    vars(catalog)["load_table"] = load_configured
    found = probe_capabilities(catalog, "shadow")
    assert not found.client_planning
    assert found.seen["client_planning"] == "the server asks for scan-planning-mode: server"


class Offering:
    """A catalog that offers, as REST servers do, what it does in a way of its own."""

    _supported_endpoints = (MULTI_TABLE_ENDPOINT, UNREGISTER_ENDPOINT)

    def __init__(self, catalog: Any, mode: str) -> None:
        self._inner, self._mode = catalog, mode

    def __getattr__(self, name: str) -> Any:
        if name == "engine":  # that of a SQL catalog
            raise AttributeError(name)
        return getattr(self._inner, name)

    def commit_tables(self, changes: list[TableChange]) -> None:
        if self._mode == "honest":
            return commit_tables(self._inner, changes)
        for change in changes[: 1 if self._mode == "half" else None]:
            self._inner.commit_table(change.table, change.requirements, change.updates)
        return None

    def unregister_table(self, name: str) -> None:
        table = self._inner.load_table(name)
        if self._mode != "half":
            self._inner.drop_table(name)
        if self._mode == "one by one":
            table.io.delete(table.metadata_location)


@pytest.mark.parametrize(
    ("mode", "together", "unregistered"),
    [
        ("honest", "", ""),
        ("half", "is not in both", "the table is still there"),
        ("one by one", "refused changed one of two tables", "the table's files are gone"),
    ],
)
def test_what_a_catalog_offers_is_believed_only_when_it_was_done(
    tmp_path: Path, mode: str, together: str, unregistered: str
) -> None:
    kit = Kit(tmp_path)
    found = probe_capabilities(cast("Catalog", Offering(kit.catalog, mode)), "shadow")
    assert together in found.seen.get("multi_table_commit", "")
    assert unregistered in found.seen.get("unregister", "")
    assert (found.multi_table_commit, found.unregister) == (not together, not unregistered)
    assert kit.catalog.list_tables("shadow") == []
    assert not list((tmp_path / "lake").rglob("*probe*/**/*.*"))


def test_a_run_is_published_and_rolled_back_there(tmp_path: Path) -> None:
    kit = Kit(tmp_path, isolation="branch")
    kit.create_days()
    before = kit.rows()
    refused = refuse_as_lakekeeper(kit.catalog)
    request = kit.stage(DAY, {DAYS[1]: [row(7, DAYS[1], "new")]})
    kit.shadows.fence(request.shadow, 1)
    kit.append(row(8, DAYS[2], "live"))
    swap = kit.publisher.adopt(request)
    assert [one[0] for one in kit.rows()] == [0, 2, 7, 8]
    kit.publisher.revert(kit.revert_request(swap, request.scope))
    assert kit.rows() == [*before, kit.rows()[-1]]
    kit.shadows.retire(request.shadow)
    assert refused == []
    location = load_table(kit.catalog, TARGET).location()
    assert all(path.startswith(location) for path in _data_files(kit))


def _data_files(kit: Kit) -> list[str]:
    found = load_table(kit.catalog, TARGET).inspect.all_files().to_pylist()
    return [str(one["file_path"]) for one in found]


def test_a_clone_there_is_refused_before_a_chunk_is_written(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create_days()
    refuse_as_lakekeeper(kit.catalog)
    kit.shadows.open(TARGET, kit.head(), "shadow.r1", {})
    with pytest.raises(Unsupported, match="new UUID") as refusal:
        kit.shadows.fence("shadow.r1", 1)
    assert "isolation: auto" in refusal.value.fix
