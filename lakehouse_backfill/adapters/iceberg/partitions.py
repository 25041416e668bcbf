"""Partition labels of files; row filters; the scope field.

Row ranges as PyIceberg expressions.

Partition labels of data files, read from each file's own partition spec.

Choosing the partition field that a run is scoped by.
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
# They take column and value by position, which the signatures that mypy sees do not say.
equal_term = cast("_TermFactory", EqualTo)
in_term = cast("_TermFactory", In)
at_least_term = cast("_TermFactory", GreaterThanOrEqual)
below_term = cast("_TermFactory", LessThan)
null_term = cast("Callable[[str], BooleanExpression]", IsNull)


def row_range_filter(ranges: tuple[RowRange, ...]) -> BooleanExpression:
    """Give the expression that holds for the rows of any range; no range: no row."""
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
#: From fine to coarse: a file can be labelled when its own unit is not coarser than the scope's.
_TIME_UNITS = ("instant", "hour", "day", "month", "year")


@dataclass(frozen=True)
class _LabelSource:
    """Where a spec holds the scoped column: position in the tuple, transform, column type."""

    position: int
    transform: str
    type: str


class PartitionLabels:
    """Labels files of one table for one scoped field."""

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
        """Tell whether files of the spec can be told apart by the scoped field."""
        return self._sources[spec_id] is not None

    def can_label(self, spec_id: int) -> bool:
        """Tell whether files of the spec have a label: of the scoped field, or a coarser one."""
        return self.can_separate(spec_id) or self._coarse[spec_id] is not None

    def file_label(self, file: DataFile) -> str:
        """Give the file's label; a coarser one (`2013-02`) when its spec is coarser than the field.

        Raises Unsupported when its spec cannot tell.
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
        """Give the labels of all partitions that the file may hold rows of."""
        label, source = self.file_label(file), self._coarse.get(file.spec_id)
        if source is None or label == NULL_LABEL:
            return frozenset({label})
        key = (file.spec_id, label)
        if key not in self._spans:
            coarse = self._field.model_copy(update={"transform": source.transform})
            self._spans[key] = frozenset(labels_within(self._field, coarse, label))
        return self._spans[key]

    def unlabelled_error(self, spec_id: int, files: int) -> Unsupported:
        """Make the error that says which live files cannot be labelled."""
        field = self._field
        spec = ", ".join(f"{part.transform} as {part.name}" for part in self._specs[spec_id].fields)
        return Unsupported(
            f"{files} live files have partition spec {spec_id} ({spec or 'unpartitioned'}), which "
            f"does not tell {field.transform}({field.column}) apart",
            fix="rewrite them to the current spec first: CALL system.rewrite_data_files",
        )

    def _finest_source(self, spec_id: int) -> _LabelSource | None:
        """Choose the spec's finest usable field of the column."""
        found = []
        for position, field in enumerate(self._specs[spec_id].fields):
            source = _LabelSource(position, str(field.transform), str(self._column.field_type))
            if field.source_id == self._column.field_id and self._is_fine_enough(source):
                found.append(source)
        return min(found, key=_unit_rank) if found else None

    def _finest_time_source(self, spec_id: int) -> _LabelSource | None:
        """Choose the spec's finest time unit of the column, where the scope's unit is finer."""
        found = []
        for position, field in enumerate(self._specs[spec_id].fields):
            source = _LabelSource(position, str(field.transform), str(self._column.field_type))
            if field.source_id == self._column.field_id and source.transform in _TIME_UNITS:
                found.append(source)
        unit = _unit_rank(_LabelSource(0, self._field.transform, str(self._column.field_type)))
        return min(found, key=_unit_rank) if found and unit > 0 else None

    def coarse_labels(self, file: DataFile) -> tuple[str, ...]:
        """Give, for a file of a coarser spec, the labels that it may hold rows of, in order."""
        if self.can_separate(file.spec_id):
            return ()
        return tuple(sorted(self.labels_spanned(file), key=label_sort_key(self._field)))

    def _is_fine_enough(self, source: _LabelSource) -> bool:
        wanted = _LabelSource(0, self._field.transform, source.type)
        if _unit_rank(wanted) < 0 or _unit_rank(source) < 0:
            return source.transform == wanted.transform == "identity"
        return _unit_rank(source) <= _unit_rank(wanted)


def _unit_rank(source: _LabelSource) -> int:
    """Give the place of the unit in `_UNITS`; -1 for values that are no instants."""
    if source.transform == "identity":
        identities = {"date": "day", "timestamp": "instant", "timestamptz": "instant"}
        unit = identities.get(source.type, "")
    else:
        unit = source.transform
    return _TIME_UNITS.index(unit) if unit in _TIME_UNITS else -1


def _partition_start(source: _LabelSource, value: Any) -> Bound:
    """Turn the stored partition value into the first value that the partition holds."""
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
    """Give the finest field of the current spec that tells values of `column` apart.

    Raises Unsupported: buckets and truncations mix values, `void` fields hold none.
    """
    fields = [field for field in info.partitioning if field.column == column]
    usable = [field.transform for field in fields if field.transform in _SCOPE_TRANSFORMS]
    if not usable:
        raise Unsupported(
            f"{info.table} cannot be restated by {column}: {_unscopable_reason(info, column)}",
            fix=f"scope by one of: {_scopable_columns(info)}",
        )
    found = info.column(column)
    if found is None or found.type not in get_args(ColumnType):
        kind = found.type if found else "nested"
        raise Unsupported(
            f"{info.table} is partitioned by {column}, whose type {kind} cannot be scoped",
            fix=f"use a column of type {', '.join(get_args(ColumnType))}",
        )
    transform = min(usable, key=_SCOPE_TRANSFORMS.index)
    return ScopeField(
        column=column,
        transform=cast("PartitionTransform", transform),
        type=cast("ColumnType", found.type),
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
