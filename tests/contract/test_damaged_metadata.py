"""A reader's error on a damaged file of a table's metadata names the file, whatever it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.iceberg.catalog import translate_errors
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import list_manifests
from lakehouse_backfill.adapters.pyiceberg_manifests import read_manifest_entries
from lakehouse_backfill.errors import DamagedFile
from tests.support.lakes.catalogs import catalog_of


@pytest.mark.parametrize("damage", [b"garbage" * 50, b""], ids=["garbage", "empty"])
@pytest.mark.parametrize("kind", ["manifest list", "manifest"])
def test_a_damaged_file_is_named_by_its_reader(tmp_path: Path, kind: str, damage: bytes) -> None:
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("a")
    rows = pa.table({"v": [1]})
    table = catalog.create_table("a.t", rows.schema)
    table.append(rows)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = list_manifests(table, snapshot)
    location = snapshot.manifest_list if kind == "manifest list" else manifest.manifest_path
    Path(location.removeprefix("file://")).write_bytes(damage)

    @translate_errors()
    def read() -> None:
        if kind == "manifest list":
            list_manifests(table, snapshot)
        else:
            read_manifest_entries(table.io, manifest)

    with pytest.raises(DamagedFile) as found:
        read()
    assert location in str(found.value)
