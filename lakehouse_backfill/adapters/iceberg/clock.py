"""Refuses commits that a wrong clock would put before the last one of their table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse, Table

from lakehouse_backfill import errors

#: What Iceberg's Java API tolerates between the clocks of two machines.
_CLOCK_TOLERANCE_S = 60


def refusing_past(catalog: Catalog, control: str) -> Callable[..., CommitTableResponse]:
    """Return the catalog's commit, which refuses to put a commit before the table's last one.

    Java could not load the table then. Control tables, which only this program reads, are let pass.
    """
    commit = catalog.commit_table

    def commit_table(table: Table, *arguments: Any, **named: Any) -> CommitTableResponse:
        if ".".join(table.name()[:-1]) != control:
            require_not_past(table)
        return commit(table, *arguments, **named)

    return commit_table


def require_not_past(table: Table) -> None:
    """Raise EnvironmentDown when a commit now would go before the table's last one."""
    ahead_s = table.metadata.last_updated_ms / 1000 - time.time()
    if ahead_s > _CLOCK_TOLERANCE_S:
        raise errors.EnvironmentDown(
            f"{'.'.join(table.name())}: its last commit is {ahead_s:,.0f} s later than this "
            "machine's clock: a clock is wrong, of this machine or of whoever made that commit",
            state="nothing was committed to it; readers see what they saw before",
            fix="set the clock right, then run the step again, not before that commit's time",
        )
