"""Changes of single rows: keyed merge (U4) and row predicates (U1b).

Here is decided whether a manifest may ask for them, and what the counts of a merge must add up to.
A row predicate names rows by columns and values, never by SQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from typing import Any

from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.values import (
    bucket_number,
    example_of,
    fits,
    is_beyond,
    is_bucket,
    scale_of,
    value_text,
)
from lakehouse_backfill.domain.manifest import (
    NamedValue,
    RowPredicate,
    RowValue,
    RunManifest,
    Target,
    unplannable,
)
from lakehouse_backfill.domain.partitions import (
    ANY_COLUMN,
    Scope,
    ScopeField,
    label_sort_key,
    partition_label,
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
_ORDERED = ("int", "long", "date", "timestamp", "timestamptz")
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
        raise unplannable(
            f"{name} is of type {known[name]}, which has no safe order",
            fix=choices,
            field=_VERSION,
        )
    else:
        return
    raise ConfigError(problem, fix=choices, field=_VERSION)


def _is_ordered(kind: str) -> bool:
    return kind in _ORDERED or kind.startswith("decimal")


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
    found: dict[str, tuple[NamedValue, ...]] = {}
    for name, values in _named_values(target).items():
        with attach_error_field(f"{_PREDICATE_FIELD}.{name}"):
            found[name] = tuple(_typed_value(name, types[name], value) for value in values)
    return found


def narrow_scope(
    manifest: RunManifest, contract: Contract, base: TableInfo | None, scope: Scope
) -> Scope:
    """Return the scope without the files that a row predicate excludes by their partition alone.

    Its other columns, and tables of which this is not known, leave the scope as it is.
    """
    if base is None or why_not_narrowed(manifest, contract, base, scope):
        return scope
    types = {column.name: column.type for column in base.columns}
    deciding = _deciding_fields(base)
    only = tuple(
        _named_partitions(deciding[name], values)
        for name, values in resolve_row_predicate(manifest.target, types).items()
        if name in deciding and _is_in_key(name, contract)
    )
    return scope.model_copy(update={"field": scope.field.model_copy(update={"only": only})})


def why_not_narrowed(
    manifest: RunManifest, contract: Contract, base: TableInfo, scope: Scope
) -> str:
    """Return why rows beside the predicate are rewritten; empty: files beside it stay as is."""
    target, named = manifest.target, manifest.target.row_predicate or {}
    decided = sorted(_deciding_fields(base).keys() & named.keys())
    reasons = {
        "the whole table is restated": scope.field.is_whole_table,
        f"{base.table} has {base.spec_count} partition specs": base.spec_count > 1,
        f"publish_mode is {target.publish_mode}": target.publish_mode != "replace_partitions",
        "another engine writes the shadow": manifest.transform.writer == "external",
        "no column of the predicate is a partition field by its own value or a bucket": not decided,
        "the predicate names no value of a column": () in named.values(),
        "source totals are of whole partitions": bool(contract.source_totals),
        f"the key does not hold {', '.join(decided)}, so that other rows may repeat one":
            not any(_is_in_key(name, contract) for name in decided),
    }  # fmt: skip
    return next((why for why, holds in reasons.items() if holds), "")


def _is_in_key(name: str, contract: Contract) -> bool:
    """Return whether rows of other values of a column cannot have the same key."""
    return not contract.key or name in contract.key


def _deciding_fields(base: TableInfo) -> dict[str, ScopeField]:
    """Return the partition fields that a column's value decides: its own value, else a bucket.

    A bucket has rows of other values too, which a run carries over as those of other columns.
    """
    types = {column.name: column.type for column in base.columns}
    found: dict[str, ScopeField] = {}
    for each in sorted(base.partitioning, key=lambda one: one.transform != "identity"):
        kind, is_decided = types.get(each.column, ""), each.transform == "identity"
        is_decided = is_decided or (is_bucket(each.transform) and fits(each.transform, kind))
        if is_decided and not each.path and _value_form(kind) is not None:
            by = ScopeField(column=each.column, transform=each.transform, type=kind)
            found.setdefault(each.column, by)
    return found


def _named_partitions(by: ScopeField, values: tuple[NamedValue, ...]) -> Scope:
    stored = values if by.transform == "identity" else map(partial(_bucket_of, by), values)
    labels = {partition_label(by, value) for value in stored}
    return Scope(field=by, partitions=tuple(sorted(labels, key=label_sort_key(by))))


def _bucket_of(by: ScopeField, value: NamedValue) -> int | None:
    return None if value is None else bucket_number(by.transform, by.type, value)


def context_row_predicate(manifest: RunManifest, contract: Contract) -> RowPredicate:
    """Return what a transform reads of the predicate; empty: it gives all rows.

    Values have the types of the contract's columns; of others, they are as the manifest has them.
    """
    types, named = {one.name: one.type for one in contract.columns}, _named_values(manifest.target)
    return {
        name: tuple(_typed_value(name, types[name], value) for value in values)
        if _value_form(types.get(name, ""))
        else values
        for name, values in named.items()
    }


def _named_values(target: Target) -> dict[str, tuple[RowValue, ...]]:
    """Return the values of each column as the manifest names them, one value as a list of one."""
    return {
        name: given if isinstance(given, tuple) else (given,)
        for name, given in (target.row_predicate or {}).items()
    }


def describe_row_predicate(target: Target) -> str:
    """Describe the named rows, e.g. `tenant in A, B and region = EU`; empty for all of them."""
    parts = []
    for name, values in _named_values(target).items():
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
    usable = [one for one, kind in known.items() if _value_form(kind) and one not in LINEAGE_NAMES]
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
    if _value_form(known[name]) is None:
        raise unplannable(
            f"rows cannot be named by {name}, of type {known[name]}",
            fix=choices,
            field=field,
        )


def _typed_value(name: str, kind: str, value: RowValue) -> NamedValue:
    """Return the value as one of the column's type; stored manifests hold dates as text."""
    form = _value_form(kind)
    if form is None:
        raise ValueError(f"rows are not named by values of type {kind}")
    parse, example = form
    try:
        return value if value is None else parse(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{value!r} is no value of {name}, which is of type {kind}", fix=f"write {example}"
        ) from error


def _only(kind: type[Any]) -> Callable[[object], Any]:
    """Return a parser that takes values of one type as they are; a boolean is no number."""

    def parse(value: object) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(value)
        return value

    return parse


def _parse_number(value: object, *, kind: str) -> int:
    """Parse a whole number; readers may take one beyond the column's type for the largest of it."""
    found: int = _only(int)(value)
    if is_beyond(kind, found):
        raise ValueError(value)
    return found


def _parse_decimal(value: object, *, kind: str) -> Decimal:
    """Parse a number with all digits of the column's scale, as labels of partitions have them."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    found = Decimal(value_text(kind, value))
    if is_beyond(kind, found):
        raise ValueError(value)
    return found


def _parse_date(value: object) -> date:
    if isinstance(value, datetime) or not isinstance(value, date | str):
        raise TypeError(value)
    return value if isinstance(value, date) else date.fromisoformat(value)


def _parse_timestamp(value: object, *, has_zone: bool) -> datetime:
    """Parse an instant with its offset, or a time in no time zone; Iceberg keeps them apart."""
    text = value if isinstance(value, datetime) else _only(str)(value).replace("Z", "+00:00")
    found = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    if (found.tzinfo is not None) is not has_zone:
        raise ValueError(value)
    return found.astimezone(timezone.utc) if has_zone else found


_ValueForm = tuple[Callable[[object], NamedValue], str]
#: Types whose values have one text, so that a value in a file means one value in a table: how the
#: value is parsed, and an example.
_VALUES: dict[str, _ValueForm] = {
    "string": (_only(str), 'text (quote it), e.g. "A"'),
    "int": (partial(_parse_number, kind="int"), "a whole number of at most 32 bits"),
    "long": (partial(_parse_number, kind="long"), "a whole number of at most 64 bits"),
    "boolean": (_only(bool), "true or false"),
    "date": (_parse_date, "a day, e.g. 2013-02-15"),
    "timestamp": (
        partial(_parse_timestamp, has_zone=False),
        "an instant without offset, e.g. 2013-02-15T06:00:00",
    ),
    "timestamptz": (
        partial(_parse_timestamp, has_zone=True),
        "an instant with its offset, e.g. 2013-02-15T06:00:00Z",
    ),
}


def _value_form(kind: str) -> _ValueForm | None:
    """Return how a value of a type is parsed, and an example; None: it has more than one text."""
    if scale_of(kind) is None:
        return _VALUES.get(kind)
    return partial(_parse_decimal, kind=kind), f"a number of type {kind}, e.g. {example_of(kind)}"
