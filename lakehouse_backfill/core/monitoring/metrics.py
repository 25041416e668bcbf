"""The metrics of a lake, read from what is recorded; nothing is counted a second time.

Runs that are open, and the newest that are over, have a label; so the number of series is bounded.
A run whose plan cannot be read has none of the metrics that need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.core.approval.decisions import VALIDATION
from lakehouse_backfill.core.monitoring.alerts import find_alerts, freshness_of
from lakehouse_backfill.core.planning.pace import publication_seconds
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.monitoring.metrics import NO_RUN, MetricSample
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.retention import PinLease
from lakehouse_backfill.domain.run import ChunkRecord, Event, RunStatus
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import BackfillError

#: So many runs that are over, the last moved, have metrics of their own.
CLOSED_RUNS = 20
_KEYS_UNIQUE = "keys are unique"


@dataclass(frozen=True)
class ObservedRun:
    """What is recorded of one run; `validation` is the newest document, empty before it."""

    status: RunStatus
    mode: str
    plan: Plan | None
    events: tuple[Event, ...]
    chunks: tuple[ChunkRecord, ...]
    validation: dict[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the run's metrics: product, run, mode."""
        return self.status.product, self.status.run_id, self.mode


def collect_metrics(context: Context) -> tuple[MetricSample, ...]:
    """Return all metrics as of now; only control tables and table metadata are read."""
    statuses = context.runs.list(open_only=False)
    observed = [observe(context, status) for status in labelled_runs(statuses)]
    modes = _Modes(context, {one.status.run_id: one.mode for one in observed})
    found = [sample for run in observed for sample in run_samples(run)]
    found += open_run_samples(statuses, modes)
    found += _product_samples(context, {status.product for status in statuses}, modes)
    found += _pin_samples(context, context.evidence.active_leases(), modes)
    for alert in find_alerts(context, statuses):
        mode = modes[alert.run_id]
        found.append(
            MetricSample("backfill_alerts", (alert.product, alert.run_id, alert.cause, mode), 1)
        )
    return tuple(found)


class _Modes(dict[str, str]):
    """The mode of each run by its id; runs that have no label of their own are looked up."""

    def __init__(self, context: Context, known: dict[str, str]) -> None:
        super().__init__(known)
        self._context = context

    def __missing__(self, run_id: str) -> str:
        events = self._context.runs.events(run_id) if run_id else ()
        self[run_id] = events[0].mode if events else NO_RUN
        return self[run_id]


def labelled_runs(statuses: tuple[RunStatus, ...]) -> list[RunStatus]:
    """Return the open runs and the newest closed ones."""
    newest = sorted(statuses, key=lambda status: status.at, reverse=True)
    is_open = [one.state in lifecycle.OPEN_STATES for one in newest]
    closed = [one for one, still in zip(newest, is_open, strict=True) if not still]
    return [one for one, still in zip(newest, is_open, strict=True) if still] + closed[:CLOSED_RUNS]


def observe(context: Context, status: RunStatus) -> ObservedRun:
    """Read what is recorded of a run."""
    events = context.runs.events(status.run_id)
    try:
        plan: Plan | None = context.runs.plan(status.run_id)
    except BackfillError:
        plan = None  # It is missing or was edited; `audit verify` says so.
    found = context.evidence.newest(status.run_id, VALIDATION)
    return ObservedRun(
        status=status,
        mode=events[0].mode if events else NO_RUN,
        plan=plan,
        events=events,
        chunks=context.runs.chunks(status.run_id),
        validation=found[1] if found else {},
    )


def run_samples(run: ObservedRun) -> Iterator[MetricSample]:
    """Yield the metrics of one run, as far as what they count has happened."""
    done = [chunk for chunk in run.chunks if chunk.status == "done"]
    computed = [chunk for chunk in done if not (chunk.recovered or chunk.carried_from)]
    counts: dict[str, float | None] = {
        "backfill_input_records_total": sum(chunk.input_rows for chunk in run.chunks),
        "backfill_output_records_total": sum(chunk.output_rows for chunk in run.chunks),
        "backfill_rejected_records_total": sum(chunk.rejected_rows or 0 for chunk in run.chunks),
        "backfill_chunks_completed_total": len(done),
        "backfill_redone_chunks_total": _redone(computed),
        "backfill_validation_failures_total": _failures(run),
        "backfill_cost_estimate": run.plan.estimate.cost_usd if run.plan else None,
        "backfill_publish_duration_seconds": publication_seconds(run.events),
        **_validated(run.validation),
    }
    seconds = [chunk.seconds for chunk in computed]
    if sum(seconds) > 0:
        rows = sum(chunk.output_rows for chunk in computed)
        counts["backfill_rows_per_second"] = rows / sum(seconds)
    for name, value in counts.items():
        if value is not None:
            yield MetricSample(name, run.labels, value)
    if seconds:
        milliseconds = tuple(1000 * each for each in seconds)
        yield MetricSample("backfill_chunk_duration_seconds", run.labels, 0, tuple(seconds))
        yield MetricSample("backfill_sink_write_latency_ms", run.labels, 0, milliseconds)


def _redone(computed: list[ChunkRecord]) -> int:
    """Count the chunks of later drivers: staging had been begun before."""
    first = min((chunk.epoch for chunk in computed), default=0)
    return sum(chunk.epoch > first for chunk in computed)


def _failures(run: ObservedRun) -> int:
    checks = run.validation.get("checks", ())
    failed = len([one for one in checks if one["blocking"] and not one["passed"]])
    return failed + sum(chunk.status == "failed" for chunk in run.chunks)


def _validated(document: dict[str, Any]) -> dict[str, float | None]:
    """Return what the validation counted; nothing before it."""
    if not document:
        return {}
    unique = (one for one in document["checks"] if one["name"] == _KEYS_UNIQUE)
    summary = document["diff"]["summary"]
    return {
        "backfill_duplicates_total": next((one["observed"] for one in unique), None),
        "backfill_divergent_rows_total": sum(summary[n] for n in ("added", "removed", "changed")),
    }


def open_run_samples(statuses: tuple[RunStatus, ...], modes: dict[str, str]) -> list[MetricSample]:
    """Return how many runs are open, by product, state and mode."""
    count = Counter(
        (one.product, one.state.value, modes.get(one.run_id, NO_RUN))
        for one in statuses
        if one.state in lifecycle.OPEN_STATES
    )
    return [MetricSample("backfill_open_runs", labels, n) for labels, n in sorted(count.items())]


def _product_samples(context: Context, products: set[str], modes: _Modes) -> Iterator[MetricSample]:
    """Yield how old what readers see is."""
    now = context.clock.now()
    for product in sorted(products):
        accepted = context.versions.pointer(product).accepted
        committed = freshness_of(context, product)
        if committed is not None:
            mode = modes[accepted.run_id or ""] if accepted else NO_RUN
            age = max(0.0, (now - committed).total_seconds())
            yield MetricSample("backfill_product_freshness_seconds", (product, mode), age)


def _pin_samples(
    context: Context, leases: tuple[PinLease, ...], modes: _Modes
) -> Iterator[MetricSample]:
    """Yield the bytes of pinned snapshots, each counted once: for the newest lease of it."""
    kept = {(lease.table, lease.snapshot_id): lease for lease in leases}
    sizes: Counter[tuple[str, str]] = Counter()
    for (table, snapshot_id), lease in kept.items():
        try:
            found = context.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
        except BackfillError:
            continue  # The snapshot has expired, or the table is gone.
        size = int(found.summary.get("total-files-size", "0"))
        sizes[lease.product, modes[lease.run_id]] += size
    for labels, size in sorted(sizes.items()):
        yield MetricSample("backfill_pinned_bytes", labels, size)
