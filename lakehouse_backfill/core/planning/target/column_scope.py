"""Column scope (P9): a run restates some columns, and carries all others over from the base.

Here is decided whether a manifest may ask for it, and in which words people read of it. Rows are
found by the product's key; `core/validation/column_scope.py` judges what was staged.

What other runs changed in part of a run's partitions, which whole rows would take back (P9).
"""

from __future__ import annotations

from collections.abc import Collection

from lakehouse_backfill.core.planning.target.row_changes import is_partial_target
from lakehouse_backfill.core.planning.target.schema_changes import (
    SCHEMA_CHANGE_FIELD,
    UnfitRule,
    require_fit,
)
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest, Target, unplannable
from lakehouse_backfill.domain.partitions import ScopeField, describe_labels
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.schema_change import added_column_names
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import ConfigError, NotFound, Tampered

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
    added = added_column_names(manifest.target.schema_change)
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
    placing = {scoped_by, *(part.root for part in contract.partitioning)}
    placing |= {part.root for part in base.partitioning}
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


def require_one_kind_of_scope(context: Context, product: str, field: ScopeField) -> None:
    """Raise Unsupported when a whole table is restated after partitions, or the reverse.

    Labels would not tell any more which run made the rows of a partition.
    """
    for row in pointer.accepted_rows(context.versions.history(product)):
        if row.scope is None or row.scope.field.is_whole_table == field.is_whole_table:
            continue
        whole = row.scope.field.is_whole_table
        raise unplannable(
            f"version {row.version} of {product} restated {row.scope.field}, and this run restates "
            f"{field}: who made which rows could not be told any more",
            fix="write target.partitions: {whole_table: true}"
            if whole
            else f"name partitions of {row.scope.field.column} in target.partitions",
            field="target.partitions",
        )


def earlier_part_warnings(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Name the runs whose restated columns or rows a run of whole rows would write over.

    Readers see them in the run's partitions. A run of the same transform and version is none.
    """
    if is_partial_target(resolved.manifest.target):
        return ()
    wanted = set(resolved.scope.partitions)
    history = context.versions.history(resolved.contract.product)
    near = {row.run_id for row in history if row.scope and wanted & {*row.scope.partitions}}
    plans: dict[str, Plan | None] = {}

    def is_partial(run_id: str) -> bool:
        if run_id not in near:
            return False
        if run_id not in plans:
            plans[run_id] = _known_plan(context, run_id)
        plan = plans[run_id]
        return plan is not None and is_partial_target(plan.resolved.manifest.target)

    labels: dict[str, list[str]] = {}
    for label, run_ids in pointer.runs_by_partition(history, is_partial).items():
        for run_id in run_ids if label in wanted else ():
            labels.setdefault(run_id, []).append(label)
    return tuple(
        f"{run_id} changed {_part(plan.resolved.manifest)} of {describe_labels(tuple(some))} by "
        f"other code ({_code(plan.resolved.manifest)}): this run writes whole rows over that"
        for run_id, some in labels.items()
        if is_partial(run_id)
        and (plan := plans[run_id]) is not None
        and _code(plan.resolved.manifest) != _code(resolved.manifest)
    )


def _known_plan(context: Context, run_id: str) -> Plan | None:
    try:
        return context.runs.plan(run_id)
    except (NotFound, Tampered):  # `audit verify` names what is wrong; a plan needs none of it
        return None


def _part(manifest: RunManifest) -> str:
    columns = describe_columns(manifest.target)
    return f"only columns {columns}" if columns else "only some rows"


def _code(manifest: RunManifest) -> str:
    return f"{manifest.transform.name} {manifest.transform.version}"
