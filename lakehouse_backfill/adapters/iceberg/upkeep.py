"""Letting go of shadows' names, tags, and snapshots that must not expire: by metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from lakehouse_backfill.adapters.iceberg.catalog import (
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.history import ExpirationPlan, TableHistory
from lakehouse_backfill.adapters.iceberg.metadata import snapshot_summary
from lakehouse_backfill.adapters.iceberg.names import (
    BASE_SNAPSHOT_PROPERTY,
    CHUNK_ID_PROPERTY,
    RETIRED_PROPERTY,
    TAG_PREFIX,
)
from lakehouse_backfill.adapters.iceberg.patience import commit_with_retry
from lakehouse_backfill.domain.retention import ExpirationResult
from lakehouse_backfill.errors import NotFound
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.clock import Clock
from lakehouse_backfill.ports.retention import Upkeep
from lakehouse_backfill.ports.table_commits import UpkeepCommitter

#: The first table format that PyIceberg reads and cannot write.
_FIRST_UNWRITABLE_FORMAT = 3


class IcebergUpkeep(Upkeep):
    """Upkeep of the tables of one catalog."""

    def __init__(
        self,
        catalog: Catalog,
        shadow_namespace: str,
        clock: Clock,
        commits: UpkeepCommitter | None = None,
    ) -> None:
        """`commits` makes those that PyIceberg cannot: of format 3."""
        self._catalog = catalog
        self._commits = commits
        self._namespace = shadow_namespace
        self._clock = clock

    def shadows(self) -> dict[str, int]:
        """Name the shadows in the catalog, each with the bytes that its chunks wrote."""
        with translate_errors():
            try:
                names = self._catalog.list_tables(self._namespace)
            except NoSuchNamespaceError:
                return {}
        found = {}
        for name in (".".join(identifier) for identifier in names):
            try:
                metadata = load_table(self._catalog, name).metadata
            except NotFound:
                continue  # somebody else dropped it meanwhile, or its files are gone
            if (
                BASE_SNAPSHOT_PROPERTY in metadata.properties
                and RETIRED_PROPERTY not in metadata.properties
            ):
                found[name] = _chunk_bytes_written(metadata)
        return found

    def tags(self, table: str) -> dict[str, int] | None:
        """Give our tags on a table with their snapshots; None when there is no such table."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return None
        return {
            name: ref.snapshot_id
            for name, ref in loaded.metadata.refs.items()
            if ref.snapshot_ref_type == SnapshotRefType.TAG and name.startswith(TAG_PREFIX)
        }

    def written(self, table: str) -> datetime | None:
        """Say when a table was last committed to; None when there is no such table."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return None
        return datetime.fromtimestamp(loaded.metadata.last_updated_ms / 1000, timezone.utc)

    def would_let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Say what `let_go` would do now."""
        loaded = load_table_or_none(self._catalog, table)
        return (
            ExpirationResult()
            if loaded is None
            else _expiration_result(self._removal(loaded, tags, at_once=at_once))
        )

    def let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Drop tags in one metadata-only commit, with the snapshots that must not expire otherwise.

        It is conditional on every reference that the table had when this was worked out: a pin that
        is made meanwhile is looked at again. Where the catalog itself decides (REST), it is so for
        the references that were there; no requirement can name one that was not. Raises TooBusy.
        """
        done: list[ExpirationResult] = []

        def once() -> None:
            loaded = load_table_or_none(self._catalog, table)
            removal = ExpirationPlan()
            if loaded is not None:
                removal = self._removal(loaded, tags, at_once=at_once)
            if loaded is not None and removal.tags:
                self._commit(table, loaded, removal)
            done[:] = [_expiration_result(removal)]

        commit_with_retry(once, f"letting tags of {table} go")
        return done[0]

    def dangers(self, table: str) -> dict[int, str]:
        """Name snapshots that no reference holds, and whose expiry would delete live files."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return {}
        with translate_errors():
            return TableHistory(loaded.metadata, loaded.io).dangers()

    def _removal(self, loaded: Table, tags: Mapping[str, int], *, at_once: bool) -> ExpirationPlan:
        now_ms = int(self._clock.now().timestamp() * 1000)
        with translate_errors():
            return TableHistory(loaded.metadata, loaded.io).removal(tags, now_ms, at_once=at_once)

    def _commit(self, table: str, loaded: Table, removal: ExpirationPlan) -> None:
        if self._commits is None or loaded.metadata.format_version < _FIRST_UNWRITABLE_FORMAT:
            _commit_expiration(loaded, removal)
            return
        refs = {name: ref.snapshot_id for name, ref in loaded.metadata.refs.items()}
        tags, snapshots = tuple(removal.tags), tuple(removal.snapshots)
        self._commits.take_out(table, refs, tags, snapshots)


class _RefsUnchanged(ValidatableTableRequirement):
    """Refuses a commit when the table has other references than those that were looked at."""

    type: str = "lakehouse-backfill-refs-unchanged"
    refs: dict[str, int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        refs = base_metadata.refs if base_metadata else {}
        if {name: ref.snapshot_id for name, ref in refs.items()} != self.refs:
            raise CommitFailedException("the table's tags and branches changed meanwhile")


def _commit_expiration(table: Table, removal: ExpirationPlan) -> None:
    """Take tags and snapshots out at once. PyIceberg sends our own condition to no server."""
    metadata = table.metadata
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=n) for n in removal.tags]
    # One update per snapshot: some servers take exactly one id per update.
    updates += [RemoveSnapshotsUpdate(snapshot_ids=[one]) for one in removal.snapshots]
    held = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    requirements: list[TableRequirement] = [
        AssertTableUUID(uuid=metadata.table_uuid),
        *(
            AssertRefSnapshotId.model_validate({"ref": n, "snapshot-id": i})
            for n, i in held.items()
        ),
    ]
    if type(table.catalog).__name__ != "RestCatalog":
        requirements.append(_RefsUnchanged(refs=held))  # type: ignore[arg-type]
    with commit_window("Upkeep.let_go"):
        table._do_commit(updates=tuple(updates), requirements=tuple(requirements))


def _expiration_result(removal: ExpirationPlan) -> ExpirationResult:
    return ExpirationResult(
        tags=tuple(sorted(removal.tags)), snapshots=tuple(removal.snapshots), kept=removal.kept
    )


def _chunk_bytes_written(metadata: TableMetadata) -> int:
    summaries = (snapshot_summary(snapshot) for snapshot in metadata.snapshots)
    return sum(
        int(one.get("added-files-size", "0")) for one in summaries if CHUNK_ID_PROPERTY in one
    )
