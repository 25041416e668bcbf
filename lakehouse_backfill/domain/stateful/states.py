"""Which state each chunk of a stateful run starts from, what it reads, and the keys of states.

The key of a state is a digest of all that makes it: the code, its configuration, the snapshots of
the inputs, the declaration, the state before it, and its partitions. A state that is found by its
key is therefore the one that the chunk would make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import ResolvedManifest, SourcePin
from lakehouse_backfill.domain.retention import STATE_PREFIX
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.domain.stateful import declaration
from lakehouse_backfill.domain.stateful.declaration import StateSnapshot

#: Part of each key: states of a release that keeps them otherwise are not read.
_FORMAT = 1


class ChunkStart(NamedTuple):
    """What a chunk starts from: the state under `key` up to `boundary`, or none where it is empty.

    `kept` is the state of an earlier run, which the plan names.
    """

    key: str
    boundary: str
    kept: StateSnapshot | None = None


def identity_of(resolved: ResolvedManifest) -> str:
    """Return the digest of what makes the states of a run, whatever its partitions are."""
    manifest = resolved.manifest
    return digest({
        "format": _FORMAT,
        "product": manifest.product,
        "transform": (manifest.transform.name, manifest.transform.version),
        "code": resolved.code_hash,
        "packages": resolved.lock_hash,
        "config": manifest.transform.config,
        "stateful": manifest.stateful and manifest.stateful.model_dump(mode="json"),
        "partitions": resolved.scope.field.model_dump(mode="json"),
        "inputs": [
            (
                pin.name, pin.table, pin.snapshot_id,
                pin.range and pin.range.model_dump(mode="json"),
            )
            for pin in resolved.sources
        ],
    })  # fmt: skip


def next_key(identity: str, before: str, labels: Sequence[str]) -> str:
    """Return the key of the state after some partitions; `before`: that of the state before."""
    return digest([identity, before, list(labels)])


def chunk_starts(resolved: ResolvedManifest) -> Iterator[tuple[Chunk, ChunkStart]]:
    """Yield the chunks in order, each with the state that it starts from."""
    identity, planned = identity_of(resolved), resolved.state_start
    kept = planned.kept if planned else None
    start = ChunkStart(kept.key, kept.boundary, kept) if kept else ChunkStart("", "")
    for chunk in resolved.chunks:
        yield chunk, start
        start = ChunkStart(next_key(identity, start.key, chunk.partitions), chunk.partitions[-1])


def start_of(resolved: ResolvedManifest, scope: Scope) -> ChunkStart:
    """Return what the computation of some partitions starts from.

    That is the start of the chunk that holds the first of them; partitions behind the last chunk
    start from its state, and those before the first one from what the run starts from.
    """
    order = partitions.label_sort_key(scope.field)
    first = min(scope.partitions, key=order)
    found = ChunkStart("", "")
    for number, (chunk, start) in enumerate(chunk_starts(resolved)):
        if number and order(chunk.partitions[0]) > order(first):
            break
        found = start
    return found


def state_after(resolved: ResolvedManifest, chunk: Chunk) -> ChunkStart:
    """Return the key and the boundary of the state that a chunk leaves."""
    start = start_of(resolved, Scope(field=resolved.scope.field, partitions=chunk.partitions))
    key = next_key(identity_of(resolved), start.key, chunk.partitions)
    return ChunkStart(key, chunk.partitions[-1])


def table_of(namespace: str, key: str) -> str:
    """Return the table in which a state is kept."""
    return f"{namespace}.{STATE_PREFIX}{key[:32]}"


def tables_of(resolved: ResolvedManifest, namespace: str) -> tuple[str, ...]:
    """Return the tables of the states that a run reads or keeps; none of one without a state."""
    if resolved.manifest.stateful is None:
        return ()
    kept = resolved.state_start.kept if resolved.state_start else None
    identity = identity_of(resolved)
    own = (
        table_of(namespace, next_key(identity, start.key, chunk.partitions))
        for chunk, start in chunk_starts(resolved)
    )
    return (*((kept.table,) if kept else ()), *own)


def labels_to_read(resolved: ResolvedManifest, scope: Scope) -> tuple[Scope, bool]:
    """Return the partitions whose rows are read for some of them, and whether with a warm-up.

    A run that is not stateful reads those of the scope, with the warm-up of its sources. A stateful
    one reads all that follow the state that it starts from, and needs a warm-up only without one.
    """
    if resolved.manifest.stateful is None:
        return scope, True
    start, planned = start_of(resolved, scope), resolved.state_start
    if not start.boundary:
        return scope, bool(planned and planned.warm_up)
    follows = partitions.shift_label(scope.field, start.boundary, 1)
    labels = tuple(dict.fromkeys((*((follows,) if follows else ()), *scope.partitions)))
    return scope.model_copy(update={"partitions": labels}), False


def read_pin(pin: SourcePin, *, has_warm_up: bool) -> SourcePin:
    """Return a source as a chunk reads it: without its warm-up where the state stands for it."""
    return pin if has_warm_up else pin.model_copy(update={"warm_up_days": 0})


def watermark_source(resolved: ResolvedManifest) -> str:
    """Return the source of a stateful run whose rows its watermark is about."""
    declared, sources = resolved.manifest.stateful, resolved.manifest.sources
    return declaration.watermark_source(declared, sources) if declared else ""


def first_that_counts(pin: SourcePin, resolved: ResolvedManifest, first: datetime) -> datetime:
    """Return from which instant on rows of a source decide on partitions that begin at `first`.

    The state of a job that no warm-up makes holds rows of all partitions before them.
    """
    whole = has_endless_state(resolved) and pin.range is not None
    return datetime.min.replace(tzinfo=timezone.utc) if whole else first


def has_endless_state(resolved: ResolvedManifest) -> bool:
    """Return whether a state holds rows of all earlier times: no warm-up makes it."""
    declared = resolved.manifest.stateful
    return declared is not None and not declared.warm_up_days
