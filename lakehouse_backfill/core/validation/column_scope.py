"""Column scope (P9): what a run must leave as it was, proven by checksums of each partition.

Two witnesses: checksums over all columns that the run does not name, by the engine that stages, and
the diff, which reads the same files by other code. Rows that the run leaves out are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse_backfill.core.planning.target import catch_up, publish_modes
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.comparison.diff import Diff
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.ports.compute import ComputePorts


def column_checks(
    compute: ComputePorts, plan: Plan, candidate: TableInfo, diff: Diff
) -> list[CheckResult]:
    """Judge what a run of some columns must not change; no check for a run of whole rows.

    Base and candidate are read twice: all columns that are not restated, then the key alone.
    """
    if not publish_modes.restates_columns(plan):
        return []
    restated = plan.resolved.manifest.target.columns or ()
    scope, key = plan.resolved.scope, plan.resolved.contract.key
    beside_key = [column.name for column in candidate.columns if column.name not in key]
    others = _both_sides(compute, plan, candidate, (*LINEAGE_NAMES, *restated))
    keys = _both_sides(compute, plan, candidate, (*LINEAGE_NAMES, *beside_key))
    return [
        check_other_columns(scope, restated, others),
        check_same_keys(scope, keys),
        check_only_named_differ(diff, restated),
    ]


#: Checksums of the base, and of the candidate, by partition.
BothSides = tuple[Mapping[str, Checksum], Mapping[str, Checksum]]


def _both_sides(
    compute: ComputePorts, plan: Plan, candidate: TableInfo, ignore: Iterable[str]
) -> BothSides:
    """Sum both sides without the ignored columns, the base without rows that the run leaves out."""
    base, scope = plan.resolved.target, plan.resolved.scope
    ignored = tuple(dict.fromkeys(ignore))
    excluded = catch_up.excluded_rows(plan.resolved)
    without = None if excluded.is_empty else excluded
    checksums = compute.measuring.checksums
    return (
        checksums(base.table, base.snapshot_id, scope, ignored, None, without),
        checksums(candidate.table, candidate.snapshot_id, scope, ignored),
    )


def _differing(scope: Scope, sides: BothSides) -> list[str]:
    old, new = sides
    return [label for label in scope.partitions if old.get(label) != new.get(label)]


def check_other_columns(scope: Scope, restated: tuple[str, ...], sides: BothSides) -> CheckResult:
    """Check that count and checksum over all other columns are equal in each partition."""
    wrong = _differing(scope, sides)
    rows = sum(found.rows for found in sides[0].values())
    detail = (
        f"{rows:,} rows, counts and checksums of all columns but {', '.join(restated)} equal in "
        f"{len(scope.partitions):,} partitions"
    )
    if wrong:
        detail = (
            f"{len(wrong):,} partitions differ in other columns than {', '.join(restated)}, first "
            f"{wrong[0]}"
        )
    return gate_registry.fault_count_result("other columns are unchanged", len(wrong), detail)


def check_same_keys(scope: Scope, sides: BothSides) -> CheckResult:
    """Check that each partition has the keys of before: by count, and by checksum of the keys."""
    wrong = _differing(scope, sides)
    rows = sum(found.rows for found in sides[0].values())
    detail = f"{rows:,} keys, counts and checksums equal"
    if wrong:
        old, new = (side.get(wrong[0]) for side in sides)
        detail = (
            f"{len(wrong):,} partitions have other keys, first {wrong[0]}: "
            f"{old.rows if old else 0:,} before, {new.rows if new else 0:,} now"
        )
    return gate_registry.fault_count_result("the same keys are there", len(wrong), detail)


def check_only_named_differ(diff: Diff, restated: tuple[str, ...]) -> CheckResult:
    """Check that the diff finds changed values in the restated columns only."""
    known = {*restated, *LINEAGE_NAMES}
    others = [one for one in diff.columns if one.changed and one.name not in known]
    changed = sum(one.changed for one in diff.columns if one.name in restated)
    detail = f"{changed:,} values of {', '.join(restated)} differ, and no other"
    if others:
        found = ", ".join(f"{one.name} in {one.changed:,}" for one in others)
        detail = f"rows differ in {found}"
    return gate_registry.fault_count_result("only named columns differ", len(others), detail)
