"""A commit that a wrong clock would put before the table's last one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import EnvironmentDown


@pytest.mark.parametrize(
    ("space", "ahead_s", "is_refused"),
    [("silver", 3600, True), ("silver", 30, False), ("lakehouse_backfill", 3600, False)],
)
def test_no_commit_goes_before_the_last_one_of_a_table_that_others_read(
    tmp_path: Path, space: str, ahead_s: int, is_refused: bool
) -> None:
    settings = {
        "name": "lake", "type": "sql", "uri": "sqlite:///${project}/catalog.db",
        "warehouse": "file://${project}/warehouse",
    }  # fmt: skip
    catalog = open_catalog(Profile(catalog=settings), tmp_path)
    catalog.create_namespace(space)
    catalog.create_table(f"{space}.t", Schema(NestedField(1, "id", LongType())))
    table = catalog.load_table(f"{space}.t")
    # As of a writer whose clock is ahead.
    later = int((time.time() + ahead_s) * 1000)
    table.metadata = table.metadata.model_copy(update={"last_updated_ms": later})
    change = table.transaction().set_properties({"a": "b"})
    if is_refused:
        with pytest.raises(EnvironmentDown, match=r"silver\.t: its last commit is 3,[56]\d\d s"):
            change.commit_transaction()
    else:
        change.commit_transaction()
    assert catalog.load_table(f"{space}.t").properties.get("a") == (None if is_refused else "b")
