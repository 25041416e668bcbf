"""What a plan reads and writes, estimated from metadata, and what may be a mistake in it.

Also: consumers and writers that a publication would break, or that keep positions in snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from lakehouse_backfill.core.planning import job_code, resolve
from lakehouse_backfill.core.planning.target import write_path
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract, Prices
from lakehouse_backfill.domain.guards.safety import Safety
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.plan import Estimate, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.table import LiveFile, ScanEstimate
from lakehouse_backfill.errors import ConfigError, LimitExceeded

#: Keys of snapshot summaries by which writers find where they stopped: key prefix -> writer.
#: They look for them in the ancestors of main; a publication is a child of it, so they stay there.
POSITION_KEYS = {
    "flink.max-committed-checkpoint-id": "a Flink job",
    "kafka.connect.": "a Kafka Connect sink",
    "spark.sql.streaming.": "a Spark streaming query",
}


def is_position_key(key: str) -> bool:
    """Return whether a writer finds its position by this key of a snapshot summary."""
    return key.startswith(tuple(POSITION_KEYS))


def affected_consumers(
    contract: Contract, mode: str, positions: Mapping[str, str]
) -> tuple[str, ...]:
    """List consumers that a publication or its rollback would break, and the fix."""
    texts = []
    for item in contract.consumers or ():
        if item.reads != "stream":
            continue
        if contract.publication == "pinned":
            texts.append(
                f"{item.name} streams from a table, but the accepted version moves to another "
                "one: let it resolve the pointer again after each publication"
            )
        elif mode == "append":
            texts.append(f"{item.name} streams from {contract.table}: it gets the rows as new ones")
        elif mode != "correction_events":
            texts.append(
                f"{item.name} streams from {contract.table}: Spark stops a streaming reader at an "
                "overwrite snapshot. Stop it first and set streaming-skip-overwrite-snapshots, or "
                "publish correction_events"
            )
    writers = sorted(
        {POSITION_KEYS[p] for key in positions for p in POSITION_KEYS if key.startswith(p)}
    )
    for writer in writers:
        if contract.publication == "pinned":
            texts.append(
                f"{writer} writes to {contract.table} and keeps its position there: it goes on "
                "with that table, not with the accepted version"
            )
        else:
            texts.append(
                f"{writer} keeps its position in snapshots of {contract.table}: publication and "
                "rollback are children of its head, so it goes on where it was"
            )
    return tuple(texts)


_GB = 1e9
#: So many earlier runs of a transform are read for its pace.
_RUNS_FOR_PACE = 5


@dataclass(frozen=True)
class Pace:
    """How fast earlier chunks of a transform were; `cores` is None where it is not known."""

    seconds: float
    input_rows: int
    chunks: int
    cores: int | None

    def duration_s(self, rows: int, chunks: int) -> float:
        """Estimate by the rows to read, but at least half of the mean time of a chunk for each."""
        by_rows = rows * self.seconds / self.input_rows if self.input_rows else 0.0
        return round(max(by_rows, chunks * self.seconds / self.chunks / 2), 1)


def measure_pace(context: Context, resolved: ResolvedManifest) -> Pace | None:
    """Read the chunks that earlier runs of the same transform have computed; None without any."""
    transform = resolved.manifest.transform
    runs = sorted(context.runs.code_of(transform.name, transform.version, _RUNS_FOR_PACE))
    done = [
        chunk
        for run_id in runs
        for chunk in context.runs.chunks(run_id)
        if chunk.status == "done" and not chunk.recovered and not chunk.carried_from
    ]
    if not done:
        return None
    return Pace(
        seconds=sum(chunk.seconds for chunk in done),
        input_rows=sum(chunk.input_rows for chunk in done),
        chunks=len(done),
        cores=context.cores(),
    )


def estimate_from_files(
    inputs: tuple[ScanEstimate, ...],
    replaced: tuple[LiveFile, ...] | None,
    prices: Prices,
    pace: Pace | None = None,
    chunks: int = 1,
) -> Estimate:
    """Estimate a run from what its pinned inputs and the files that it replaces hold.

    `replaced` is None when nothing is there yet; then the output is unknown. Duration and
    core-hours come from the `pace` of earlier chunks; without it they are unknown.
    """
    read = sum(item.size_bytes for item in inputs)
    requests = sum(item.files for item in inputs)
    rows = bytes_out = files = None
    if replaced:
        rows = sum(file.rows for file in replaced)
        bytes_out = sum(file.size_bytes for file in replaced)
        files = len(replaced)
    input_rows = sum(item.rows for item in inputs)
    duration = pace.duration_s(input_rows, chunks) if pace else None
    core_hours = (
        round(duration * pace.cores / 3600, 6) if pace and pace.cores and duration else None
    )
    cost = _cost(read, bytes_out, requests + (files or 0), core_hours, prices)
    return Estimate(
        input_files=requests,
        input_rows=input_rows,
        input_bytes=read,
        output_rows=rows,
        output_bytes=bytes_out,
        output_files=files,
        shuffle_bytes=read or None,
        duration_s=duration,
        core_hours=core_hours,
        cost_usd=cost,
        basis="input: whole files after pruning; output: as much as the partitions hold now; "
        + _basis_of_time(pace, core_hours),
    )


def _basis_of_time(pace: Pace | None, core_hours: float | None) -> str:
    if pace is None:
        return "duration and core-hours: not estimated, no run has computed with this transform yet"
    text = f"duration: by {pace.chunks} earlier chunks of this transform ({pace.seconds:.1f} s)"
    if core_hours is None:
        return f"{text}; core-hours: not estimated, the profile does not say how many cores"
    return f"{text}, on {pace.cores} cores; validation is not included"


def check_limits(
    manifest: RunManifest, found: Estimate, now: datetime, prices: Prices | None = None
) -> None:
    """Raise LimitExceeded, with number and limit, when the plan is too large or too late.

    A limit of the cost refuses a plan whose cost is unknown, or lacks a part that has a price.
    """
    _require_whole_cost(manifest.safety, found, prices)
    _require_within(manifest, found)
    deadline = manifest.run.deadline
    if deadline is not None and now > deadline.astimezone(now.tzinfo):
        raise LimitExceeded(
            f"the deadline {deadline.isoformat()} has passed",
            fix="agree on a later run.deadline",
            field="run.deadline",
        )


def _require_whole_cost(safety: Safety, found: Estimate, prices: Prices | None) -> None:
    """Raise LimitExceeded when the cost has a limit, and a part that has a price is unknown."""
    if safety.max_cost_usd is None:
        return
    if prices and prices.core_hour and found.core_hours is None:
        raise LimitExceeded(
            f"the cost of the plan is not complete: {found.basis.rpartition('; ')[2]}; "
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
    """The estimate, and the partitions of the scope that hold no row now."""

    estimate: Estimate
    empty_partitions: tuple[str, ...]


def estimate_run(context: Context, resolved: ResolvedManifest) -> RunEstimate:
    """Estimate a run from metadata alone; raises ConfigError when an input cannot be cut."""
    inputs = []
    for pin in resolved.sources:
        rows: tuple[RowRange, ...] = ()
        if pin.range is not None:
            first, last = resolve.window_to_read(pin, resolved.scope)
            rows = resolve.window_row_ranges(_column_type(pin), pin.range.column, first, last)
        inputs.append(context.tables.estimate(pin.table, pin.snapshot_id, rows))
    target, replaced, held = resolved.target, None, set()
    if target.uuid is not None:
        wanted = set(resolved.scope.partitions)
        live = context.tables.files(target.table, target.snapshot_id, resolved.scope.field)
        replaced = tuple(file for file in live if file.is_in(wanted))
        held = {label for file in replaced for label in file.spans or (file.partition,)}
    empty = tuple(label for label in resolved.scope.partitions if label not in held)
    pace, chunks = measure_pace(context, resolved), len(resolved.chunks)
    prices = context.profile.prices
    return RunEstimate(estimate_from_files(tuple(inputs), replaced, prices, pace, chunks), empty)


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
    if found.estimate.input_rows == 0:
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
    place = write_path.staging_location_notes(
        resolved.manifest.compute.staging_location, context.tables.describe(resolved.target.table)
    )
    return (*texts, *intolerant, *broken, *place)


def _is_ahead(context: Context, resolved: ResolvedManifest, label: str) -> bool:
    lower = partitions.partition_row_range(resolved.scope.field, label).lower
    if lower is None or isinstance(lower, int | str):
        return False
    return resolve.to_utc_instant(lower) > context.clock.now()


def _column_type(pin: SourcePin) -> str:
    columns = {item.name: item.type for item in pin.columns}
    found = columns.get(pin.range.column) if pin.range else None
    if found not in resolve.TIME_TYPES:
        there = [name for name, kind in columns.items() if kind in resolve.TIME_TYPES]
        raise ConfigError(
            f"sources.{pin.name}.range.column is no date or timestamp of {pin.table}",
            fix=f"name the column by which the input is cut: {', '.join(there) or 'it has none'}",
            field=f"sources.{pin.name}.range.column",
        )
    return found
