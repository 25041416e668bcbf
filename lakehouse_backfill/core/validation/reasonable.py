"""Whether totals changed by no more than their owner lets pass unseen (Q6)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.declared import Threshold
from lakehouse_backfill.domain.plain import to_json_value

#: Against 0, any other total is a change without a share: no limit lets it pass.
_FROM_NOTHING = math.inf

Amount = int | float | str | None


class _TotalChange(NamedTuple):
    """One total that is judged: where (empty: the measure as a whole), and how far it moved."""

    where: str
    old: Amount
    new: Amount
    share: float


def check_thresholds(
    declared: tuple[Threshold, ...], totals: tuple[MeasureTotal, ...], old_rows: int
) -> tuple[CheckResult, ...]:
    """A declared total changed by no more than the owner lets pass unseen.

    Where the partitions held no row, nothing that readers know can change. A measure that counts
    by value is judged value by value; `each_partition` judges partition by partition.
    """
    return tuple(_check_threshold(item, totals, old_rows) for item in declared)


def measure_totals(measure: str, totals: tuple[MeasureTotal, ...]) -> tuple[MeasureTotal, ...]:
    """Give the total of a measure, or those of each value that it counts."""
    return tuple(total for total in totals if measure in (total.of or total.name, total.name))


def _check_threshold(
    item: Threshold, totals: tuple[MeasureTotal, ...], old_rows: int
) -> CheckResult:
    changes = [
        one for total in measure_totals(item.measure, totals) for one in _changes(item, total)
    ]
    # A measure without a value on either side has not changed.
    worst = max(changes, key=lambda one: one.share, default=_TotalChange("", None, None, 0.0))
    over = sum(one.share > item.max_change for one in changes)
    each = " in each partition" if item.each_partition else ""
    where = f"{worst.where}: " if worst.where else ""
    more = f"; {over} of {len(changes)} change by more" if over > 1 else ""
    return CheckResult(
        name=f"{item.measure} changes by at most {item.max_change:.1%}{each}",
        group="business",
        passed=worst.share <= item.max_change or not old_rows,
        detail=f"{where}{worst.old} -> {worst.new} ({_describe_share(worst.share)}){more}",
        observed=to_json_value(worst.share),
        limit=item.max_change,
    )


def _changes(item: Threshold, total: MeasureTotal) -> Iterator[_TotalChange]:
    if not item.each_partition:
        name = total.name if total.of else ""
        yield _TotalChange(name, total.old, total.new, _share(total.old, total.new))
        return
    for point in total.series:
        if point.old is not None:
            name = f"{point.partition}, {total.name}" if total.of else point.partition
            yield _TotalChange(name, point.old, point.new, _share(point.old, point.new))


def _describe_share(share: float) -> str:
    return f"{share:+.2%}" if math.isfinite(share) else "no share of the old"


def _share(before: Amount, after: Amount) -> float:
    old, new = float(before or 0), float(after or 0)
    if not (math.isfinite(old) and math.isfinite(new)):
        return math.inf  # No number changes by a share, and NaN would hide behind others.
    return abs(new - old) / abs(old) if old else _FROM_NOTHING if new else 0.0
