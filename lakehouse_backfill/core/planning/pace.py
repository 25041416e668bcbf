"""How fast earlier runs of a transform were, from the ledger: the history behind an estimate.

Also the sizes of chunks, and whether the limits of a run let them through.

A run is a sample when the same code computed on the same engine profile. What a sample says of a
new run is scaled by the rows to read; what a start costs is not. All times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean
from typing import Protocol

from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import EdgePartition, EdgeSide
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.guards import compute
from lakehouse_backfill.domain.guards.limits import (
    WINDOW_MINUTES,
    ChunkAmounts,
    earliest_end,
    when_amounts_fit,
)
from lakehouse_backfill.domain.guards.safety import PaceLimits
from lakehouse_backfill.domain.manifest import Compute, RunManifest
from lakehouse_backfill.domain.plan import Estimate, History, Plan, ResolvedManifest, Spread
from lakehouse_backfill.domain.run import ChunkRecord, Event, format_duration
from lakehouse_backfill.errors import Blocked, LimitExceeded
from lakehouse_backfill.ports.control import RecordedRun

#: In the event `begin staging`: the engine profile that computes from then on.
ENGINE_DETAIL = "engine"
#: So many of the newest runs are read: those of the same transform, and others for the floor.
_RUNS_READ = 20
#: Samples that read between a third and three times as many rows come before all others.
_SIMILAR = 3.0
_DEFAULT_MASTER = "local[*]"
_LabelsBySide = Mapping[EdgeSide, tuple[str, ...]]


def engine_name(context: Context, resolved: ResolvedManifest | None = None) -> str:
    """Return the engine profile by which times are comparable: its master and cores."""
    return _engine_of(context, resolved.manifest.compute.pool if resolved else compute.DEFAULT)


def _engine_of(context: Context, pool: str) -> str:
    profile = context.profile
    spark = compute.pool_settings(profile.spark, profile.compute, pool)
    remote = spark.get("spark.remote", "").partition(";")[0]
    cores = context.cores()
    amount = "an unknown number of cores" if cores is None else f"{cores} cores"
    return f"{remote or spark.get('spark.master', _DEFAULT_MASTER)} with {amount}"


def engine_detail(context: Context, place: Compute) -> dict[str, str]:
    """Return what the event `begin staging` records of the engine, and of a place by its name."""
    names = {"pool": place.pool, "scratch": place.scratch}
    named = {key: name for key, name in names.items() if name != compute.DEFAULT}
    return {ENGINE_DETAIL: _engine_of(context, place.pool), **named}


def place_notes(context: Context, manifest: RunManifest) -> tuple[str, ...]:
    """Return what a plan says of where its run computes.

    Raises Blocked where a declared live job computes, ConfigError for a name that is not known.
    """
    profile, place = context.profile, manifest.compute
    if manifest.transform.writer == "external":
        return ()
    return compute.plan_notes(profile.spark, profile.compute, place.pool, place.scratch)


def require_place(context: Context, manifest: RunManifest) -> None:
    """Raise Blocked unless this process computes in the place that the run names.

    Also where a live job computes by now, and ConfigError for a name that is not known any more.
    """
    place_notes(context, manifest)
    place, own = manifest.compute, context.place()
    if manifest.transform.writer == "job" and own != place.named_place:
        raise Blocked(
            f"the run names pool {place.pool} and scratch place {place.scratch}, and this process "
            f"computes in pool {own.pool}, scratch place {own.scratch}",
            state="nothing was computed; readers see what they saw before",
            fix="give the command in a process of its own, e.g. lakehouse-backfill run",
        )


@dataclass(frozen=True)
class Sample:
    """What one earlier run read, wrote and took; None: not done, or cut off.

    `rows` and `size_bytes` are those of its plan, scaled to the partitions that it computed itself.
    """

    at: datetime
    engine: str
    rows: float
    size_bytes: float
    partitions: int
    output_rows: int
    chunks: int
    chunk_s: float
    overhead_s: float | None = None
    validation_s: float | None = None
    publication_s: float | None = None

    def staging_s(self, rows: int, chunks: int) -> float:
        """Estimate the chunks by the rows; each takes at least half of the mean time of a chunk."""
        by_rows = self.chunk_s * rows / self.rows if self.rows else 0.0
        return max(by_rows, chunks * self.chunk_s / self.chunks / 2)

    def judging_s(self, rows: int) -> float | None:
        """Estimate the validation by the rows, but at least half of what it took."""
        if self.validation_s is None:
            return None
        scale = rows / self.rows if self.rows else 1.0
        return self.validation_s * max(scale, 0.5)


def sample_of(recorded: RecordedRun) -> Sample | None:
    """Return what a run says of its pace; None when its own job computed no chunk."""
    plan, events = recorded.plan, recorded.events
    done = [one for one in recorded.chunks if _is_computed(one)]
    engine = next((e.detail[ENGINE_DETAIL] for e in reversed(events) if _names_engine(e)), None)
    chunk_s = sum(one.seconds for one in done)
    if engine is None or not done or chunk_s <= 0 or publish_modes.is_externally_written(plan):
        return None
    partitions = sum(len(one.partitions) for one in done)
    share = min(1.0, partitions / len(plan.resolved.scope.partitions))
    staged = _span_s(events, "begin staging", ("finish staging",), ("fail", "halt", "pause"))
    return Sample(
        at=max(one.finished_at for one in done),
        engine=str(engine),
        rows=plan.estimate.input_rows * share,
        size_bytes=plan.estimate.input_bytes * share,
        partitions=partitions,
        output_rows=sum(one.output_rows for one in done),
        chunks=len(done),
        chunk_s=chunk_s,
        overhead_s=None if staged is None else max(0.0, staged - chunk_s),
        validation_s=_span_s(events, "begin validation", ("pass validation", "fail validation")),
        publication_s=publication_seconds(events),
    )


def publication_seconds(events: Iterable[Event]) -> float | None:
    """Return the seconds of a publication by the run's log; None when none ended."""
    return _span_s(events, "begin publishing", ("finish publishing",), ("release",))


def _is_computed(chunk: ChunkRecord) -> bool:
    return chunk.status == "done" and not chunk.recovered and not chunk.carried_from


def _names_engine(event: Event) -> bool:
    return event.verb == "begin staging" and ENGINE_DETAIL in event.detail


def _span_s(
    events: Iterable[Event], first: str, last: tuple[str, ...], broken: tuple[str, ...] = ()
) -> float | None:
    """Return the seconds between the newest `first` and the event that ended it, if it ended well.

    None as well when the act was begun a second time, a part of it was done before; and when its
    end lies before its beginning.
    """
    begun: datetime | None = None
    found: float | None = None
    times = 0
    for event in events:
        if event.verb == first:
            begun, times = event.at, times + 1
        elif event.verb in last and begun is not None:
            found, begun = (event.at - begun).total_seconds(), None
        elif event.verb in broken:
            begun = None
    if found is not None and found < 0:
        return None  # The clocks of two machines, or one that was set back.
    return found if times == 1 or not broken else None


def read_samples(context: Context, resolved: ResolvedManifest) -> tuple[list[Sample], list[Sample]]:
    """Return the samples of the same code on this engine profile, and those of any code on it."""
    transform, engine = resolved.manifest.transform, engine_name(context, resolved)
    own: list[Sample] = []
    others: list[Sample] = []
    for recorded in context.runs.recorded(transform.name, _RUNS_READ):
        sample = sample_of(recorded)
        if sample is None or sample.engine != engine:
            continue
        before = recorded.plan.resolved
        there = before.manifest.transform
        is_same = (there.name, there.version, before.code_hash) == (
            transform.name, transform.version, resolved.code_hash,
        )  # fmt: skip
        (own if is_same else others).append(sample)
    return own, own + others


def learn(
    samples: list[Sample], rows: int, chunks: int, now: datetime, engine: str
) -> History | None:
    """Return what the samples say of a run over so many rows and chunks; None without any.

    Samples of a similar size count alone where there are some: a small run is mostly its start.
    """
    similar = [one for one in samples if _is_similar(one.rows, rows)]
    used = similar or samples
    if not used:
        return None
    staging = [one.staging_s(rows, chunks) for one in used]
    overheads = [one.overhead_s for one in used if one.overhead_s is not None]
    start = fmean(overheads) if overheads else 0.0
    judging = _known(used, lambda one: one.judging_s(rows))
    publishing = _known(used, lambda one: one.publication_s)
    whole = [
        staged
        + (start if one.overhead_s is None else one.overhead_s)
        + _or_mean(one.judging_s(rows), judging)
        + _or_mean(one.publication_s, publishing)
        for one, staged in zip(used, staging, strict=True)
    ]
    return History(
        engine=engine,
        runs=len(used),
        chunks=sum(one.chunks for one in used),
        oldest_days=_days(now, min(one.at for one in used)),
        newest_days=_days(now, max(one.at for one in used)),
        rows_per_s=spread([one.rows / one.chunk_s for one in used]),
        bytes_per_s=spread([one.size_bytes / one.chunk_s for one in used]),
        rows_per_partition=spread([one.output_rows / one.partitions for one in used]),
        duration_s=spread(whole),
        staging_s=spread([
            staged + (start if one.overhead_s is None else one.overhead_s)
            for one, staged in zip(used, staging, strict=True)
        ]),
        validation_s=spread(judging) if judging else None,
        publication_s=spread(publishing) if publishing else None,
    )  # fmt: skip


def floor_s(samples: list[Sample], size_bytes: int) -> float | None:
    """Return the least time that reading takes, by the highest rate that this engine has shown.

    None: no run has computed on it, or none of them read anything.
    """
    rates = [one.size_bytes / one.chunk_s for one in samples]
    best = max(rates, default=0.0)
    return round(size_bytes / best, 1) if best > 0 else None


def spread(values: list[float]) -> Spread:
    """Return the 10th, 50th and 90th percentile of at least one value, between neighbours."""
    ordered = sorted(values)
    # Of values that are almost equal, rounding errors may leave a lower one above a higher one.
    found = sorted(round(_quantile(ordered, share), 3) for share in _QUANTILES.values())
    return Spread(**dict(zip(_QUANTILES, found, strict=True)))


_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


def _quantile(ordered: list[float], share: float) -> float:
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    # Not a + (b - a) * w: that may pass b by a rounding error.
    weight = position - below
    return ordered[below] * (1 - weight) + ordered[above] * weight


def _is_similar(rows: float, wanted: int) -> bool:
    return rows > 0 and wanted > 0 and 1 / _SIMILAR <= rows / wanted <= _SIMILAR


def _known(samples: list[Sample], read: Callable[[Sample], float | None]) -> list[float]:
    return [value for one in samples if (value := read(one)) is not None]


def _or_mean(value: float | None, known: list[float]) -> float:
    if value is not None:
        return value
    return fmean(known) if known else 0.0


def _days(now: datetime, then: datetime) -> float:
    return round(max(0.0, (now - then).total_seconds()) / 86_400, 2)


def chunk_sizes(found: Estimate, chunk_count: int) -> dict[str, tuple[int, int]]:
    """Return, by chunk, the rows that it reads or writes and its input bytes, as far as known.

    The input is taken to be spread evenly over the chunks; of rows, those that its partitions hold
    now count if they are more.
    """
    even = math.ceil(found.input_rows / max(1, chunk_count))
    size_bytes = math.ceil(found.input_bytes / max(1, chunk_count))
    return {one.chunk_id: (max(one.rows, even), size_bytes) for one in found.by_chunk}


def read_amounts(plan: Plan, record: ChunkRecord) -> ChunkAmounts:
    """Return what counts of a chunk that landed: rows, input bytes by the plan, its seconds."""
    estimate = plan.estimate
    row_bytes = estimate.input_bytes / estimate.input_rows if estimate.input_rows else 0.0
    rows = max(record.input_rows, record.output_rows)
    return ChunkAmounts(rows, round(record.input_rows * row_bytes), record.seconds)


class ComputesEdges(Protocol):
    """The part of `Staging` that computes partitions beyond the edges of a run."""

    def edges(self, plan: Plan, around: _LabelsBySide) -> tuple[EdgePartition, ...]:
        """Compute them and compare them with the target's base."""
        ...

    def edge_checksums(self, plan: Plan, around: _LabelsBySide) -> dict[str, Checksum]:
        """Compute their checksums."""
        ...


@dataclass
class PacedEdges:
    """Computes beyond the edges only as fast as a limit of rows or bytes a minute allows.

    Partitions are computed one by one then, each once what it reads fits beside the chunks of the
    run and the partitions before it. Each is taken to read as much as a partition of the run does
    on average.
    """

    context: Context
    staging: ComputesEdges
    _read: list[tuple[datetime, ChunkAmounts]] = field(default_factory=list)

    def edges(self, plan: Plan, around: _LabelsBySide) -> tuple[EdgePartition, ...]:
        """Compute them and compare them with the target's base."""
        parts = self._parts(plan, around)
        return tuple(one for part in parts for one in self.staging.edges(plan, part))

    def edge_checksums(self, plan: Plan, around: _LabelsBySide) -> dict[str, Checksum]:
        """Compute their checksums."""
        found: dict[str, Checksum] = {}
        for part in self._parts(plan, around):
            found |= self.staging.edge_checksums(plan, part)
        return found

    def _parts(self, plan: Plan, around: _LabelsBySide) -> Iterator[_LabelsBySide]:
        if not plan.resolved.manifest.limits.hold_for_reads:
            yield around
            return
        ledger = self.context.runs.chunks(plan.run_id)
        landed = [(one.finished_at, read_amounts(plan, one)) for one in ledger]
        for side, labels in around.items():
            for label in labels:
                self._wait(plan, landed)
                yield {side: (label,)}
                self._read.append((self.context.clock.now(), _partition_amounts(plan)))

    def _wait(self, plan: Plan, landed: list[tuple[datetime, ChunkAmounts]]) -> None:
        limits, clock = plan.resolved.manifest.limits, self.context.clock
        amounts, now = _partition_amounts(plan), clock.now()
        until = when_amounts_fit(limits, [*landed, *self._read], amounts, now)
        if (left_s := (until - now).total_seconds()) <= 0:
            return
        text = f"waits {format_duration(left_s)} before it computes beyond the edges: limits"
        self.context.progress.start(text, 0, "")
        while (left_s := (until - clock.now()).total_seconds()) > 0:
            clock.sleep(min(1.0, left_s))
        self.context.progress.finish()


def _partition_amounts(plan: Plan) -> ChunkAmounts:
    """Return what one partition of the run reads or has on average, by its plan."""
    found, labels = plan.estimate, len(plan.resolved.scope.partitions)
    most_rows = max(found.input_rows, found.output_rows or 0)
    rows, size = (math.ceil(each / labels) for each in (most_rows, found.input_bytes))
    return ChunkAmounts(rows, size, 0.0)


def require_passable_chunks(manifest: RunManifest, found: Estimate) -> None:
    """Raise LimitExceeded for a limit that is smaller than one chunk."""
    limits, sizes = manifest.limits, chunk_sizes(found, len(found.by_chunk))
    for place, unit in enumerate(("rows", "bytes")):
        limit = getattr(limits, f"{unit}_per_minute")
        if limit is None or not sizes:
            continue
        chunk_id, size = max(sizes.items(), key=lambda one: one[1][place])
        if size[place] > limit * WINDOW_MINUTES:
            least = math.ceil(size[place] / WINDOW_MINUTES)
            is_whole = manifest.target.partitions.whole_table
            smaller = ", or cut smaller chunks with limits.partitions_per_chunk"
            raise LimitExceeded(
                f"chunk {chunk_id} has about {size[place]:,} {unit}; limits.{unit}_per_minute "
                f"{limit:,} lets {limit * WINDOW_MINUTES:,} through in {WINDOW_MINUTES} minutes",
                fix=f"set limits.{unit}_per_minute to {least:,} or more"
                + ("" if is_whole else smaller),
                field=f"limits.{unit}_per_minute",
            )


def duration_under_limits(
    manifest: RunManifest, found: Estimate, now: datetime, *, is_slow: bool = False
) -> float | None:
    """Estimate the seconds of a run that starts now, its limits and allowed hours counted.

    With `is_slow`, those that one run of ten takes at least. None without a history, a floor, and
    a limit that makes chunks wait.
    """
    history = found.history
    known = found.duration_s if found.duration_s is not None else found.floor_s
    staging_s, later_s = found.floor_s or 0.0, 0.0
    if history is not None:
        known = history.duration_s.p90 if is_slow else known
        staging_s = history.staging_s.p90 if is_slow else history.staging_s.p50
        after = [one for one in (history.validation_s, history.publication_s) if one is not None]
        later_s = sum(one.p90 if is_slow else one.p50 for one in after)
    sizes = chunk_sizes(found, len(found.by_chunk)).values()
    if not sizes:
        return known
    side_by_side = manifest.limits.parallel
    # So that without limits they end when the staging did.
    each_s = staging_s / math.ceil(len(sizes) / side_by_side)
    chunks = [ChunkAmounts(*size, each_s) for size in sizes]
    end = earliest_end(manifest.limits, chunks, now)
    if end <= earliest_end(PaceLimits(parallel=side_by_side), chunks, now):
        return known  # Nothing waits: what earlier runs took counts.
    return max(known or 0.0, (end - now).total_seconds() + later_s)
