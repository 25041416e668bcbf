"""Drafts of contracts and run manifests, written into the project's folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

from lakehouse_backfill.adapters.local.keys import find_key
from lakehouse_backfill.config.drafts import choose_scope_field, draft_contract, draft_manifest
from lakehouse_backfill.config.extents import check_range
from lakehouse_backfill.config.places import CONTRACTS_FOLDER
from lakehouse_backfill.config.ready_expectations import draft_suite
from lakehouse_backfill.config.scaffold import write_new_file
from lakehouse_backfill.config.transforms import newest_transform
from lakehouse_backfill.domain.scope import PartitionTransform
from lakehouse_backfill.domain.table import is_table_name
from lakehouse_backfill.errors import NotFound, Unsupported

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.wiring import Adapters

_NOT_IN_FILE_NAMES = re.compile(r"[^\w.-]")


def add_product(wiring: Adapters, table: str, owner: str) -> dict[str, Any]:
    """Draft a contract file from a table's metadata, with a tested key and a first suite.

    A suite file that is there already is named, and left as it is.

    Raises NotFound, Unsupported for a table without partitions to restate by, ConfigError when the
    file is there.
    """
    info = wiring.bench.tables.describe(table) if is_table_name(table) else None
    if info is None:
        raise NotFound(f"{table} does not exist", fix="name an existing namespace.table")
    if not info.partitioning:
        raise Unsupported(
            f"{table} is not partitioned, so there is nothing to restate by",
            fix="partition the table first, e.g. by day of its time column",
        )
    if not any(item.transform in get_args(PartitionTransform) for item in info.partitioning):
        fields = ", ".join(f"{item.transform}({item.column})" for item in info.partitioning)
        raise Unsupported(
            f"{table} is partitioned by {fields} only, so there is nothing to restate by",
            fix=f"add a partition field that is one of {', '.join(get_args(PartitionTransform))}, e.g. the "
            "day of its time column",
        )
    key = find_key(wiring.catalog, info)
    required = [column.name for column in info.columns if column.required]
    suite, name = draft_suite(table, key, required), f"expectations/{table}.json"
    draft = draft_contract(info, key, owner, suites=[name] if suite else [])
    path = wiring.folder / CONTRACTS_FOLDER / f"{table}.yaml"
    write_new_file(path, draft.text)
    if suite and not (wiring.folder / name).exists():
        write_new_file(wiring.folder / name, suite)
    return {
        "file": str(path),
        "suite": str(wiring.folder / name) if suite else None,
        "key": list(key),
        "questions": list(draft.questions),
    }


def add_manifest(
    wiring: Adapters,
    product: str,
    extent: tuple[str, str],
    reason: str,
    reason_code: str,
    requested_by: str,
) -> dict[str, Any]:
    """Draft a run manifest file for the half-open `extent` of a product's partitions.

    Raises NotFound without a contract, ConfigError when the range is wrong or the file is there.
    """
    contract, job = wiring.contract(product), product.rpartition(".")[2]
    column = choose_scope_field(contract).column
    types = {item.name: item.type for item in contract.columns}
    check_range(types.get(column, ""), *extent)
    found = newest_transform(wiring.folder, job)
    draft = draft_manifest(contract, *extent, reason, reason_code, requested_by, transform=found)
    name = _NOT_IN_FILE_NAMES.sub("_", "restate-{}-{}".format(*extent))
    path = wiring.folder / "jobs" / job / f"{name}.yaml"
    write_new_file(path, draft.text)
    return {"file": str(path), "questions": list(draft.questions)}
