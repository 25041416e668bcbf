"""Chunks of a whole table by key: each holds the rows of one bucket, or range, of a key column.

Such a chunk is finer than the table, so that it is for staging alone: a run can be limited, paused
and resumed between chunks. Checks of the result, diff and publication are those of the whole table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import key_ranges
from lakehouse_backfill.domain.labels.key_ranges import MAX_KEY_CHUNKS, KeyBounds, KeyRanges
from lakehouse_backfill.domain.labels.row_values import NamedValue, typed_end
from lakehouse_backfill.domain.labels.values import fits
from lakehouse_backfill.domain.manifest import RunManifest, unplannable
from lakehouse_backfill.domain.partitions import NULL_LABEL, Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import ConfigError, attach_error_field
from lakehouse_backfill.ports.tables import Tables

_NOTHING_PLANNED = "nothing was planned, pinned or changed"


def plan_key_chunks(
    tables: Tables, manifest: RunManifest, contract: Contract, base: TableInfo | None
) -> tuple[tuple[Chunk, ...], tuple[str, ...]]:
    """Return the chunks by key, and notes on bounds that were chosen: they are fixed from here on.

    Bounds come from the snapshot that the plan pins, so the same plan again has the same ones.
    Raises as `cut_by_key` does; ConfigError where there are no rows to choose from, or too many.
    """
    wanted, place = manifest.limits.key_ranges, manifest.limits.key_chunks_field
    if wanted is None or wanted.bounds is not None:
        return cut_by_key(manifest, contract, base), ()
    _require_possible(manifest, contract, base, place)
    field = _key_field(place, wanted.column, key_ranges.KEY_RANGE, contract, base)
    found, snapshot_id = KeyBounds((), 0, "statistics"), base.snapshot_id if base else None
    if base is not None and snapshot_id is not None:
        found = tables.key_bounds(base.table, snapshot_id, wanted)
    _require_countable(wanted, found, contract)
    ends = pairwise((None, *found.bounds, None))
    chunks = _make_chunks(field, [key_ranges.range_label(*pair) for pair in ends])
    return chunks, (_bounds_note(wanted, found, contract.table, snapshot_id),)


def _require_countable(wanted: KeyRanges, found: KeyBounds, contract: Contract) -> None:
    """Raise ConfigError where no bounds can be chosen, or more than a run may have chunks."""
    count = wanted.count_of(found.rows)
    by = "count" if wanted.size is None else "size"
    place, rows = f"limits.key_ranges.{by}", f"{found.rows:,} rows"
    cases = {
        f"{place} chooses bounds from the rows of {contract.table}, and none has a value of "
        f"{wanted.column}":
            (not found.rows, "write limits.key_ranges.bounds, or cut by limits.key_buckets, or "
             "remove both"),
        f"{place}: {rows} are {count:,} chunks of {wanted.size}":
            (count > MAX_KEY_CHUNKS, f"write at least {-(-found.rows // MAX_KEY_CHUNKS)}: a run "
             f"has at most {MAX_KEY_CHUNKS:,} chunks by key"),
    }  # fmt: skip
    for problem, (holds, fix) in cases.items():
        if holds:
            raise ConfigError(problem, state=_NOTHING_PLANNED, fix=fix, field=place)


def _bounds_note(wanted: KeyRanges, found: KeyBounds, table: str, snapshot: int | None) -> str:
    """Return which bounds were chosen, and from what, as a sentence."""
    ranges = len(found.bounds) + 1
    count = wanted.count_of(found.rows)
    few = f" ({count:,} were wanted: rows of one value stay together)" if ranges < count else ""
    by = f"the column {wanted.column}, read in this process"
    if found.by == "statistics":
        by = "the statistics of its files"
    share = f"about {-(-found.rows // ranges):,} rows of {table} each{few}"
    return (
        f"{ranges:,} range{'s' * (ranges > 1)} of {share}, bounds from {by} at snapshot "
        f"{snapshot}; they are part of the plan"
    )


def cut_by_key(
    manifest: RunManifest, contract: Contract, base: TableInfo | None
) -> tuple[Chunk, ...]:
    """Return a chunk for each bucket, or range, of the key column; none where none are declared.

    Each row of the table is in exactly one chunk; those without a value are in the first. The first
    and the last range have no end. Raises ConfigError for a column that is not of the key or cannot
    be cut so, and for bounds that are no ascending values of it; Unsupported for a run whose chunks
    cannot be parts of a table.
    """
    buckets, ranges = manifest.limits.key_buckets, manifest.limits.key_ranges
    wanted, place = buckets or ranges, manifest.limits.key_chunks_field
    if wanted is None:
        return ()
    _require_possible(manifest, contract, base, place)
    transform = f"bucket[{buckets.count}]" if buckets else key_ranges.KEY_RANGE
    field = _key_field(place, wanted.column, transform, contract, base)
    labels = list(_range_labels(ranges, field)) if ranges else []
    if buckets:
        labels = [str(number) for number in range(buckets.count)]
    return _make_chunks(field, labels)


def _make_chunks(field: ScopeField, labels: list[str]) -> tuple[Chunk, ...]:
    return tuple(_make_chunk(field, number, labels) for number in range(len(labels)))


def _make_chunk(field: ScopeField, number: int, labels: list[str]) -> Chunk:
    """Return the chunk of a label; the first also holds the rows without a value."""
    is_range = field.transform == key_ranges.KEY_RANGE
    name = f"range-{number + 1}" if is_range else f"bucket-{number}"
    return Chunk(
        chunk_id=f"c{number + 1:04d}-{name}-of-{len(labels)}",
        partitions=(partitions.WHOLE_TABLE_LABEL,),
        keys=Scope(field=field, partitions=(NULL_LABEL,) * (number == 0) + (labels[number],)),
    )


def _range_labels(wanted: KeyRanges, field: ScopeField) -> Iterator[str]:
    """Yield the labels of the ranges between the bounds, from the lowest to the highest key."""
    lowest: NamedValue = None
    for number, bound in enumerate(wanted.bounds or ()):
        place = f"limits.key_ranges.bounds[{number}]"
        with attach_error_field(place):
            value = typed_end(field.column, field.type, bound)
        if value is None or (lowest is not None and not lowest < value):  # type: ignore[operator]
            above = "" if lowest is None else f", not above {lowest!s}"
            raise ConfigError(
                f"{place} is {'null' if value is None else value}{above}",
                state=_NOTHING_PLANNED,
                fix="write each bound once, in ascending order, without null: rows without a value "
                "are in the first chunk",
                field=place,
            )
        yield key_ranges.range_label(lowest, value)
        lowest = value
    yield key_ranges.range_label(lowest, None)


def _key_field(
    place: str, column: str, transform: str, contract: Contract, base: TableInfo | None
) -> ScopeField:
    """Return the field of chunks by a column of the key, which must be of a type that is cut so."""
    types = {each.name: each.type for each in contract.columns}
    types |= {each.name: each.type for each in base.columns} if base else {}
    is_range = transform == key_ranges.KEY_RANGE
    can_cut = key_ranges.cuts_into_ranges if is_range else partial(fits, transform)
    fitting = [name for name in contract.key if can_cut(types.get(name, ""))]
    problem = ""
    if column not in contract.key:
        problem = (
            f"{column} is not in the key of {contract.product}: rows of one key could "
            "be in several chunks, and no chunk could tell that a key repeats"
        )
    elif column not in fitting:
        kind = types.get(column) or "of an unknown type"
        problem = f"{column} is {kind}, which Iceberg cuts into no buckets"
        if is_range:
            problem = f"{column} is {kind}, which not all readers order alike"
    if problem:
        named = f"name a column of the key: {', '.join(fitting)}; or " if fitting else ""
        raise ConfigError(
            problem,
            state=_NOTHING_PLANNED,
            fix=f"{named}remove {place}: the table is staged as one chunk",
            field=f"{place}.column",
        )
    return ScopeField(column=column, transform=transform, type=types[column])


def _require_possible(
    manifest: RunManifest, contract: Contract, base: TableInfo | None, place: str
) -> None:
    """Raise Unsupported for a run whose chunks cannot be the parts of a table."""
    target = manifest.target
    fields = (base or contract).partitioning
    one_chunk = f"remove {place}: the table is staged as one chunk"
    cases = {
        "the run restates partitions, which are its chunks":
            (not target.partitions.whole_table, f"remove {place}: limits.partitions_per_chunk "
             "says how many of them are one chunk"),
        f"{contract.table} is partitioned, and each chunk would leave a file in each partition":
            (bool(fields), "restate it by its partitions, which are its chunks: "
             f"target.partitions.column: {fields[0].column if fields else ''}"),
        "a merge counts for each chunk what becomes of all rows":
            (target.publish_mode == "merge", one_chunk),
        "rows beside target.row_predicate are carried over with all others":
            (bool(target.row_predicate), one_chunk),
        "columns beside target.columns are carried over with all others":
            (bool(target.columns), one_chunk),
        "a stateful run hands its state from chunk to chunk": (bool(manifest.stateful), one_chunk),
        "another engine writes the whole shadow":
            (manifest.transform.writer == "external", one_chunk),
    }  # fmt: skip
    for because, (holds, fix) in cases.items():
        if holds:
            raise unplannable(f"{place} does not fit: {because}", fix=fix, field=place)


def describe_chunk(chunk: Chunk) -> str:
    """Return what a chunk holds as text for people."""
    labels = partitions.describe_labels(chunk.partitions)
    if chunk.keys is None:
        return labels
    field, held = chunk.keys.field, chunk.keys.partitions[-1]
    nulls = " and null" if NULL_LABEL in chunk.keys.partitions else ""
    if field.transform == key_ranges.KEY_RANGE:
        return f"{labels}, {field.column} {key_ranges.describe_range(held)}{nulls}"
    return f"{labels}, bucket {held}{nulls} of {field}"


def chunks_note(resolved: ResolvedManifest) -> str:
    """Return how the run is cut, and what that costs, as a sentence."""
    chunks, keys = resolved.chunks, resolved.chunks[0].keys
    if keys is None:
        most = max(len(chunk.partitions) for chunk in chunks)
        return f"{len(chunks)} chunks of at most {most} partitions, each one commit"
    by, part = str(keys.field), "bucket"
    if keys.field.transform == key_ranges.KEY_RANGE:
        by, part = f"ranges of {keys.field.column}", "range"
        ends = (keys, chunks[-1].keys or keys)
        first, last = (key_ranges.describe_range(one.partitions[-1]) for one in ends)
        by += f" (the first holds all {first} and rows without a value, the last all {last})"
    cost = (
        f"each computes the whole output and keeps the rows of its {part}, so that the inputs may "
        f"be read and computed {len(chunks)} times (results that the job declares as intermediates "
        "once); the rows must be the same each time"
    )
    if reads_own_rows(resolved):
        cost = f"each reads the rows of its {part} of the sources; a row of another one fails it"
    return (
        f"{len(chunks)} chunks by {by}, each one commit and at least one file: {cost}; "
        "totals, suites, diff and publication are of the whole table"
    )


def reads_own_rows(resolved: ResolvedManifest) -> bool:
    """Return whether chunks by key read only their own rows of the sources, as these declare."""
    return is_by_key(resolved.chunks) and any(pin.partition_column for pin in resolved.sources)


def is_by_key(chunks: Iterable[Chunk]) -> bool:
    """Return whether the chunks are parts of one table, and not whole partitions."""
    return any(chunk.keys is not None for chunk in chunks)
