"""A server that offers to unregister tables, and does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows

UNREGISTER = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/unregister"


@pytest.mark.parametrize(("kind", "status"), [(NoSuchTableError, 404), (RESTError, 406)])
def test_a_shadow_that_stays_is_marked_as_retired(
    tmp_path: Path, kind: type[Exception], status: int
):
    class Refusing(SqlCatalog):
        _supported_endpoints = frozenset({UNREGISTER})

        def unregister_table(self, table: str) -> None:
            cause: Any = Exception(table)
            cause.response = SimpleNamespace(status_code=status)
            raise kind("refused") from cause

    catalog = Refusing("lake", uri="sqlite:///:memory:", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("silver")
    catalog.create_table("silver.t", Schema(NestedField(1, "id", LongType())))
    shadows = IcebergShadows(catalog, "shadows")
    shadows.open("silver.t", None, "shadows.t", {})
    shadows.retire("shadows.t")
    properties = catalog.load_table("shadows.t").metadata.properties
    assert meta.RETIRED_PROPERTY in properties
    assert shadows.list() == ()
