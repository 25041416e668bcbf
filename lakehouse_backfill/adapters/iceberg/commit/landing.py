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

from lakehouse_backfill.adapters.iceberg.catalog import load_table
from lakehouse_backfill.adapters.iceberg.commit.producer import (
    SnapshotChange,
    SwapProducer,
    commit_snapshot,
)
from lakehouse_backfill.adapters.iceberg.evolving import build_new_schema
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache
from lakehouse_backfill.adapters.iceberg.metadata import (
    find_publication_snapshot,
    refuse_unwritable_format,
)
from lakehouse_backfill.adapters.iceberg.names import NEVER_EXPIRES_MS, PUBLICATION_PROPERTY
from lakehouse_backfill.domain.scope import RowRange
from lakehouse_backfill.domain.table_commit import (
    AddedFile,
    InspectedState,
    PartitionContent,
    SwapCommit,
)
from lakehouse_backfill.errors import OutcomeUnknown, Unsupported
from lakehouse_backfill.ports.table_commits import SwapCommitter


@dataclass(frozen=True)
class CommitMarkers:
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
    contents: tuple[PartitionContent, ...] = ()


class SnapshotWriter(Protocol):
    """Writes what a swap needs, and gives what commits it."""

    def prepare(
        self, table: Table, change: SnapshotChange, marks: CommitMarkers
    ) -> Callable[[], Snapshot]:
        """Prepare the swap for the table as it was just loaded; nothing is seen of it yet.

        Raises TooBusy when the table is another by now; the commit raises what it meets.
        """
        ...


class PyIcebergSnapshotWriter(SnapshotWriter):
    """Formats 1 and 2, without a JVM."""

    def __init__(self, cache: ManifestCache) -> None:
        self._producer = SwapProducer(cache)

    def prepare(
        self, table: Table, change: SnapshotChange, marks: CommitMarkers
    ) -> Callable[[], Snapshot]:
        """Write manifests and manifest list; those of earlier attempts are used again."""
        refuse_unwritable_format(marks.target, table.metadata)
        snapshot = self._producer.snapshot(table, change, marks.summary, marks.attempt)
        after = {marks.after: snapshot.snapshot_id} if marks.after else {}

        def land() -> Snapshot:
            commit_snapshot(table, snapshot, {**marks.before, **after}, marks.token, change.schema)
            return snapshot

        return land


class DelegatedSnapshotWriter(SnapshotWriter):
    """Any format, through whoever can write it."""

    def __init__(self, catalog: Catalog, commits: SwapCommitter) -> None:
        self._catalog = catalog
        self._commits = commits

    def prepare(
        self, table: Table, change: SnapshotChange, marks: CommitMarkers
    ) -> Callable[[], Snapshot]:
        """Order exactly the inspected files; the new snapshot is read back by its token."""
        if change.schema is not None and self._commits.writes_rows:
            raise Unsupported(
                f"{marks.target}: commits of rows carry no change of columns",
                state="nothing was published; readers see what they saw before",
                fix="change the columns on the table itself, and plan the run again without them",
            )
        prepared = self._commits.prepare(_swap_commit(table, change, marks))

        def land() -> Snapshot:
            prepared.commit()
            found = find_publication_snapshot(
                load_table(self._catalog, marks.target).metadata, marks.token
            )
            if found is None:
                raise OutcomeUnknown(f"the commit on {marks.target} is not in its history")
            return found

        return land


def choose_snapshot_writer(
    catalog: Catalog, cache: ManifestCache, commits: SwapCommitter | None
) -> SnapshotWriter:
    """Give the way for a swap: PyIceberg, unless somebody else is to write the commits."""
    return (
        PyIcebergSnapshotWriter(cache)
        if commits is None
        else DelegatedSnapshotWriter(catalog, commits)
    )


def _swap_commit(table: Table, change: SnapshotChange, marks: CommitMarkers) -> SwapCommit:
    metadata, head = table.metadata, change.head
    return SwapCommit(
        base=InspectedState(
            table=marks.target,
            uuid=str(metadata.table_uuid),
            head_id=head.snapshot_id if head else None,
            schema_id=metadata.current_schema_id,
            spec_id=metadata.default_spec_id,
            last_column_id=metadata.last_column_id,
        ),
        ranges=marks.ranges,
        token=marks.token,
        removed=tuple(name for name, e in change.removed.items() if _is_data_file(e)),
        removed_deletes=tuple(name for name, e in change.removed.items() if not _is_data_file(e)),
        added=tuple(AddedFile(n, e.sequence_number) for n, e in change.added.items()),
        sources=marks.sources,
        tags=marks.before,
        after=marks.after,
        tag_age_ms=NEVER_EXPIRES_MS,
        summary=marks.summary,
        properties={PUBLICATION_PROPERTY: marks.token},
        operation=change.operation.value,
        columns=build_new_schema(metadata, change.schema) if change.schema else None,
        contents=marks.contents,
    )


def _is_data_file(entry: ManifestEntry) -> bool:
    return bool(entry.data_file.content == DataFileContent.DATA)
