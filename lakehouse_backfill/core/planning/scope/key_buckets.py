"""Chunks of a whole table by key: each holds the rows of one bucket of a key column.

Such a chunk is finer than the table, so that it is for staging alone: a run can be limited, paused
and resumed between chunks. Checks of the result, diff and publication are those of the whole table.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.values import fits
from lakehouse_backfill.domain.manifest import KeyBuckets, RunManifest, unplannable
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import ConfigError

_FIELD = "limits.key_buckets"


def cut_by_key(
    manifest: RunManifest, contract: Contract, base: TableInfo | None
) -> tuple[Chunk, ...]:
    """Return a chunk for each bucket of the key column; none where the run declares no buckets.

    Each row of the table is in exactly one chunk; those without a value are in the first. Raises
    ConfigError for a column that is not of the key or has no buckets, Unsupported for a run whose
    chunks cannot be parts of a table.
    """
    wanted = manifest.limits.key_buckets
    if wanted is None:
        return ()
    _require_possible(manifest, contract, base)
    field = _bucket_field(wanted, contract, base)
    return tuple(_make_chunk(field, number, wanted.count) for number in range(wanted.count))


def _make_chunk(field: ScopeField, number: int, count: int) -> Chunk:
    labels = (partitions.NULL_LABEL,) * (number == 0) + (str(number),)
    return Chunk(
        chunk_id=f"c{number + 1:04d}-bucket-{number}-of-{count}",
        partitions=(partitions.WHOLE_TABLE_LABEL,),
        keys=Scope(field=field, partitions=labels),
    )


def _bucket_field(wanted: KeyBuckets, contract: Contract, base: TableInfo | None) -> ScopeField:
    types = {column.name: column.type for column in contract.columns}
    types |= {column.name: column.type for column in base.columns} if base else {}
    fitting = [name for name in contract.key if fits("bucket[1]", types.get(name, ""))]
    problem = ""
    if wanted.column not in contract.key:
        problem = (
            f"{wanted.column} is not in the key of {contract.product}: rows of one key could "
            "be in several chunks, and no chunk could tell that a key repeats"
        )
    elif wanted.column not in fitting:
        kind = types.get(wanted.column) or "of an unknown type"
        problem = f"{wanted.column} is {kind}, which Iceberg cuts into no buckets"
    if problem:
        named = f"name a column of the key: {', '.join(fitting)}; or " if fitting else ""
        raise ConfigError(
            problem,
            state="nothing was planned, pinned or changed",
            fix=f"{named}remove {_FIELD}: the table is staged as one chunk",
            field=f"{_FIELD}.column",
        )
    return ScopeField(
        column=wanted.column, transform=f"bucket[{wanted.count}]", type=types[wanted.column]
    )


def _require_possible(manifest: RunManifest, contract: Contract, base: TableInfo | None) -> None:
    """Raise Unsupported for a run whose chunks cannot be the rows of buckets."""
    target = manifest.target
    fields = (base or contract).partitioning
    one_chunk = f"remove {_FIELD}: the table is staged as one chunk"
    cases = {
        "the run restates partitions, which are its chunks":
            (not target.partitions.whole_table, f"remove {_FIELD}: limits.partitions_per_chunk "
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
            raise unplannable(f"{_FIELD} does not fit: {because}", fix=fix, field=_FIELD)


def describe_chunk(chunk: Chunk) -> str:
    """Return what a chunk holds as text for people."""
    labels = partitions.describe_labels(chunk.partitions)
    if chunk.keys is None:
        return labels
    number = chunk.keys.partitions[-1]
    nulls = " and null" if partitions.NULL_LABEL in chunk.keys.partitions else ""
    return f"{labels}, bucket {number}{nulls} of {chunk.keys.field}"


def chunks_note(resolved: ResolvedManifest) -> str:
    """Return how the run is cut, and what that costs, as a sentence."""
    chunks, keys = resolved.chunks, resolved.chunks[0].keys
    if keys is None:
        most = max(len(chunk.partitions) for chunk in chunks)
        return f"{len(chunks)} chunks of at most {most} partitions, each one commit"
    cost = (
        "each computes the whole output and keeps the rows of its bucket, so that the inputs may "
        f"be read and computed {len(chunks)} times (results that the job declares as intermediates "
        "once); the rows must be the same each time"
    )
    if reads_own_rows(resolved):
        cost = "each reads the rows of its bucket of the sources; a row of another one fails it"
    return (
        f"{len(chunks)} chunks by {keys.field}, each one commit and at least one file: {cost}; "
        "totals, suites, diff and publication are of the whole table"
    )


def reads_own_rows(resolved: ResolvedManifest) -> bool:
    """Return whether chunks by key read only their own rows of the sources, as these declare."""
    return is_by_key(resolved.chunks) and any(pin.partition_column for pin in resolved.sources)


def is_by_key(chunks: Iterable[Chunk]) -> bool:
    """Return whether the chunks are parts of one table, and not whole partitions."""
    return any(chunk.keys is not None for chunk in chunks)
