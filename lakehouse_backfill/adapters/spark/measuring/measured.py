"""What sums by partition mean: totals of both sides, and those of the sources beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any

from lakehouse_backfill.adapters.spark.measuring.partition_sums import PartitionSums
from lakehouse_backfill.domain.checks import CheckResult, MeasurePoint, MeasureTotal
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.plain import to_json_value

#: Sums by partition: the values of all measures by label.
ValuesByLabel = Mapping[str, tuple[Any, ...]]
#: Spark's decimals have 38 digits; their sums and products must not be rounded.
_DECIMAL_DIGITS = 100
#: Differing partitions that are named.
_MAX_PARTITIONS_NAMED = 3


def total_by_measure(
    measures: tuple[Measure, ...],
    labels: tuple[str, ...],
    old: ValuesByLabel | None,
    new: ValuesByLabel | None,
) -> tuple[MeasureTotal, ...]:
    """Add up the partitions of both sides (None: the side does not exist), measure by measure.

    Points come in the order of `labels`; a partition without rows has no value.
    """
    found: list[MeasureTotal] = []
    for at, measure in enumerate(measures):
        if measure.counts_by:
            found += _totals_by_state(measure, at, labels, old, new)
        else:
            found.append(_measure_total(measure.name, measure, at, labels, old, new))
    return tuple(found)


def earlier_values(
    measures: tuple[Measure, ...], history: PartitionSums
) -> dict[str, dict[str, Any]]:
    """Give rows and measures of earlier partitions: by label, then by the total's name."""
    states = {
        at: {state for values in history.measures.values() for state in values[at]}
        for at, measure in enumerate(measures)
        if measure.counts_by
    }
    found: dict[str, dict[str, Any]] = {}
    for label, values in history.measures.items():
        numbers: dict[str, Any] = {"rows": history.rows[label]}
        for at, measure in enumerate(measures):
            if at in states:
                numbers |= {state_total_name(measure, s): values[at][s] for s in states[at]}
            else:
                numbers[measure.name] = _decimal_as_text(values[at])
        found[label] = numbers
    return found


def state_total_name(measure: Measure, state: str) -> str:
    """Name the total of one counted value."""
    return f"{measure.name}: {state}"


def _totals_by_state(
    measure: Measure,
    at: int,
    labels: tuple[str, ...],
    old: ValuesByLabel | None,
    new: ValuesByLabel | None,
) -> list[MeasureTotal]:
    """Give one total for each value that a side holds; a partition with rows, but none of it: 0."""
    sides = (old, new)
    states = {state for side in sides for values in (side or {}).values() for state in values[at]}
    totals = []
    for state in sorted(states):
        one, other = (
            None if side is None else {label: (found[at][state],) for label, found in side.items()}
            for side in sides
        )
        total = _measure_total(state_total_name(measure, state), measure, 0, labels, one, other)
        totals.append(total.model_copy(update={"of": measure.name}))
    return totals


def _measure_total(
    name: str,
    measure: Measure,
    at: int,
    labels: tuple[str, ...],
    old: ValuesByLabel | None,
    new: ValuesByLabel | None,
) -> MeasureTotal:
    return MeasureTotal(
        name=name,
        old=_side_total(measure, at, old),
        new=_side_total(measure, at, new),
        series=tuple(
            MeasurePoint(partition=label, old=_point(old, label, at), new=_point(new, label, at))
            for label in labels
        ),
    )


def check_source_total(total: SourceTotal, ours: Any, theirs: Any) -> CheckResult:
    """Judge a total of the candidate by that of a source; NaN and infinities equal nothing."""
    return CheckResult(
        name=f"{total.measure} of the candidate equals {total.sum or 'rows'} of {total.source}",
        group="reconciliation",
        passed=_is_close(ours, theirs, total.tolerance),
        detail=f"candidate {to_json_value(ours)}, source {to_json_value(theirs)}",
        observed=to_json_value(ours),
        limit=to_json_value(theirs),
    )


def check_source_partitions(
    total: SourceTotal,
    ours: Sequence[MeasureTotal],
    theirs: Mapping[str, Mapping[str, Any]],
) -> CheckResult:
    """Judge each partition of the candidate by the source's rows that belong to it.

    `ours` are the totals of the measure, one for each counted value; `theirs` are by partition,
    then by the same names. A name that a side lacks counts as 0.
    """
    mine = {(point.partition, one.name): point.new for one in ours for point in one.series}
    labels = {label for label, _ in mine}
    other = {
        (label, name): value
        for label, found in theirs.items() if label in labels for name, value in found.items()
    }  # fmt: skip
    wrong = [
        place for place in sorted({*mine, *other})
        if not _is_close(_parse_decimal(mine.get(place)), other.get(place), total.tolerance)
    ]  # fmt: skip
    compared = f"{len(labels)} partitions compared, {len({at for at, _ in wrong})} differ"
    said = [
        f"{label}, {name}: candidate {to_json_value(mine.get((label, name)))}, "
        f"source {to_json_value(other.get((label, name)))}"
        for label, name in wrong[:_MAX_PARTITIONS_NAMED]
    ]
    said += (
        [f"and {len(wrong) - _MAX_PARTITIONS_NAMED} more"]
        if len(wrong) > _MAX_PARTITIONS_NAMED
        else []
    )
    column = total.sum or (f"rows by {total.counts_by}" if total.counts_by else "rows")
    return CheckResult(
        name=f"{total.measure} of each partition equals {column} of {total.source}",
        group="reconciliation",
        passed=not wrong,
        detail="; ".join([compared, *said]),
        observed=len(wrong),
        limit=0,
    )


def _parse_decimal(value: Any) -> Any:
    """Totals hold decimals as text."""
    return Decimal(value) if isinstance(value, str) else value


def _is_close(ours: Any, theirs: Any, tolerance: float) -> bool:
    if not all(math.isfinite(value or 0) for value in (ours, theirs)):
        return False
    with localcontext() as exact:
        exact.prec = _DECIMAL_DIGITS
        mine, other = (Decimal(str(value or 0)) for value in (ours, theirs))
        return abs(mine - other) <= abs(other) * Decimal(str(tolerance))


def _point(side: ValuesByLabel | None, label: str, at: int) -> Any:
    return _decimal_as_text(side[label][at]) if side is not None and label in side else None


def _side_total(measure: Measure, at: int, side: ValuesByLabel | None) -> Any:
    if side is None:
        return None
    values = [values[at] for values in side.values() if values[at] is not None]
    return _decimal_as_text(_exact_sum(values)) if values or not measure.sum else None


def _exact_sum(values: Iterable[Any]) -> Any:
    with localcontext() as exact:
        exact.prec = _DECIMAL_DIGITS
        return sum(values)


def _decimal_as_text(value: Any) -> Any:
    """Decimals as text: JSON has no exact ones."""
    return to_json_value(value) if isinstance(value, Decimal) else value
