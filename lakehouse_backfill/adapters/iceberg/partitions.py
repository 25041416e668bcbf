"""Partition labels of data files, row filters, the choice of the scope field, and column bounds.

Labels are read from each file's own partition spec, bounds from its statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from operator import itemgetter
from typing import Any, cast

from pyiceberg import expressions as expr
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from lakehouse_backfill.domain.labels.spans import labels_within
from lakehouse_backfill.domain.labels.values import Bound, fineness, fits, is_bucket
from lakehouse_backfill.domain.partitions import (
    ANY_COLUMN,
    NULL_LABEL,
    WHOLE_TABLE_FIELD,
    WHOLE_TABLE_LABEL,
    RowRange,
    Scope,
    ScopeField,
    label_sort_key,
    partition_label,
    partition_row_range,
    partition_start,
    scope_row_ranges,
)
from lakehouse_backfill.domain.tables.files import ColumnSpan, LiveFile, visible_rows
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import Unsupported

_TermFactory = Callable[[str, Any], expr.BooleanExpression]
# They accept column and value by position, which their signatures for mypy do not declare.
equal_term = cast("_TermFactory", expr.EqualTo)
in_term = cast("_TermFactory", expr.In)
at_least_term = cast("_TermFactory", expr.GreaterThanOrEqual)
below_term = cast("_TermFactory", expr.LessThan)
null_term = cast("Callable[[str], expr.BooleanExpression]", expr.IsNull)


def row_range_filter(ranges: tuple[RowRange, ...]) -> expr.BooleanExpression:
    """Return the expression that is true for the rows of any range; no range: no row.

    For a bucket it is true for all rows. The groups of `only` are those of all ranges.
    """
    if ranges and ranges[0].only:
        own = row_range_filter(tuple(replace(rows, only=()) for rows in ranges))
        return expr.And(own, *map(row_range_filter, ranges[0].only))
    equals: dict[str, list[Bound]] = {}
    terms: list[expr.BooleanExpression] = []
    if any(rows.is_everything or rows.buckets is not None for rows in ranges):
        # PyIceberg has no term for a bucket: `PartitionLabels` tells its files apart.
        return expr.AlwaysTrue()
    for rows in ranges:
        if rows.equals is not None:
            equals.setdefault(rows.column, []).append(rows.equals)
        else:
            terms.append(_range_term(rows))
    # One In instead of many EqualTo: evaluators recurse over Or.
    terms += [_equality_term(column, values) for column, values in equals.items()]
    if not terms:
        return expr.AlwaysFalse()
    return terms[0] if len(terms) == 1 else expr.Or(*terms)


def _equality_term(column: str, values: list[Bound]) -> expr.BooleanExpression:
    return equal_term(column, values[0]) if len(values) == 1 else in_term(column, set(values))


def _range_term(rows: RowRange) -> expr.BooleanExpression:
    if rows.is_null:
        return null_term(rows.column)
    term: expr.BooleanExpression = expr.AlwaysTrue()
    if rows.lower is not None:
        term = at_least_term(rows.column, rows.lower)
    if rows.upper is not None:
        term = expr.And(term, below_term(rows.column, rows.upper))
    return term


def describe_spec(spec: PartitionSpec) -> str:
    """Return the spec's fields as text; empty for an unpartitioned spec."""
    return ", ".join(f"{field.transform} as {field.name}" for field in spec.fields)


#: From fine to coarse. A file of a unit that is not coarser than the scope's has one label.
_TIME_UNITS = ("instant", "hour", "day", "month", "year")


@dataclass(frozen=True)
class _LabelSource:
    """The field of a spec that labels its files: its position, transform and column type.

    Its labels are those of `field`: the scope's field, or one of a coarser unit.
    """

    position: int
    transform: str
    type: str
    field: ScopeField


class PartitionLabels:
    """Labels files of one table for one scope field.

    Where the field's partitions are narrowed by other partition fields, files beside these values
    lie in none of them, and only specs with all of these fields can be labelled.
    """

    def __init__(self, metadata: TableMetadata, field: ScopeField) -> None:
        self._field = field
        self._specs = metadata.specs()
        self._sources = _find_sources(metadata, field)
        self._narrowing = {i: _find_narrowing(metadata, i, field) for i in self._sources}
        for spec_id, found in self._narrowing.items():
            if found is None:
                self._sources[spec_id] = None
        self._beside: dict[tuple[int, Any], bool] = {}
        self._labels_by_value: dict[tuple[int, Any], str] = {}
        self._spans: dict[tuple[int, Any], frozenset[str]] = {}

    @property
    def key(self) -> Hashable:
        """All that the labels of a file depend on: two tables with equal keys label alike."""
        places = (self._sources, self._narrowing)
        return self._field, *(tuple(sorted(one.items(), key=itemgetter(0))) for one in places)

    def can_label(self, spec_id: int) -> bool:
        """Return whether files of the spec have a label: of the scope field, or a coarser one."""
        return self._sources[spec_id] is not None

    def file_label(self, file: DataFile) -> str:
        """Return the file's label; a coarser one (`2013-02`) when its spec is coarser.

        Raises Unsupported when its spec has no field for it.
        """
        source = self.require_source(file.spec_id, 1)
        if source.field.is_whole_table:
            return WHOLE_TABLE_LABEL
        value = file.partition[source.position]
        key = (file.spec_id, value)
        if key not in self._labels_by_value:
            self._labels_by_value[key] = _stored_label(
                source.field, source.transform, source.type, value
            )
        return self._labels_by_value[key]

    def is_beside(self, file: DataFile) -> bool:
        """Return whether the file has other values of the fields that narrow the partitions."""
        narrowing = self._narrowing[file.spec_id]
        if not narrowing:
            return False
        key = (file.spec_id, file.partition)
        if key not in self._beside:
            self._beside[key] = any(
                _stored_label(by, by.transform, by.type, file.partition[position]) not in labels
                for position, by, labels in narrowing
            )
        return self._beside[key]

    def labels_spanned(self, file: DataFile) -> frozenset[str]:
        """Return the labels of all partitions that the file may hold rows of; none: beside them."""
        if self.is_beside(file):
            return frozenset()
        label, source = self.file_label(file), self.require_source(file.spec_id, 1)
        if source.field is self._field or label == NULL_LABEL:
            return frozenset({label})
        key = (file.spec_id, label)
        if key not in self._spans:
            self._spans[key] = frozenset(labels_within(self._field, source.field, label))
        return self._spans[key]

    def coarse_labels(self, file: DataFile) -> tuple[str, ...]:
        """Return the sorted labels that a file of a coarser spec may hold rows of; else ()."""
        if self.require_source(file.spec_id, 1).field is self._field:
            return ()
        return tuple(sorted(self.labels_spanned(file), key=label_sort_key(self._field)))

    def bucket_filter(self, spec_id: int, scope: Scope) -> expr.BooleanExpression | None:
        """Return the filter on partitions of a spec for buckets of a scope; None for other fields.

        Rows cannot be named by their bucket, partitions can. Files beside the values that narrow
        the buckets pass: `labels_spanned` tells them apart.
        """
        if not is_bucket(self._field.transform):
            return None
        name = self._specs[spec_id].fields[self.require_source(spec_id, 1).position].name
        ranges = (
            replace(rows, column=name, buckets=None, only=()) for rows in scope_row_ranges(scope)
        )
        return row_range_filter(tuple(ranges))

    def require_source(self, spec_id: int, files: int) -> _LabelSource:
        """Return the field that labels files of the spec; raise Unsupported when there is none."""
        source = self._sources[spec_id]
        if source is not None:
            return source
        field, spec = self._field, describe_spec(self._specs[spec_id]) or "unpartitioned"
        raise Unsupported(
            f"{files} live files have partition spec {spec_id} ({spec}), which "
            f"does not tell {field} apart",
            fix="rewrite them to the current spec first: CALL system.rewrite_data_files",
        )


def _find_sources(metadata: TableMetadata, field: ScopeField) -> dict[int, _LabelSource | None]:
    """Return what labels the files of each spec; a whole table holds the files of all specs."""
    if field.is_whole_table:
        every = _LabelSource(0, field.transform, field.type, field)
        return dict.fromkeys(metadata.specs(), every)
    column = _require_column(metadata, field.column)
    return {i: _find_source(spec, column, field) for i, spec in metadata.specs().items()}


def _require_column(metadata: TableMetadata, name: str) -> NestedField:
    try:
        return metadata.schema().find_field(name)
    except ValueError as error:
        raise Unsupported(
            f"the table has no column {name}",
            fix="give the column its name back: ALTER TABLE … RENAME COLUMN …; or plan anew",
        ) from error


def _find_narrowing(
    metadata: TableMetadata, spec_id: int, field: ScopeField
) -> tuple[tuple[int, ScopeField, frozenset[str]], ...] | None:
    """Return where a spec holds the values that narrow the partitions; None: it lacks one."""
    found = []
    for scope in field.only:
        column = _require_column(metadata, scope.field.column)
        places = (
            i
            for i, part in enumerate(metadata.specs()[spec_id].fields)
            if part.source_id == column.field_id and str(part.transform) == scope.field.transform
        )
        position = next(places, None)
        if position is None:
            return None
        found.append((position, scope.field, frozenset(scope.partitions)))
    return tuple(found)


def _stored_label(field: ScopeField, transform: str, kind: str, stored: Any) -> str:
    """Return the label by `field` of a value that a spec stores by its transform of a type."""
    return partition_label(
        field, None if stored is None else partition_start(transform, kind, stored)
    )


def _find_source(
    spec: PartitionSpec, column: NestedField, field: ScopeField
) -> _LabelSource | None:
    """Return the spec's finest field of the column that separates the scope's partitions.

    Without one, return its finest time unit, where the scope's unit is finer.
    """
    kind, coarse = str(column.field_type), None
    scope_rank = _unit_rank(field.transform, kind)
    places = [i for i, part in enumerate(spec.fields) if part.source_id == column.field_id]
    transforms = {i: str(spec.fields[i].transform) for i in places}
    for i in sorted(places, key=lambda i: _unit_rank(transforms[i], kind)):
        transform = transforms[i]
        rank = _unit_rank(transform, kind)
        is_fine_enough = rank <= scope_rank
        if rank < 0 or scope_rank < 0:
            is_fine_enough = transform == field.transform
        if is_fine_enough:
            return _LabelSource(i, transform, kind, field)
        if coarse is None and transform in _TIME_UNITS and scope_rank > 0:
            coarse_field = field.model_copy(update={"transform": transform})
            coarse = _LabelSource(i, transform, kind, coarse_field)
    return coarse


def _unit_rank(transform: str, kind: str) -> int:
    """Return the index of the unit in `_TIME_UNITS`; -1 for values that are no instants."""
    if transform == "identity":
        identities = {"date": "day", "timestamp": "instant", "timestamptz": "instant"}
        transform = identities.get(kind, "")
    return _TIME_UNITS.index(transform) if transform in _TIME_UNITS else -1


def finest_scope_field(info: TableInfo, column: str) -> ScopeField:
    """Return the finest field of the current spec that tells values of `column` apart.

    Without one, return its first bucket or truncation. `*` means the whole table. Raises
    Unsupported for a column that has no such field, and for types without labels.
    """
    if column == ANY_COLUMN:
        return WHOLE_TABLE_FIELD
    transforms = [f.transform for f in info.partitioning if f.column == column]
    usable = [one for one in transforms if one != "void"]
    kind = column_type(info, column)
    fitting = [one for one in usable if kind is not None and fits(one, kind)]
    if not fitting:
        raise Unsupported(
            f"{info.table} cannot be restated by {column}: {_unscopable_reason(info, column)}",
            fix=f"scope by one of: {_scopable_columns(info)}",
        )
    transform = min(fitting, key=fineness)
    path = next(f.path for f in info.partitioning if f.column == column)
    return ScopeField(column=column, transform=transform, type=kind or "", path=path)


def column_type(info: TableInfo, column: str) -> str | None:
    """Return the type of a column, or of a struct's field that partitions are by; else None."""
    found = info.column(column)
    nested = (one.type for one in info.partitioning if one.column == column and one.type)
    return found.type if found else next(nested, None)


def _unscopable_reason(info: TableInfo, column: str) -> str:
    transforms = [field.transform for field in info.partitioning if field.column == column]
    kind = column_type(info, column)
    if not transforms:
        return "there is no such column" if kind is None else "it is not a partition column"
    if kind is None:
        return "it lies in a list or a map"
    if transforms[0] == "void":
        return f"void({column}) does not tell its values apart"
    return f"partitions by {transforms[0]} of a {kind} have no names"


def _scopable_columns(info: TableInfo) -> str:
    usable = [
        field.column
        for field in info.partitioning
        if fits(field.transform, column_type(info, field.column) or "")
    ]
    whole = "the whole table, by target.partitions.whole_table: true"
    return ", ".join([*dict.fromkeys(usable), whole])


_Time = datetime | date | None
#: The types of time that an input is cut by, with the length of their bounds.
BOUND_BYTES = {"date": 4, "timestamp": 8, "timestamptz": 8}


class ColumnSpans:
    """Reads the bounds of one time column from the statistics of files, else from partitions."""

    def __init__(self, table: Table, column: NestedField) -> None:
        self._column, self._type = column, str(column.field_type)
        self._labels: PartitionLabels | None = None
        with suppress(Unsupported):
            field = ScopeField.model_validate(
                {
                    "column": column.name,
                    "transform": "identity" if self._type == "date" else "hour",
                    "type": self._type,
                }
            )
            self._labels = PartitionLabels(table.metadata, field)

    def span(self, file: DataFile, added_by: int | None = None, **hidden: Any) -> ColumnSpan:
        """Return the values that a file holds; `hidden` says what delete files hide of it."""
        nulls = (file.null_value_counts or {}).get(self._column.field_id)
        most_null = 0 if self._column.required else file.record_count if nulls is None else nulls
        least, most = visible_rows(
            (
                LiveFile(
                    path=file.file_path, spec_id=file.spec_id, partition=None,
                    rows=file.record_count, size_bytes=file.file_size_in_bytes, **hidden,
                ),
            )
        )  # fmt: skip
        bounds = self._bound(file.lower_bounds), self._bound(file.upper_bounds)
        is_known = None not in bounds
        first, last = bounds if is_known else self._of_partition(file)
        return ColumnSpan(
            path=file.file_path,
            first=first,
            last=last,
            least_rows=max(0, least - most_null),
            most_rows=max(0, min(most, file.record_count - (nulls or 0))),
            is_exact=is_known and not hidden,
            added_by=added_by,
            deletes=hidden.get("deletes", ()),
        )

    def _bound(self, bounds: dict[int, bytes] | None) -> _Time:
        """Decode a bound; one from before a type promotion has another length, and is unknown."""
        stored = (bounds or {}).get(self._column.field_id)
        if stored is None or len(stored) != BOUND_BYTES[self._type]:
            return None
        number = int.from_bytes(stored, "little", signed=True)
        try:
            start = partition_start("identity", self._type, number)
        except OverflowError:
            return None
        return start if isinstance(start, date) else None

    def _of_partition(self, file: DataFile) -> tuple[_Time, _Time]:
        """Return the first and last value that a file's partition may hold."""
        if self._labels is None or not self._labels.can_label(file.spec_id):
            return None, None
        source = self._labels.require_source(file.spec_id, 1)
        rows = partition_row_range(source.field, self._labels.file_label(file))
        if not isinstance(rows.lower, date) or not isinstance(rows.upper, date):
            return None, None
        is_time = isinstance(rows.upper, datetime)
        last = rows.upper - (timedelta(microseconds=1) if is_time else timedelta(days=1))
        return rows.lower, last


def require_numbers(table: Table, rows: Any, state: str) -> None:
    """Raise Unsupported for NaN in a column by whose own value the table is partitioned.

    PyIceberg 0.12 looks for the rows of each value, and NaN equals none: it fails on no rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for each in table.spec().fields:
        name = table.schema().find_field(each.source_id).name
        is_own = str(each.transform) == "identity"
        if not is_own or not pa.types.is_floating(rows.schema.field(name).type):
            continue
        if pc.any(pc.is_nan(rows[name])).as_py():
            raise Unsupported(
                f"column {name} has NaN, and the table is partitioned by it: no such partition "
                "can be written",
                state=state,
                fix="partition the product by another column, or put another value in the old "
                "place",
            )
