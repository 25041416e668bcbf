"""Contents of partitions, and the totals of both sides that gates compare: no engine, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lakehouse_backfill.domain.checks import MeasurePoint, MeasureTotal
from lakehouse_backfill.domain.comparison.partition_sums import (
    NO_ROWS,
    PartitionSums,
    add_exactly,
)
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.ports.compute import MeasuredSides

#: The state of rows without a value of the counted column.
NULL_STATE = "null"
#: Maximum number of groups by partition, file and state on the driver.
MAX_GROUPS = 200_000


def measured_sides(
    measures: tuple[Measure, ...],
    scope: Scope,
    before: PartitionSums,
    after: PartitionSums,
    history: PartitionSums = NO_ROWS,
    *,
    has_old: bool,
    has_new: bool,
    old_is_known: bool = False,
    old_measures: Mapping[str, tuple[Any, ...]] | None = None,
) -> MeasuredSides:
    """Return the result of `Measuring.measure` from what was read of each side.

    A side that does not exist (`has_old`, `has_new`) has no total. With `old_is_known` no checksum
    of the old side counts; `old_measures` stand for its measures.
    """
    known = before.measures if old_measures is None else _by_name(measures, old_measures)
    return MeasuredSides(
        old={} if old_is_known else before.checksums,
        new=after.checksums,
        old_files={} if old_is_known else before.file_checksums,
        new_files=after.file_checksums,
        earlier=_earlier_values(measures, history),
        totals=_total_by_measure(
            measures,
            scope.partitions,
            known if has_old else None,
            after.measures if has_new else None,
        ),
    )


def _by_name(
    measures: tuple[Measure, ...], values: Mapping[str, tuple[Any, ...]]
) -> dict[str, dict[str, Any]]:
    names = [measure.name for measure in measures]
    return {label: dict(zip(names, each, strict=True)) for label, each in values.items()}


def state_text(value: Any) -> str:
    """Return the state of a counted value; the text `null` differs from the missing value."""
    if value is None:
        return NULL_STATE
    text = str(value)
    return f"={text}" if text == NULL_STATE or text.startswith("=") else text


def state_total_name(measure: Measure, state: str) -> str:
    """Return the name of the total of one counted value."""
    return f"{measure.name}: {state}"


#: By partition label, then by the name of the total: values.
_ValuesByLabel = Mapping[str, Mapping[str, Any]]


def _total_by_measure(
    measures: tuple[Measure, ...],
    labels: tuple[str, ...],
    old: _ValuesByLabel | None,
    new: _ValuesByLabel | None,
) -> tuple[MeasureTotal, ...]:
    """Add up the partitions of both sides (None: the side does not exist), measure by measure.

    Points are in the order of `labels`; a partition without rows has no value. A measure that
    counts values has one total per value on either side, which is 0 in partitions without it.
    """
    return tuple(
        MeasureTotal(
            name=name,
            old=_side_total(measure, name, old),
            new=_side_total(measure, name, new),
            series=tuple(_point(name, label, old or {}, new or {}) for label in labels),
            of=measure.name if measure.counts_by else None,
        )
        for measure in measures
        for name in _total_names(measure, old or {}, new or {})
    )


def _total_names(measure: Measure, *sides: _ValuesByLabel) -> list[str]:
    if not measure.counts_by:
        return [measure.name]
    start = state_total_name(measure, "")
    names = {name for side in sides for values in side.values() for name in values}
    return sorted(name for name in names if name.startswith(start))


def _earlier_values(
    measures: tuple[Measure, ...], history: PartitionSums
) -> dict[str, dict[str, Any]]:
    """Return rows and measures of earlier partitions: by label, then by the total's name."""
    names = [name for each in measures for name in _total_names(each, history.measures)]
    return {
        label: {"rows": history.row_counts[label]}
        | {name: _decimal_as_text(values.get(name, 0)) for name in names}
        for label, values in history.measures.items()
    }


def _point(name: str, label: str, *sides: _ValuesByLabel) -> MeasurePoint:
    old, new = (
        _decimal_as_text(side[label].get(name, 0)) if label in side else None for side in sides
    )
    return MeasurePoint(partition=label, old=old, new=new)


def _side_total(measure: Measure, name: str, side: _ValuesByLabel | None) -> Any:
    if side is None:
        return None
    sums: dict[str, Any] = {} if measure.sum else {name: 0}
    for values in side.values():
        add_exactly(sums, name, values.get(name))
    return _decimal_as_text(sums.get(name))


def _decimal_as_text(value: Any) -> Any:
    """Convert a decimal to a text: JSON has no exact decimals."""
    return to_json_value(value) if isinstance(value, Decimal) else value
