"""After a swap: what readers see has the checksums that were accepted, by metadata and known files.

No row is read: the files of the published snapshot are listed, and their fingerprints added up.
"""

from __future__ import annotations

from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.core.approval.acceptance import known_file_fingerprints as known_of
from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.comparison.fingerprints import KnownChecksums
from lakehouse_backfill.core.planning import modes
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain import partitions, rules_schema_change
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.errors import ChecksFailed, Tampered

PUBLISHED_ROWS_CHECK = "what is published is what was accepted"


def compare_published_rows(bench: Context, plan: Plan, row: Publication) -> dict[str, Any] | None:
    """Compare the published partitions with the accepted checksums; None: nothing was swapped.

    `passed` is None when that cannot be told without reading rows: a file is not known, delete
    files touch a partition, or the run changes columns.
    """
    mode = plan.resolved.manifest.target.publish_mode
    if modes.is_pinned_product(plan) or mode == "correction_events" or row.snapshot_id is None:
        return None
    try:
        known = _published_fingerprints(bench, plan, row)
        judged = bench.evidence.document(plan.run_id, row.result_digest or "")
    except Tampered as error:
        return _check_document(passed=False, detail=error.problem)
    if (
        judged is None
        or known is None
        or known.unknown
        or rules_schema_change.declared_schema_change(plan)
    ):
        why = "files that are not known" if known is None or known.unknown else "changed columns"
        return _check_document(passed=None, detail=f"not told without reading rows: {why}")
    return _compare_with_accepted(plan, row, judged, known)


def require_rows_match(found: dict[str, Any] | None, plan: Plan, row: Publication) -> None:
    """Raise ChecksFailed when readers see other rows than were accepted."""
    if found is None or found["passed"] is not False:
        return
    back = commands.command_line(
        "rollback", plan.product, "--to", str(row.supersedes or 0), "--reason"
    )
    raise ChecksFailed(
        f"{row.table} does not hold what was accepted: {found['detail']}",
        state=f"version {row.version} of {plan.product} is published, and readers see it",
        fix=f"{back} TEXT",
    )


def _published_fingerprints(bench: Context, plan: Plan, row: Publication) -> KnownChecksums | None:
    """Say what is known of the published partitions; None: a file lies in several of them."""
    scope = row.scope or plan.resolved.scope
    files = bench.stored.files(row.table, row.snapshot_id or 0, scope)
    if any(each.partition not in scope.partitions for each in files):
        return None
    known = known_of(bench, row.table, row.snapshot_id or 0, files)
    return fingerprints.sum_known_checksums(files, known, scope.partitions)


def _compare_with_accepted(
    plan: Plan, row: Publication, judged: dict[str, Any], known: KnownChecksums
) -> dict[str, Any]:
    scope = row.scope or plan.resolved.scope
    wanted = {each["partition"]: each["new_checksum"] for each in judged["balances"]}
    shape = next((each.shape for each in known.checksums.values()), "")
    other = [
        label
        for label in scope.partitions
        if not _is_same_checksum(known.checksums.get(label), wanted.get(label), shape)
    ]
    if other:
        return _check_document(
            passed=False, detail=f"{partitions.describe_labels(tuple(other))} differ"
        )
    return _check_document(
        passed=True, detail=f"{len(scope.partitions)} partitions equal, by their files"
    )


def _is_same_checksum(seen: Checksum | None, wanted: str | None, shape: str) -> bool:
    """Compare with an accepted checksum; no rows equal no rows, whatever their shape was said."""
    if wanted is None or Checksum.parse(wanted).rows == 0:
        return seen is None or seen.rows == 0
    return (seen or Checksum.empty(shape)).text == wanted


def _check_document(*, passed: bool | None, detail: str) -> dict[str, Any]:
    return {"name": PUBLISHED_ROWS_CHECK, "passed": passed, "detail": detail}
