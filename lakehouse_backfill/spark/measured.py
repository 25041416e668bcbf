"""What sums by partition mean: totals of both sides, and those of the sources beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from typing import Any

from lakehouse_backfill.model.checks import CheckResult, MeasurePoint, MeasureTotal
from lakehouse_backfill.model.contract import Measure, SourceTotal
from lakehouse_backfill.rules.plain import plain_value

#: Sums by partition: the values of all measures by label.
ByLabel = Mapping[str, tuple[Any, ...]]
#: Spark's decimals have 38 digits; their sums and products must not be rounded.
_DIGITS = 100


def totals(
    measures: tuple[Measure, ...], labels: tuple[str, ...], old: ByLabel | None, new: ByLabel | None
) -> tuple[MeasureTotal, ...]:
    """Add up the partitions of both sides (None: the side does not exist), measure by measure.

    Points come in the order of `labels`; a partition without rows has no value.
    """
    return tuple(
        MeasureTotal(
            name=measure.name,
            old=_total(measure, at, old),
            new=_total(measure, at, new),
            series=tuple(
                MeasurePoint(
                    partition=label, old=_point(old, label, at), new=_point(new, label, at)
                )
                for label in labels
            ),
        )
        for at, measure in enumerate(measures)
    )


def against_source(total: SourceTotal, ours: Any, theirs: Any) -> CheckResult:
    """Judge a total of the candidate by that of a source; NaN and infinities equal nothing."""
    return CheckResult(
        name=f"{total.measure} of the candidate equals {total.sum or 'rows'} of {total.source}",
        group="reconciliation",
        passed=_is_close(ours, theirs, total.tolerance),
        detail=f"candidate {plain_value(ours)}, source {plain_value(theirs)}",
        observed=plain_value(ours),
        limit=plain_value(theirs),
    )


def _is_close(ours: Any, theirs: Any, tolerance: float) -> bool:
    if not all(math.isfinite(value or 0) for value in (ours, theirs)):
        return False
    with localcontext() as exact:
        exact.prec = _DIGITS
        mine, other = (Decimal(str(value or 0)) for value in (ours, theirs))
        return abs(mine - other) <= abs(other) * Decimal(str(tolerance))


def _point(side: ByLabel | None, label: str, at: int) -> Any:
    return _plain(side[label][at]) if side is not None and label in side else None


def _total(measure: Measure, at: int, side: ByLabel | None) -> Any:
    if side is None:
        return None
    values = [values[at] for values in side.values() if values[at] is not None]
    return _plain(_sum(values)) if values or measure.count else None


def _sum(values: Iterable[Any]) -> Any:
    with localcontext() as exact:
        exact.prec = _DIGITS
        return sum(values)


def _plain(value: Any) -> Any:
    """Decimals as text: JSON has no exact ones."""
    return plain_value(value) if isinstance(value, Decimal) else value
