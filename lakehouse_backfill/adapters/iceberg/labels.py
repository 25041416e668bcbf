"""Partition labels of data files, read from each file's own partition spec."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.domain.partitions import label_sort_key, labels_within, partition_label
from lakehouse_backfill.domain.scope import NULL_LABEL, Bound, ScopeField
from lakehouse_backfill.errors import Unsupported

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
        self._sources = {spec_id: self._source(spec_id) for spec_id in self._specs}
        self._coarse = {
            spec_id: self._coarse_source(spec_id)
            for spec_id, source in self._sources.items()
            if source is None
        }
        self._known: dict[tuple[int, Any], str] = {}
        self._spans: dict[tuple[int, Any], frozenset[str]] = {}

    def covers(self, spec_id: int) -> bool:
        """Tell whether files of the spec can be told apart by the scoped field."""
        return self._sources[spec_id] is not None

    def knows(self, spec_id: int) -> bool:
        """Tell whether files of the spec have a label: of the scoped field, or a coarser one."""
        return self.covers(spec_id) or self._coarse[spec_id] is not None

    def of(self, file: DataFile) -> str:
        """Give the file's label; a coarser one (`2013-02`) when its spec is coarser than the field.

        Raises Unsupported when its spec cannot tell.
        """
        source = self._sources[file.spec_id] or self._coarse[file.spec_id]
        if source is None:
            raise self.uncovered(file.spec_id, 1)
        value = file.partition[source.position]
        key = (file.spec_id, value)
        label = self._known.get(key)
        if label is None:
            field = self._field
            if not self.covers(file.spec_id):
                field = field.model_copy(update={"transform": source.transform})
            label = partition_label(
                field, None if value is None else _partition_start(source, value)
            )
            self._known[key] = label
        return label

    def spanned(self, file: DataFile) -> frozenset[str]:
        """Give the labels of all partitions that the file may hold rows of."""
        label, source = self.of(file), self._coarse.get(file.spec_id)
        if source is None or label == NULL_LABEL:
            return frozenset({label})
        key = (file.spec_id, label)
        if key not in self._spans:
            coarse = self._field.model_copy(update={"transform": source.transform})
            self._spans[key] = frozenset(labels_within(self._field, coarse, label))
        return self._spans[key]

    def uncovered(self, spec_id: int, files: int) -> Unsupported:
        """Make the error that says which live files cannot be labelled."""
        field = self._field
        spec = ", ".join(f"{part.transform} as {part.name}" for part in self._specs[spec_id].fields)
        return Unsupported(
            f"{files} live files have partition spec {spec_id} ({spec or 'unpartitioned'}), which "
            f"does not tell {field.transform}({field.column}) apart",
            fix="rewrite them to the current spec first: CALL system.rewrite_data_files",
        )

    def _source(self, spec_id: int) -> _LabelSource | None:
        """Choose the spec's finest usable field of the column."""
        found = []
        for position, field in enumerate(self._specs[spec_id].fields):
            source = _LabelSource(position, str(field.transform), str(self._column.field_type))
            if field.source_id == self._column.field_id and self._fits(source):
                found.append(source)
        return min(found, key=_unit_rank) if found else None

    def _coarse_source(self, spec_id: int) -> _LabelSource | None:
        """Choose the spec's finest time unit of the column, where the scope's unit is finer."""
        found = []
        for position, field in enumerate(self._specs[spec_id].fields):
            source = _LabelSource(position, str(field.transform), str(self._column.field_type))
            if field.source_id == self._column.field_id and source.transform in _TIME_UNITS:
                found.append(source)
        unit = _unit_rank(_LabelSource(0, self._field.transform, str(self._column.field_type)))
        return min(found, key=_unit_rank) if found and unit > 0 else None

    def spans(self, file: DataFile) -> tuple[str, ...]:
        """Give, for a file of a coarser spec, the labels that it may hold rows of, in order."""
        if self.covers(file.spec_id):
            return ()
        return tuple(sorted(self.spanned(file), key=label_sort_key(self._field)))

    def _fits(self, source: _LabelSource) -> bool:
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
