"""Partition labels of data files, read from each file's own partition spec."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from pyiceberg import expressions as expr
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from lakehouse_backfill.adapters.pyiceberg_rows import row_range_filter
from lakehouse_backfill.domain.labels.spans import labels_within
from lakehouse_backfill.domain.labels.values import is_bucket
from lakehouse_backfill.domain.partitions import (
    NULL_LABEL,
    WHOLE_TABLE_LABEL,
    Scope,
    ScopeField,
    label_sort_key,
    partition_label,
    partition_start,
    scope_row_ranges,
)
from lakehouse_backfill.errors import Unsupported


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
