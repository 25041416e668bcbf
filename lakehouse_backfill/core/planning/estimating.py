"""What a plan will read and write, and what in it deserves a second look."""

from __future__ import annotations

from typing import NamedTuple

from lakehouse_backfill.core.planning import consumers, estimates, staging_place, windows
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.plan import Estimate, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.scope import RowRange
from lakehouse_backfill.errors import ConfigError


class RunEstimate(NamedTuple):
    """The estimate, and the partitions of the scope that hold no row now."""

    estimate: Estimate
    empty: tuple[str, ...]


def estimate_run(bench: Context, resolved: ResolvedManifest) -> RunEstimate:
    """Estimate a run from metadata alone; raises ConfigError when an input cannot be cut."""
    inputs = []
    for pin in resolved.sources:
        rows: tuple[RowRange, ...] = ()
        if pin.range is not None:
            first, last = windows.window_to_read(pin, resolved.scope)
            rows = windows.window_row_ranges(
                _column_type(bench, pin), pin.range.column, first, last
            )
        inputs.append(bench.tables.estimate(pin.table, pin.snapshot_id, rows))
    target, replaced, held = resolved.target, None, set()
    if target.uuid is not None:
        wanted = set(resolved.scope.partitions)
        live = bench.tables.files(target.table, target.snapshot_id, resolved.scope.field)
        replaced = tuple(file for file in live if file.is_in(wanted))
        held = {label for file in replaced for label in file.spans or (file.partition,)}
    empty = tuple(label for label in resolved.scope.partitions if label not in held)
    return RunEstimate(
        estimates.estimate_from_files(tuple(inputs), replaced, bench.profile.prices), empty
    )


def estimate_warnings(
    bench: Context, resolved: ResolvedManifest, found: RunEstimate
) -> tuple[str, ...]:
    """Say what may be a mistake, although nothing forbids it."""
    scope, texts = resolved.scope, []
    if found.empty and resolved.target.uuid is not None:
        few = partitions.describe_labels(found.empty)
        texts.append(
            f"{len(found.empty)} of {len(scope.partitions)} partitions hold no rows now: {few}"
        )
    future = [label for label in scope.partitions if _is_ahead(bench, resolved, label)]
    if future:
        texts.append(f"partitions lie in the future: {partitions.describe_labels(tuple(future))}")
    if found.estimate.input_rows == 0:
        texts.append("the pinned input holds no rows in the range: the output would be empty")
    if resolved.git_commit and resolved.git_commit.endswith("-dirty"):
        texts.append("the project has changes that are in no git commit; their hashes are kept")
    mode = resolved.manifest.target.publish_mode
    broken = consumers.affected_consumers(
        resolved.contract, mode, bench.tables.positions(resolved.target.table)
    )
    place = staging_place.staging_location_notes(
        resolved.manifest.compute.staging_location, bench.tables.describe(resolved.target.table)
    )
    return (*texts, *_intolerant(resolved.contract), *broken, *place)


def _is_ahead(bench: Context, resolved: ResolvedManifest, label: str) -> bool:
    lower = partitions.partition_row_range(resolved.scope.field, label).lower
    if lower is None or isinstance(lower, int | str):
        return False
    return windows.to_utc_instant(lower) > bench.clock.now()


def _intolerant(contract: Contract) -> list[str]:
    return [
        f"{item.name} does not tolerate restatement"
        for item in contract.consumers or ()
        if not item.tolerates_restatement
    ]


def _column_type(bench: Context, pin: SourcePin) -> str:
    columns = {item.name: item.type for item in pin.columns}
    if not columns:  # a port that does not say how the snapshot is read
        info = bench.tables.describe(pin.table)
        columns = {item.name: item.type for item in (info.columns if info else ())}
    found = columns.get(pin.range.column) if pin.range else None
    if found not in windows.TIME_TYPES:
        there = [name for name, kind in columns.items() if kind in windows.TIME_TYPES]
        raise ConfigError(
            f"sources.{pin.name}.range.column is no date or timestamp of {pin.table}",
            fix=f"name the column by which the input is cut: {', '.join(there) or 'it has none'}",
            field=f"sources.{pin.name}.range.column",
        )
    return found
