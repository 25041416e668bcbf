"""What a plan will read and write, from metadata."""

from __future__ import annotations

from datetime import datetime

from lakehouse_backfill.domain.contract import Prices
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import Estimate
from lakehouse_backfill.domain.table import LiveFile, ScanEstimate
from lakehouse_backfill.errors import LimitExceeded

_GB = 1e9


def estimate_from_files(
    inputs: tuple[ScanEstimate, ...], replaced: tuple[LiveFile, ...] | None, prices: Prices
) -> Estimate:
    """Estimate a run from what its pinned inputs and the files that it replaces hold.

    `replaced` is None when nothing is there yet; then the output is unknown. Duration and
    core-hours need earlier runs to learn from, so without history they stay unknown.
    """
    read = sum(item.size_bytes for item in inputs)
    requests = sum(item.files for item in inputs)
    rows = bytes_out = files = None
    if replaced:
        rows = sum(file.rows for file in replaced)
        bytes_out = sum(file.size_bytes for file in replaced)
        files = len(replaced)
    cost = _cost(read, bytes_out, requests + (files or 0), prices)
    return Estimate(
        input_files=requests,
        input_rows=sum(item.rows for item in inputs),
        input_bytes=read,
        output_rows=rows,
        output_bytes=bytes_out,
        output_files=files,
        shuffle_bytes=read or None,
        duration_s=None,
        core_hours=None,
        cost_usd=cost,
        basis=(
            "input: whole files after pruning; output: as much as the partitions hold now; "
            "duration: no history of this transform yet"
        ),
    )


def check_limits(manifest: RunManifest, found: Estimate, now: datetime) -> None:
    """Raise LimitExceeded, with number and limit, when the plan is too large or too late."""
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
    deadline = manifest.run.deadline
    if deadline is not None and now > deadline.astimezone(now.tzinfo):
        raise LimitExceeded(
            f"the deadline {deadline.isoformat()} has passed",
            fix="agree on a later run.deadline",
            field="run.deadline",
        )


def _cost(read: int, written: int | None, requests: int, prices: Prices) -> float | None:
    parts = (
        (read / _GB, prices.read_gb),
        ((written or 0) / _GB, prices.write_gb),
        (requests / 1000, prices.requests_1000),
    )
    known = [amount * price for amount, price in parts if price is not None]
    return round(sum(known), 6) if known else None
