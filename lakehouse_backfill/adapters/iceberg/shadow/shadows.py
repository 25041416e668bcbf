"""Zero-copy clones that runs write into: open, fence, evolve, keep and retire.

A fence refuses commits of writers that loaded the shadow before a later lease began.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    TableAlreadyExistsError,
)
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.catalog import (
    commit_with_retry,
    first_error_line,
    is_outage,
    list_table_names,
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.rest.answers import is_unsupported_by_server
from lakehouse_backfill.adapters.iceberg.rest.offers import can_unregister, take_out
from lakehouse_backfill.adapters.iceberg.schema import evolve_shadow
from lakehouse_backfill.adapters.iceberg.shadow.clone import (
    BuiltClone,
    build_clone_metadata,
    commit_fence,
    differing_parts,
    require_clone,
    require_marks,
)
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.domain.labels.names import (
    namespace_text,
    table_parts,
    table_text,
    unique_plain_name,
)
from lakehouse_backfill.domain.tables.commits import ChunkCommit, CloneCommit
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import Conflict, LostFile, NotFound, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import CloneCommitter, Shadows


def _is_fenced(table: Table, epoch: int) -> bool:
    current_epoch = meta.fenced_epoch(table_text(table.name()), table.metadata, epoch)
    # The property alone is no proof: a catalog may store it and not change the UUID.
    fence_uuid = table.metadata.properties.get(meta.FENCE_UUID_PROPERTY)
    return current_epoch == epoch and fence_uuid == str(table.metadata.table_uuid)


def _uuid_unchanged_error(shadow: str) -> Unsupported:
    return Unsupported(
        f"the catalog does not give {shadow} a new UUID, so that a process which was overtaken "
        "could still write into it",
        state="no chunk was written; nothing was published",
        fix="write isolation: auto in the profile; lakehouse-backfill doctor tries it out",
    )


@dataclass(frozen=True)
class IcebergShadows(Shadows):
    """Clones in one namespace of the target's catalog."""

    catalog: Catalog
    shadow_namespace: str
    #: For tables that PyIceberg cannot write.
    writers: TableWriters | None = None

    def list(self, targets: Collection[str] = ()) -> tuple[str, ...]:  # noqa: ARG002
        """Return the shadows in the catalog, but for those that are marked as retired.

        Tables among them that cannot be read count as shadows.
        """
        names = list_table_names(self.catalog, self.shadow_namespace)
        return tuple(filter(self._is_shadow, names))

    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone `target` at the snapshot as table `shadow` by one metadata file, and verify it.

        A crash before the registration leaves an unused metadata file and nothing else. Raises
        Unsupported when the table or the catalog cannot be cloned, Conflict when another run's
        table has the name.
        """
        self._refuse_name(shadow)
        source = load_table(self.catalog, target)
        marks = {
            **properties,
            meta.BASE_SNAPSHOT_PROPERTY: "none" if snapshot_id is None else str(snapshot_id),
            meta.TARGET_PROPERTY: target,
            meta.TARGET_UUID_PROPERTY: str(source.metadata.table_uuid),
        }
        existing = self._existing(shadow, marks)
        clone = (
            self._create_clone(source, snapshot_id, shadow, marks)
            if existing is None
            else self._resume_clone(existing, source, snapshot_id, marks)
        )
        return meta.describe_table(shadow, clone)

    def fence(self, shadow: str, epoch: int) -> None:
        """Refuse commits of writers with an epoch before `epoch` from now on; one commit.

        The table gets a new UUID, and every commit states the UUID that its writer loaded. The
        same epoch again does nothing. Raises RunMoved when a later epoch has fenced the shadow,
        Unsupported when the catalog does not change the UUID.
        """
        self._refuse_name(shadow)
        commits = self._committer(shadow)
        commit_with_retry(lambda: self._set_fence(shadow, epoch, commits), f"fence of {shadow}")

    def _set_fence(self, shadow: str, epoch: int, commits: CloneCommitter | None) -> None:
        """Make one attempt to fence the shadow; a commit of unknown outcome is looked for.

        Raises CommitFailedException when another writer was first. Safe to repeat.
        """
        table = load_table(self.catalog, shadow)
        if _is_fenced(table, epoch):
            return
        try:
            self._commit_fence(table, epoch, commits)
        except BadRequestError as error:
            raise _uuid_unchanged_error(shadow) from error
        except Exception as error:
            if not is_outage(error):
                raise
            current = load_table(self.catalog, shadow)
            if _is_fenced(current, epoch):
                return
            if current.metadata.table_uuid != table.metadata.table_uuid:
                # Our commit requires the UUID that it loaded, so it can no longer succeed.
                raise CommitFailedException(f"another process fenced {shadow} first") from error
            raise
        if not _is_fenced(load_table(self.catalog, shadow), epoch):
            raise _uuid_unchanged_error(shadow)

    def _commit_fence(self, table: Table, epoch: int, commits: CloneCommitter | None) -> None:
        new_uuid = uuid4()
        marks = {meta.EPOCH_PROPERTY: str(epoch), meta.FENCE_UUID_PROPERTY: str(new_uuid)}
        if commits is None:
            commit_fence(self.catalog, table, new_uuid, marks)
            return
        found_uuid = str(table.metadata.table_uuid)
        commits.fence(table_text(table.name()), found_uuid, str(new_uuid), marks)

    def evolve(self, shadow: str, base_schema_id: int, change: SchemaChange) -> None:
        """Change the shadow's columns in one commit; the same change again does nothing.

        Only a writer that has loaded the shadow since its last fence can do so. Raises Conflict
        when its columns are neither those of the base schema nor the changed ones.
        """
        self._refuse_name(shadow)
        commits = self._committer(shadow)
        commit_with_retry(
            lambda: evolve_shadow(self.catalog, shadow, base_schema_id, change, commits),
            f"columns of {shadow}",
        )

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the shadow, oldest first, from its snapshot log."""
        metadata = load_table(self.catalog, shadow).metadata
        return tuple(reversed(list(meta.chunk_commits(metadata))))

    def keep(
        self, shadow: str, snapshot_id: int, name: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone a snapshot of the shadow into a table of its own, which outlives the shadow.

        The two tables share data files but no metadata file, so neither's commits delete what the
        other needs. An existing clone is returned. Raises Conflict when the name is used for
        something else.
        """
        namespace = namespace_text(name)
        shadows = IcebergShadows(self.catalog, namespace, self.writers)
        return shadows.open(shadow, snapshot_id, name, properties)

    def retire(self, shadow: str) -> None:
        """Unregister or drop the shadow, or mark it as retired where a drop deletes files."""
        self._refuse_name(shadow)
        try:
            table = load_table(self.catalog, shadow)
        except NotFound:
            return
        properties = table.metadata.properties
        if meta.BASE_SNAPSHOT_PROPERTY not in properties:
            raise Unsupported(f"{shadow} is not a shadow of ours", fix="drop it yourself")
        is_unregistered = can_unregister(self.catalog)
        if is_unregistered or not meta.may_drop_delete_files(properties):
            with suppress(NotFound), translate_errors(), commit_window("Shadows.drop"):
                take_out(self.catalog, shadow)
            if not is_unregistered or load_table_or_none(self.catalog, shadow) is None:
                return
        commit_with_retry(lambda: _mark_retired(self.catalog, shadow), f"end of {shadow}")

    def _committer(self, table: str) -> CloneCommitter | None:
        return self.writers.clone_committer(table) if self.writers else None

    def _refuse_name(self, shadow: str) -> None:
        if namespace_text(shadow) != self.shadow_namespace:
            raise Unsupported(
                f"{shadow} lies outside the namespace of shadows",
                fix=f"use {self.shadow_namespace}.NAME",
            )

    def _is_shadow(self, name: str) -> bool:
        try:
            properties = load_table(self.catalog, name).metadata.properties
        except (LostFile, Unsupported):
            return True  # It may be one: what depends on a table that cannot be read stays.
        except NotFound:
            return False  # Another process dropped it.
        is_retired = meta.RETIRED_PROPERTY in properties
        return meta.BASE_SNAPSHOT_PROPERTY in properties and not is_retired

    def _existing(self, shadow: str, marks: dict[str, str]) -> Table | None:
        existing = load_table_or_none(self.catalog, shadow)
        if existing is None:
            return None
        properties = existing.metadata.properties
        require_marks(shadow, existing.metadata)
        differing = {key: properties.get(key) for key in marks if properties.get(key) != marks[key]}
        if differing:
            raise Conflict(
                f"{shadow} is already there, for something else: "
                + ", ".join(f"{key} is {text}" for key, text in sorted(differing.items())),
                fix=f"retire it first, or use another name than {shadow}",
            )
        return existing

    def _create_clone(
        self, source: Table, snapshot_id: int | None, shadow: str, marks: dict[str, str]
    ) -> Table:
        commits = self._committer(marks[meta.TARGET_PROPERTY])
        if commits is None:
            meta.refuse_unwritable_format(marks[meta.TARGET_PROPERTY], source.metadata)
        with translate_errors():
            if snapshot_id is not None:
                meta.find_snapshot(source.metadata, snapshot_id, marks[meta.TARGET_PROPERTY])
            with commit_window("Catalog.create_namespace"):
                self.catalog.create_namespace_if_not_exists(self.shadow_namespace)
            location = clone_location(self.catalog, source, shadow)
            clone_metadata = build_clone_metadata(source.metadata, snapshot_id, location, marks)
            provider = load_location_provider(location, clone_metadata.properties)
            file = provider.new_table_metadata_file_location()
            _write_metadata_file(source, clone_metadata, file, marks[meta.TARGET_PROPERTY], commits)
            try:
                with commit_window("Shadows.register"):
                    self.catalog.register_table(shadow, file)
            except TableAlreadyExistsError:
                existing = self._existing(shadow, marks) or load_table(self.catalog, shadow)
                return self._resume_clone(existing, source, snapshot_id, marks)
            except Exception as error:
                if not is_unsupported_by_server(error):
                    raise
                because = f"the catalog refuses to register a table: {first_error_line(error)}"
                return BuiltClone(self.catalog).build(shadow, clone_metadata, because)
            return self._verify_registered(shadow, clone_metadata)

    def _resume_clone(
        self, found: Table, source: Table, snapshot_id: int | None, marks: dict[str, str]
    ) -> Table:
        """Return an existing clone; before its first fence it is completed, or compared."""
        if meta.EPOCH_PROPERTY in found.metadata.properties:
            return found
        shadow = table_text(found.name())
        if snapshot_id is not None:
            meta.find_snapshot(source.metadata, snapshot_id, marks[meta.TARGET_PROPERTY])
        clone_metadata = build_clone_metadata(
            source.metadata, snapshot_id, source.location(), marks
        )
        if meta.BEING_BUILT_PROPERTY in found.metadata.properties:
            with translate_errors():
                return BuiltClone(self.catalog).build(shadow, clone_metadata, "it was begun so")
        require_clone(shadow, found.metadata, clone_metadata)
        return found

    def _verify_registered(self, shadow: str, wanted: TableMetadata) -> Table:
        """Compare what the catalog kept with what was registered.

        SeaweedFS's REST catalog answers 200 and returns an empty table: an adopt from that would
        delete the target's partitions.
        """
        registered = self.catalog.load_table(shadow)
        if meta.EPOCH_PROPERTY in registered.metadata.properties:
            # Another process drives the run with this clone now, so it must not be dropped here.
            return registered
        differing = differing_parts(registered.metadata, wanted)
        if differing:
            with commit_window("Shadows.drop"):
                self.catalog.drop_table(shadow)
            because = f"the catalog does not keep what is registered: {', '.join(differing)} differ"
            return BuiltClone(self.catalog).build(shadow, wanted, because)
        return registered


def clone_location(catalog: Catalog, source: Table, shadow: str) -> str:
    """Return where a clone lies: never inside of the table that it is cloned from."""
    *levels, last = table_parts(shadow)
    namespace_location = catalog.load_namespace_properties(tuple(levels)).get("location")
    namespace, name = ".".join(map(unique_plain_name, levels)), unique_plain_name(last)
    warehouse = catalog.properties.get("warehouse", "")
    target = source.location().rstrip("/")
    if namespace_location:
        location = f"{namespace_location.rstrip('/')}/{name}"
    elif "://" in warehouse or warehouse.startswith(("/", "file:")):
        location = f"{warehouse.rstrip('/')}/{namespace}/{name}"
    else:
        location = f"{target.rpartition('/')[0]}/{namespace}/{name}"
    if f"{location}/".startswith(f"{target}/"):
        raise Unsupported(
            f"the shadow at {location} would lie inside its target at {target}, where "
            "orphan clean-up eats it",
            fix="give the shadow namespace a location of its own",
        )
    return location


def _write_metadata_file(
    source: Table, clone: TableMetadata, file: str, target: str, commits: CloneCommitter | None
) -> None:
    if commits is None:
        with commit_window("Shadows.metadata_file"):
            ToOutputFile.table_metadata(clone, source.io.new_output(file))
        return
    commits.write_clone(
        CloneCommit(
            table=target,
            metadata_location=source.metadata_location,
            snapshot_id=clone.current_snapshot_id,
            uuid=str(clone.table_uuid),
            location=clone.location,
            properties=clone.properties,
            file=file,
        )
    )


def _mark_retired(catalog: Catalog, shadow: str) -> None:
    table = load_table(catalog, shadow)
    if meta.RETIRED_PROPERTY in table.metadata.properties:
        return
    with commit_window("Shadows.drop"), table.transaction() as change:
        change.set_properties({meta.RETIRED_PROPERTY: "yes"})
