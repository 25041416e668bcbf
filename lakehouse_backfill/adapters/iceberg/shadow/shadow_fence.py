"""Shutting out writers that loaded a shadow before a later lease began."""

from __future__ import annotations

import uuid

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, AssignUUIDUpdate, SetPropertiesUpdate

from lakehouse_backfill.adapters.iceberg.catalog import is_outage, load_table
from lakehouse_backfill.adapters.iceberg.names import (
    BASE_SNAPSHOT_PROPERTY,
    EPOCH_PROPERTY,
    FENCE_UUID_PROPERTY,
    RUN_ID_PROPERTY,
)
from lakehouse_backfill.core.runs import run_log
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.table_commits import CloneCommitter


def set_fence(
    catalog: Catalog, shadow: str, epoch: int, commits: CloneCommitter | None = None
) -> None:
    """Make one attempt; a commit that may or may not have landed is looked for.

    Raises CommitFailedException when another writer was first. May be repeated without harm.
    """
    table = load_table(catalog, shadow)
    if _is_fenced(table, epoch):
        return
    try:
        _commit_fence(catalog, table, epoch, commits)
    except BadRequestError as error:
        raise _uuid_unchanged_error(shadow) from error
    except Exception as error:
        if not is_outage(error):
            raise
        now = load_table(catalog, shadow)
        if _is_fenced(now, epoch):
            return
        if now.metadata.table_uuid != table.metadata.table_uuid:
            # Ours states the UUID that it loaded, so it can never land any more.
            raise CommitFailedException(f"another process fenced {shadow} first") from error
        raise
    if not _is_fenced(load_table(catalog, shadow), epoch):
        raise _uuid_unchanged_error(shadow)


def _commit_fence(
    catalog: Catalog, table: Table, epoch: int, commits: CloneCommitter | None
) -> None:
    # Not by a transaction: PyIceberg takes a table with another UUID for a wrong answer.
    found, given = table.metadata.table_uuid, uuid.uuid4()
    marks = {EPOCH_PROPERTY: str(epoch), FENCE_UUID_PROPERTY: str(given)}
    if commits is not None:
        commits.fence(".".join(table.name()), str(found), str(given), marks)
        return
    updates = (AssignUUIDUpdate(uuid=given), SetPropertiesUpdate(updates=marks))
    with commit_window("Shadows.fence"):
        catalog.commit_table(table, (AssertTableUUID(uuid=found),), updates)


def _is_fenced(table: Table, epoch: int) -> bool:
    properties = table.metadata.properties
    if BASE_SNAPSHOT_PROPERTY not in properties:
        raise Unsupported(f"{'.'.join(table.name())} is not a shadow of ours")
    held = int(properties.get(EPOCH_PROPERTY, "0"))
    if held > epoch:
        raise run_log.overtaken_error(
            properties.get(RUN_ID_PROPERTY, ".".join(table.name())), epoch, held
        )
    # The property alone proves nothing: a catalog may keep it and leave the UUID as it was.
    return held == epoch and properties.get(FENCE_UUID_PROPERTY) == str(table.metadata.table_uuid)


def _uuid_unchanged_error(shadow: str) -> Unsupported:
    return Unsupported(
        f"the catalog does not give {shadow} a new UUID, so that a process which was overtaken "
        "could still write into it",
        state="no chunk was written; the target was not touched",
        fix="use a catalog that changes a table's UUID; lakehouse-backfill doctor tries it out",
    )
