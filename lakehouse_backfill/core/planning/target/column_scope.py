"""Column scope (P9): a run restates some columns, and carries all others over from the base.

Here is decided whether a manifest may ask for it, and in which words people read of it. Rows are
found by the product's key; `core/validation/column_scope.py` judges what was staged.
"""

from __future__ import annotations

from collections.abc import Collection

from lakehouse_backfill.core.planning.target.schema_changes import (
    SCHEMA_CHANGE_FIELD,
    UnfitRule,
    require_fit,
)
from lakehouse_backfill.domain import table
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest, Target
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.errors import ConfigError

COLUMNS_FIELD = "target.columns"
#: Modes that publish whole partitions, which the base's rows and the new columns make together.
COLUMN_SCOPE_MODES = ("replace_partitions", "pointer_swap", "versioned", "shadow_only")

_UNFIT: tuple[UnfitRule, ...] = (
    (
        "target.publish_mode",
        lambda manifest: manifest.target.publish_mode not in COLUMN_SCOPE_MODES,
        "publish mode {mode} takes whole rows, not some of their columns",
        f"use one of: {', '.join(COLUMN_SCOPE_MODES)}",
    ),
    (
        "target.row_predicate",
        lambda manifest: manifest.target.row_predicate is not None,
        "either rows or columns are named; what would be proven unchanged is not the same",
        "name only one of the two; a transform may give other rows their values of before",
    ),
    (
        "transform.writer",
        lambda manifest: manifest.transform.writer == "external",
        "another engine writes whole rows into the shadow, and carries no columns over",
        "write job",
    ),
    (
        SCHEMA_CHANGE_FIELD,
        lambda manifest: any(step.add is None for step in manifest.target.schema_change),
        "a column that is widened or renamed changes, and is not restated",
        "widen and rename in a run of its own; columns may be added",
    ),
)


def require_fitting_columns(
    manifest: RunManifest, contract: Contract, base: TableInfo | None, scoped_by: str
) -> None:
    """Raise ConfigError or Unsupported when `target.columns` cannot name columns to restate."""
    names = manifest.target.columns
    if names is None:
        return
    require_fit(COLUMNS_FIELD, _UNFIT, manifest)
    if not names:
        raise ConfigError(
            f"{COLUMNS_FIELD} names no column",
            fix="name the columns to restate, or remove it and restate whole rows",
            field=COLUMNS_FIELD,
        )
    if not contract.key:
        raise ConfigError(
            f"{contract.product} has no key, so that nothing says which row gets which value",
            fix=f"write key in catalog/contracts/{contract.product}.yaml, or restate whole rows",
            field=COLUMNS_FIELD,
        )
    if base is None or base.snapshot_id is None:
        raise ConfigError(
            f"{contract.table} holds no rows whose other columns could be carried over",
            fix=f"remove {COLUMNS_FIELD}: a first run computes whole rows",
            field=COLUMNS_FIELD,
        )
    added = table.added_column_names(manifest.target.schema_change)
    _require_restatable(names, added, contract, base, scoped_by)
    if unnamed := [name for name in added if name not in names]:
        raise ConfigError(
            f"{unnamed[0]} is added by {SCHEMA_CHANGE_FIELD}, but not restated: it would be null",
            fix=f"name it in {COLUMNS_FIELD}, or do not add it",
            field=COLUMNS_FIELD,
        )


def _require_restatable(
    names: Collection[str],
    added: Collection[str],
    contract: Contract,
    base: TableInfo,
    scoped_by: str,
) -> None:
    known = [*(column.name for column in base.columns), *added]
    fixed = _fixed_columns(contract, base, scoped_by)
    usable = [name for name in known if name not in fixed and name not in LINEAGE_NAMES]
    choices = f"name one of: {', '.join(usable) or 'none; add a column by schema_change'}"
    seen: set[str] = set()
    for name in names:
        problem = ""
        if name in LINEAGE_NAMES:
            problem = f"{name} says which run made a row, and is written by the toolkit"
        elif name in fixed:
            problem = f"{name} is {fixed[name]}"
        elif name not in known:
            problem = f"the target has no column {name}"
        elif name in seen:
            problem = f"{COLUMNS_FIELD} names {name} twice"
        if problem:
            raise ConfigError(problem, fix=choices, field=COLUMNS_FIELD)
        seen.add(name)


def _fixed_columns(contract: Contract, base: TableInfo, scoped_by: str) -> dict[str, str]:
    """Return the columns by which rows are found or placed, each with the reason."""
    placing = {scoped_by, *(part.column for part in contract.partitioning)}
    placing |= {part.column for part in base.partitioning}
    tombstones = {name for one in contract.tombstones for name in one.columns}
    return {
        **dict.fromkeys(tombstones, "a column by which tombstones name rows"),
        **dict.fromkeys(placing, "a column of the partitions: its rows would move"),
        **dict.fromkeys(contract.key, "part of the key, by which rows are found"),
    }


def describe_columns(target: Target) -> str:
    """Describe the restated columns, e.g. `delay, cause`; empty for all of them."""
    return ", ".join(target.columns or ())


def describe_part(target: Target, rows: str) -> str:
    """Describe what of the partitions may change: rows with `rows`, or columns, or all rows."""
    if rows:
        return f", rows with {rows}; no other row"
    if target.columns:
        return f", columns {describe_columns(target)} of their rows; no other column, no other row"
    return "; no other row"


def column_scope_note(target: Target, contract: Contract) -> str:
    """Describe what the run does with rows, with columns that it does not name, and lineage."""
    lineage = "; lineage columns name this run" if contract.lineage_columns else ""
    return (
        f"only columns {describe_columns(target)}: rows are found by {', '.join(contract.key)} and "
        f"stay, all other columns are carried over and proven equal{lineage}"
    )
