"""Counts and checksums of Arrow rows by partition of an Iceberg table, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema

from lakehouse_backfill.adapters.local.row_hash import checksum_of, row_hashes, shape_of
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.ports.migration import PartitionRows


@dataclass
class ArrowSums:
    """`ports.migration.RowSums` for a table with these columns and this partitioning."""

    schema: Schema
    spec: PartitionSpec
    _checksums: dict[str, Checksum] = field(default_factory=dict)
    _values: dict[str, tuple[str | None, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Work out what is the same for all rows; raises Unsupported for a type without a hash."""
        self.arrow_schema = schema_to_pyarrow(self.schema, include_field_ids=False)
        self._shape = shape_of(self.arrow_schema)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows that have the columns of the table."""
        if batch.num_rows == 0:
            return
        hashes = row_hashes(batch)
        codes = self._codes(batch)
        if (codes == codes[:, :1]).all():
            self._add_group(self._label(batch, 0), hashes)
            return
        firsts, groups = np.unique(codes, axis=1, return_index=True, return_inverse=True)[1:]
        for number, first in enumerate(firsts):
            self._add_group(self._label(batch, int(first)), hashes[groups.reshape(-1) == number])

    def groups(self) -> dict[str, PartitionRows]:
        """Return what was added, by partition; an unpartitioned table has the partition ''."""
        return {
            label: PartitionRows(checksum, self._values[label])
            for label, checksum in self._checksums.items()
        }

    def _add_group(self, label: str, hashes: Any) -> None:
        found = checksum_of(hashes, self._shape)
        known = self._checksums.get(label)
        self._checksums[label] = found if known is None else known + found

    def _codes(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Return a number for the value of each partition field, by row."""
        codes = [np.zeros(batch.num_rows, np.int64)]
        for each in self.spec.fields:
            source = self.schema.find_field(each.source_id)
            values = each.transform.pyarrow_transform(source.field_type)(batch.column(source.name))
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            encoded = values.dictionary_encode(null_encoding="encode").indices
            codes.append(encoded.to_numpy(zero_copy_only=False).astype(np.int64))
        return np.stack(codes)

    def _label(self, batch: pa.RecordBatch, row: int) -> str:
        """Return the name of a row's partition; a null is told apart from a text `null`."""
        values = [self._value(each, batch, row) for each in self.spec.fields]
        label = "/".join(map(self._name, self.spec.fields, values))
        if label not in self._values:
            self._values[label] = tuple(
                None if value is None else to_bytes(self._kind(each), value).hex()
                for each, value in zip(self.spec.fields, values, strict=True)
            )
        return label

    def _name(self, each: PartitionField, value: Any) -> str:
        if value is None:
            return f"{each.name} is null"
        text = each.transform.to_human_string(self._kind(each), value)
        return f"{each.name}={quote(text, safe=' :+')}"

    def _value(self, each: PartitionField, batch: pa.RecordBatch, row: int) -> Any:
        source = self.schema.find_field(each.source_id)
        value = batch.column(source.name)[row].as_py()
        stored = partition_record_value(each, value, self.schema)
        return each.transform.transform(source.field_type)(stored)

    def _kind(self, each: PartitionField) -> Any:
        source = self.schema.find_field(each.source_id).field_type
        return each.transform.result_type(source)
