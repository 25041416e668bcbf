"""Private names of PyIceberg that the product uses: an upgrade fails here, with their list."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.typedef import Record

PACKAGE = Path(__file__).resolve().parents[4] / "lakehouse_backfill"
#: Where each name lives in PyIceberg, and what it is used for.
USED = {
    "pyiceberg.catalog.rest:RestCatalog._create_session": "idempotency keys and retries",
    "pyiceberg.catalog.rest:RestCatalog._create_legacy_oauth2_auth_manager": "secrets in answers",
    "pyiceberg.catalog.rest:RestCatalog._response_to_table": "vended credentials are renewed",
    "pyiceberg.catalog.rest:RestCatalog._refresh_token": "a new token for unregister",
    "pyiceberg.catalog.rest:RestCatalog._load_file_io": "files of a copy before it is registered",
    "pyiceberg.catalog.sql:SqlCatalog._delete_old_metadata": "one commit of several tables",
    "pyiceberg.catalog.sql:SqlCatalog._update_and_stage_table": "one commit of several tables",
    "pyiceberg.catalog.sql:SqlCatalog._write_metadata": "one commit of several tables",
    "pyiceberg.catalog.rest:RestCatalog._split_identifier_for_path": "unregister",
    "pyiceberg.catalog.rest.response:_handle_non_200_response": "unregister",
    "pyiceberg.expressions.visitors:_InclusiveMetricsEvaluator": "bounds of files",
    "pyiceberg.io.pyarrow:_dataframe_to_data_files": "data files of rows",
    "pyiceberg.manifest:ManifestWriterV2._meta": "manifests of delete files",
    "pyiceberg.manifest:ManifestWriterV2._with_partition": "manifests of delete files",
    "pyiceberg.manifest:_inherit_from_manifest": "entries of manifests",
    "pyiceberg.table:Table._check_uuid": "fences of branches",
    "pyiceberg.table:Table._do_commit": "one commit of several updates",
    "pyiceberg.table:Transaction._apply": "a tag in the commit of its snapshot",
    "pyiceberg.table:ManifestGroupPlanner.plan_manifest_entries": "parallel reads of manifests",
    "pyiceberg.table.update:_TableMetadataUpdateContext": "metadata after an update",
    "pyiceberg.table.update:_apply_table_update": "metadata after an update",
    "pyiceberg.table.update.schema:UpdateSchema._apply": "columns before they are committed",
}  # fmt: skip
#: Attributes of instances: the class that declares or sets them, and what they are used for.
ON_INSTANCES = {
    "pyiceberg.catalog.rest:RestCatalog._session": "unregister, views, commits of several tables",
    "pyiceberg.catalog.rest:RestCatalog._supported_endpoints": "what a server offers",
    "pyiceberg.table:DataScan._manifest_planner": "parallel reads of manifests",
    "pyiceberg.table:Transaction._updates": "a tag in the commit of its snapshot",
    "pyiceberg.typedef:Record._data": "copies of entries of manifests",
}
#: Of ours, used within one module, and of named tuples.
OURS = {"_fields", "_load", "_name", "_identifier", "_make_compute_ports"}


def resolve(place: str) -> Any:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("place", USED)
def test_a_private_name_is_still_there(place: str) -> None:
    assert callable(resolve(place)) or resolve(place) is not None, USED[place]


@pytest.mark.parametrize("place", ON_INSTANCES)
def test_a_private_attribute_is_still_set(place: str) -> None:
    owner, _, name = place.rpartition(".")
    source = inspect.getsource(resolve(owner))
    declared = re.search(rf"\b(def |self\.)?{name}\b\s*[:=(]", source)
    assert declared, ON_INSTANCES[place]


def test_a_record_holds_its_values_in_their_order() -> None:
    assert list(Record(1, "a")._data) == [1, "a"]


def private_names() -> set[str]:
    """Find private names that modules import from PyIceberg, or read from another object."""
    found: set[str] = set()
    for folder in ("iceberg", "local"):
        for file in (PACKAGE / "adapters" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg"):
                    found |= {one.name for one in node.names if one.name.startswith("_")}
                if isinstance(node, ast.Attribute) and _is_foreign(node):
                    found.add(node.attr)
    return found


def _is_foreign(node: ast.Attribute) -> bool:
    is_private = node.attr.startswith("_") and not node.attr.startswith("__")
    owner = node.value.id if isinstance(node.value, ast.Name) else ""
    return is_private and owner not in ("self", "cls")


def test_the_list_is_whole() -> None:
    listed = {place.replace(":", ".").rpartition(".")[2] for place in (*USED, *ON_INSTANCES)}
    assert private_names() - listed - OURS == set()
