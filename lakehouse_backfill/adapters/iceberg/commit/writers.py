"""Who writes the snapshot: PyIceberg, Java API, or rows (proven and tagged after).

Who writes the commit of a swap: PyIceberg, or somebody else for what that cannot write.

What is swapped was inspected and decided before, in the same way for both.

Finishing a swap by rows: proof that it is the candidate, and the tags of both states.

Such a swap is one snapshot, and nothing else comes by the same commit. What is left to do stands
in its summary, so that whoever finds it does it: the tag of the new state is the last, and says
that all is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    SnapshotChange,
    SwapProducer,
    commit_snapshot,
)
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import (
    NEVER_EXPIRES_MS,
    PUBLICATION_PROPERTY,
    find_publication_snapshot,
    has_live_files,
    refuse_unwritable_format,
    snapshot_summary,
)
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.iceberg.schema import build_new_schema
from lakehouse_backfill.domain.partitions import RowRange, Scope
from lakehouse_backfill.domain.publication import (
    REWRITE_PROPERTY,
    AddedFile,
    InspectedState,
    PartitionContent,
    PendingRewrite,
    SwapCommit,
)
from lakehouse_backfill.errors import OutcomeUnknown, Unsupported
from lakehouse_backfill.ports.table_writer import RowVerifier, SwapCommitter, TagCommitter


@dataclass(frozen=True)
class CommitMarkers:
    """What a swap leaves beside the files: tags, the token, the summary; and where files are from.

    `sources` are the snapshots that list the files that come in, `ranges` the rows concerned.
    """

    target: str
    token: str
    before_tags: dict[str, int]
    after_tag: str | None
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
        snapshot = self._producer.write_snapshot(table, change, marks.summary, marks.attempt)
        after = {marks.after_tag: snapshot.snapshot_id} if marks.after_tag else {}

        def land() -> Snapshot:
            commit_snapshot(
                table, snapshot, {**marks.before_tags, **after}, marks.token, change.schema
            )
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
        tags=marks.before_tags,
        after=marks.after_tag,
        tag_age_ms=NEVER_EXPIRES_MS,
        summary=marks.summary,
        properties={PUBLICATION_PROPERTY: marks.token},
        operation=change.operation.value,
        columns=build_new_schema(metadata, change.schema) if change.schema else None,
        contents=marks.contents,
    )


def _is_data_file(entry: ManifestEntry) -> bool:
    return bool(entry.data_file.content == DataFileContent.DATA)


class RowRewriteFinalizer:
    """Settles swaps on the tables of one catalog."""

    def __init__(self, catalog: Catalog, proof: RowVerifier, tags: TagCommitter) -> None:
        self._catalog = catalog
        self._proof = proof
        self._pins = IcebergPins(catalog, tags)

    def finalise(self, target: str, snapshot: Snapshot) -> None:
        """Prove the snapshot and tag it, unless that is done; other snapshots need nothing.

        The state before is tagged at once, lest it expires while rows are compared; one that has
        expired already gets no tag, and who rolls back to it is told that it is gone. Raises
        OutcomeUnknown when it holds something else than the candidate: it is visible then, and
        neither accepted nor given back.
        """
        text = snapshot_summary(snapshot).get(REWRITE_PROPERTY)
        if text is None:
            return
        done = PendingRewrite.model_validate_json(text)
        table = load_table(self._catalog, target)
        if done.after is not None and done.after in table.metadata.refs:
            return
        before = snapshot.parent_snapshot_id
        is_there = any(one.snapshot_id == before for one in table.metadata.snapshots)
        if done.before is not None and before is not None and is_there:
            self._pins.pin(target, before, done.before)
        with translate_errors():
            _require_in_partitions(target, table, snapshot, done)
        self._proof.require_equal(target, snapshot.snapshot_id, done.contents)
        if done.after is not None:
            self._pins.pin(target, snapshot.snapshot_id, done.after)


def _require_in_partitions(
    target: str, table: Table, snapshot: Snapshot, done: PendingRewrite
) -> None:
    """Look at every file that the snapshot added or removed: all lie in its partitions.

    But for delete files that hide nothing any more: Iceberg leaves them out of the manifests that
    it writes anew, whatever partition they are of.
    """
    labels = tuple(label for one in done.contents for label in one.scope.partitions)
    scope = Scope(field=done.contents[0].scope.field, partitions=labels)
    reader = ScopedReader(table, scope, ManifestCache())
    manifests = snapshot.manifests(table.io)
    oldest = _oldest_data_sequence(manifests)
    for manifest in manifests:
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            is_own = entry.status != ManifestEntryStatus.EXISTING
            if is_own and not _removes_stale_delete(entry, oldest) and not reader.holds(entry):
                raise OutcomeUnknown(
                    f"{target}@{snapshot.snapshot_id} changed {entry.data_file.file_path}, which "
                    f"lies outside the partitions {', '.join(labels)}",
                    state="the snapshot is visible, and not accepted",
                    fix="look at who wrote to the table, and set it back by hand",
                )


def _oldest_data_sequence(manifests: list[ManifestFile]) -> int | None:
    """Give the least sequence number that a live data file can have; None: there is none."""
    live = (m for m in manifests if m.content == ManifestContent.DATA and has_live_files(m))
    return min((manifest.min_sequence_number or 0 for manifest in live), default=None)


def _removes_stale_delete(entry: ManifestEntry, oldest: int | None) -> bool:
    """Tell whether the entry removes a delete file that is older than all data."""
    is_delete_file = entry.data_file.content != DataFileContent.DATA
    if entry.status != ManifestEntryStatus.DELETED or not is_delete_file:
        return False
    return oldest is None or (entry.sequence_number or 0) < oldest
