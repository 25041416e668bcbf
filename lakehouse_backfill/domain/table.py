"""What the toolkit knows about an Iceberg table, from its metadata alone."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic import Field

from lakehouse_backfill.domain.value import Value

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")


def is_table_name(text: str) -> bool:
    """Tell whether `text` is `namespace.table` made of plain identifiers only."""
    return len(text) <= 200 and _NAME.fullmatch(text) is not None


class TableRef(Value):
    """A table, optionally at a snapshot id, tag, branch or ISO timestamp: `ns.table@at`."""

    table: str
    at: str | None = None

    @staticmethod
    def parse(text: str) -> TableRef:
        """Read `ns.table[@at]`; raises ValueError when the name holds more than identifiers."""
        table, separator, at = text.partition("@")
        if not is_table_name(table) or (separator and not at):
            raise ValueError(f"{text!r} is not namespace.table or namespace.table@reference")
        return TableRef(table=table, at=at or None)

    def __str__(self) -> str:
        return f"{self.table}@{self.at}" if self.at else self.table


class Column(Value):
    """One top-level column; `type` is Iceberg's type text, e.g. `decimal(10, 2)`."""

    field_id: int
    name: str
    type: str
    required: bool = False
    doc: str | None = None


class Snapshot(Value):
    """One snapshot: instants in milliseconds since 1970 UTC; `columns` are those it is read by."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    committed_at_ms: int
    operation: str
    summary: dict[str, str]
    schema_id: int | None = None
    columns: tuple[Column, ...] = ()


class PartitionField(Value):
    """One field of the default partition spec: Iceberg's transform text of a source column."""

    name: str
    column: str
    transform: str


class TableInfo(Value):
    """The current state of a table, from its metadata alone."""

    table: str
    uuid: str
    location: str
    format_version: int
    snapshot_id: int | None
    schema_id: int
    spec_id: int
    columns: tuple[Column, ...]
    partitioning: tuple[PartitionField, ...]
    spec_count: int
    properties: dict[str, str]
    refs: dict[str, int]

    def column(self, name: str) -> Column | None:
        """The column called `name`, or None."""
        return next((column for column in self.columns if column.name == name), None)


class LiveFile(Value):
    """A data file that is live in a snapshot; `partition` is its label for the scoped field.

    `deletes` names the live delete files that apply to it: readers see fewer than its `rows` then.
    A file of a coarser spec (a month, where days are scoped) `spans` several of the field's
    partitions, and has the coarser label. `values` counts those that are not null, of the columns
    that were asked for and that the file's metadata says it of.
    """

    path: str
    spec_id: int
    partition: str | None
    rows: int
    size_bytes: int
    deletes: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    values: dict[str, int] = Field(default_factory=dict)

    def is_in(self, labels: Collection[str]) -> bool:
        """Tell whether all its rows lie in the partitions."""
        own = self.spans or (self.partition,)
        return all(label in labels for label in own)

    @property
    def content(self) -> tuple[str, str | None, tuple[str, ...]]:
        """What tells its rows: under other delete files, or elsewhere, a file holds other ones."""
        return self.path, self.partition, self.deletes


class ScanEstimate(Value):
    """What a pruned scan would read at most, from metadata: whole files, their rows and bytes."""

    files: int
    rows: int
    size_bytes: int


class SpecPartitions(Value):
    """What labels of a scope stand for: partition tuples of one spec, as `name=value/name=value`.

    `spans` gives, for tuples of a coarser spec, the labels that each holds rows of.
    """

    spec_id: int
    spec: str
    partitions: tuple[str, ...]
    spans: tuple[tuple[str, ...], ...] = ()
