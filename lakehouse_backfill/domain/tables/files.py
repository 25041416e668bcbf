"""Files of a table by its metadata: the live ones of a scope, their rows, and spans of values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, datetime
from typing import NamedTuple

from pydantic import Field

from lakehouse_backfill.domain.serialization import Value, added_later


class MetadataFile(Value):
    """A manifest list or a manifest of a snapshot, with its SHA-256.

    `listed_bytes` is the size that the manifest list gives a manifest; None for the list itself.
    """

    path: str
    size_bytes: int
    sha256: str
    listed_bytes: int | None = None


class LiveFile(Value):
    """A data file that is live in a snapshot; `partition` is its label for the scoped field.

    It is None beside the tuples of a narrowed field. `deletes` names the live delete files that
    apply to it: readers see fewer than its `rows` then. A file of a coarser spec (a month, where
    days are scoped) `spans` several of the field's partitions, and has the coarser label. `values`
    counts non-null values of the requested columns, where metadata has them. `hidden` counts the
    rows that each position delete file names, in any file; `vector_rows` those of its vector.
    """

    path: str
    spec_id: int
    partition: str | None
    rows: int
    size_bytes: int
    deletes: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    values: dict[str, int] = Field(default_factory=dict)
    hidden: dict[str, int] = added_later({}, "Rows that position delete files name, by file.")
    vector_rows: int | None = added_later(None, "Rows that its deletion vector hides.")
    place: str = added_later("", "Tells partitions of one label apart, by their other fields.")

    def is_in(self, labels: Collection[str]) -> bool:
        """Return whether all of the file's rows are in the partitions."""
        own = self.spans or (self.partition,)
        return all(label in labels for label in own)

    @property
    def content(self) -> tuple[str, str | None, tuple[str, ...]]:
        """The identity of its rows: other delete files or another partition mean other rows."""
        return self.path, self.partition, self.deletes


def visible_rows(files: Iterable[LiveFile]) -> tuple[int, int]:
    """Return how many rows readers see of files: at least, and at most, by metadata alone.

    A deletion vector tells exactly. A position delete file may name a row twice, or rows of other
    files. An equality delete may hide any row.
    """
    least = most = 0
    rows_in_reach, counts = dict[str, int](), dict[str, int]()
    for file in files:
        rows = file.rows - (file.vector_rows or 0)
        most += rows
        if any(name not in file.hidden for name in file.deletes):
            continue
        least += rows
        # Where a file has a deletion vector, position delete files do not apply to it.
        for name, count in file.hidden.items() if file.vector_rows is None else ():
            rows_in_reach[name] = rows_in_reach.get(name, 0) + file.rows
            counts[name] = count
    hidden = sum(min(counts[name], rows) for name, rows in rows_in_reach.items())
    return max(0, least - hidden), most


class ColumnSpan(Value):
    """The values of a column that one data file holds, from `first` to `last`, by its metadata.

    Both are None where metadata does not tell. `least_rows` and `most_rows` bound the rows with a
    value that readers see. `is_exact`: readers see rows with both `first` and `last`. `added_by`:
    the snapshot that added the file, if known. `deletes`: the delete files that apply to it.
    """

    path: str
    first: datetime | date | None
    last: datetime | date | None
    least_rows: int
    most_rows: int
    is_exact: bool = False
    added_by: int | None = None
    deletes: tuple[str, ...] = ()


class ScanEstimate(Value):
    """An upper bound of what a pruned scan reads, from metadata: whole files, rows and bytes."""

    files: int
    rows: int
    size_bytes: int


class SpecPartitions(Value):
    """The partition tuples of one spec for labels of a scope, as `name=value/name=value`.

    `spans` holds, for tuples of a coarser spec, the labels that each holds rows of.
    """

    spec_id: int
    spec: str
    partitions: tuple[str, ...]
    spans: tuple[tuple[str, ...], ...] = ()


class ScopedFiles(NamedTuple):
    """The live data files of a scope, and the partition tuples that hold them, by spec."""

    files: tuple[LiveFile, ...] = ()
    places: tuple[SpecPartitions, ...] = ()
