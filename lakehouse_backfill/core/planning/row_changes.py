"""Row predicates and keyed merge: what a manifest may ask, what must add up.

Keyed merge (U4): whether a manifest may ask for it, and what its counts must add up to.

Repairing some rows of a partition (U1b): which rows the manifest names, and whether it may.

The rows are named by columns and values, never by SQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, timezone
from functools import partial
from typing import Any

from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.manifest import (
    NOTHING_PLANNED,
    RowPredicate,
    RowValue,
    RunManifest,
    Target,
)
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkCounts
from lakehouse_backfill.domain.table import Column
from lakehouse_backfill.errors import ConfigError, Unsupported, attach_error_field

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
    """Return whether a key can never move to another partition: it holds the partition's column."""
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
    """Return the size of a chunk: all partitions where a merge may move a key between them.

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
    return gate_registry.gate_result(
        "changes add up",
        passed=wanted == new_rows,
        detail=f"{old_rows} rows, {counts.inserted_rows or 0} keys inserted, "
        f"{counts.updated_rows or 0} updated, {counts.deleted_rows or 0} deleted: "
        f"{new_rows} rows; {counts.ignored_rows or 0} change rows were older or known",
        observed=new_rows,
        limit=wanted,
    )


#: Types whose values have one text, so that a value in a file means one value in a table.
_PREDICATE_TYPES = ("string", "int", "long", "boolean", "date", "timestamp", "timestamptz")
_PREDICATE_MODES = ("replace_partitions", "pointer_swap", "versioned", "shadow_only")
_PREDICATE_FIELD = "target.row_predicate"


def resolve_row_predicate(target: Target, types: Mapping[str, str]) -> RowPredicate:
    """Return the predicate with values of the columns' types; empty: the run takes all rows.

    Raises ConfigError for a value that its column cannot hold.
    """
    found: dict[str, tuple[RowValue, ...]] = {}
    for name, given in (target.row_predicate or {}).items():
        values = given if isinstance(given, tuple) else (given,)
        with attach_error_field(f"{_PREDICATE_FIELD}.{name}"):
            found[name] = tuple(_typed_value(name, types[name], value) for value in values)
    return found


def describe_row_predicate(target: Target) -> str:
    """Describe the named rows, e.g. `tenant in A, B and region = EU`; empty for all of them."""
    parts = []
    for name, given in (target.row_predicate or {}).items():
        values = given if isinstance(given, tuple) else (given,)
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
        raise Unsupported(
            f"publish mode {target.publish_mode} takes whole rows, not those of a row_predicate",
            state=NOTHING_PLANNED,
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
    """Every row that the predicate does not name is as it was, in each partition."""
    wrong = [label for label in scope.partitions if old.get(label) != new.get(label)]
    rows = sum(found.rows for found in old.values())
    return gate_registry.gate_result(
        "other rows are unchanged",
        passed=not wrong,
        detail=f"{rows} rows carried over, counts and checksums equal"
        if not wrong
        else f"{len(wrong)} partitions differ, first {wrong[0]}",
        observed=len(wrong),
        limit=0,
    )


def _require_column(name: str, known: Mapping[str, str], scoped_by: str) -> None:
    field = f"{_PREDICATE_FIELD}.{name}"
    usable = [
        one for one, kind in known.items() if kind in _PREDICATE_TYPES and one not in LINEAGE_NAMES
    ]
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
    if known[name] not in _PREDICATE_TYPES:
        raise Unsupported(
            f"rows cannot be named by {name}, of type {known[name]}",
            state=NOTHING_PLANNED,
            fix=choices,
            field=field,
        )


def _typed_value(name: str, kind: str, value: RowValue) -> RowValue:
    """Return the value as one of the column's type; stored manifests hold dates as text."""
    try:
        return value if value is None else _PARSERS[kind](value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{value!r} is no value of {name}, which is of type {kind}",
            fix=f"write {_EXAMPLES[kind]}",
        ) from error


def _only(kind: type[Any]) -> Callable[[object], Any]:
    """Return a parser that takes values of one type as they are; a boolean is no number."""

    def parse(value: object) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(value)
        return value

    return parse


def _parse_date(value: object) -> date:
    if isinstance(value, datetime) or not isinstance(value, date | str):
        raise TypeError(value)
    return value if isinstance(value, date) else date.fromisoformat(value)


def _parse_timestamp(value: object, *, has_zone: bool) -> datetime:
    """An instant with its offset, or a time in no time zone, which Iceberg keeps apart."""
    text = value if isinstance(value, datetime) else _only(str)(value).replace("Z", "+00:00")
    found = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    if (found.tzinfo is not None) is not has_zone:
        raise ValueError(value)
    return found.astimezone(timezone.utc) if has_zone else found


_PARSERS: dict[str, Callable[[object], RowValue]] = {
    "string": _only(str),
    "int": _only(int),
    "long": _only(int),
    "boolean": _only(bool),
    "date": _parse_date,
    "timestamp": partial(_parse_timestamp, has_zone=False),
    "timestamptz": partial(_parse_timestamp, has_zone=True),
}
_EXAMPLES = {
    "string": 'text (quote it), e.g. "A"',
    "int": "a whole number",
    "long": "a whole number",
    "boolean": "true or false",
    "date": "a day, e.g. 2013-02-15",
    "timestamp": "an instant without offset, e.g. 2013-02-15T06:00:00",
    "timestamptz": "an instant with its offset, e.g. 2013-02-15T06:00:00Z",
}
