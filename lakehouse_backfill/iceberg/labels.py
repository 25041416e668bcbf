"""Partition labels of data files, read from each file's own partition spec."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.model.scope import Bound, ScopeField
from lakehouse_backfill.rules.partitions import label_of

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: From fine to coarse: a file can be labelled when its own unit is not coarser than the scope's.
_UNITS = ("instant", "hour", "day", "month", "year")


@dataclass(frozen=True)
class _Source:
    """Where a spec holds the scoped column: position in the tuple, transform, column type."""

    position: int
    transform: str
    type: str


class Labels:
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
        self._known: dict[tuple[int, Any], str] = {}

    def covers(self, spec_id: int) -> bool:
        """Tell whether files of the spec can be told apart by the scoped field."""
        return self._sources[spec_id] is not None

    def of(self, file: DataFile) -> str:
        """Give the file's label; raises Unsupported when its spec cannot tell."""
        source = self._sources[file.spec_id]
        if source is None:
            raise self.uncovered(file.spec_id, 1)
        value = file.partition[source.position]
        key = (file.spec_id, value)
        label = self._known.get(key)
        if label is None:
            label = label_of(self._field, None if value is None else _bound(source, value))
            self._known[key] = label
        return label

    def uncovered(self, spec_id: int, files: int) -> Unsupported:
        """Make the error that says which live files cannot be labelled."""
        field = self._field
        spec = ", ".join(f"{part.transform} as {part.name}" for part in self._specs[spec_id].fields)
        return Unsupported(
            f"{files} live files have partition spec {spec_id} ({spec or 'unpartitioned'}), which "
            f"does not tell {field.transform}({field.column}) apart",
            fix="rewrite them to the current spec first: CALL system.rewrite_data_files",
        )

    def _source(self, spec_id: int) -> _Source | None:
        """Choose the spec's finest usable field of the column."""
        found = []
        for position, field in enumerate(self._specs[spec_id].fields):
            source = _Source(position, str(field.transform), str(self._column.field_type))
            if field.source_id == self._column.field_id and self._fits(source):
                found.append(source)
        return min(found, key=_rank) if found else None

    def _fits(self, source: _Source) -> bool:
        wanted = _Source(0, self._field.transform, source.type)
        if _rank(wanted) < 0 or _rank(source) < 0:
            return source.transform == wanted.transform == "identity"
        return _rank(source) <= _rank(wanted)


def _rank(source: _Source) -> int:
    """Give the place of the unit in `_UNITS`; -1 for values that are no instants."""
    if source.transform == "identity":
        identities = {"date": "day", "timestamp": "instant", "timestamptz": "instant"}
        unit = identities.get(source.type, "")
    else:
        unit = source.transform
    return _UNITS.index(unit) if unit in _UNITS else -1


def _bound(source: _Source, value: Any) -> Bound:
    """Turn the stored partition value into the first value that the partition holds."""
    if source.transform == "hour":
        return _EPOCH + timedelta(hours=value)
    if source.transform == "month":
        return date(1970 + value // 12, value % 12 + 1, 1)
    if source.transform == "year":
        return date(1970 + value, 1, 1)
    if source.transform == "day" or source.type == "date":
        return (_EPOCH + timedelta(days=value)).date()
    if source.type in ("timestamp", "timestamptz"):
        return _EPOCH + timedelta(microseconds=value)
    return value if isinstance(value, int) else str(value)
