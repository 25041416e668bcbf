"""Scope and chunks of a run: its partitions, what they are called, and those beyond its edges."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from itertools import chain, product

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import EdgeSide
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.manifest import PartitionRange, RunManifest
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.serialization import PartitionValue
from lakehouse_backfill.errors import ConfigError, attach_error_field

_SPOKEN = {
    "hour": "the hour from %H:%M UTC of %A %d %B %Y",
    "month": "%B %Y",
    "year": "the year %Y",
}


def describe_in_words(scope: Scope) -> str:
    """Return the last partition in words, its days in UTC; a label that is no time as it is."""
    label = scope.partitions[-1]
    rows = partitions.partition_row_range(scope.field, label)
    if not isinstance(rows.lower, date):
        whole = scope.field.is_whole_table
        return str(scope.field) if whole else f"{label} of {scope.field.column}"
    spoken = _SPOKEN.get(scope.field.transform, "the whole of %A %d %B %Y (UTC)")
    return f"{label}, {as_instant(rows.lower).strftime(spoken)}"


PARTITIONS_FIELD = "target.partitions"


def resolve_scope(field: ScopeField, wanted: PartitionRange) -> Scope:
    """Return the explicit partitions of a range or list, minus exceptions, in order.

    Raises ConfigError when a bound splits a partition, or nothing is left.
    """
    if wanted.whole_table:
        labels = {partitions.WHOLE_TABLE_LABEL}
    elif wanted.values:
        labels = _labels(field, wanted.values, "values")
    elif wanted.from_ is not None and wanted.to is not None:
        with attach_error_field(PARTITIONS_FIELD):
            labels = set(partitions.labels_between(field, wanted.from_, wanted.to))
    else:
        raise ConfigError(
            "target.partitions is unbounded",
            fix="give from and to, or values: a restatement changes declared partitions only",
            field=PARTITIONS_FIELD,
        )
    left = labels - _labels(field, wanted.except_, "except")
    if not left:
        raise ConfigError(
            "target.partitions holds no partition",
            fix="widen the range, or take a partition out of except",
            field=PARTITIONS_FIELD,
        )
    return Scope(field=field, partitions=tuple(sorted(left, key=partitions.label_sort_key(field))))


def scope_note(scope: Scope) -> str:
    """Return the partitions of a scope as a sentence; it tells the text null from no value."""
    note = f"{partitions.describe_labels(scope.partitions)} of {scope.field.column}, as declared"
    if partitions.NULL_TEXT_LABEL not in scope.partitions:
        return note
    return (
        f"{note}; {partitions.NULL_TEXT_LABEL} holds the rows whose value is the text null: those "
        "without a value are named by null, without quotes"
    )


def skipped_labels(field: ScopeField, wanted: PartitionRange) -> tuple[str, ...]:
    """Return the partitions of a range or list that it takes out again, in order."""
    skipped = _labels(field, wanted.except_, "except")
    if not skipped:
        return ()
    every = resolve_scope(field, wanted.model_copy(update={"except_": ()})).partitions
    return tuple(label for label in every if label in skipped)


def _labels(field: ScopeField, values: tuple[PartitionValue, ...], name: str) -> set[str]:
    """Return the labels of listed values; raises ConfigError, with the place of the wrong one."""
    found = set()
    for number, value in enumerate(values):
        with attach_error_field(f"{PARTITIONS_FIELD}.{name}[{number}]"):
            found.add(partitions.whole_partition_label(field, value))
    return found


def cut_chunks(scope: Scope, partitions_per_chunk: int) -> tuple[Chunk, ...]:
    """Cut the scope into chunks of neighbouring partitions; ids sort in scope order.

    Chunks never split a partition, so a chunk can be overwritten on its own.
    """
    groups = group_labels(scope.partitions, partitions_per_chunk)
    return tuple(make_chunk(number, group) for number, group in enumerate(groups, start=1))


def group_labels(labels: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    """Cut labels into groups of at most `size`."""
    return [labels[start : start + size] for start in range(0, len(labels), size)]


def make_chunk(number: int, labels: tuple[str, ...]) -> Chunk:
    """Return a chunk; its id is its number with its first partition."""
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in labels[0])
    return Chunk(chunk_id=f"c{number:04d}-{safe[:40]}", partitions=labels)


def computed_edges(manifest: RunManifest) -> int:
    """Return how many partitions beyond each edge are computed: none from changes or states."""
    is_merge = manifest.target.publish_mode == "merge"
    return 0 if is_merge or manifest.stateful else manifest.validation.edge_partitions


def edge_labels(scope: Scope, count: int) -> dict[EdgeSide, tuple[str, ...]]:
    """Return `count` partitions beyond each edge, and at most as many at each side of every gap.

    Those before and after the scope are nearest to it first.
    """
    ordered = [label for label in scope.partitions if label != "null"]
    if not ordered or count == 0:
        return {}
    before = walk_labels(scope, ordered[0], -1, count)
    after = walk_labels(scope, ordered[-1], 1, count)
    own = frozenset(scope.partitions)
    chosen = {*own, *before, *after}
    inside: list[str] = []
    for label, step in product(ordered, (-1, 1)):
        for near in walk_labels(scope, label, step, count):
            if near in own:
                break
            if near not in chosen:
                chosen.add(near)
                inside.append(near)
    key = partitions.label_sort_key(scope.field)
    return {"inside": tuple(sorted(inside, key=key)), "before": before, "after": after}


def all_labels(around: Mapping[EdgeSide, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the partitions of all sides, in the order of the sides."""
    return tuple(chain.from_iterable(around.values()))


def walk_labels(scope: Scope, label: str, step: int, count: int) -> tuple[str, ...]:
    """List up to `count` partitions that follow a label, or with step -1 precede it."""
    found: list[str] = []
    current: str | None = label
    for _ in range(count):
        current = partitions.shift_label(scope.field, current, step) if current else None
        if current is None:
            break
        found.append(current)
    return tuple(found)
