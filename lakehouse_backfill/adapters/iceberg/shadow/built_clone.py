"""Clones on catalogs that cannot register a table: a plain table that gets another table's state.

The table is created by `create_table`. One commit then adds the columns, specs and sort orders of
the cloned table under their own ids, and the base snapshot unchanged: the same manifests list its
files. Readers cannot distinguish the result from a registered clone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table, update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH

from lakehouse_backfill.adapters.iceberg.catalog import first_error_line, is_unsupported_by_server
from lakehouse_backfill.adapters.iceberg.metadata import (
    BEING_BUILT_PROPERTY,
    BUILT_BECAUSE_PROPERTY,
    DROP_DELETES_PROPERTY,
    EPOCH_PROPERTY,
)
from lakehouse_backfill.adapters.iceberg.shadow.clone import differing_parts, snapshot_identities
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window

#: Parts that a plain table has of its own, or that are compared separately here.
_OWN_PARTS = ("uuid", "location", "snapshot", "sequence number", "properties")


class BuiltClone:
    """Builds clones in one catalog; `made` is called with each table that it creates."""

    def __init__(self, catalog: Catalog, made: Callable[[Table], None] | None = None) -> None:
        self._catalog = catalog
        self._on_created = made

    def build(self, shadow: str, wanted: TableMetadata, because: str) -> Table:
        """Create the table `shadow` with the content that `wanted` describes, and compare it.

        An interrupted build is continued: until the second commit the table is marked as being
        built. What a drop does to files is probed before, on a separate table. Raises Unsupported,
        and drops the table, when the catalog does not keep the committed state.
        """
        table = self._load_or_create(shadow, wanted, because)
        if BEING_BUILT_PROPERTY in table.metadata.properties:
            table = self._fill_table(shadow, table, wanted)
        if EPOCH_PROPERTY in table.metadata.properties:
            # Another process drives the run with this clone now, so it is not compared here.
            return table
        faults = _metadata_differences(table.metadata, wanted)
        if faults:
            raise self._abandon_clone(
                shadow, table, f"{', '.join(faults)} differ from the target's"
            )
        return table

    def _load_or_create(self, shadow: str, wanted: TableMetadata, because: str) -> Table:
        with suppress(NoSuchTableError):
            return self._catalog.load_table(shadow)
        try:
            marks = {BUILT_BECAUSE_PROPERTY: because, BEING_BUILT_PROPERTY: "yes"}
            deletes = "yes" if self._probe_drop_deletes(shadow, wanted) else "no"
            return self._create_table(shadow, wanted, {**marks, DROP_DELETES_PROPERTY: deletes})
        except TableAlreadyExistsError:
            return self._catalog.load_table(shadow)
        except Exception as error:
            if not is_unsupported_by_server(error):
                raise
            why = f"create_table: {first_error_line(error)}"
            raise _clone_error(shadow, because, why) from error

    def _create_table(self, name: str, wanted: TableMetadata, marks: dict[str, str]) -> Table:
        format_property = {"format-version": str(wanted.format_version)}
        with commit_window("Shadows.create"):
            table = self._catalog.create_table(
                name,
                min(wanted.schemas, key=lambda schema: schema.schema_id),
                partition_spec=min(wanted.partition_specs, key=lambda spec: spec.spec_id),
                properties={**wanted.properties, **marks, **format_property},
            )
        if self._on_created is not None:
            self._on_created(table)
        return table

    def _probe_drop_deletes(self, shadow: str, wanted: TableMetadata) -> bool:
        """Return whether a drop deletes files, by a test on a new table that lists none.

        SeaweedFS deletes everything under the table's location: once files of a shadow are
        published, the shadow must not be dropped. An interrupted test leaves a scratch table.
        """
        name = f"{shadow}__drop_{uuid4().hex[:8]}"
        table = self._create_table(name, wanted, {})
        with commit_window("Shadows.drop"):
            self._catalog.drop_table(name)
        if not table.io.new_input(table.metadata_location).exists():
            return True
        # No table lists the file, so a failed deletion leaves only a harmless file.
        with suppress(OSError):
            table.io.delete(table.metadata_location)
        return False

    def _fill_table(self, shadow: str, table: Table, wanted: TableMetadata) -> Table:
        """Commit the state of `wanted` to the table, unless another process already did."""
        requirements = (
            update.AssertTableUUID(uuid=table.metadata.table_uuid),
            update.AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None),
        )
        try:
            with commit_window("Shadows.fill"):
                self._catalog.commit_table(
                    table, requirements, _missing_updates(table.metadata, wanted)
                )
        except CommitFailedException:
            pass
        except Exception as error:
            if not is_unsupported_by_server(error):
                raise
            raise self._abandon_clone(shadow, table, first_error_line(error)) from error
        return self._catalog.load_table(shadow)

    def _abandon_clone(self, shadow: str, table: Table, why: str) -> Unsupported:
        """Drop the table where that deletes no file that the target may list, and build the error.

        The table is kept when another process drives it, and when it is unknown what a drop does.
        """
        current = self._catalog.load_table(shadow).metadata
        is_same = (
            current.table_uuid == table.metadata.table_uuid
            and EPOCH_PROPERTY not in current.properties
        )
        if is_same and current.properties.get(DROP_DELETES_PROPERTY) == "no":
            with commit_window("Shadows.drop"):
                self._catalog.drop_table(shadow)
        because = str(table.metadata.properties.get(BUILT_BECAUSE_PROPERTY, ""))
        return _clone_error(shadow, because, why)


def _missing_updates(found: TableMetadata, wanted: TableMetadata) -> tuple[update.TableUpdate, ...]:
    """Return what the table lacks, with the ids of `wanted`, which servers assign in order."""
    schemas = {schema.schema_id for schema in found.schemas if schema in wanted.schemas}
    specs = {spec.spec_id for spec in found.partition_specs}
    orders = {order.order_id for order in found.sort_orders}
    new_schemas = [s for s in wanted.schemas if s.schema_id not in schemas]
    new_specs = [spec for spec in wanted.partition_specs if spec.spec_id not in specs]
    new_orders = [order for order in wanted.sort_orders if order.order_id not in orders]
    new_schemas.sort(key=lambda schema: schema.schema_id)
    new_specs.sort(key=lambda spec: spec.spec_id)
    new_orders.sort(key=lambda order: order.order_id)
    return (
        *(update.AddSchemaUpdate(schema_=schema) for schema in new_schemas),
        update.SetCurrentSchemaUpdate(schema_id=wanted.current_schema_id),
        *(update.AddPartitionSpecUpdate(spec=spec) for spec in new_specs),
        update.SetDefaultSpecUpdate(spec_id=wanted.default_spec_id),
        *(update.AddSortOrderUpdate(sort_order=order) for order in new_orders),
        update.SetDefaultSortOrderUpdate(sort_order_id=wanted.default_sort_order_id),
        # A server may derive properties of its own from the columns at creation.
        update.SetPropertiesUpdate(updates=wanted.properties),
        update.RemovePropertiesUpdate(removals=[BEING_BUILT_PROPERTY]),
        *_base_snapshot_updates(wanted),
    )


def _base_snapshot_updates(wanted: TableMetadata) -> tuple[update.TableUpdate, ...]:
    """Return the base snapshot with its id, number and manifest list, committed now."""
    base = wanted.current_snapshot()
    if base is None:
        return ()
    # Servers refuse a time before the table's own; the parent is not a snapshot of this table.
    changes = {"timestamp_ms": int(time.time() * 1000), "parent_snapshot_id": None}
    return (
        update.AddSnapshotUpdate(snapshot=base.model_copy(update=changes)),
        update.SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": base.snapshot_id}
        ),
    )


def _metadata_differences(kept: TableMetadata, wanted: TableMetadata) -> list[str]:
    """Return the parts in which a commit that moves files between the tables could fail."""
    faults = differing_parts(kept, wanted, _OWN_PARTS)
    is_same_head = kept.current_snapshot_id == wanted.current_snapshot_id
    if not is_same_head or snapshot_identities(kept) != snapshot_identities(wanted):
        faults.append("snapshot")
    if any(kept.properties.get(key) != text for key, text in wanted.properties.items()):
        faults.append("properties")
    return faults


def _clone_error(shadow: str, because: str, why: str) -> Unsupported:
    return Unsupported(
        f"{shadow} can be neither registered nor built: {because}; as a plain table: {why}",
        fix="use a catalog with register_table; lakehouse-backfill doctor tries it out",
    )
