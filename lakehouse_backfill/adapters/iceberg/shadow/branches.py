"""Shadows that are branches of their target: open, fence, list and retire.

There is one branch for each epoch. An overtaken driver goes on committing to its own, which nobody
reads any more, so that no UUID changes hands. The branch shares the target's location, and the
commits that make and drop it move no file and no other reference.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError
from pyiceberg.table import Table, update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.catalog import (
    commit_with_retry,
    is_lost_race,
    is_outage,
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.shadow.branch_table import (
    BRANCH_PROPERTY_PREFIX,
    NEWEST_PROPERTY,
    OPENED_PROPERTY,
    SPEC_PROPERTY,
    BranchTable,
    branch_property,
    is_mark,
    newest_epoch,
    set_branch_update,
    stored_marks,
)
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.domain.labels.names import table_text
from lakehouse_backfill.domain.tables.branch_shadow import (
    BranchHead,
    BranchShadow,
    parse_branch_shadow,
    shadow_of_branch,
)
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.domain.tables.commits import ChunkCommit, StoredTable
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import Conflict, NotFound, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import Shadows


@dataclass(frozen=True)
class BranchShadows(Shadows):
    """Shadows on branches of the tables of one catalog."""

    catalog: Catalog

    def list(self, targets: Collection[str] = ()) -> tuple[str, ...]:
        """Return the shadows on branches of the targets."""
        found: dict[str, None] = {}
        for target in targets:
            table = load_table_or_none(self.catalog, target)
            if table is None:
                continue
            shadows = [shadow_of_branch(target, ref) for ref in table.metadata.refs]
            shadows += [
                BranchShadow(target, key.removeprefix(BRANCH_PROPERTY_PREFIX))
                for key in table.metadata.properties
                if key.startswith(BRANCH_PROPERTY_PREFIX)
            ]
            found |= dict.fromkeys(shadow.name for shadow in shadows if shadow)
        return tuple(found)

    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Branch off the snapshot by one commit, which says on the target what the branch is for.

        Nobody writes to this first branch. Raises Conflict when another run has the name,
        Unsupported for properties that only a table of its own can have.
        """
        branches = _parsed(shadow)
        if branches.target != target:
            raise Unsupported(f"{shadow} is no branch of {target}", fix="use another name")
        commit_with_retry(
            lambda: self._open(branches, snapshot_id, properties), f"branch of {target}"
        )
        return meta.describe_table(shadow, load_table(self.catalog, shadow))

    def _open(
        self, branches: BranchShadow, snapshot_id: int | None, properties: dict[str, str]
    ) -> None:
        table = load_table(self.catalog, branches.target)
        metadata = table.metadata
        meta.refuse_unwritable_format(branches.target, metadata)
        _refuse_settings(branches, metadata.properties, properties)
        marks = {
            **{key: text for key, text in properties.items() if is_mark(key)},
            meta.BASE_SNAPSHOT_PROPERTY: "none" if snapshot_id is None else str(snapshot_id),
            meta.TARGET_PROPERTY: branches.target,
            meta.TARGET_UUID_PROPERTY: str(metadata.table_uuid),
        }
        existing = stored_marks(metadata, branches)
        if existing is not None:
            _require_same_marks(branches, existing, marks)
            return
        if newest_epoch(metadata, branches) is not None:
            raise Conflict(
                f"{branches.target} has branches {branches.stem}-e…, and nothing says what for",
                fix=f"drop them: ALTER TABLE {branches.target} DROP BRANCH …",
            )
        marks[SPEC_PROPERTY] = str(metadata.default_spec_id)
        marks[OPENED_PROPERTY] = str(int(time.time() * 1000))
        branch = branches.branch(0)
        first: tuple[update.TableUpdate, ...]
        if snapshot_id is None:
            first = _root_updates(table, branch)
        else:
            meta.find_snapshot(metadata, snapshot_id, branches.target)
            first = (set_branch_update(branch, snapshot_id),)
        stored = {branch_property(branches): json.dumps(marks, sort_keys=True)}
        updates = (*first, update.SetPropertiesUpdate(updates=stored))
        # A table without snapshots refuses requirements on branches; its UUID is enough: there
        # is no branch yet that could be lost, and this commit is the only one that sets the mark.
        needed = () if not metadata.snapshots else (_is_at(branch, None),)
        with commit_window("Shadows.register"):
            self._commit_branches(
                table, needed, updates, lambda now: stored_marks(now, branches) == marks
            )

    def fence(self, shadow: str, epoch: int) -> None:
        """Give the shadow a branch for `epoch`, which begins where the newest one ends.

        One commit, which fails when the newest branch gets a commit in between: what landed before
        is kept, what lands later is not looked at. The same epoch again does nothing. Raises
        RunMoved when a later epoch has a branch.
        """
        commit_with_retry(lambda: self._fence(shadow, epoch), f"fence of {shadow}")

    def _fence(self, shadow: str, epoch: int) -> None:
        table = self._load(shadow)
        if meta.fenced_epoch(shadow, table.metadata, epoch) == epoch:
            return
        branch = table.shadow.branch(epoch)
        needed = (_is_at(table.branch, table.head_id), _is_at(branch, None))
        marks = stored_marks(table.whole.metadata, table.shadow) or {}
        newest = json.dumps({**marks, NEWEST_PROPERTY: str(epoch)}, sort_keys=True)
        updates: tuple[update.TableUpdate, ...] = (
            set_branch_update(branch, table.head_id),
            update.SetPropertiesUpdate(updates={branch_property(table.shadow): newest}),
        )
        if table.epoch == 0:
            updates = (*updates, update.RemoveSnapshotRefUpdate.model_validate(
                {"ref-name": table.branch}
            ))  # fmt: skip
        with commit_window("Shadows.fence"):
            self._commit_branches(table.whole, needed, updates, lambda now: branch in now.refs)

    def _commit_branches(
        self,
        table: Table,
        needed: tuple[update.TableRequirement, ...],
        updates: tuple[update.TableUpdate, ...],
        has_landed: Callable[[TableMetadata], bool],
    ) -> None:
        """Commit once, and look for it when its answer was lost.

        Raises CommitFailedException when another writer was first.
        """
        same = update.AssertTableUUID(uuid=table.metadata.table_uuid)
        try:
            self.catalog.commit_table(table, (same, *needed), updates)
        except Exception as error:
            if is_lost_race(error) and not isinstance(error, CommitFailedException):
                raise CommitFailedException(str(error)) from error
            name = table_text(table.name())
            if not is_outage(error) or not has_landed(load_table(self.catalog, name).metadata):
                raise

    def evolve(self, shadow: str, base_schema_id: int, change: SchemaChange) -> None:  # noqa: ARG002
        """Refuse: the columns of a branch are those of its target. Raises Unsupported."""
        raise Unsupported(
            f"{shadow} is a branch: new columns would be those of its target at once",
            state="no chunk was written; nothing was published",
            fix="use isolation: clone for this run",
        )

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the newest branch, oldest first."""
        return tuple(reversed(list(meta.chunk_commits(self._load(shadow).metadata))))

    def keep(
        self, shadow: str, snapshot_id: int, name: str, properties: dict[str, str]
    ) -> TableInfo:
        """Refuse: a table of its own would be a clone. Raises Unsupported."""
        run = properties.get(meta.RUN_ID_PROPERTY, shadow)
        raise Unsupported(
            f"{name} would be a clone of {shadow} at {snapshot_id}, a branch that {run} wrote",
            fix="use isolation: clone, or another publish mode than versioned",
        )

    def retire(self, shadow: str) -> None:
        """Drop all branches of the shadow in one commit; the table's own expiry removes snapshots.

        An overtaken driver that commits afterwards makes its branch again: drop that too.
        """
        branches = _parsed(shadow)
        commit_with_retry(lambda: self._retire(branches), f"end of {shadow}")

    def _retire(self, branches: BranchShadow) -> None:
        try:
            table = load_table(self.catalog, branches.target)
        except NotFound:
            return
        metadata, key = table.metadata, branch_property(branches)
        names = [name for name in metadata.refs if branches.epoch_of(name) is not None]
        updates: list[Any] = [
            update.RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in names
        ]
        # Who else retires it now wins or loses: PyIceberg fails on a property that is gone already.
        needed = [_is_at(name, metadata.refs[name].snapshot_id) for name in names]
        if key in metadata.properties:
            updates.append(update.RemovePropertiesUpdate(removals=[key]))
            if not needed and metadata.current_snapshot_id is not None:
                needed = [_is_at(MAIN_BRANCH, metadata.current_snapshot_id)]
        if updates:
            with commit_window("Shadows.drop"):
                self._commit_branches(
                    table, tuple(needed), tuple(updates),
                    lambda now: not now.refs.keys() & {*names} and key not in now.properties,
                )  # fmt: skip

    def _load(self, shadow: str) -> BranchTable:
        table = load_table(self.catalog, shadow)
        if not isinstance(table, BranchTable):
            raise TypeError(f"{shadow} is no branch, or the catalog was not opened to see them")
        return table


@dataclass(frozen=True)
class IsolatedShadows(Shadows):
    """Shadows of both kinds: the name of each says which it is."""

    clones: IcebergShadows
    branches: BranchShadows

    def capabilities(self) -> Capabilities | None:
        """Return what `doctor` found last of this catalog; None when it never looked.

        What another release kept in another form counts as none. Raises CatalogDown.
        """
        with translate_errors():
            try:
                kept = self.branches.catalog.load_namespace_properties(self.clones.shadow_namespace)
            except NoSuchNamespaceError:
                return None
        try:
            return Capabilities.model_validate_json(kept.get(meta.CAPABILITIES_PROPERTY, ""))
        except ValidationError:
            return None

    def list(self, targets: Collection[str] = ()) -> tuple[str, ...]:
        """Return the clones in the catalog, and the shadows on branches of the targets."""
        return (*self.clones.list(), *self.branches.list(targets))

    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Open a shadow of the kind that its name asks for; raises what that kind raises."""
        return self._kind(shadow).open(target, snapshot_id, shadow, properties)

    def fence(self, shadow: str, epoch: int) -> None:
        """Shut earlier drivers out; raises what the kind raises."""
        self._kind(shadow).fence(shadow, epoch)

    def evolve(self, shadow: str, base_schema_id: int, change: SchemaChange) -> None:
        """Change the columns of a clone; raises Unsupported for a branch."""
        self._kind(shadow).evolve(shadow, base_schema_id, change)

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the shadow, oldest first."""
        return self._kind(shadow).chunks(shadow)

    def keep(
        self, shadow: str, snapshot_id: int, name: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone a snapshot of a clone; raises Unsupported for a branch."""
        return self._kind(shadow).keep(shadow, snapshot_id, name, properties)

    def retire(self, shadow: str) -> None:
        """Remove the shadow; its files stay."""
        self._kind(shadow).retire(shadow)

    def _kind(self, shadow: str) -> Shadows:
        return self.branches if parse_branch_shadow(shadow) else self.clones


def _parsed(shadow: str) -> BranchShadow:
    found = parse_branch_shadow(shadow)
    if found is None:
        raise Unsupported(f"{shadow} is no branch of a table", fix="name a run's shadow")
    return found


def _is_at(branch: str, snapshot_id: int | None) -> update.TableRequirement:
    return update.AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": snapshot_id})


def _refuse_settings(
    branches: BranchShadow, present: Mapping[str, str], properties: Mapping[str, str]
) -> None:
    """Raise Unsupported for table properties that the target does not have: a branch has none."""
    settings = [k for k, text in properties.items() if not is_mark(k) and present.get(k) != text]
    if settings:
        raise Unsupported(
            f"a branch has no table properties of its own, and {branches.name} needs "
            f"{', '.join(sorted(settings))}",
            state="no chunk was written; nothing was published",
            fix=f"set them on {branches.target}, or use isolation: clone for this run",
        )


def _require_same_marks(
    branches: BranchShadow, existing: dict[str, str], marks: dict[str, str]
) -> None:
    differing = {key: existing.get(key) for key in marks if existing.get(key) != marks[key]}
    if differing:
        raise Conflict(
            f"{branches.name} is already there, for something else: "
            + ", ".join(f"{key} is {text}" for key, text in sorted(differing.items())),
            fix=f"retire it first, or use another name than {branches.name}",
        )


def _root_updates(table: Table, branch: str) -> tuple[update.TableUpdate, ...]:
    """Return the updates that give a branch of an empty table its first snapshot, without files."""
    mark = {meta.BASE_SNAPSHOT_PROPERTY: "none"}
    with translate_errors():
        # PyIceberg makes first snapshots for main only; here main stays as it is.
        change = table.transaction()
        with change.update_snapshot(snapshot_properties=mark).fast_append():
            pass
    added = next(one for one in change._updates if isinstance(one, update.AddSnapshotUpdate))
    return (added, set_branch_update(branch, added.snapshot.snapshot_id))


def find_newest_branch(catalog: Catalog, shadow: str) -> BranchHead:
    """Return the newest branch of a shadow as it is now. Raises NotFound, CatalogDown."""
    table = BranchShadows(catalog)._load(shadow)
    return BranchHead(table.shadow, table.epoch, table.head_id)


def load_stored_table(catalog: Catalog, table: str) -> StoredTable:
    """Load a table, or the whole table of a branch, as it is now. Raises NotFound, CatalogDown.

    No view of the catalog takes part: it may be asked right after a commit.
    """
    shadow = parse_branch_shadow(table)
    with translate_errors():
        found = catalog.load_table(shadow.target if shadow else table)
    return StoredTable(
        properties=dict(found.properties),
        head_id=found.metadata.current_snapshot_id,
        is_sorted=not found.sort_order().is_unsorted,
        summaries=_Summaries(found.snapshots()),
        added_to=partial(_added_to, found),
    )


def _added_to(table: Table, snapshot_id: int) -> int | None:
    found = table.snapshot_by_id(snapshot_id)
    is_append = found is not None and found.summary and found.summary.operation is Operation.APPEND
    return found.parent_snapshot_id if found is not None and is_append else None


class _Summaries(Mapping[int, Mapping[str, str]]):
    """The summaries of snapshots by their ids, oldest first; each is made when it is read."""

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        self._snapshots = {each.snapshot_id: each for each in snapshots}

    def __getitem__(self, snapshot_id: int) -> Mapping[str, str]:
        """Return the summary of a snapshot; raises KeyError."""
        return meta.snapshot_summary(self._snapshots[snapshot_id])

    def __iter__(self) -> Iterator[int]:
        """Yield the ids."""
        return iter(self._snapshots)

    def __len__(self) -> int:
        """Return the number of snapshots."""
        return len(self._snapshots)
