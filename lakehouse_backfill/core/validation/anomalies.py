"""Whether the numbers of restated partitions are like those of earlier partitions.

The robust z of Iglewicz and Hoaglin (How to Detect and Handle Outliers, 1993): distance from the
median in median absolute deviations. Where half of the earlier numbers are equal that deviation
is 0, and the mean absolute deviation takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from statistics import fmean, median
from typing import Literal, NamedTuple

from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.partitions import label_sort_key
from lakehouse_backfill.domain.scope import NULL_LABEL, ScopeField
from lakehouse_backfill.domain.watched import Anomaly, AnomalyReport

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
