"""Partition labels of data files, row filters, and the choice of the scope field.

Labels are read from each file's own partition spec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, cast, get_args

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    Or,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.domain.partitions import (
    NULL_LABEL,
    Bound,
    ColumnType,
    PartitionTransform,
    RowRange,
    ScopeField,
    label_sort_key,
    labels_within,
    partition_label,
)
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.errors import Unsupported

_TermFactory = Callable[[str, Any], BooleanExpression]
# They accept column and value by position, which their signatures for mypy do not declare.
equal_term = cast("_TermFactory", EqualTo)
in_term = cast("_TermFactory", In)
at_least_term = cast("_TermFactory", GreaterThanOrEqual)
below_term = cast("_TermFactory", LessThan)
null_term = cast("Callable[[str], BooleanExpression]", IsNull)


def row_range_filter(ranges: tuple[RowRange, ...]) -> BooleanExpression:
    """Return the expression that is true for the rows of any range; no range: no row."""
    equals: dict[str, list[Bound]] = {}
    terms: list[BooleanExpression] = []
    for rows in ranges:
        if rows.equals is not None:
            equals.setdefault(rows.column, []).append(rows.equals)
        else:
            terms.append(_range_term(rows))
    # One In instead of many EqualTo: evaluators recurse over Or.
    terms += [_equality_term(column, values) for column, values in equals.items()]
    if not terms:
        return AlwaysFalse()
    return terms[0] if len(terms) == 1 else Or(*terms)


def _equality_term(column: str, values: list[Bound]) -> BooleanExpression:
    return equal_term(column, values[0]) if len(values) == 1 else in_term(column, set(values))


def _range_term(rows: RowRange) -> BooleanExpression:
    if rows.is_null:
        return null_term(rows.column)
    if rows.lower is not None and rows.upper is not None:
        return And(at_least_term(rows.column, rows.lower), below_term(rows.column, rows.upper))
    if rows.lower is not None:
        return at_least_term(rows.column, rows.lower)
    return AlwaysTrue() if rows.upper is None else below_term(rows.column, rows.upper)


_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: From fine to coarse. A file of a unit that is not coarser than the scope's has one label.
_TIME_UNITS = ("instant", "hour", "day", "month", "year")


@dataclass(frozen=True)
class _LabelSource:
    """Position, transform and column type of the scoped column's field in a spec."""

    position: int
    transform: str
    type: str


class PartitionLabels:
    """Labels files of one table for one scope field."""

    def __init__(self, metadata: TableMetadata, field: ScopeField) -> None:
        self._field = field
        self._specs = metadata.specs()
        schema = metadata.schema()
        try:
            self._column = schema.find_field(field.column)
        except ValueError as error:
            raise Unsupported(f"the table has no column {field.column}") from error
        self._sources = {spec_id: self._finest_source(spec_id) for spec_id in self._specs}
        self._coarse = {
            spec_id: self._finest_time_source(spec_id)
            for spec_id, source in self._sources.items()
            if source is None
        }
        self._labels_by_value: dict[tuple[int, Any], str] = {}
        self._spans: dict[tuple[int, Any], frozenset[str]] = {}

    def can_separate(self, spec_id: int) -> bool:
        """Return whether each file of the spec has exactly one label of the scope field."""
        return self._sources[spec_id] is not None

    def can_label(self, spec_id: int) -> bool:
        """Return whether files of the spec have a label: of the scope field, or a coarser one."""
        return self.can_separate(spec_id) or self._coarse[spec_id] is not None

    def file_label(self, file: DataFile) -> str:
        """Return the file's label; a coarser one (`2013-02`) when its spec is coarser.

        Raises Unsupported when its spec has no field for it.
        """
        source = self._sources[file.spec_id] or self._coarse[file.spec_id]
        if source is None:
            raise self.unlabelled_error(file.spec_id, 1)
        value = file.partition[source.position]
        key = (file.spec_id, value)
        label = self._labels_by_value.get(key)
        if label is None:
            field = self._field
            if not self.can_separate(file.spec_id):
                field = field.model_copy(update={"transform": source.transform})
            label = partition_label(
                field, None if value is None else _partition_start(source, value)
            )
            self._labels_by_value[key] = label
        return label

    def labels_spanned(self, file: DataFile) -> frozenset[str]:
        """Return the labels of all partitions that the file may hold rows of."""
        label, source = self.file_label(file), self._coarse.get(file.spec_id)
        if source is None or label == NULL_LABEL:
            return frozenset({label})
        key = (file.spec_id, label)
        if key not in self._spans:
            coarse = self._field.model_copy(update={"transform": source.transform})
            self._spans[key] = frozenset(labels_within(self._field, coarse, label))
        return self._spans[key]

    def unlabelled_error(self, spec_id: int, files: int) -> Unsupported:
        """Build the error for live files that cannot be labelled."""
        field = self._field
        spec = ", ".join(f"{part.transform} as {part.name}" for part in self._specs[spec_id].fields)
        return Unsupported(
            f"{files} live files have partition spec {spec_id} ({spec or 'unpartitioned'}), which "
            f"does not tell {field.transform}({field.column}) apart",
            fix="rewrite them to the current spec first: CALL system.rewrite_data_files",
        )

    def _spec_sources(self, spec_id: int) -> list[_LabelSource]:
        """Return the spec's fields of the column, finest first."""
        sources = [
            _LabelSource(position, str(field.transform), str(self._column.field_type))
            for position, field in enumerate(self._specs[spec_id].fields)
            if field.source_id == self._column.field_id
        ]
        return sorted(sources, key=_unit_rank)

    def _finest_source(self, spec_id: int) -> _LabelSource | None:
        """Return the spec's finest usable field of the column."""
        return next(filter(self._is_fine_enough, self._spec_sources(spec_id)), None)

    def _finest_time_source(self, spec_id: int) -> _LabelSource | None:
        """Return the spec's finest time unit of the column, where the scope's unit is finer."""
        unit = _unit_rank(_LabelSource(0, self._field.transform, str(self._column.field_type)))
        sources = [s for s in self._spec_sources(spec_id) if s.transform in _TIME_UNITS]
        return sources[0] if sources and unit > 0 else None

    def coarse_labels(self, file: DataFile) -> tuple[str, ...]:
        """Return the sorted labels that a file of a coarser spec may hold rows of; else ()."""
        if self.can_separate(file.spec_id):
            return ()
        return tuple(sorted(self.labels_spanned(file), key=label_sort_key(self._field)))

    def _is_fine_enough(self, source: _LabelSource) -> bool:
        scope_source = _LabelSource(0, self._field.transform, source.type)
        if _unit_rank(scope_source) < 0 or _unit_rank(source) < 0:
            return source.transform == scope_source.transform == "identity"
        return _unit_rank(source) <= _unit_rank(scope_source)


def _unit_rank(source: _LabelSource) -> int:
    """Return the index of the unit in `_TIME_UNITS`; -1 for values that are no instants."""
    if source.transform == "identity":
        identities = {"date": "day", "timestamp": "instant", "timestamptz": "instant"}
        unit = identities.get(source.type, "")
    else:
        unit = source.transform
    return _TIME_UNITS.index(unit) if unit in _TIME_UNITS else -1


def _partition_start(source: _LabelSource, value: Any) -> Bound:
    """Convert the stored partition value into the first value that the partition holds."""
    if source.transform == "hour":
        return _UNIX_EPOCH + timedelta(hours=value)
    if source.transform == "month":
        return date(1970 + value // 12, value % 12 + 1, 1)
    if source.transform == "year":
        return date(1970 + value, 1, 1)
    if source.transform == "day" or source.type == "date":
        return (_UNIX_EPOCH + timedelta(days=value)).date()
    if source.type in ("timestamp", "timestamptz"):
        return _UNIX_EPOCH + timedelta(microseconds=value)
    return value if isinstance(value, int) else str(value)


_SCOPE_TRANSFORMS = ("identity", "hour", "day", "month", "year")


def finest_scope_field(info: TableInfo, column: str) -> ScopeField:
    """Return the finest field of the current spec that separates values of `column`.

    Raises Unsupported: buckets and truncations mix values, `void` fields hold none.
    """
    fields = [field for field in info.partitioning if field.column == column]
    transforms = [field.transform for field in fields if field.transform in _SCOPE_TRANSFORMS]
    if not transforms:
        raise Unsupported(
            f"{info.table} cannot be restated by {column}: {_unscopable_reason(info, column)}",
            fix=f"scope by one of: {_scopable_columns(info)}",
        )
    column_info = info.column(column)
    if column_info is None or column_info.type not in get_args(ColumnType):
        kind = column_info.type if column_info else "nested"
        raise Unsupported(
            f"{info.table} is partitioned by {column}, whose type {kind} cannot be scoped",
            fix=f"use a column of type {', '.join(get_args(ColumnType))}",
        )
    transform = min(transforms, key=_SCOPE_TRANSFORMS.index)
    return ScopeField(
        column=column,
        transform=cast("PartitionTransform", transform),
        type=cast("ColumnType", column_info.type),
    )


def _unscopable_reason(info: TableInfo, column: str) -> str:
    if info.column(column) is None:
        return "there is no such column"
    transforms = [field.transform for field in info.partitioning if field.column == column]
    if not transforms:
        return "it is not a partition column"
    return f"{transforms[0]}({column}) does not tell its values apart"


def _scopable_columns(info: TableInfo) -> str:
    usable = [f.column for f in info.partitioning if f.transform in _SCOPE_TRANSFORMS]
    return ", ".join(dict.fromkeys(usable)) or "no column; add a partition field first"
