"""What a plan reads and writes, estimated from metadata, and what may be a mistake in it.

Also: consumers and writers that a publication would break, or that keep positions in snapshots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple

from lakehouse_backfill.core.guards.streams import affected_consumers
from lakehouse_backfill.core.planning import job_code, pace
from lakehouse_backfill.core.planning.inputs.read_windows import (
    TIME_TYPES,
    window_of_run,
    window_row_ranges,
)
from lakehouse_backfill.core.planning.scope.key_chunks import is_by_key, reads_own_rows
from lakehouse_backfill.core.planning.target import file_sizes, isolation, row_changes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.guards.safety import Safety, next_opening
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.partitions import Chunk, RowRange
from lakehouse_backfill.domain.plan import (
    ChunkEstimate,
    Estimate,
    History,
    ResolvedManifest,
    SourcePin,
)
from lakehouse_backfill.domain.profile import Prices
from lakehouse_backfill.domain.tables.files import LiveFile, ScanEstimate
from lakehouse_backfill.errors import ConfigError, LimitExceeded

_GB = 1e9


class Learned(NamedTuple):
    """What the ledger says before a run: its history, and the floor where there is none."""

    history: History | None = None
    floor_s: float | None = None
    engine: str = ""
    cores: int | None = None


def learn_from_ledger(context: Context, resolved: ResolvedManifest, found: Inputs) -> Learned:
    """Read what earlier runs of the same code took on this engine; else a floor of others."""
    own, samples = pace.read_samples(context, resolved)
    engine, now = pace.engine_name(context, resolved), context.clock.now()
    computed, share = _computed(resolved)
    history = pace.learn(own, round(found.rows * share), computed, now, engine)
    floor = None if history else pace.floor_s(samples, round(found.size_bytes * share))
    return Learned(history, floor, engine, context.cores())


def _computed(resolved: ResolvedManifest) -> tuple[int, float]:
    """Return the chunks that are computed, not carried over, and their share of the partitions."""
    followed = resolved.catch_up
    chunks = [
        chunk
        for chunk in resolved.chunks
        if followed is None or followed.carried_chunk(chunk.chunk_id) is None
    ]
    labels = sum(len(chunk.partitions) for chunk in chunks)
    return len(chunks), labels / len(resolved.scope.partitions)


class Inputs(NamedTuple):
    """What the pinned inputs hold of the run's range: whole files after pruning."""

    files: int
    rows: int
    size_bytes: int

    @classmethod
    def of(cls, scans: Iterable[ScanEstimate]) -> Inputs:
        """Add up the inputs of a run."""
        every = tuple(scans)
        return cls(
            sum(item.files for item in every),
            sum(item.rows for item in every),
            sum(item.size_bytes for item in every),
        )


class Outputs(NamedTuple):
    """What the run writes, as far as known; `by_chunk` is what its partitions hold now."""

    files: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    by_chunk: tuple[ChunkEstimate, ...] = ()


def estimate_outputs(
    resolved: ResolvedManifest, replaced: tuple[LiveFile, ...] | None, history: History | None
) -> Outputs:
    """Estimate the output: as much as the partitions hold now; empty ones as earlier runs made.

    `replaced` is None where there is no table yet.
    """
    scope, live = resolved.scope, replaced or ()
    held = {label for file in live for label in file.spans or (file.partition,)}
    rows: float = sum(file.rows for file in live)
    size: float = sum(file.size_bytes for file in live)
    files: float = len(live)
    empty = sum(label not in held for label in scope.partitions)
    if empty and history is not None:
        added = empty * history.rows_per_partition.p50
        # Files of the run's other partitions say how large rows and files are.
        size, files = (size * (1 + added / rows), files * (1 + added / rows)) if rows else (0, 0)
        rows += added
    return Outputs(
        files=math.ceil(files) or None,
        rows=round(rows) if held or (history and empty) else None,
        size_bytes=round(size) or None,
        by_chunk=tuple(_chunk_estimates(resolved.chunks, live)),
    )


def _chunk_estimates(
    chunks: tuple[Chunk, ...], live: Sequence[LiveFile]
) -> Iterable[ChunkEstimate]:
    """Add up the files of each chunk; a file that spans several partitions is of its first.

    Chunks by key are taken to hold the same number of rows each.
    """
    if is_by_key(chunks):
        amounts = [(1, file.rows, file.size_bytes) for file in live]
        totals = [sum(each) for each in zip(*amounts, strict=True)] or [0, 0, 0]
        files, rows, size = (math.ceil(each / len(chunks)) for each in totals)
        for chunk in chunks:
            yield ChunkEstimate(chunk_id=chunk.chunk_id, files=files, rows=rows, size_bytes=size)
        return
    chunk_by_label = {label: chunk.chunk_id for chunk in chunks for label in chunk.partitions}
    by_id = dict.fromkeys((chunk.chunk_id for chunk in chunks), (0, 0, 0))
    for file in live:
        label = next(iter(file.spans), file.partition)
        if (chunk_id := chunk_by_label.get(label or "")) is not None:
            files, rows, size = by_id[chunk_id]
            by_id[chunk_id] = files + 1, rows + file.rows, size + file.size_bytes
    for chunk_id, (files, rows, size) in by_id.items():
        yield ChunkEstimate(chunk_id=chunk_id, files=files, rows=rows, size_bytes=size)


def estimate_from_files(
    found: Inputs, outputs: Outputs, prices: Prices, learned: Learned | None = None
) -> Estimate:
    """Estimate a run from its inputs, its outputs and what the ledger says.

    Duration and core-hours come from the history of earlier runs; without it they are unknown.
    Cores are held while the run is staged and validated, not while it is published.
    """
    learned = learned or Learned()
    history = learned.history
    duration = core_hours = None
    if history is not None:
        duration = round(history.duration_s.p50, 1)
        publishing = history.publication_s.p50 if history.publication_s else 0.0
        if learned.cores:
            computing = max(history.duration_s.p50 - publishing, 0.0)
            core_hours = round(computing * learned.cores / 3600, 6)
    requests = found.files + (outputs.files or 0)
    return Estimate(
        input_files=found.files,
        input_rows=found.rows,
        input_bytes=found.size_bytes,
        output_rows=outputs.rows,
        output_bytes=outputs.size_bytes,
        output_files=outputs.files,
        shuffle_bytes=found.size_bytes or None,
        duration_s=duration,
        core_hours=core_hours,
        cost_usd=_cost(found.size_bytes, outputs.size_bytes, requests, core_hours, prices),
        basis="input: whole files after pruning; output: as much as the partitions hold now, empty "
        "ones as earlier runs made; " + _basis_of_time(learned, core_hours),
        history=history,
        floor_s=learned.floor_s,
        by_chunk=outputs.by_chunk,
    )


def _basis_of_time(learned: Learned, core_hours: float | None) -> str:
    history = learned.history
    if history is None:
        text = (
            "duration and core-hours: not estimated, no history: no run has computed with this "
            "transform yet"
        )
        if learned.floor_s is None:
            return text
        return (
            f"{text}; reading alone takes at least {learned.floor_s:,.1f} s on {learned.engine}, "
            "by the highest rate of other transforms"
        )
    return describe_history(history) + (
        "; core-hours: not estimated, the profile does not say how many cores"
        if core_hours is None
        else ""
    )


def describe_history(history: History) -> str:
    """Return which runs are behind a duration, and how much they differ, as a sentence."""
    low, high = history.duration_s.p10, history.duration_s.p90
    runs = "1 earlier run" if history.runs == 1 else f"{history.runs} earlier runs"
    parts = [f"{history.staging_s.p50:,.1f} s staging"]
    for value, what in (
        (history.validation_s, "validation"), (history.publication_s, "publication"),
    ):  # fmt: skip
        parts.append(f"{what} without history" if value is None else f"{value.p50:,.1f} s {what}")
    return (
        f"duration: by {runs} of this transform ({history.chunks} chunks, the newest "
        f"{history.newest_days:,.1f} days ago) on {history.engine}; {low:,.1f} s to {high:,.1f} s "
        f"for 8 of 10 runs: {', '.join(parts)}"
    )


def check_limits(
    manifest: RunManifest, found: Estimate, now: datetime, prices: Prices | None = None
) -> None:
    """Raise LimitExceeded, with number and limit, when the plan is too large or too late.

    A limit of the cost refuses a plan whose cost is unknown, or lacks a part that has a price.
    """
    _require_whole_cost(manifest.safety, found, prices)
    _require_within(manifest, found)
    pace.require_passable_chunks(manifest, found)
    _require_deadline(manifest, found, now)


def _require_deadline(manifest: RunManifest, found: Estimate, now: datetime) -> None:
    """Raise LimitExceeded unless the run can be visible by its deadline, as far as is known.

    Half of the runs must make it: the 50th percentile counts, without a history the floor.
    """
    deadline = manifest.run.deadline
    if deadline is None:
        return
    deadline = deadline.astimezone(now.tzinfo)
    if now > deadline:
        raise LimitExceeded(
            f"the deadline {deadline.isoformat()} has passed",
            fix="agree on a later run.deadline",
            field="run.deadline",
        )
    duration = pace.duration_under_limits(manifest, found, now)
    end = expected_end(now, duration or 0.0)
    if end > deadline:
        least = "about" if found.duration_s is not None else "at least"
        raise LimitExceeded(
            f"the run takes {least} {duration:,.1f} s, until {end.isoformat(timespec='seconds')}; "
            f"run.deadline is {deadline.isoformat()}",
            fix="restate fewer partitions, agree on a later run.deadline, or widen its limits",
            field="run.deadline",
        )
    window = manifest.safety.publish_window
    opening = next_opening(window, end) if window else None
    if window and opening and opening > deadline:
        raise LimitExceeded(
            f"the run is done at {end.isoformat(timespec='seconds')} at the earliest and may be "
            f"published from {opening.isoformat(timespec='minutes')} on "
            f"(safety.publish_window {window.from_} to {window.to}); run.deadline is "
            f"{deadline.isoformat()}",
            fix="agree on a later run.deadline, or widen safety.publish_window",
            field="run.deadline",
        )


def expected_end(now: datetime, duration_s: float) -> datetime:
    """Return when a run that starts now ends; decisions of people take no time in it."""
    return now + timedelta(seconds=min(duration_s, _MAX_DURATION_S))


#: A century: an absurd estimate must not leave the calendar.
_MAX_DURATION_S = 3_155_760_000.0


def deadline_warnings(manifest: RunManifest, found: Estimate, now: datetime) -> tuple[str, ...]:
    """Describe a deadline that the slower runs would miss; empty without one."""
    deadline = manifest.run.deadline
    if deadline is None or found.history is None:
        return ()
    slow_s = pace.duration_under_limits(manifest, found, now, is_slow=True) or 0.0
    late = expected_end(now, slow_s)
    if late <= deadline.astimezone(now.tzinfo):
        return ()
    return (
        f"one run of ten takes {slow_s:,.1f} s or more and would end at "
        f"{late.isoformat(timespec='seconds')}, after run.deadline {deadline.isoformat()}",
    )


def _require_whole_cost(safety: Safety, found: Estimate, prices: Prices | None) -> None:
    """Raise LimitExceeded when the cost has a limit, and a part that has a price is unknown."""
    if safety.max_cost_usd is None:
        return
    if prices and prices.core_hour and found.core_hours is None:
        raise LimitExceeded(
            f"the cost of the plan is not complete: {_unknown_hours(found)}; "
            f"safety.max_cost_usd allows {safety.max_cost_usd}",
            fix="run one partition without safety.max_cost_usd first, so that its chunks give the "
            "pace; name the cores in the profile (spark.master: local[4], or executor instances "
            "and cores); or remove core_hour from the prices",
            field="safety.max_cost_usd",
        )
    if prices and prices.write_gb and not found.output_bytes:
        raise LimitExceeded(
            "the cost of the plan is not complete: its partitions hold nothing yet, so how much it "
            f"writes is unknown; safety.max_cost_usd allows {safety.max_cost_usd}",
            fix="run one partition without safety.max_cost_usd first; or remove write_gb from the "
            "prices",
            field="safety.max_cost_usd",
        )
    if found.cost_usd is None:
        raise LimitExceeded(
            "the cost of the plan is unknown: the profile has no prices of reads, writes or "
            f"requests; safety.max_cost_usd allows {safety.max_cost_usd}",
            fix="add prices (read_gb, write_gb, requests_1000) to the profile, or remove "
            "safety.max_cost_usd",
            field="safety.max_cost_usd",
        )


def _unknown_hours(found: Estimate) -> str:
    if found.history is None:
        return "duration and core-hours have no history"
    return "core-hours: not estimated, the profile does not say how many cores"


def _require_within(manifest: RunManifest, found: Estimate) -> None:
    """Raise LimitExceeded for a number that is greater than its limit."""
    safety = manifest.safety
    pairs = (
        ("input bytes", found.input_bytes, safety.max_bytes, "safety.max_bytes"),
        ("output rows", found.output_rows, safety.max_rows, "safety.max_rows"),
        ("cost in USD", found.cost_usd, safety.max_cost_usd, "safety.max_cost_usd"),
    )
    for what, number, limit, field in pairs:
        if limit is not None and number is not None and number > limit:
            raise LimitExceeded(
                f"the plan needs {number} {what}; {field} allows {limit}",
                fix=f"restate fewer partitions, or raise {field}",
                field=field,
            )


def _cost(
    read: int, written: int | None, requests: int, core_hours: float | None, prices: Prices
) -> float | None:
    parts = (
        (core_hours or 0.0, prices.core_hour if core_hours is not None else None),
        (read / _GB, prices.read_gb),
        ((written or 0) / _GB, prices.write_gb),
        (requests / 1000, prices.requests_1000),
    )
    known = [amount * price for amount, price in parts if price is not None]
    return round(sum(known), 6) if known else None


class RunEstimate(NamedTuple):
    """The estimate, the partitions of the scope that hold no row now, and the rows of the others.

    The rows are all that a publication may replace, whatever the run is estimated to write.
    `source_rows` are those of the pinned inputs alone.
    """

    estimate: Estimate
    empty_partitions: tuple[str, ...]
    rows_there: int
    source_rows: int


def estimate_run(
    context: Context, resolved: ResolvedManifest, live: tuple[LiveFile, ...]
) -> RunEstimate:
    """Estimate a run from metadata alone; `live` are the target's files of the scope.

    Raises ConfigError when an input cannot be cut.
    """
    inputs = []
    for pin in resolved.sources:
        rows: tuple[RowRange, ...] = ()
        if pin.range is not None:
            first, last = window_of_run(resolved, pin, resolved.scope)
            rows = window_row_ranges(_column_type(pin), pin.range.column, first, last)
        inputs.append(context.tables.estimate(pin.table, pin.snapshot_id, rows))
    replaced = live if resolved.target.uuid is not None else None
    held = {label for file in live for label in file.spans or (file.partition,)}
    empty = tuple(label for label in resolved.scope.partitions if label not in held)
    of_sources = Inputs.of(inputs)
    found = _with_base(resolved, read_for_chunks(resolved, of_sources), live)
    learned = learn_from_ledger(context, resolved, found)
    outputs = estimate_outputs(resolved, replaced, learned.history)
    estimate = estimate_from_files(found, outputs, context.profile.prices, learned)
    if found is not of_sources:
        how = "with the target's own files, whose other rows stay"
        if is_by_key(resolved.chunks):
            how = f"read whole for each of {len(resolved.chunks)} chunks by key, at most"
        basis = f"input: {how}; {estimate.basis}"
        estimate = estimate.model_copy(update={"basis": basis})
    return RunEstimate(estimate, empty, sum(file.rows for file in live), of_sources.rows)


def read_for_chunks(resolved: ResolvedManifest, found: Inputs) -> Inputs:
    """Return what all chunks read: each chunk by key the whole input, unless it names its own."""
    if not is_by_key(resolved.chunks) or reads_own_rows(resolved):
        return found
    return Inputs(*(each * len(resolved.chunks) for each in found))


def _with_base(resolved: ResolvedManifest, found: Inputs, live: tuple[LiveFile, ...]) -> Inputs:
    """Add what a run reads of the rows that it replaces, to carry some of them over."""
    if not row_changes.reads_base_rows(resolved.manifest.target):
        return found
    rows, size = sum(file.rows for file in live), sum(file.size_bytes for file in live)
    return Inputs(found.files + len(live), found.rows + rows, found.size_bytes + size)


def estimate_warnings(
    context: Context, resolved: ResolvedManifest, found: RunEstimate
) -> tuple[str, ...]:
    """Describe what may be a mistake, although nothing forbids it."""
    scope, texts = resolved.scope, []
    if found.empty_partitions and resolved.target.uuid is not None:
        few = partitions.describe_labels(found.empty_partitions)
        texts.append(
            f"{len(found.empty_partitions)} of {len(scope.partitions)} partitions hold no rows "
            f"now: {few}"
        )
    future = [label for label in scope.partitions if _is_ahead(context, resolved, label)]
    if future:
        texts.append(f"partitions lie in the future: {partitions.describe_labels(tuple(future))}")
    if found.source_rows == 0:
        texts.append("the pinned input holds no rows in the range: the output would be empty")
    if job_code.is_dirty(resolved.git_commit):
        texts.append("the project has changes that are in no git commit; their hashes are kept")
    intolerant = [
        f"{item.name} does not tolerate restatement"
        for item in resolved.contract.consumers or ()
        if not item.tolerates_restatement
    ]
    mode = resolved.manifest.target.publish_mode
    broken = affected_consumers(
        resolved.contract, mode, context.tables.positions(resolved.target.table)
    )
    place = isolation.place_warnings(context, resolved)
    late = deadline_warnings(resolved.manifest, found.estimate, context.clock.now())
    return (*texts, *late, *intolerant, *broken, *place, *_small_chunks(context, resolved, found))


def _small_chunks(
    context: Context, resolved: ResolvedManifest, found: RunEstimate
) -> Iterable[str]:
    info = context.tables.describe(resolved.target.table) if is_by_key(resolved.chunks) else None
    if info is not None:
        sizes = [each.size_bytes for each in found.estimate.by_chunk]
        yield from filter(None, [file_sizes.describe_small_chunks(sizes, info.properties)])


def _is_ahead(context: Context, resolved: ResolvedManifest, label: str) -> bool:
    lower = partitions.partition_row_range(resolved.scope.field, label).lower
    if not isinstance(lower, date):
        return False
    return as_instant(lower) > context.clock.now()


def _column_type(pin: SourcePin) -> str:
    columns = {item.name: item.type for item in pin.columns}
    found = columns.get(pin.range.column) if pin.range else None
    if found not in TIME_TYPES:
        there = [name for name, kind in columns.items() if kind in TIME_TYPES]
        raise ConfigError(
            f"sources.{pin.name}.range.column is no date or timestamp of {pin.table}",
            fix=f"name the column by which the input is cut: {', '.join(there) or 'it has none'}",
            field=f"sources.{pin.name}.range.column",
        )
    return found
