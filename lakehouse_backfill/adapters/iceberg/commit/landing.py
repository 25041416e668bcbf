"""Who writes the commit of a swap: PyIceberg, or somebody else for what that cannot write.

What is swapped was inspected and decided before, in the same way for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.catalog import load
from lakehouse_backfill.adapters.iceberg.commit.producer import Change, SwapProducer, commit
from lakehouse_backfill.adapters.iceberg.evolving import columns_after
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache
from lakehouse_backfill.adapters.iceberg.metadata import landed, refuse_format
from lakehouse_backfill.adapters.iceberg.names import FOREVER_MS, PUBLICATION
from lakehouse_backfill.domain.scope import RowRange
from lakehouse_backfill.domain.table_commit import Entering, Inspected, RowsOf, SwapOrder
from lakehouse_backfill.errors import OutcomeUnknown, Unsupported
from lakehouse_backfill.ports.table_commits import SwapCommits


@dataclass(frozen=True)
class Marks:
    """What a swap leaves beside the files: tags, the token, the summary; and where files are from.

    `sources` are the snapshots that list the files that come in, `ranges` the rows concerned.
    """

    target: str
    token: str
    before: dict[str, int]
    after: str | None
    summary: dict[str, str]
    attempt: int
    sources: tuple[tuple[str, int], ...]
    ranges: tuple[RowRange, ...]
    contents: tuple[RowsOf, ...] = ()


class Lander(Protocol):
    """Writes what a swap needs, and gives what commits it."""

    def prepare(self, table: Table, change: Change, marks: Marks) -> Callable[[], Snapshot]:
        """Prepare the swap for the table as it was just loaded; nothing is seen of it yet.

        Raises TooBusy when the table is another by now; the commit raises what it meets.
        """
        ...


class PyIcebergLander(Lander):
    """Formats 1 and 2, without a JVM."""

    def __init__(self, cache: ManifestCache) -> None:
        self._producer = SwapProducer(cache)

    def prepare(self, table: Table, change: Change, marks: Marks) -> Callable[[], Snapshot]:
        """Write manifests and manifest list; those of earlier attempts are used again."""
        refuse_format(marks.target, table.metadata)
        snapshot = self._producer.snapshot(table, change, marks.summary, marks.attempt)
        after = {marks.after: snapshot.snapshot_id} if marks.after else {}

        def land() -> Snapshot:
            commit(table, snapshot, {**marks.before, **after}, marks.token, change.schema)
            return snapshot

        return land


class OtherLander(Lander):
    """Any format, through whoever can write it."""

    def __init__(self, catalog: Catalog, commits: SwapCommits) -> None:
        self._catalog = catalog
        self._commits = commits

    def prepare(self, table: Table, change: Change, marks: Marks) -> Callable[[], Snapshot]:
        """Order exactly the inspected files; the new snapshot is read back by its token."""
        if change.schema is not None and self._commits.writes_rows:
            raise Unsupported(
                f"{marks.target}: commits of rows carry no change of columns",
                state="nothing was published; readers see what they saw before",
                fix="change the columns on the table itself, and plan the run again without them",
            )
        prepared = self._commits.prepare(_order(table, change, marks))

        def land() -> Snapshot:
            prepared.commit()
            found = landed(load(self._catalog, marks.target).metadata, marks.token)
            if found is None:
                raise OutcomeUnknown(f"the commit on {marks.target} is not in its history")
            return found

        return land


def lander(catalog: Catalog, cache: ManifestCache, commits: SwapCommits | None) -> Lander:
    """Give the way for a swap: PyIceberg, unless somebody else is to write the commits."""
    return PyIcebergLander(cache) if commits is None else OtherLander(catalog, commits)


def _order(table: Table, change: Change, marks: Marks) -> SwapOrder:
    metadata, head = table.metadata, change.head
    return SwapOrder(
        base=Inspected(
            table=marks.target,
            uuid=str(metadata.table_uuid),
            head_id=head.snapshot_id if head else None,
            schema_id=metadata.current_schema_id,
            spec_id=metadata.default_spec_id,
            last_column_id=metadata.last_column_id,
        ),
        ranges=marks.ranges,
        token=marks.token,
        removed=tuple(name for name, e in change.removed.items() if _is_data(e)),
        removed_deletes=tuple(name for name, e in change.removed.items() if not _is_data(e)),
        added=tuple(Entering(n, e.sequence_number) for n, e in change.added.items()),
        sources=marks.sources,
        tags=marks.before,
        after=marks.after,
        tag_age_ms=FOREVER_MS,
        summary=marks.summary,
        properties={PUBLICATION: marks.token},
        operation=change.operation.value,
        columns=columns_after(metadata, change.schema) if change.schema else None,
        contents=marks.contents,
    )


def _is_data(entry: ManifestEntry) -> bool:
    return bool(entry.data_file.content == DataFileContent.DATA)
