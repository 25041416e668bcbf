"""The table of versions of a pinned product: which version made a row, what became of it (U5).

It follows the pointer: one commit after each publication and rollback relabels what changed. A
reader of its accepted rows gets the accepted version as a whole, before that commit and after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.publication import (
    LabelledVersion,
    Publication,
    VersionLabels,
    VersionStatus,
)
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, OutcomeUnknown


def decide_labels(contract: Contract, history: tuple[Publication, ...]) -> VersionLabels | None:
    """Return what the contract's table of versions has to say; None where nothing is accepted.

    `history` is newest first. A row belongs to the first version that holds it: of those that lead
    to the accepted one, else of those that were rolled back.
    """
    rows = pointer.accepted_rows(history)
    if contract.versions_table is None or not rows or rows[0].snapshot_id is None:
        return None
    newest = {row.version: row for row in reversed(rows)}
    let_go = {row.version for row in history if row.action == "expire"}
    line = _line_of(rows)
    rest = sorted(newest.keys() - set(line))
    return VersionLabels(
        product=contract.product,
        table=contract.versions_table,
        acts=len(history),
        versions=tuple(
            LabelledVersion(
                version=version,
                status=_status(version, line),
                table=row.table,
                snapshot_id=row.snapshot_id,
            )
            for version in (*line, *rest)
            if version not in let_go and (row := newest[version]).snapshot_id is not None
        ),
        let_go=tuple(version for version in line if version in let_go),
    )


def _line_of(rows: tuple[Publication, ...]) -> tuple[int, ...]:
    """Return the accepted version and those that it stands on, the oldest first."""
    makers = {row.version: row for row in rows}  # The oldest row of a version made it.
    line = [rows[0].version]
    while (below := makers[line[-1]].supersedes) is not None and below in makers:
        if below in line:
            break
        line.append(below)
    return tuple(reversed(line))


def _status(version: int, line: tuple[int, ...]) -> VersionStatus:
    if version == line[-1]:
        return "accepted"
    return "superseded" if version in line else "rolled_back"


def open_table(context: Context, contract: Contract, source: str, snapshot_id: int) -> None:
    """Make the table of versions before a pointer moves; raises Unsupported, Conflict."""
    if contract.versions_table is not None:
        require_kept_fit(context, contract)
        context.version_tables.require_fit(source, snapshot_id)
        context.version_tables.open(contract.versions_table, contract.product, source)


def require_kept_fit(context: Context, contract: Contract) -> None:
    """Raise Unsupported where a kept version cannot be in a table of versions that is not made yet.

    What is there already was looked at when it was made.
    """
    labels = _wanted_labels(context, contract)
    if labels is not None and context.tables.describe(labels.table) is None:
        for one in labels.versions:
            context.version_tables.require_fit(one.table, one.snapshot_id)


def show_labels(context: Context, contract: Contract) -> None:
    """Bring the table of versions to what the pointer says; a repeat changes nothing.

    Raises Conflict, Unsupported, TooBusy, OutcomeUnknown.
    """
    labels = _wanted_labels(context, contract)
    if labels is not None:
        context.version_tables.open(labels.table, labels.product, labels.accepted.table)
        history = context.versions.history(contract.product)
        run_id = history[0].run_id or pointer.newest_published_run(history)
        mode = context.mode_of(run_id)
        context.version_tables.show(labels.model_copy(update={"mode": mode}))


def show_all_labels(
    context: Context, contracts: Mapping[str, Contract], product: str | None
) -> dict[str, str]:
    """Bring the tables of versions of a product, or of all, to what their pointers say.

    `maintain` does so before snapshots go: no row of a version that was let go stays listed.
    Returns the products whose table could not be brought there, each with why. Raises
    EnvironmentDown, OutcomeUnknown; with `product`, all errors.
    """
    problems = dict[str, str]()
    for contract in contracts.values():
        try:
            if product in (None, contract.product) and labels_fault(context, contract):
                show_labels(context, contract)
        except (EnvironmentDown, OutcomeUnknown):
            raise
        except BackfillError as error:
            if product is not None:
                raise
            problems[contract.product] = error.problem
    return problems


def labels_fault(context: Context, contract: Contract) -> str | None:
    """Return how the table differs from the pointer; empty: it does not. None: there is no table.

    Only metadata is read.
    """
    labels = _wanted_labels(context, contract)
    return None if labels is None else context.version_tables.fault(labels)


def _wanted_labels(context: Context, contract: Contract) -> VersionLabels | None:
    if contract.versions_table is None:
        return None
    return decide_labels(contract, context.versions.history(contract.product))
