"""What is unusual about a result: beside earlier partitions, and beside its own old columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.core.validation import anomalies
from lakehouse_backfill.domain.checks import CheckResult, ColumnDiff, MeasureTotal, PartitionBalance
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.table import LiveFile
from lakehouse_backfill.domain.watched import AnomalyReport

ROW_COUNT_NAME = "rows"
#: Numbers by label, then by name.
MeasuresByLabel = Mapping[str, Mapping[str, Any]]


def history_partitions(plan: Plan, files: Sequence[LiveFile]) -> tuple[str, ...]:
    """Give the partitions of the base that the restated ones are held against; from metadata."""
    if plan.resolved.contract.watch.anomalies == "off":
        return ()
    scope = plan.resolved.scope
    known = {file.partition for file in files if file.partition is not None and not file.spans}
    return anomalies.needed_history(scope.field, scope.partitions, known)


def rows_by_partition(
    labels: Sequence[str],
    files: Sequence[LiveFile],
    measures: Sequence[Measure] = (),
    values: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> MeasuresByLabel:
    """Give the rows of partitions, from metadata; not of those whose files have deletes.

    With the `values` of the measures beside them, where there are any.
    """
    found = dict.fromkeys(labels, 0)
    unsure: set[str] = set()
    for file in files:
        if file.partition in found:
            found[file.partition] += file.rows
        unsure |= {*file.spans, *([file.partition or ""] if file.deletes else [])}
    names = [each.name for each in measures]
    return {
        label: {ROW_COUNT_NAME: rows, **dict(zip(names, values.get(label, ()), strict=False))}
        for label, rows in found.items()
        if label not in unsure
    }


def values_by_partition(
    labels: Collection[str], files: Sequence[LiveFile], measures: Sequence[Measure]
) -> dict[str, tuple[int, ...]] | None:
    """Count the values of partitions, by measure, from metadata; those without rows are out.

    None where rows have to be read: for sums, for partitions with deletes or of a coarser spec, and
    where a file says nothing of a column.
    """
    names = [each.count for each in measures]
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        label = file.partition or ""
        if not {label, *file.spans}.intersection(labels) or not file.rows:
            continue
        held = [file.values.get(name or "") for name in names]
        known = tuple(count for count in held if count is not None)
        if file.spans or file.deletes or len(known) < len(names):
            return None
        before = found.get(label, (0,) * len(names))
        found[label] = tuple(one + other for one, other in zip(before, known, strict=True))
    return found


def report_run_anomalies(
    plan: Plan,
    balances: Sequence[PartitionBalance],
    totals: Sequence[MeasureTotal],
    earlier: MeasuresByLabel,
) -> tuple[AnomalyReport, ...]:
    """Hold row counts and measures of each restated partition against those of earlier ones."""
    if plan.resolved.contract.watch.anomalies == "off":
        return ()
    field = plan.resolved.scope.field
    numbers: dict[str, dict[str, float | None]] = {
        ROW_COUNT_NAME: {row.partition: float(row.new_count) for row in balances}
    }
    for total in totals:
        # A measure may be called rows too: it is judged under its own value then.
        numbers[total.name] = {point.partition: _as_float(point.new) for point in total.series}
    # Of a value that no earlier partition holds, each holds none.
    absent = {total.name: 0 if total.of else None for total in totals}
    return tuple(
        anomalies.report_anomalies(
            field, name, new,
            {label: _as_float(found.get(name, absent.get(name))) for label, found in earlier.items()},
        )
        for name, new in numbers.items()
    )  # fmt: skip


def watch_checks(
    plan: Plan, reports: Sequence[AnomalyReport], columns: Sequence[ColumnDiff]
) -> list[CheckResult]:
    """Say of each number, and of all columns together, whether they are as usual."""
    watch = plan.resolved.contract.watch
    found: list[CheckResult] = []
    if watch.anomalies != "off":
        found += [anomalies.check_anomalies(report, watch.anomalies) for report in reports]
    if watch.distributions != "off":
        found.append(distributions.check_distributions(columns, watch.distributions))
    return found


def _as_float(value: Any) -> float | None:
    """Give a number; decimals come as text, and NaN as text too."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
