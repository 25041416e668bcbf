"""What a publish mode asks of a plan, and what the plan says about it."""

from __future__ import annotations

from lakehouse_backfill.core.planning import appending, merging, modes, row_predicate, ways
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import MergeBy, RunManifest
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.table import Column, TableInfo
from lakehouse_backfill.domain.ways import ChosenWritePath


def require_fitting_mode(
    manifest: RunManifest, contract: Contract, base: TableInfo | None, scoped_by: str
) -> None:
    """Raise ConfigError or Unsupported when mode, merge or row predicate do not fit the target."""
    columns = base.columns if base is not None else _declared_columns(contract)
    row_predicate.require_fitting_predicate(manifest, columns, scoped_by)
    merging.require_mergeable(manifest, contract, columns)
    merging.require_separate_partitions(manifest, contract, scoped_by)


def resolve_write_path(bench: Context, resolved: ResolvedManifest) -> ChosenWritePath:
    """Say who writes the commits of this run, and why. Raises Unsupported when it does not fit."""
    chosen = bench.ways(resolved.target.table, resolved.scope)
    ways.require_fitting_write_path(resolved.manifest, resolved.target.table, chosen)
    return chosen


def publish_mode_notes(bench: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Say what the mode means for this run. Raises Conflict when an append would not be one."""
    manifest, target = resolved.manifest, resolved.target
    mode = manifest.target.publish_mode
    if mode == "append" and target.snapshot_id is not None:
        field = resolved.scope.field
        appending.require_empty_partitions(
            resolved, bench.tables.files(target.table, target.snapshot_id, field)
        )
    found = [f"{mode}: {modes.MODE_MEANINGS[mode]}"]
    if manifest.target.row_predicate:
        found.append(
            f"only rows with {row_predicate.describe_row_predicate(manifest.target)}; all other rows of the "
            "partitions are carried over and proven equal"
        )
    if manifest.target.merge is not None:
        found += _merge_notes(resolved, manifest.target.merge)
    if mode == "versioned":
        found.append(f"the version's table: {resolved.contract.table}_v and its number")
    return tuple(found)


def _merge_notes(resolved: ResolvedManifest, merge: MergeBy) -> list[str]:
    contract = resolved.contract
    deletes = f"{merge.deleted} = true removes a key" if merge.deleted else "no row is removed"
    found = [f"{', '.join(contract.key)}: the highest {merge.version} wins; {deletes}"]
    if not merging.key_stays_in_partition(contract, resolved.scope.field.column):
        found.append(
            f"the key does not hold {resolved.scope.field.column}: all partitions are one chunk, "
            "and keys of the whole table are read, so that a key that moves is found"
        )
    return found


def _declared_columns(contract: Contract) -> tuple[Column, ...]:
    return tuple(
        Column(field_id=number, name=column.name, type=column.type, required=column.required)
        for number, column in enumerate(contract.columns, start=1)
    )
