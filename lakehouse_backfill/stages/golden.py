"""Golden data and named records, against the candidate."""

from __future__ import annotations

from lakehouse_backfill.model.checks import CheckResult
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.table import TableInfo
from lakehouse_backfill.rules import golden
from lakehouse_backfill.stages.workbench import Workbench


def golden_checks(bench: Workbench, plan: Plan, shadow: TableInfo) -> tuple[CheckResult, ...]:
    """Compare the golden file and the spot checks of the run manifest with the candidate's rows."""
    wanted, contract = plan.resolved.manifest.validation, plan.resolved.contract
    types = {column.name: column.type for column in shadow.columns}
    results: list[CheckResult] = []
    if wanted.golden is not None:
        expected = bench.records.golden(wanted.golden)
        keys = golden.keys_of(expected, contract.key, types)
        actual = bench.records.by_key(plan.shadow_table, shadow.snapshot_id, keys)
        results.append(golden.compare_golden(expected, actual, contract.key, types))
    for check in wanted.spot_checks:
        actual = bench.records.by_key(plan.shadow_table, shadow.snapshot_id, [dict(check.key)])
        results.append(golden.compare_spot(check, actual, types))
    return tuple(results)
