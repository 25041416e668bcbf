"""The current state of a table from its metadata: columns, partitions, snapshots, movements."""

from __future__ import annotations

import re

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.partitions import ANY_COLUMN
from lakehouse_backfill.domain.serialization import Value, added_later

#: A part in backticks may hold the mark before a reference.
_REFERENCE = re.compile(r"((?:`(?:[^`]|``)+`|[^`@])+)(?:@(.*))?", re.DOTALL)


class TableRef(Value):
    """A table, optionally at a snapshot id, tag, branch or ISO timestamp: `ns.table@at`."""

    table: str
    at: str | None = None

    @staticmethod
    def parse(text: str) -> TableRef:
        """Parse `ns.table[@at]`; raise ValueError for another text."""
        found = _REFERENCE.fullmatch(text)
        if found is None or found[2] == "":
            raise ValueError(f"{text!r} is not namespace.table or namespace.table@reference")
        return TableRef(table=names.normal_table_text(found[1]), at=found[2])

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
    """One snapshot: instants in milliseconds since 1970 UTC; `columns` are those of its schema."""

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
    path: tuple[str, ...] = added_later(
        (), "Of a field of a struct: the names that lead to it; `column` is its full name."
    )
    type: str = added_later("", "Type of a field of a struct.")

    @property
    def root(self) -> str:
        """The column of the table that holds the values."""
        return self.path[0] if self.path else self.column


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
        """Return the column called `name`, or None."""
        return next((column for column in self.columns if column.name == name), None)


def first_scope_column(of: TableInfo | Contract) -> str:
    """Return the first column that partitions are by; `*`, the whole table, without one."""
    return of.partitioning[0].column if of.partitioning else ANY_COLUMN


class TableMovement(Value):
    """Commits of one writer to one table; `application`: the engine's, where the commits name it.

    `made_for`: the run, or the publication, of this toolkit that made them; empty for others.
    `operations` are those of the snapshots; `set back` where main was moved to an older snapshot.
    """

    table: str
    writer: str
    application: str
    made_for: str
    commits: int
    operations: tuple[str, ...]
    last_snapshot_id: int

    def __str__(self) -> str:
        word = "commit" if self.commits == 1 else "commits"
        return (
            f"{self.table}: {self.commits} {word} ({', '.join(self.operations)}) by {self.writer}, "
            f"last snapshot {self.last_snapshot_id}"
        )


class CatalogMovements(Value):
    """What was committed to the tables of a catalog since an instant, by table and writer.

    `looked_at` tables were read; those in `unreadable` could not be. Unless `is_whole`, there are
    more tables than were looked at. Tables that were dropped since are not seen.
    """

    looked_at: int
    unreadable: tuple[str, ...]
    is_whole: bool
    moved: tuple[TableMovement, ...] = ()
