"""Golden data and named records, against the candidate."""

from __future__ import annotations

from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.validation.golden import check_golden, check_spots
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.errors import ConfigError


def golden_checks(bench: Context, plan: Plan, shadow: TableInfo) -> tuple[CheckResult, ...]:
    """Compare the golden file and the spot checks of the run manifest with the candidate's rows.

    Raises ConfigError when an expectation does not fit the table.
    """
    wanted, key = plan.resolved.manifest.validation, plan.resolved.contract.key
    types = {column.name: column.type for column in shadow.columns}
    results: list[CheckResult] = []
    if wanted.golden is not None:
        expected = bench.records.golden(wanted.golden)
        missing = [column for column in key if column not in expected[0]]
        if missing:
            raise ConfigError(
                f"{wanted.golden} has no column {missing[0]}, which is part of the key",
                fix=f"give every row {', '.join(key)}",
            )
        keys = [{column: row[column] for column in key} for row in expected]
        actual = bench.records.by_key(plan.shadow_table, shadow.snapshot_id, keys)
        results.append(check_golden(expected, actual, key, types, wanted.golden))
    if wanted.spot_checks:
        actual = [
            row
            for spot in wanted.spot_checks
            for row in bench.records.by_key(plan.shadow_table, shadow.snapshot_id, [dict(spot.key)])
        ]
        results.append(check_spots(wanted.spot_checks, actual, types))
    return tuple(results)
