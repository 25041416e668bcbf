"""Expectation suites on output and on published data; time they took.

validate PRODUCT@accepted: hold what is published against other suites, without changing it.

What part of a run's time its suites took: they may cost more than all that they judge.

The suites of a run, and what fills their parameters.

The suites of the output, on the restated partitions: all of them over one read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.runs.context import ComputePorts, Context
from lakehouse_backfill.core.versions.accepted import AcceptedSnapshot, resolve_accepted
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Assumption, Contract, SuiteRef
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.system import Clock


@dataclass(frozen=True)
class AcceptedValidation:
    """What readers of a product get, and what the suites say of it."""

    accepted: AcceptedSnapshot
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no blocking check failed."""
        return not decisions.failed_blocking_checks(self.checks)


def validate_accepted(
    context: Context, contract: Contract, suites: tuple[str, ...], only: tuple[str, ...] = ()
) -> AcceptedValidation:
    """Run suites (the contract's, if none are named) on the accepted version of a product.

    `only` are partitions of the field that the accepted publication restated. Nothing in the lake
    is changed. Raises NotFound, Unsupported (a suite with parameters), ConfigError.
    """
    accepted = resolve_accepted(context, contract, strict=False)
    compute = context.compute()
    scope = _restated_scope(context, contract, only)
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


def _restated_scope(context: Context, contract: Contract, only: tuple[str, ...]) -> Scope | None:
    if not only:
        return None
    row = context.versions.pointer(contract.product).accepted
    if row is None or row.scope is None:
        raise Unsupported(
            f"{contract.product} has no accepted publication whose partitions could be named",
            fix="leave --partitions out",
        )
    for label in only:
        partitions.partition_row_range(row.scope.field, label)
    return Scope(field=row.scope.field, partitions=only)


_ENDS = ("pass validation", "fail validation")


class ValidationTiming(NamedTuple):
    """Seconds of one validation, of the suites in it, and of all that the run computed."""

    validate_s: float
    suites_s: float
    run_s: float

    @property
    def share(self) -> float | None:
        """The suites' share of the run's time; None where no time passed."""
        return round(self.suites_s / self.run_s, 4) if self.run_s else None

    @property
    def json_form(self) -> dict[str, float | None]:
        """The form in which the run's log and the CLI hold it."""
        return {**self._asdict(), "suites_share": self.share}

    @property
    def text(self) -> str:
        """Say it in a sentence."""
        share = "" if self.share is None else f", {self.share:.0%} of the run's {self.run_s:.1f} s"
        return f"Great Expectations took {self.suites_s:.1f} s of {self.validate_s:.1f} s{share}"


def newest_validation_timing(events: Iterable[Event]) -> ValidationTiming | None:
    """Give what the newest validation took; None before, and for runs that did not note it."""
    for event in sorted(events, key=lambda each: -each.seq):
        if event.verb in _ENDS:
            said: dict[str, Any] | None = event.detail.get("spent")
            return (
                ValidationTiming(*(said[name] for name in ValidationTiming._fields))
                if said
                else None
            )
    return None


def declared_suites(plan: Plan) -> tuple[SuiteRef, ...]:
    """The suites of the contract and of the run manifest."""
    return plan.resolved.contract.suites + plan.resolved.manifest.validation.suites


def suite_parameters(
    compute: ComputePorts,
    plan: Plan,
    suite: SuiteRef | Assumption,
    known: dict[str, list[Any]] | None = None,
) -> dict[str, list[Any]]:
    """Fill a suite's parameters (`name: input.column`) from the pinned inputs.

    Values in `known` are not read again, and those that are read are added to it.
    """
    known = {} if known is None else known
    for origin in suite.parameters.values():
        if origin not in known:
            source, _, column = origin.partition(".")
            known[origin] = compute.measuring.distinct(plan, source, column)
    return {name: known[origin] for name, origin in suite.parameters.items()}


@dataclass
class Stopwatch:
    """Tells how long a judgement took, and how long its suites did."""

    clock: Clock
    suites_s: float = 0.0
    _since: Any = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock.now()

    def timing_until_now(self, context: Context, run_id: str) -> ValidationTiming:
        """Give what was spent until now, and on the chunks of the run before that."""
        staged = sum(chunk.seconds for chunk in context.ledger.chunks(run_id))
        took = (self.clock.now() - self._since).total_seconds()
        return ValidationTiming(round(took, 3), round(self.suites_s, 3), round(staged + took, 3))


def suite_checks(compute: ComputePorts, plan: Plan, watch: Stopwatch) -> list[CheckResult]:
    """Run the suites `on` output; values that fill several parameters are read once."""
    wanted = [suite for suite in declared_suites(plan) if suite.on == "output"]
    if not wanted:
        return []
    begun = watch.clock.now()
    known: dict[str, list[Any]] = {}
    filled = tuple((suite.file, suite_parameters(compute, plan, suite, known)) for suite in wanted)
    found = compute.judge.judge_all(compute.measuring.output(plan), filled, "quality")
    watch.suites_s += (watch.clock.now() - begun).total_seconds()
    return list(found)
