"""Keyed merge (U4): whether a manifest may ask for it, and what its counts must add up to."""

from __future__ import annotations

from collections.abc import Collection

from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.composed import ChunkCounts
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table import Column
from lakehouse_backfill.domain.unbuilt import NOTHING_PLANNED
from lakehouse_backfill.errors import ConfigError, Unsupported

#: Names of columns that say when a row was processed: a job that runs again would always win.
PROCESSING_TIMES = frozenset(
    {
        "produced_at", "processed_at", "processing_time", "ingested_at", "ingestion_time",
        "inserted_at", "loaded_at", "load_time", "written_at", "_commit_timestamp",
    }
)  # fmt: skip
_ORDERED = ("int", "long", "date", "timestamp", "timestamptz")
_MERGE, _VERSION, _DELETED = "target.merge", "target.merge.version", "target.merge.deleted"


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
        raise Unsupported(
            "another engine writes whole partitions into the shadow, not change rows to merge",
            state=NOTHING_PLANNED,
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
        if _is_ordered(kind) and one not in contract.key and one not in PROCESSING_TIMES
        and one not in LINEAGE_NAMES
    ]  # fmt: skip
    choices = f"use one of: {', '.join(usable) or 'none; add a version column to the product'}"
    if name in LINEAGE_NAMES or name.lower() in PROCESSING_TIMES:
        problem = f"{name} says when a row was processed, not which is newer: a rerun always wins"
    elif name not in known:
        problem = f"the target has no column {name}"
    elif name in contract.key:
        problem = f"{name} is part of the key, so that no two rows of a key differ in it"
    elif not _is_ordered(known[name]):
        raise Unsupported(
            f"{name} is of type {known[name]}, which has no safe order",
            state=NOTHING_PLANNED,
            fix=choices,
            field=_VERSION,
        )
    else:
        return
    raise ConfigError(problem, fix=choices, field=_VERSION)


def _is_ordered(kind: str) -> bool:
    return kind in _ORDERED or kind.startswith("decimal")


def key_stays_in_partition(contract: Contract, scoped_by: str) -> bool:
    """Tell whether a key can never move to another partition: it holds the partition's column."""
    return scoped_by in contract.key


def require_separate_partitions(manifest: RunManifest, contract: Contract, scoped_by: str) -> None:
    """Raise Unsupported when single partitions would be merged again, but a key may move."""
    is_again = manifest.safety.on_conflict == "catch_up"
    if manifest.target.publish_mode != "merge" or not is_again:
        return
    if not key_stays_in_partition(contract, scoped_by):
        raise Unsupported(
            f"a key without {scoped_by} may move between partitions, so that single ones cannot "
            "be merged again",
            state=NOTHING_PLANNED,
            fix="write safety.on_conflict: fail",
            field="safety.on_conflict",
        )


def chunk_partition_limit(manifest: RunManifest, contract: Contract, scope: Scope) -> int:
    """Give the size of a chunk: all partitions where a merge may move a key between them.

    A move takes a row out of one partition and into another: both must be in one commit.
    """
    if manifest.target.publish_mode != "merge":
        return manifest.limits.partitions_per_chunk
    if key_stays_in_partition(contract, scope.field.column):
        return manifest.limits.partitions_per_chunk
    return len(scope.partitions)


def check_changes_add_up(
    plan: Plan, counts: ChunkCounts, old_rows: int, new_rows: int
) -> CheckResult | None:
    """The candidate has the old rows, those inserted, and not those deleted; None: no merge."""
    if plan.resolved.manifest.target.publish_mode != "merge":
        return None
    wanted = old_rows + (counts.inserted_rows or 0) - (counts.deleted_rows or 0)
    return CheckResult(
        name="changes add up",
        group="reconciliation",
        passed=wanted == new_rows,
        detail=f"{old_rows} rows, {counts.inserted_rows or 0} keys inserted, "
        f"{counts.updated_rows or 0} updated, {counts.deleted_rows or 0} deleted: "
        f"{new_rows} rows; {counts.ignored_rows or 0} change rows were older or known",
        observed=new_rows,
        limit=wanted,
        waivable=False,
    )
