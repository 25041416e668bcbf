"""One commit to a table that others write to, found again by its token: it lands only once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.rest.answers import commit_refusal
from lakehouse_backfill.domain.tables.commits import (
    CommitResult,
)


@dataclass(frozen=True)
class TokenCommit:
    """One commit to a table that others write to; its token finds it, so it lands only once.

    `action`, `state`, `busy_fix` and `unknown_state` are the wording of its errors.
    """

    catalog: Catalog
    table: str
    token: str
    action: str
    state: str
    busy_fix: str
    unknown_state: str

    def run(
        self,
        prepare: Callable[[Table, int], Callable[[], Snapshot | None] | None],
        budget_s: float,
    ) -> Snapshot:
        """Prepare and land the commit, again while other writers win; return its snapshot.

        `prepare` gets the table as it was loaded last and the number of the attempt. It returns
        None when another writer was first. Raises TooBusy, OutcomeUnknown.
        """
        for number in catalogs.retry_attempts(budget_s):
            table = catalogs.load_table(self.catalog, self.table)
            committed = metadata.find_publication_snapshot(table.metadata, self.token)
            if committed is not None:
                return committed
            land = prepare(table, number)
            committed = None if land is None else self._land(land, table)
            if committed is not None:
                return committed
        raise errors.TooBusy(
            f"other writers kept winning on {self.table} for {budget_s:.0f} s",
            state=self.state,
            fix=self.busy_fix,
        )

    def _land(self, land: Callable[[], Snapshot | None], table: Table) -> Snapshot | None:
        """Commit; return None when another writer was first."""
        try:
            committed = land()
        except Exception as error:  # noqa: BLE001 (after any error the commit may have succeeded)
            return None if catalogs.is_lost_race(error) else self._resolve_outcome(error, table)
        return committed or self._resolve_outcome(None, table)

    def _resolve_outcome(self, cause: Exception | None, table: Table) -> Snapshot | None:
        """Look for the commit; return None when it can no longer land.

        It needs the head that was loaded, so that it is refused once the head has moved.
        Everything is kept if its outcome stays unknown.
        """
        current = committed = None
        try:
            current = catalogs.load_table(self.catalog, self.table)
            committed = metadata.find_publication_snapshot(current.metadata, self.token)
        except errors.BackfillError:
            pass
        if committed is not None:
            return committed
        # Spark rebases the commits that it makes, so that they may land on another head.
        is_own = cause is not None and catalogs.is_outage(cause)
        if is_own and current is not None and has_moved(table, current):
            return None
        reason = f"{type(cause).__name__}: {cause}" if cause else "it is not in the history"
        refusal = commit_refusal(cause, self.table, self.state)
        if refusal is not None:
            raise refusal from cause
        raise errors.OutcomeUnknown(
            f"the {self.action} {self.table} may or may not have landed: {reason}",
            state=self.unknown_state,
            fix="repeat the same command: it looks at the table first",
        ) from cause


def has_moved(loaded: Table, current: Table) -> bool:
    """Return whether main has another head than the one that a commit on `loaded` needs."""
    is_same_table = loaded.metadata.table_uuid == current.metadata.table_uuid
    heads = {table.metadata.current_snapshot_id for table in (loaded, current)}
    return is_same_table and len(heads) > 1


def read_commit_result(target: str, snapshot: Snapshot, seconds: float) -> CommitResult:
    """Read the result of a swap from its snapshot."""
    summary = metadata.snapshot_summary(snapshot)

    def count(name: str) -> int:
        return int(summary.get(name, "0"))

    return CommitResult(
        table=target,
        snapshot_id=snapshot.snapshot_id,
        before_snapshot_id=snapshot.parent_snapshot_id,
        files_added=count("added-data-files"),
        files_removed=count("deleted-data-files"),
        rows_added=count("added-records"),
        rows_removed=count("deleted-records"),
        attempts=count(metadata.ATTEMPTS_PROPERTY),
        seconds=seconds,
    )
