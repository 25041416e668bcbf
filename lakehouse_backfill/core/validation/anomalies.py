"""Unusual totals and shifted columns.

Whether the numbers of restated partitions are like those of earlier partitions.

The robust z of Iglewicz and Hoaglin (How to Detect and Handle Outliers, 1993): distance from the
median in median absolute deviations. Where half of the earlier numbers are equal that deviation
is 0, and the mean absolute deviation takes its place.

What is unusual about a result: beside earlier partitions, and beside its own old columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.domain.checks import (
    Anomaly,
    AnomalyReport,
    CheckResult,
    ColumnDiff,
    MeasureTotal,
    PartitionBalance,
)
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import NULL_LABEL, ScopeField, label_sort_key
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.table import LiveFile

#: A robust z from here on is an anomaly, over a long history.
ANOMALY_LIMIT = 3.5
#: Over a short one the deviation itself is uncertain: with this a number of a normal distribution
#: is called an anomaly once in 200 times whatever the length (simulated; over 8, 1 in 20 without).
_SHORT = 240.0
#: With fewer earlier partitions nothing is said.
MIN_HISTORY = 8
#: No more earlier partitions are read for one restated partition.
MAX_HISTORY = 16
#: Anomalies of one measure that are kept one by one.
MAX_KEPT_ANOMALIES = 50
_NAMED = 3
#: What makes the deviations comparable with a standard deviation of normal numbers.
_MEDIAN_SCALE, _MEAN_SCALE = 1.482602, 1.253314

NumbersByPartition = Mapping[str, float | None]


class AnomalyScore(NamedTuple):
    """A number beside its history; no score: the history is constant, and the number another."""

    median: float
    score: float | None
    limit: float

    @property
    def is_anomaly(self) -> bool:
        """Whether the number is far from its history."""
        return self.score is None or abs(self.score) >= self.limit


def history_basis(field: ScopeField) -> str | None:
    """Say which earlier partitions are like one; None where partitions have no order."""
    if _is_daily(field):
        return "earlier partitions of the same weekday"
    if field.transform == "hour":
        return "the same hour of earlier days"
    if field.transform in ("month", "year") or field.type in ("int", "long"):
        return "the partitions before it"
    return None


def earlier_partitions(field: ScopeField, label: str, known: Iterable[str]) -> tuple[str, ...]:
    """Give the newest of the `known` partitions that a partition is held against, newest first."""
    if history_basis(field) is None or label == NULL_LABEL:
        return ()
    key, kind = label_sort_key(field), _similarity_key(field)
    like = [
        one for one in known
        if one != NULL_LABEL and key(one) < key(label) and kind(one) == kind(label)
    ]  # fmt: skip
    return tuple(sorted(like, key=key, reverse=True)[:MAX_HISTORY])


def needed_history(
    field: ScopeField, scope: Iterable[str], known: Iterable[str]
) -> tuple[str, ...]:
    """Give all earlier partitions that those of the scope are held against, in order.

    Partitions of the scope are no history: all of them may be wrong in the same way.
    """
    scope = tuple(scope)
    known = sorted(set(known) - set(scope), key=label_sort_key(field))
    found = {one for label in scope for one in earlier_partitions(field, label, known)}
    return tuple(one for one in known if one in found)


def score_value(value: float, history: Sequence[float]) -> AnomalyScore:
    """Give the median of the history, and how many robust deviations the value is from it."""
    centre, limit = median(history), anomaly_limit(len(history))
    distances, away = [abs(one - centre) for one in history], value - centre
    # Sums of floating numbers differ by rounding alone.
    noise = 1e-9 * max(abs(centre), abs(value))
    deviation = _MEDIAN_SCALE * median(distances)
    if deviation <= noise:
        deviation = _MEAN_SCALE * fmean(distances)
    if abs(away) <= noise:
        return AnomalyScore(centre, 0.0, limit)
    if deviation <= noise:
        return AnomalyScore(centre, None, limit)
    return AnomalyScore(centre, round(away / deviation, 3), limit)


def anomaly_limit(history: int) -> float:
    """Give the robust z from which a number is an anomaly, over so many earlier ones."""
    return round(ANOMALY_LIMIT + _SHORT / history**2, 2)


def report_anomalies(
    field: ScopeField, measure: str, new: NumbersByPartition, history: NumbersByPartition
) -> AnomalyReport:
    """Hold the new number of each partition against those of earlier ones.

    A partition without a number is not judged: it holds no value of that measure.
    """
    said = history_basis(field) or "nothing: partitions of this column have no order"
    known = [label for label, value in history.items() if value is not None and label not in new]
    found, judged, too_little = [], 0, 0
    for label, value in new.items():
        if value is None:
            continue
        before = [history[one] for one in earlier_partitions(field, label, known)]
        numbers = [one for one in before if one is not None and math.isfinite(one)]
        if len(numbers) < MIN_HISTORY or not math.isfinite(value):
            too_little += 1
            continue
        judged += 1
        scored = score_value(value, numbers)
        if scored.is_anomaly:
            found.append(
                Anomaly(
                    partition=label, value=value, median=scored.median, score=scored.score,
                    limit=scored.limit, history=len(numbers),
                )
            )  # fmt: skip
    found.sort(key=lambda one: -abs(one.score or math.inf))
    return AnomalyReport(
        measure=measure, basis=said, judged=judged, too_little=too_little, found=tuple(found)
    )


def check_anomalies(report: AnomalyReport, gate: Literal["report", "block"]) -> CheckResult:
    """Say what came of it; too little history passes, and says that nothing was judged."""
    return CheckResult(
        name=f"{report.measure} is like that of earlier partitions",
        group="anomaly",
        passed=not report.found,
        detail=_detail(report),
        observed=len(report.found),
        limit=0,
        blocking=gate == "block",
    )


def keep_worst_anomalies(report: AnomalyReport) -> AnomalyReport:
    """Keep the worst anomalies of a report; the check says how many there are."""
    return report.model_copy(update={"found": report.found[:MAX_KEPT_ANOMALIES]})


def _detail(report: AnomalyReport) -> str:
    some = f"{report.too_little} have fewer than {MIN_HISTORY}" if report.too_little else ""
    if not report.judged:
        return f"not judged, too little history: {some} of {report.basis}" if some else "no value"
    text = f"{len(report.found)} of {report.judged} partitions far from {report.basis}"
    text += f"; not judged, too little history: {some}" if some else ""
    named = [_describe_anomaly(one) for one in report.found[:_NAMED]]
    more = len(report.found) - len(named)
    return "; ".join([text, *named]) + (f"; and {more} more" if more else "")


def _describe_anomaly(one: Anomaly) -> str:
    how = f"z {one.score:+.1f}, limit {one.limit:.1f}" if one.score else "all the same there"
    return f"{one.partition}: {one.value:.6g}, median {one.median:.6g} of {one.history} ({how})"


def _is_daily(field: ScopeField) -> bool:
    return field.transform == "day" or (field.transform == "identity" and field.type == "date")


def _similarity_key(field: ScopeField):  # type: ignore[no-untyped-def]  # noqa: ANN202 (a plain key)
    if _is_daily(field):
        return lambda label: date.fromisoformat(label).weekday()
    if field.transform == "hour":
        return lambda label: label[-2:]
    return lambda _: None


ROW_COUNT_NAME = "rows"
#: Numbers by label, then by name.
MeasuresByLabel = Mapping[str, Mapping[str, Any]]


def history_partitions(plan: Plan, files: Sequence[LiveFile]) -> tuple[str, ...]:
    """Give the partitions of the base that the restated ones are held against; from metadata."""
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
        report_anomalies(
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
        found += [check_anomalies(report, watch.anomalies) for report in reports]
    if watch.distributions != "off":
        found.append(distributions.check_distributions(columns, watch.distributions))
    return found


def _as_float(value: Any) -> float | None:
    """Give a number; decimals come as text, and NaN as text too."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
