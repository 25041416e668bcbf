"""What `doctor` finds out about each catalog, by trying."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.iceberg.capabilities import probe_capabilities
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from tests.support.lakes.catalogs import catalog_of

FULL = Capabilities(
    tags=True, branches=True, branch_commits=True, register_table=True,
    built_clones=True, new_uuid=True, data_path=True, views=True, multi_table_commit=True,
)  # fmt: skip
#: PyIceberg's SQL catalog has no request for several tables, and refuses a sequence number that a
#: commit on a branch took meanwhile.
SQL = FULL.model_copy(update={"branch_commits": False})


@pytest.mark.parametrize(
    ("kind", "expected"), [("postgres", SQL), ("rest", FULL), ("s3", SQL)], ids=str
)
def test_a_catalog_is_judged_by_what_it_does(
    named, tmp_path: Path, kind: str, expected: Capabilities
):
    named(kind)
    catalog = catalog_of(tmp_path)

    found = probe_capabilities(catalog, "shadow")

    assert found.model_copy(update={"seen": {}}) == expected
    assert (found.overlap, found.rights_beside, found.client_planning) == (True,) * 3
    assert set(found.seen) == {
        name for name, does in expected.model_dump().items() if does is False
    }
    assert catalog.list_tables("shadow") == []
