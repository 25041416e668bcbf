"""Checks of unusual numbers and shifted columns in a staged result.

The row count and the measures of each restated partition are compared with earlier partitions.
Columns are compared with their old values (`core.comparison.distributions`).

The score is the robust z of Iglewicz and Hoaglin (How to Detect and Handle Outliers, 1993): the
distance from the median in median absolute deviations. Where half of the earlier numbers are equal,
that deviation is 0, and the mean absolute deviation replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Literal

from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.domain.checks import (
    Anomaly,
    AnomalyReport,
    CheckResult,
    MeasureTotal,
    PartitionBalance,
)
from lakehouse_backfill.domain.comparison.diff import ColumnDiff
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import NULL_LABEL, ScopeField, label_sort_key
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.tables.files import LiveFile

#: A robust z from here on is an anomaly, over a long history.
ANOMALY_LIMIT = 3.5
#: Over a short history the deviation itself is uncertain. This term keeps the false alarms of a
#: normal distribution at 1 in 200 for every length (simulated; 1 in 20 without it over 8).
_SHORT = 240.0
#: With fewer earlier partitions nothing is judged.
MIN_HISTORY = 8
#: No more earlier partitions are read for one restated partition.
MAX_HISTORY = 16
#: Anomalies of one measure that are kept one by one.
MAX_KEPT_ANOMALIES = 50
_NAMED = 3
#: Factors that make the deviations comparable with a normal standard deviation.
_MEDIAN_SCALE, _MEAN_SCALE = 1.482602, 1.253314

NumbersByPartition = Mapping[str, float | None]


def history_basis(field: ScopeField) -> str | None:
    """Describe which earlier partitions are comparable; None where partitions have no order."""
    if _is_daily(field):
        return "earlier partitions of the same weekday"
    if field.transform == "hour":
        return "the same hour of earlier days"
    if field.transform in ("month", "year") or field.is_number:
        return "the partitions before it"
    return None


def earlier_partitions(field: ScopeField, label: str, known: Iterable[str]) -> tuple[str, ...]:
    """List the newest of the `known` partitions comparable with `label`, newest first."""
    if history_basis(field) is None or label == NULL_LABEL:
        return ()
    key, similarity = label_sort_key(field), _similarity_key(field)
    similar = [
        other
        for other in known
        if other != NULL_LABEL
        and key(other) < key(label)
        and similarity(other) == similarity(label)
    ]
    return tuple(sorted(similar, key=key, reverse=True)[:MAX_HISTORY])


def needed_history(
    field: ScopeField, scope: Iterable[str], known: Iterable[str]
) -> tuple[str, ...]:
    """List all earlier partitions that those of the scope are compared with, in order.

    Partitions of the scope are no history: all of them may be wrong in the same way.
    """
    scope = tuple(scope)
    known = sorted(set(known) - set(scope), key=label_sort_key(field))
    needed = {earlier for label in scope for earlier in earlier_partitions(field, label, known)}
    return tuple(earlier for earlier in known if earlier in needed)


def score_value(partition: str, value: float, history: Sequence[float]) -> Anomaly:
    """Return the median of the history, and the value's distance from it in robust deviations.

    The number need not be an anomaly: `is_anomaly` judges it.
    """
    centre, limit = median(history), anomaly_limit(len(history))
    distances, offset = [abs(number - centre) for number in history], value - centre
    # Sums of floating-point numbers may differ by rounding alone.
    tolerance = 1e-9 * max(abs(centre), abs(value))
    deviation = _MEDIAN_SCALE * median(distances)
    if deviation <= tolerance:
        deviation = _MEAN_SCALE * fmean(distances)
    score = None if deviation <= tolerance else round(offset / deviation, 3)
    return Anomaly(
        partition=partition, value=value, median=centre, limit=limit, history=len(history),
        score=0.0 if abs(offset) <= tolerance else score,
    )  # fmt: skip


def is_anomaly(scored: Anomaly) -> bool:
    """Return whether the number is far from its history."""
    return scored.score is None or abs(scored.score) >= scored.limit


def anomaly_limit(history: int) -> float:
    """Return the robust z from which a number is an anomaly, for a history of this length."""
    return round(ANOMALY_LIMIT + _SHORT / history**2, 2)


def report_anomalies(
    field: ScopeField, measure: str, new: NumbersByPartition, history: NumbersByPartition
) -> AnomalyReport:
    """Compare the new number of each partition with those of earlier ones.

    A partition without a number is not judged: it holds no value of that measure.
    """
    basis = history_basis(field) or "nothing: partitions of this column have no order"
    known = [label for label, value in history.items() if value is not None and label not in new]
    anomalies, judged, too_little = [], 0, 0
    for label, value in new.items():
        if value is None:
            continue
        before = [history[one] for one in earlier_partitions(field, label, known)]
        numbers = [one for one in before if one is not None and math.isfinite(one)]
        if len(numbers) < MIN_HISTORY or not math.isfinite(value):
            too_little += 1
            continue
        judged += 1
        if is_anomaly(scored := score_value(label, value, numbers)):
            anomalies.append(scored)
    anomalies.sort(key=lambda one: -abs(one.score or math.inf))
    return AnomalyReport(
        measure=measure, basis=basis, judged=judged, too_little=too_little, found=tuple(anomalies)
    )


def check_anomalies(report: AnomalyReport, gate: Literal["report", "block"]) -> CheckResult:
    """Build the check of a report; too little history passes, and the detail shows it."""
    return CheckResult(
        name=f"{report.measure} is like that of earlier partitions",
        group="anomaly",
        passed=not report.found,
        detail=_detail(report),
        observed=len(report.found),
        limit=0,
        blocking=gate == "block",
        judged=bool(report.judged),
    )


def keep_worst_anomalies(report: AnomalyReport) -> AnomalyReport:
    """Return the report with its worst anomalies only; the check holds their number."""
    return report.model_copy(update={"found": report.found[:MAX_KEPT_ANOMALIES]})


def _detail(report: AnomalyReport) -> str:
    short = f"{report.too_little:,} have fewer than {MIN_HISTORY}" if report.too_little else ""
    if not report.judged:
        return f"not judged, too little history: {short} of {report.basis}" if short else "no value"
    text = f"{len(report.found):,} of {report.judged:,} partitions far from {report.basis}"
    text += f"; not judged, too little history: {short}" if short else ""
    described = [_describe_anomaly(one) for one in report.found[:_NAMED]]
    more = len(report.found) - len(described)
    return "; ".join([text, *described]) + (f"; and {more} more" if more else "")


def _describe_anomaly(one: Anomaly) -> str:
    how = f"z {one.score:+.1f}, limit {one.limit:.1f}" if one.score else "all the same there"
    return f"{one.partition}: {one.value:.6g}, median {one.median:.6g} of {one.history} ({how})"


def _is_daily(field: ScopeField) -> bool:
    return field.transform == "day" or (field.transform == "identity" and field.type == "date")


def _similarity_key(  # type: ignore[no-untyped-def]  # noqa: ANN202 (a plain key)
    field: ScopeField,
):
    if _is_daily(field):
        return lambda label: date.fromisoformat(label).weekday()
    if field.transform == "hour":
        return lambda label: label[-2:]
    return lambda _: None


ROW_COUNT_NAME = "rows"
#: Numbers by label, then by name.
MeasuresByLabel = Mapping[str, Mapping[str, Any]]


def history_partitions(plan: Plan, files: Sequence[LiveFile]) -> tuple[str, ...]:
    """List the partitions of the base to compare the restated ones with, from metadata."""
    if plan.resolved.contract.watch.anomalies == "off":
        return ()
    scope = plan.resolved.scope
    known = {file.partition for file in files if file.partition is not None and not file.spans}
    return needed_history(scope.field, scope.partitions, known)


def rows_by_partition(
    labels: Sequence[str],
    files: Sequence[LiveFile],
    measures: Sequence[Measure] = (),
    values: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> MeasuresByLabel:
    """Return the rows of partitions, from metadata; partitions with delete files are left out.

    The `values` of the measures are added where they are known.
    """
    rows_by_label = dict.fromkeys(labels, 0)
    inexact: set[str] = set()
    for file in files:
        if file.partition in rows_by_label:
            rows_by_label[file.partition] += file.rows
        inexact |= {*file.spans, *([file.partition or ""] if file.deletes else [])}
    names = [measure.name for measure in measures]
    return {
        label: {ROW_COUNT_NAME: rows, **dict(zip(names, values.get(label, ()), strict=False))}
        for label, rows in rows_by_label.items()
        if label not in inexact
    }


def values_by_partition(
    labels: Collection[str], files: Sequence[LiveFile], measures: Sequence[Measure]
) -> dict[str, tuple[int, ...]] | None:
    """Count the values of partitions, by measure, from metadata; those without rows are left out.

    None where rows must be read: for sums, for partitions with deletes or of a coarser spec, and
    where a file has no count for a column.
    """
    names = [measure.count for measure in measures]
    counts: dict[str, tuple[int, ...]] = {}
    for file in files:
        label = file.partition or ""
        if not {label, *file.spans}.intersection(labels) or not file.rows:
            continue
        held = [file.values.get(name or "") for name in names]
        known = tuple(count for count in held if count is not None)
        if file.spans or file.deletes or len(known) < len(names):
            return None
        before = counts.get(label, (0,) * len(names))
        counts[label] = tuple(one + other for one, other in zip(before, known, strict=True))
    return counts


def report_run_anomalies(
    plan: Plan,
    balances: Sequence[PartitionBalance],
    totals: Sequence[MeasureTotal],
    earlier: MeasuresByLabel,
) -> tuple[AnomalyReport, ...]:
    """Compare row counts and measures of each restated partition with earlier ones."""
    if plan.resolved.contract.watch.anomalies == "off":
        return ()
    field = plan.resolved.scope.field
    numbers: dict[str, dict[str, float | None]] = {
        ROW_COUNT_NAME: {row.partition: float(row.new_count) for row in balances}
    }
    for total in totals:
        # A measure may also be named `rows`: its own values replace the row counts.
        numbers[total.name] = {point.partition: _as_float(point.new) for point in total.series}
    # A value that no earlier partition holds counts 0 in each of them.
    absent = {total.name: 0 if total.of else None for total in totals}
    return tuple(
        report_anomalies(
            field, name, new,
            {
                label: _as_float(found.get(name, absent.get(name)))
                for label, found in earlier.items()
            },
        )
        for name, new in numbers.items()
    )  # fmt: skip


def watch_checks(
    plan: Plan, reports: Sequence[AnomalyReport], columns: Sequence[ColumnDiff]
) -> list[CheckResult]:
    """Return the checks of each number, and one check of all columns together."""
    watch = plan.resolved.contract.watch
    checks: list[CheckResult] = []
    if watch.anomalies != "off":
        checks += [check_anomalies(report, watch.anomalies) for report in reports]
    if watch.distributions != "off":
        checks.append(distributions.check_distributions(columns, watch.distributions))
    return checks


def _as_float(value: Any) -> float | None:
    """Return a number as float; decimals and NaN are stored as text."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
