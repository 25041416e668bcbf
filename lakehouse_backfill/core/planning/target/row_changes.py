"""Changes of single rows: keyed merge (U4) and row predicates (U1b).

Here is decided whether a manifest may ask for them, and what the counts of a merge must add up to.
A row predicate names rows by columns and values, never by SQL text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.row_values import (
    NamedValue,
    is_ordered,
    names_rows,
    typed_range,
    typed_value,
)
from lakehouse_backfill.domain.labels.spans import hold_nothing_else, partitions_of
from lakehouse_backfill.domain.labels.values import NamedRange, fineness, fits
from lakehouse_backfill.domain.manifest import (
    RowPredicate,
    RowValue,
    RowValues,
    RunManifest,
    Target,
    unplannable,
)
from lakehouse_backfill.domain.partitions import (
    ANY_COLUMN,
    Scope,
    ScopeField,
)
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkCounts
from lakehouse_backfill.domain.tables.table import Column, TableInfo
from lakehouse_backfill.errors import ConfigError, attach_error_field

#: Names of columns that say when a row was processed: a job that runs again would always win.
PROCESSING_TIMES = frozenset(
    {
        "produced_at", "processed_at", "processing_time", "ingested_at", "ingestion_time",
        "inserted_at", "loaded_at", "load_time", "written_at", "_commit_timestamp",
    }
)  # fmt: skip
_MERGE, _VERSION, _DELETED = "target.merge", "target.merge.version", "target.merge.deleted"


def is_partial_plan(plan: Plan) -> bool:
    """Return whether a run changes some rows or columns of its partitions, and keeps the others."""
    return is_partial_target(plan.resolved.manifest.target)


def is_partial_target(target: Target) -> bool:
    """Return whether a target keeps some rows or columns of its partitions."""
    is_part = target.publish_mode in ("merge", "correction_events")
    return is_part or target.row_predicate is not None or target.columns is not None


def reads_base_rows(target: Target) -> bool:
    """Return whether a run reads the rows that it replaces, as it carries some of them over."""
    is_merge = target.publish_mode == "merge"
    return is_merge or target.row_predicate is not None or target.columns is not None


def require_mergeable(
    manifest: RunManifest, contract: Contract, columns: Collection[Column]
) -> None:
    """Raise ConfigError or Unsupported when the change rows could not be merged."""
    target = manifest.target
    if target.publish_mode != "merge":
        if target.merge is not None:
            raise ConfigError(
                f"merge says how publish_mode merge decides, but it is {target.publish_mode}",
                fix="write target.publish_mode: merge, or remove target.merge",
                field=_MERGE,
            )
        return
    if target.merge is None:
        raise ConfigError(
            "publish_mode merge needs to know which of two rows with one key is newer",
            fix="add target.merge: {version: COLUMN}, a column that the source sets",
            field=_MERGE,
        )
    if manifest.transform.writer == "external":
        raise unplannable(
            "another engine writes whole partitions into the shadow, not change rows to merge",
            fix="merge there, and write target.publish_mode: replace_partitions",
            field="target.publish_mode",
        )
    if not contract.key:
        raise ConfigError(
            f"{contract.product} has no key, so that nothing says which rows belong together",
            fix=f"write key in catalog/contracts/{contract.product}.yaml, or restate partitions",
            field="target.publish_mode",
        )
    known = {column.name: column.type for column in columns}
    _require_version(target.merge.version, contract, known)
    if target.merge.deleted in known:
        raise ConfigError(
            f"{target.merge.deleted} is a column of the table: its rows are marked, not removed",
            fix="remove target.merge.deleted: a marked row is merged as any other; or name a "
            "column that only the job's rows have",
            field=_DELETED,
        )


def _require_version(name: str, contract: Contract, known: dict[str, str]) -> None:
    usable = [
        one
        for one, kind in known.items()
        if is_ordered(kind) and one not in contract.key and one not in PROCESSING_TIMES
        and one not in LINEAGE_NAMES
    ]  # fmt: skip
    choices = f"use one of: {', '.join(usable) or 'none; add a version column to the product'}"
    if name in LINEAGE_NAMES or name.lower() in PROCESSING_TIMES:
        problem = f"{name} says when a row was processed, not which is newer: a rerun always wins"
    elif name not in known:
        problem = f"the target has no column {name}"
    elif name in contract.key:
        problem = f"{name} is part of the key, so that no two rows of a key differ in it"
    elif not is_ordered(known[name]):
        raise unplannable(
            f"{name} is of type {known[name]}, which has no safe order",
            fix=choices,
            field=_VERSION,
        )
    else:
        return
    raise ConfigError(problem, fix=choices, field=_VERSION)


def key_stays_in_partition(contract: Contract, scoped_by: str) -> bool:
    """Return whether a key can never move to another partition.

    It cannot where it holds the partition's column, and where the whole table is one partition.
    """
    return scoped_by == ANY_COLUMN or scoped_by in contract.key


def require_separate_partitions(manifest: RunManifest, contract: Contract, scoped_by: str) -> None:
    """Raise Unsupported when single partitions would be merged again, but a key may move."""
    is_again = manifest.safety.on_conflict == "catch_up"
    is_merge = manifest.target.publish_mode == "merge"
    if is_merge and is_again and not key_stays_in_partition(contract, scoped_by):
        raise unplannable(
            f"a key without {scoped_by} may move between partitions, so that single ones cannot "
            "be merged again",
            fix="write safety.on_conflict: fail",
            field="safety.on_conflict",
        )


def chunk_partition_limit(manifest: RunManifest, contract: Contract, scope: Scope) -> int:
    """Return the size of a chunk: all partitions where a merge may move a key between them.

    A move takes a row out of one partition and into another: both must be in one commit.
    """
    is_merge = manifest.target.publish_mode == "merge"
    if is_merge and not key_stays_in_partition(contract, scope.field.column):
        return len(scope.partitions)
    if manifest.stateful is not None:
        return manifest.stateful.snapshot.every_partitions
    return manifest.limits.partitions_per_chunk


def chunk_size_field(manifest: RunManifest) -> str:
    """Return the field that says how many partitions a chunk has."""
    is_stateful = manifest.stateful is not None
    return "stateful.snapshot.every_partitions" if is_stateful else "limits.partitions_per_chunk"


def check_changes_add_up(
    plan: Plan, counts: ChunkCounts, old_rows: int, new_rows: int
) -> CheckResult | None:
    """Check that the candidate has the old rows, plus those inserted, minus those deleted.

    None: the run is no merge.
    """
    if plan.resolved.manifest.target.publish_mode != "merge":
        return None
    wanted = old_rows + (counts.inserted_rows or 0) - (counts.deleted_rows or 0)
    return gate_registry.gate_result(
        "changes add up",
        passed=wanted == new_rows,
        detail=f"{old_rows:,} rows, {counts.inserted_rows or 0:,} keys inserted, "
        f"{counts.updated_rows or 0:,} updated, {counts.deleted_rows or 0:,} deleted: "
        f"{new_rows:,} rows; {counts.ignored_rows or 0:,} change rows were older or known",
        observed=new_rows,
        limit=wanted,
    )


_PREDICATE_MODES = ("replace_partitions", "pointer_swap", "versioned", "shadow_only")
_PREDICATE_FIELD = "target.row_predicate"


def resolve_row_predicate(target: Target, types: Mapping[str, str]) -> RowPredicate:
    """Return the predicate with values of the columns' types; empty: the run takes all rows.

    Raises ConfigError for a value that its column cannot hold.
    """
    found: dict[str, tuple[NamedValue, ...] | NamedRange] = {}
    for name, values in _named_values(target).items():
        with attach_error_field(f"{_PREDICATE_FIELD}.{name}"):
            found[name] = _typed_values(name, types[name], values)
    return found


def narrow_scope(
    manifest: RunManifest, contract: Contract, base: TableInfo | None, scope: Scope
) -> Scope:
    """Return the scope without the files that a row predicate excludes by their partition alone.

    Its other columns, and tables of which this is not known, leave the scope as it is.
    """
    if base is None or why_not_narrowed(manifest, contract, base, scope):
        return scope
    deciding = _deciding_partitions(manifest, base)
    only = tuple(
        deciding[name]
        for name in manifest.target.row_predicate or ()
        if name in deciding and _is_in_key(name, contract)
    )
    return scope.model_copy(update={"field": scope.field.model_copy(update={"only": only})})


def why_not_narrowed(
    manifest: RunManifest, contract: Contract, base: TableInfo, scope: Scope
) -> str:
    """Return why rows beside the predicate are rewritten; empty: files beside it stay as is."""
    target, named = manifest.target, manifest.target.row_predicate or {}
    decided = sorted(_deciding_partitions(manifest, base)) if named else []
    reasons = {
        "the whole table is restated": scope.field.is_whole_table,
        f"{base.table} has {base.spec_count} partition specs": base.spec_count > 1,
        f"publish_mode is {target.publish_mode}": target.publish_mode != "replace_partitions",
        "another engine writes the shadow": manifest.transform.writer == "external",
        "no column of the predicate tells partitions apart": not decided,
        "the predicate names no value of a column": () in named.values(),
        "source totals are of whole partitions": bool(contract.source_totals),
        f"the key does not hold {', '.join(decided)}, so that other rows may repeat one":
            not any(_is_in_key(name, contract) for name in decided),
    }  # fmt: skip
    return next((why for why, holds in reasons.items() if holds), "")


def _is_in_key(name: str, contract: Contract) -> bool:
    """Return whether rows of other values of a column cannot have the same key."""
    return not contract.key or name in contract.key


def _deciding_partitions(manifest: RunManifest, base: TableInfo) -> dict[str, Scope]:
    """Return the partitions that hold the rows of the predicate, by its columns that decide them.

    A column decides by its own value if it can, else by the finest unit, a bucket or a truncation.
    These hold rows of other values too, which a run carries over as those of other columns.
    """
    types = {column.name: column.type for column in base.columns}
    named, found = resolve_row_predicate(manifest.target, types), dict[str, Scope]()
    for each in sorted(base.partitioning, key=lambda one: fineness(one.transform)):
        kind = types.get(each.column, "")
        is_known = each.column in named and not each.path and fits(each.transform, kind)
        if not is_known or each.column in found or not names_rows(kind):
            continue
        by = ScopeField(column=each.column, transform=each.transform, type=kind)
        labels = partitions_of(by, named[each.column])
        if labels is not None:
            found[each.column] = Scope(field=by, partitions=labels)
    return found


def carried_over_by(target: Target, base: TableInfo, scope: Scope) -> list[str]:
    """Return the columns of the predicate by which rows of the scope's files are carried over."""
    types = {column.name: column.type for column in base.columns}
    named = resolve_row_predicate(target, types)
    decided = {
        one.field.column
        for one in scope.field.only
        if hold_nothing_else(one, named[one.field.column])
    }
    return [name for name in named if name not in decided]


def context_row_predicate(manifest: RunManifest, contract: Contract) -> RowPredicate:
    """Return what a transform reads of the predicate; empty: it gives all rows.

    Values have the types of the contract's columns; of others, they are as the manifest has them.
    """
    types, named = {one.name: one.type for one in contract.columns}, _named_values(manifest.target)
    return {
        name: _typed_values(name, types[name], values)
        if names_rows(types.get(name, ""))
        else NamedRange(values.from_, values.to)
        if isinstance(values, RowValues)
        else values
        for name, values in named.items()
    }


def _named_values(target: Target) -> dict[str, tuple[RowValue, ...] | RowValues]:
    """Return the values of each column as the manifest names them, one value as a list of one."""
    return {
        name: given if isinstance(given, tuple | RowValues) else (given,)
        for name, given in (target.row_predicate or {}).items()
    }


def describe_row_predicate(target: Target) -> str:
    """Describe the named rows, e.g. `tenant in A, B and region = EU`; empty for all of them."""
    parts = []
    for name, values in _named_values(target).items():
        if isinstance(values, RowValues):
            parts.append(f"{name} from {values.from_} to before {values.to}")
            continue
        shown = ", ".join("null" if value is None else str(value) for value in values)
        parts.append(f"{name} in {shown}" if len(values) > 1 else f"{name} = {shown}")
    return " and ".join(parts)


def require_fitting_predicate(
    manifest: RunManifest, columns: Collection[Column], scoped_by: str
) -> None:
    """Raise ConfigError or Unsupported when the predicate cannot name rows of the target."""
    target = manifest.target
    if target.row_predicate is None:
        return
    if target.publish_mode not in _PREDICATE_MODES:
        raise unplannable(
            f"publish mode {target.publish_mode} takes whole rows, not those of a row_predicate",
            fix=f"remove target.row_predicate, or use one of: {', '.join(_PREDICATE_MODES)}",
            field=_PREDICATE_FIELD,
        )
    if not target.row_predicate:
        raise ConfigError(
            f"{_PREDICATE_FIELD} names no column",
            fix="name one with its values, or remove it and restate whole partitions",
            field=_PREDICATE_FIELD,
        )
    known = {column.name: column.type for column in columns}
    for name in target.row_predicate:
        _require_column(name, known, scoped_by)
    resolve_row_predicate(target, known)


def check_other_rows_unchanged(
    scope: Scope, old: Mapping[str, Checksum], new: Mapping[str, Checksum]
) -> CheckResult:
    """Check that every row that the predicate does not name is as it was, in each partition."""
    wrong = [label for label in scope.partitions if old.get(label) != new.get(label)]
    rows = sum(found.rows for found in old.values())
    detail = f"{rows:,} rows carried over, counts and checksums equal"
    if wrong:
        detail = f"{len(wrong):,} partitions differ, first {wrong[0]}"
    return gate_registry.fault_count_result("other rows are unchanged", len(wrong), detail)


def _require_column(name: str, known: Mapping[str, str], scoped_by: str) -> None:
    field = f"{_PREDICATE_FIELD}.{name}"
    usable = [one for one, kind in known.items() if names_rows(kind) and one not in LINEAGE_NAMES]
    choices = f"name one of: {', '.join(one for one in usable if one != scoped_by)}"
    if name == scoped_by:
        raise ConfigError(
            f"{name} names partitions, not rows of them",
            fix="remove it here and write its values in target.partitions",
            field=field,
        )
    if name not in known:
        raise ConfigError(f"the target has no column {name}", fix=choices, field=field)
    if name in LINEAGE_NAMES:
        raise ConfigError(
            f"{name} says which run made a row; the repaired rows get other values there",
            fix=choices,
            field=field,
        )
    if not names_rows(known[name]):
        raise unplannable(
            f"rows cannot be named by {name}, of type {known[name]}",
            fix=choices,
            field=field,
        )


def _typed_values(
    name: str, kind: str, values: tuple[RowValue, ...] | RowValues
) -> tuple[NamedValue, ...] | NamedRange:
    if not isinstance(values, RowValues):
        return tuple(typed_value(name, kind, value) for value in values)
    if not is_ordered(kind):
        raise unplannable(
            f"rows cannot be named by a range of {name}, of type {kind}",
            fix="list its values",
            field=f"{_PREDICATE_FIELD}.{name}",
        )
    return typed_range(name, kind, values.from_, values.to)
