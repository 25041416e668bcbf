"""validate PRODUCT@accepted: hold what is published against other suites, without changing it."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.approval import waivers
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions.accepted import AcceptedSnapshot, resolve_accepted
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.declared import SuiteRef
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.errors import Unsupported


@dataclass(frozen=True)
class AcceptedValidation:
    """What readers of a product get, and what the suites say of it."""

    accepted: AcceptedSnapshot
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no blocking check failed."""
        return not waivers.failed_blocking_checks(self.checks)


def validate_accepted(
    bench: Context, contract: Contract, suites: tuple[str, ...], only: tuple[str, ...] = ()
) -> AcceptedValidation:
    """Run suites (the contract's, if none are named) on the accepted version of a product.

    `only` are partitions of the field that the accepted publication restated. Nothing in the lake
    is changed. Raises NotFound, Unsupported (a suite with parameters), ConfigError.
    """
    accepted = resolve_accepted(bench, contract, strict=False)
    compute = bench.compute()
    scope = _restated_scope(bench, contract, only)
    frame = compute.inspecting.snapshot(accepted.table, accepted.snapshot_id, scope)
    named = tuple(SuiteRef(file=file) for file in suites)
    checks: list[CheckResult] = []
    for suite in named or contract.suites:
        if suite.on != "output":
            continue
        if suite.parameters:
            raise Unsupported(
                f"{suite.file} takes parameters from a run's inputs, and here is no run",
                fix="name suites without parameters: --suite FILE",
            )
        checks += compute.judge.judge(frame, suite.file, {}, "quality")
    return AcceptedValidation(accepted, tuple(checks))


def _restated_scope(bench: Context, contract: Contract, only: tuple[str, ...]) -> Scope | None:
    if not only:
        return None
    row = bench.versions.pointer(contract.product).accepted
    if row is None or row.scope is None:
        raise Unsupported(
            f"{contract.product} has no accepted publication whose partitions could be named",
            fix="leave --partitions out",
        )
    for label in only:
        partitions.partition_row_range(row.scope.field, label)
    return Scope(field=row.scope.field, partitions=only)
