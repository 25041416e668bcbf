"""A shadow that is a branch of its target, as a table of its own that PyIceberg reads and writes.

The newest branch stands as its main. Its UUID follows from the branch's name, so that it changes
with each fence. Commits go to the branch and touch nothing else of the target.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar
from uuid import uuid5

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table, update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.domain.labels.names import table_parts, table_text
from lakehouse_backfill.domain.tables.branch_shadow import BranchShadow, parse_branch_shadow
from lakehouse_backfill.errors import Conflict, NotFound, Unsupported

ResultT = TypeVar("ResultT")
#: Prefix of the target's property that says what a branch is for, as long as it is there.
BRANCH_PROPERTY_PREFIX = meta.PROPERTY_PREFIX + "branch."
#: In these marks: the partition spec that the target had by default.
SPEC_PROPERTY = meta.PROPERTY_PREFIX + "default-spec-id"
#: In these marks: when the shadow was opened, in milliseconds.
OPENED_PROPERTY = meta.PROPERTY_PREFIX + "opened-ms"
#: In these marks: the newest epoch that got a branch.
NEWEST_PROPERTY = meta.PROPERTY_PREFIX + "newest-epoch"
_HANDED_ON = (
    update.AssertCurrentSchemaId,
    update.AssertDefaultSpecId,
    update.AssertDefaultSortOrderId,
    update.AssertLastAssignedFieldId,
    update.AssertLastAssignedPartitionId,
)


def branch_property(shadow: BranchShadow) -> str:
    """Return the name of the target's property that says what the shadow is for."""
    return BRANCH_PROPERTY_PREFIX + shadow.stem


def stored_marks(metadata: TableMetadata, shadow: BranchShadow) -> dict[str, str] | None:
    """Return what the target says of the shadow; None when it has no such shadow."""
    text = metadata.properties.get(branch_property(shadow))
    marks: dict[str, str] | None = json.loads(text) if text else None
    return marks


def newest_epoch(metadata: TableMetadata, shadow: BranchShadow) -> int | None:
    """Return the newest epoch that has a branch; None when there is none."""
    epochs = (shadow.epoch_of(name) for name in metadata.refs)
    return max((epoch for epoch in epochs if epoch is not None), default=None)


def _require_newest(shadow: BranchShadow, marks: dict[str, str], epoch: int) -> None:
    """Raise Conflict when a later epoch had a branch: what is left is an overtaken driver's."""
    newest = int(marks.get(NEWEST_PROPERTY, "0"))
    if epoch < newest:
        raise Conflict(
            f"{shadow.target} has lost its branch {shadow.branch(newest)}, which held what the run "
            f"staged; {shadow.branch(epoch)} is of a driver that was overtaken",
            state="no branch was read or changed; readers of main see what they saw before",
            fix=f"put the branch back at its last snapshot (ALTER TABLE {shadow.target} CREATE "
            f"BRANCH `{shadow.branch(newest)}` AS OF VERSION …), or cancel the run and plan again",
        )


def set_branch_update(branch: str, snapshot_id: int) -> update.TableUpdate:
    """Return the update that sets a branch of which nothing expires by age."""
    return update.SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": branch,
            "type": "branch",
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": meta.NEVER_EXPIRES_MS,
            "max-snapshot-age-ms": meta.NEVER_EXPIRES_MS,
        }
    )


def is_branch_root(snapshot: Snapshot) -> bool:
    """Return whether the snapshot only exists because a branch of an empty table needs one."""
    return meta.BASE_SNAPSHOT_PROPERTY in meta.snapshot_summary(snapshot)


class BranchTable(Table):
    """The newest branch of a shadow as a table; its commits land on exactly that branch."""

    def __init__(self, whole: Table, shadow: BranchShadow, epoch: int | None = None) -> None:
        """See the target `whole` through the shadow's branch of the epoch, by default the newest.

        Raises NoSuchTableError when the target has no such shadow, Conflict when its newest branch
        was dropped by hand.
        """
        marks = stored_marks(whole.metadata, shadow)
        wanted, epoch = epoch, newest_epoch(whole.metadata, shadow) if epoch is None else epoch
        if marks is None or epoch is None:
            raise NoSuchTableError(f"{shadow.target} has no branch {shadow.stem}")
        if wanted is None:
            _require_newest(shadow, marks, epoch)
        self.whole, self.shadow, self.epoch = whole, shadow, epoch
        self.branch = shadow.branch(epoch)
        #: The head, also where it holds nothing but the mark of an empty base.
        self.head_id = whole.metadata.refs[self.branch].snapshot_id
        super().__init__(
            table_parts(shadow.name),
            self._as_main(marks),
            whole.metadata_location,
            whole.io,
            whole.catalog,
            whole.config,
        )

    def _as_main(self, marks: dict[str, str]) -> TableMetadata:
        metadata = self.whole.metadata
        head = metadata.snapshot_by_id(self.head_id)
        is_empty = head is None or is_branch_root(head)
        refs = {name: ref for name, ref in metadata.refs.items() if name != MAIN_BRANCH}
        if not is_empty:
            main = {"snapshot-id": self.head_id, "type": "branch"}
            refs[MAIN_BRANCH] = SnapshotRef.model_validate(main)
        uuid = uuid5(metadata.table_uuid, self.branch)
        own = {key: text for key, text in metadata.properties.items() if not is_mark(key)}
        fence = {meta.EPOCH_PROPERTY: str(self.epoch), meta.FENCE_UUID_PROPERTY: str(uuid)}
        opened, schema_id = int(marks[OPENED_PROPERTY]), metadata.current_schema_id
        if head is not None and head.schema_id is not None:
            schema_id = head.schema_id
        return metadata.model_copy(
            update={
                "table_uuid": uuid,
                "refs": refs,
                "current_snapshot_id": None if is_empty else self.head_id,
                # Like a clone, the branch knows nothing of what its target became meanwhile.
                "current_schema_id": schema_id,
                "default_spec_id": int(marks[SPEC_PROPERTY]),
                "last_updated_ms": max(opened, head.timestamp_ms if head else 0),
                "properties": {**own, **marks, **(fence if self.epoch else {})},
            }
        )

    def refresh(self) -> BranchTable:
        """See the target as it is now; raises ValueError when a later epoch has fenced it."""
        fresh = self.catalog.load_table(self._identifier)
        self._check_uuid(self.metadata, fresh.metadata)
        vars(self).update(vars(fresh))
        return self

    def _do_commit(
        self,
        updates: tuple[update.TableUpdate, ...],
        requirements: tuple[update.TableRequirement, ...],
    ) -> None:
        """Commit to the branch; raises Unsupported for anything but snapshots.

        By the target's own method, which PyIceberg's writers call too: `catalog.commit_table` gives
        the new metadata, and leaves the target as it was loaded.
        """
        self.whole._do_commit(
            tuple(one for each in updates for one in self._branch_updates(each)),
            tuple(map(self._branch_requirement, requirements)),
        )
        # A writer that is overtaken by now stays on the branch that it loaded.
        vars(self).update(vars(BranchTable(self.whole, self.shadow, self.epoch)))

    def _branch_updates(self, change: update.TableUpdate) -> tuple[update.TableUpdate, ...]:
        if isinstance(change, update.AddSnapshotUpdate) or _is_tag(change):
            return (change,)
        if isinstance(change, update.SetSnapshotRefUpdate) and change.ref_name == MAIN_BRANCH:
            return (set_branch_update(self.branch, change.snapshot_id),)
        is_token = isinstance(change, update.SetPropertiesUpdate) and set(change.updates) == {
            meta.PUBLICATION_PROPERTY
        }
        if is_token:
            return ()  # That of a swap on main, for readers of the target.
        raise Unsupported(
            f"{self.shadow.name} is a branch, which has only snapshots of its own: "
            f"{change.action} would change {self.shadow.target} for its readers",
            state="nothing was committed",
            fix="use isolation: clone for this run",
        )

    def _branch_requirement(self, needed: update.TableRequirement) -> update.TableRequirement:
        if isinstance(needed, update.AssertTableUUID):
            if needed.uuid == self.metadata.table_uuid:
                return update.AssertTableUUID(uuid=self.whole.metadata.table_uuid)
        elif isinstance(needed, update.AssertRefSnapshotId) and needed.ref == MAIN_BRANCH:
            wanted = self.head_id if needed.snapshot_id is None else needed.snapshot_id
            return update.AssertRefSnapshotId.model_validate(
                {"ref": self.branch, "snapshot-id": wanted}
            )
        elif not isinstance(needed, _HANDED_ON):
            raise Unsupported(f"{self.shadow.name}: a branch cannot require {needed.type}")
        return needed


def _is_tag(change: update.TableUpdate) -> bool:
    return isinstance(change, update.SetSnapshotRefUpdate) and change.type == "tag"


def is_mark(key: str) -> bool:
    """Return whether a property is one of ours, not a setting of the table."""
    return key.startswith(meta.PROPERTY_PREFIX)


def adapt_table_names(catalog: Catalog) -> None:
    """Let the catalog take the texts of tables that need quoting, and of shadows as branches."""
    _see_branches(catalog)
    _take_quoted_names(catalog)


def _see_branches(catalog: Catalog) -> None:
    """Let the catalog load a shadow that is a branch by its name, as it loads a table."""
    load: Callable[[Any], Table] = catalog.load_table

    def load_table(identifier: str | tuple[str, ...]) -> Table:
        name = identifier if isinstance(identifier, str) else table_text(identifier)
        shadow = parse_branch_shadow(name)
        return (
            load(identifier)
            if shadow is None
            else BranchTable(load(table_parts(shadow.target)), shadow)
        )

    vars(catalog)["load_table"] = load_table


_NAME_KEYS = ("identifier", "namespace")
#: What a catalog does with a table, a view or a namespace, which is its first argument.
_NAMED_CALLS = (
    "load_table", "create_table", "drop_table", "register_table", "table_exists",
    "create_namespace", "create_namespace_if_not_exists", "namespace_exists", "list_tables",
    "load_namespace_properties", "load_view", "create_view", "unregister_table",
    "_split_identifier_for_path",
)  # fmt: skip


def _take_quoted_names(catalog: Catalog) -> None:
    """Let the catalog take the texts of tables whose names need quoting.

    PyIceberg splits texts at dots, whatever stands around them. A method is looked up in its class
    at each call: while a job's code runs, those that write are replaced there.
    """
    for name in _NAMED_CALLS:
        if call := vars(catalog).get(name):
            vars(catalog)[name] = _taking_texts(call)
        elif hasattr(type(catalog), name):
            vars(catalog)[name] = _taking_texts(partial(_call_of_class, catalog, name))
    vars(catalog)["load_table"] = _loading_known_tables(catalog.load_table)


def _call_of_class(catalog: Catalog, name: str, *given: Any, **more: Any) -> Any:
    method = inspect.getattr_static(type(catalog), name)
    return method.__get__(catalog, type(catalog))(*given, **more)


def _loading_known_tables(load: Callable[..., Table]) -> Callable[..., Table]:
    """Refuse tables of newer formats, and those with another name than the text in backticks.

    SQL catalogs join namespaces by dots, and some catalogs write all names in lower case: under two
    texts, runs of one table would not know of each other.
    """

    @wraps(load)
    def load_table(identifier: str | tuple[str, ...]) -> Table:
        name = identifier if isinstance(identifier, str) else table_text(identifier)
        try:
            loaded = load(identifier)
        except Exception as error:
            meta.require_known_format(error, name)
            raise
        if loaded.metadata.format_version > meta.NEWEST_FORMAT:
            raise meta.unknown_format_error(name, loaded.metadata.format_version)
        own = table_text(loaded.name())
        if isinstance(identifier, str) and "`" in identifier and own != identifier:
            raise NotFound(
                f"{identifier} does not exist: this catalog calls the table {own}",
                fix=f"name it so: {own}",
            )
        return loaded

    return load_table


def _taking_texts(call: Callable[..., ResultT]) -> Callable[..., ResultT]:
    @wraps(call)
    def taking(*given: Any, **more: Any) -> ResultT:
        named = {key: _identifier(more[key]) for key in _NAME_KEYS if key in more}
        return call(*map(_identifier, given[:1]), *given[1:], **{**more, **named})

    return taking


def _identifier(name: Any) -> Any:
    return table_parts(name) if isinstance(name, str) and "`" in name else name
