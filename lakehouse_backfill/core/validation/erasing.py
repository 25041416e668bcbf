"""Rows that were deleted where readers see them must not be brought back: block, or reapply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakehouse_backfill.core.planning.catching_up import drifts_as_json
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import DeletedRows, TombstonedRows
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.value import digest
from lakehouse_backfill.errors import TargetChanged

MAX_SAMPLE_KEYS = 3
_SECRET = ("confidential", "restricted")
_STATE = "nothing was changed for readers: the deleted rows stay deleted"


def may_reapply_deletions(contract: Contract) -> bool:
    """Tell whether deleted rows are left out of a result, instead of stopping it."""
    return contract.deletions == "reapply" and bool(contract.key)


def displayable_keys(contract: Contract, keys: Iterable[dict[str, Any]]) -> list[Any]:
    """Give keys as they may be shown: hashed, unless the product's rows are no secret."""
    if contract.classification is None or contract.classification in _SECRET:
        return [f"sha256:{digest(key)[:16]}" for key in keys]
    return [{name: str(value) for name, value in key.items()} for key in keys]


def deletions_blocked_error(
    contract: Contract, found: DeletedRows, drifts: Iterable[Any], what: str = "published"
) -> TargetChanged:
    """Make the error for rows that were deleted and would be brought back."""
    commits = tuple(drifts)
    who = "; ".join(str(drift) for drift in commits) or "live commits"
    count = f"{found.rows} rows" if contract.key else "rows"
    why = "`deletions: block`" if contract.key else "no key, by which they could be left out"
    keys = displayable_keys(contract, found.samples)
    shown = f", e.g. {keys[0]}" if keys else ""
    return TargetChanged(
        f"{contract.table} cannot be {what}: {count} of "
        f"{partitions.describe_labels(found.partitions)} were deleted since{shown}, by {who}; the "
        f"contract says {why}",
        state=_STATE,
        fix="restate on top of the deletion: lakehouse-backfill plan MANIFEST --revise RUN; or "
        "write `deletions: reapply` in the contract, and plan again",
        data={
            "conflicts": drifts_as_json(commits),
            "deletions": {"rows": found.rows, "partitions": found.partitions, "keys": keys},
        },
    )


def check_no_deleted_rows(named: TombstonedRows, left_out_rows: int) -> CheckResult:
    """No row of the candidate is one that tombstones or deletions name."""
    where = f" in {partitions.describe_labels(named.partitions)}" if named.rows else ""
    return CheckResult(
        name="no deleted row is written",
        group="technical",
        passed=not named.rows,
        detail=f"{named.rows} rows{where}; {left_out_rows} were left out",
        observed=named.rows,
        limit=0,
        waivable=False,
    )


def tombstones_blocked_error(
    contract: Contract, rows: int, labels: tuple[str, ...], what: str
) -> TargetChanged:
    """Make the error for rows that tombstones name."""
    return TargetChanged(
        f"{contract.table} cannot be {what}: tombstones name {rows} rows of "
        f"{partitions.describe_labels(labels)}, and the contract says `deletions: {contract.deletions}`",
        state=_STATE,
        fix="lakehouse-backfill plan MANIFEST --revise RUN: staging leaves them out; or write "
        "`deletions: reapply` in the contract, and plan again",
        data={"tombstones": {"rows": rows, "partitions": labels}},
    )
