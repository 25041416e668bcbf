"""From what a manifest says to explicit partitions and chunks."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

from lakehouse_backfill.core.planning import windows
from lakehouse_backfill.core.validation import edges
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.declared import PartitionValue
from lakehouse_backfill.domain.manifest import PartitionRange, RunManifest
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.scope import Chunk, Scope, ScopeField
from lakehouse_backfill.errors import ConfigError, attach_error_field

_PARTITIONS = "target.partitions"


def resolve_scope(field: ScopeField, wanted: PartitionRange) -> Scope:
    """Give the explicit partitions of a range or list, minus exceptions, in order.

    Raises ConfigError when a bound splits a partition, or nothing is left.
    """
    if wanted.values:
        labels = _labels(field, wanted.values, "values")
    elif wanted.from_ is not None and wanted.to is not None:
        with attach_error_field(_PARTITIONS):
            labels = set(partitions.labels_between(field, wanted.from_, wanted.to))
    else:
        raise ConfigError(
            "target.partitions is unbounded",
            fix="give from and to, or values: a restatement changes declared partitions only",
            field=_PARTITIONS,
        )
    left = labels - _labels(field, wanted.except_, "except")
    if not left:
        raise ConfigError(
            "target.partitions holds no partition",
            fix="widen the range, or take a partition out of except",
            field=_PARTITIONS,
        )
    return Scope(field=field, partitions=tuple(sorted(left, key=partitions.label_sort_key(field))))


def _labels(field: ScopeField, values: tuple[PartitionValue, ...], name: str) -> set[str]:
    """Give the labels of listed values; raises ConfigError, with the place of the wrong one."""
    found = set()
    for number, value in enumerate(values):
        with attach_error_field(f"{_PARTITIONS}.{name}[{number}]"):
            found.add(partitions.whole_partition_label(field, value))
    return found


def cut_chunks(scope: Scope, partitions_per_chunk: int) -> tuple[Chunk, ...]:
    """Cut the scope into chunks of neighbouring partitions; ids sort in scope order.

    Chunks never split a partition, so a chunk can be overwritten on its own.
    """
    labels = scope.partitions
    chunks: list[Chunk] = []
    for start in range(0, len(labels), partitions_per_chunk):
        group = labels[start : start + partitions_per_chunk]
        name = make_chunk_id(len(chunks) + 1, group[0])
        chunks.append(Chunk(chunk_id=name, partitions=group))
    return tuple(chunks)


def make_chunk_id(number: int, label: str) -> str:
    """Name the chunk that begins with a partition."""
    return f"c{number:04d}-{_safe_text(label)}"


def check_input_ranges(
    manifest: RunManifest, scope: Scope, sources: tuple[SourcePin, ...]
) -> tuple[str, ...]:
    """Say why each source is read as far as it is; raises ConfigError when a range is too short."""
    wanted = Scope(
        field=scope.field,
        partitions=scope.partitions
        + edges.edge_labels(scope, manifest.validation.edge_partitions).everything,
    )
    notes = []
    for pin in sources:
        if pin.range is None:
            continue
        window = windows.needed_window(pin, wanted)
        if not windows.range_covers_window(pin.range, window) and window is not None:
            raise ConfigError(
                f"sources.{pin.name}.range is shorter than what the partitions need",
                fix=(
                    f"write from: {window[0].date()}, to: {_next_day(window[1])} "
                    f"({pin.warm_up_days} days of warm-up, {pin.cool_down_days} of cool-down, "
                    f"{manifest.validation.edge_partitions} edge partitions on each side)"
                ),
                field=f"sources.{pin.name}.range",
            )
        notes.append(
            f"{pin.name}: each chunk also reads {pin.warm_up_days} days before and "
            f"{pin.cool_down_days} days after its partitions; those rows are never published"
        )
    return tuple(notes)


def _next_day(moment: datetime) -> date:
    """The first day that lies after the moment's part of its day."""
    if moment.timetz().replace(tzinfo=None) == time() or moment.date() == date.max:
        return moment.date()
    return moment.date() + timedelta(days=1)


def _safe_text(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in label)[:40]
