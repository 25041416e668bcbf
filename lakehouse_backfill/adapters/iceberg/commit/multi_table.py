"""One commit of swaps in several tables: the catalog takes all of them, or none.

A REST catalog does so by `transactions/commit`, where it offers that; a SQL catalog by one
transaction of its database. That a server keeps its promise is not taken for granted: afterwards
each table is asked for its own token, and what is missing is committed by another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.clock import require_not_past, require_right_clock
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import TableChange
from lakehouse_backfill.adapters.iceberg.commit.swap import SwapAttempts
from lakehouse_backfill.adapters.iceberg.commit.token_commit import has_moved
from lakehouse_backfill.adapters.iceberg.rest.answers import commit_refusal
from lakehouse_backfill.adapters.iceberg.rest.offers import advertised_endpoints
from lakehouse_backfill.fault_points import commit_window

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

MULTI_TABLE_ENDPOINT = "POST /v1/{prefix}/transactions/commit"
_STATE = "nothing was published; readers see what they saw before; the shadows are kept"


def why_not_together(catalog: Catalog) -> str:
    """Return why the catalog takes no commit of several tables; empty: it does."""
    if _is_sql(catalog):
        return ""
    if MULTI_TABLE_ENDPOINT in advertised_endpoints(catalog) and hasattr(catalog, "commit_tables"):
        return ""
    return "the catalog does not offer it"


def run_swaps(
    catalog: Catalog, budget_s: float, swaps: Sequence[SwapAttempts]
) -> tuple[Snapshot, ...]:
    """Commit all swaps at once, each only once, also while other writers commit.

    A swap whose token is found has landed, and is left out. Raises what each swap raises alone
    (TargetChanged, Unsupported, NotFound, …), TooBusy, OutcomeUnknown. Files are never deleted.
    """
    names = ", ".join(swap.request.target for swap in swaps)
    for number in catalogs.retry_attempts(budget_s):
        tables = [catalogs.load_table(catalog, swap.request.target) for swap in swaps]
        found = _landed(swaps, tables)
        open_swaps = [at for at, snapshot in enumerate(found) if snapshot is None]
        try:
            changes = [swaps[at].write(tables[at], number) for at in open_swaps]
            if changes:
                _land(catalog, changes)
        except errors.TooBusy:
            continue
        except _CommitError as failed:
            cause = failed.cause
            if not catalogs.is_lost_race(cause):
                _require_known(catalog, swaps, tables, cause, names)
            continue
        found = _landed(swaps, [catalogs.load_table(catalog, s.request.target) for s in swaps])
        landed = tuple(snapshot for snapshot in found if snapshot is not None)
        if len(landed) == len(swaps):
            return landed
    raise errors.TooBusy(
        f"other writers kept winning on {names} for {budget_s:.0f} s",
        state=_STATE,
        fix="try again, pause the live writers, or publish one after the other",
    )


class _CommitError(Exception):
    """The commit itself failed: it may have landed all the same."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _land(catalog: Catalog, changes: list[TableChange]) -> None:
    try:
        with commit_window("Publisher.swap_together"):
            commit_tables(catalog, changes)
    except Exception as error:
        raise _CommitError(error) from error


def _landed(swaps: Sequence[SwapAttempts], tables: Sequence[Table]) -> list[Snapshot | None]:
    return [
        metadata.find_publication_snapshot(table.metadata, swap.request.token)
        for swap, table in zip(swaps, tables, strict=True)
    ]


def _require_known(
    catalog: Catalog,
    swaps: Sequence[SwapAttempts],
    loaded: Sequence[Table],
    cause: Exception,
    names: str,
) -> None:
    """Return when the commit has landed, or can no longer land; else raise what is known of it.

    It needs the heads that were loaded: once one of them has moved the catalog refuses all of it.
    """
    try:
        current = [catalogs.load_table(catalog, swap.request.target) for swap in swaps]
    except errors.BackfillError:
        current = []
    if current and any(_landed(swaps, current)):
        return
    moved = any(has_moved(*pair) for pair in zip(loaded, current, strict=False))
    if moved and catalogs.is_outage(cause):
        return
    refusal = commit_refusal(cause, names, _STATE)
    if refusal is not None:
        raise refusal from cause
    raise errors.OutcomeUnknown(
        f"the commit on {names} may or may not have landed: {type(cause).__name__}: {cause}",
        state="the tables are either all as before or all swapped, as far as the catalog keeps "
        "its promise; no file was deleted",
        fix="repeat the same command: it looks at each table first",
    ) from cause


def commit_tables(catalog: Catalog, changes: Sequence[TableChange]) -> None:
    """Commit all changes or none. Raises CommitFailedException when another writer was first."""
    if _is_sql(catalog):
        _commit_in_database(catalog, changes)
    else:
        catalog.commit_tables(changes)  # type: ignore[attr-defined]


def _is_sql(catalog: Catalog) -> TypeGuard[SqlCatalog]:
    return hasattr(catalog, "engine")


def _commit_in_database(catalog: SqlCatalog, changes: Sequence[TableChange]) -> None:
    """Write new metadata files, then move all tables to them in one transaction.

    Always in the order of names, so that two groups do not wait for each other.
    """
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import CursorResult, update
    from sqlalchemy.orm import Session

    require_right_clock(catalog)
    staged = []
    for change in sorted(changes, key=lambda change: change.table.name()):
        current = catalog.load_table(change.table.name())
        require_not_past(current)
        new = catalog._update_and_stage_table(
            current, current.name(), change.requirements, change.updates
        )
        staged.append((current, new))
    for _, new in staged:  # no file is left where one table refuses
        catalog._write_metadata(new.metadata, new.io, new.metadata_location)
    with Session(catalog.engine) as session:
        for current, new in staged:
            *namespace, name = current.name()
            move = (
                update(IcebergTables)
                .where(
                    IcebergTables.catalog_name == catalog.name,
                    IcebergTables.table_namespace == ".".join(namespace),
                    IcebergTables.table_name == name,
                    IcebergTables.metadata_location == current.metadata_location,
                )
                .values(
                    metadata_location=new.metadata_location,
                    previous_metadata_location=current.metadata_location,
                )
            )
            done = session.execute(move)
            if not isinstance(done, CursorResult) or done.rowcount != 1:
                raise CommitFailedException(f"{current.name()} has been changed by another writer")
        session.commit()
    for current, new in staged:
        # Of tables that ask for it, as a commit of one table does.
        catalog._delete_old_metadata(new.io, current.metadata, new.metadata)
