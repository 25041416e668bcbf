"""Expectation suites on the output of a run and on published data, and the time that they take.

All suites of the output run over one read of the restated partitions. An expectation that counts as
a rule of rows is judged by the number of rows that break it: when there are none it passes, and the
result says that it was counted. Otherwise, and where no count covers an expectation, Great
Expectations judges the same rows; a verdict that contradicts the count fails.

The time is recorded because suites may cost more than the computation that they judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.readers import AcceptedSnapshot, resolve_accepted
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckGroup, CheckResult, RowCount, RowRule, SuiteEntry
from lakehouse_backfill.domain.contract import Assumption, Contract, SuiteRef
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import ConfigError, Unsupported
from lakehouse_backfill.ports.compute import ComputePorts, Frame


@dataclass(frozen=True)
class AcceptedValidation:
    """The accepted snapshot of a product, and the suites' checks on it."""

    accepted: AcceptedSnapshot
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Return whether no blocking check failed."""
        return not decisions.failed_blocking_checks(self.checks)


def validate_accepted(
    context: Context, contract: Contract, suites: tuple[str, ...], only: tuple[str, ...] = ()
) -> AcceptedValidation:
    """Run suites (by default the contract's) on the accepted version of a product.

    `only` are partitions of the field that the accepted publication restated. Nothing in the lake
    is changed. Raises NotFound, Unsupported (a suite with parameters), ConfigError.
    """
    accepted = resolve_accepted(context, contract, strict=False)
    scope = _restated_scope(context, contract, only)
    compute = context.compute()
    frame = compute.measuring.frame(accepted.table, accepted.snapshot_id, scope)
    requested = tuple(SuiteRef(file=file) for file in suites)
    checks: list[CheckResult] = []
    for suite in requested or contract.suites:
        if suite.on != "output":
            continue
        if suite.parameters:
            raise Unsupported(
                f"{suite.file} takes parameters from a run's inputs, and here is no run",
                fix="name suites without parameters: --suite FILE",
            )
        checks += compute.judge.judge(
            frame, suite.file, {}, "quality", redaction=context.redaction(contract)
        )
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
        try:
            partitions.partition_row_range(row.scope.field, label)
        except ValueError as error:
            raise ConfigError(
                f"--partitions is {label!r}, which is no partition of {row.scope.field.column}",
                fix=f"write it as this one: {row.scope.partitions[0]}",
            ) from error
    return Scope(field=row.scope.field, partitions=only)


class ValidationTiming(NamedTuple):
    """Seconds of one validation, of its suites, and of all that the run computed."""

    validate_s: float
    suites_s: float
    run_s: float

    @property
    def share(self) -> float | None:
        """Return the suites' share of the run's time; None where no time passed."""
        return round(self.suites_s / self.run_s, 4) if self.run_s else None

    @property
    def json_form(self) -> dict[str, float | None]:
        """Return the form in which the run's log and the CLI hold the timing."""
        return {**self._asdict(), "suites_share": self.share}

    @property
    def text(self) -> str:
        """Return the timing as a sentence."""
        share = "" if self.share is None else f", {self.share:.0%} of the run's {self.run_s:.1f} s"
        return f"Great Expectations took {self.suites_s:.1f} s of {self.validate_s:.1f} s{share}"


def newest_validation_timing(events: Iterable[Event]) -> ValidationTiming | None:
    """Return the timing of the newest validation; None when there is none in the log."""
    ends = [event for event in events if event.verb in ("pass validation", "fail validation")]
    timing = max(ends, key=lambda event: event.seq).detail.get("spent") if ends else None
    return ValidationTiming(*map(timing.get, ValidationTiming._fields)) if timing else None


def declared_suites(plan: Plan) -> tuple[SuiteRef, ...]:
    """Return the suites of the contract and of the run manifest."""
    return plan.resolved.contract.suites + plan.resolved.manifest.validation.suites


def suite_parameters(
    compute: ComputePorts,
    plan: Plan,
    suite: SuiteRef | Assumption,
    known: dict[str, list[Any]] | None = None,
) -> dict[str, list[Any]]:
    """Read a suite's parameters (`name: input.column`) from the pinned inputs.

    Values in `known` are not read again; values that are read are added to it.
    """
    known = {} if known is None else known
    for origin in suite.parameters.values():
        if origin not in known:
            source, _, column = origin.partition(".")
            known[origin] = compute.measuring.distinct(plan, source, column)
    return {name: known[origin] for name, origin in suite.parameters.items()}


def timing_until_now(
    context: Context, run_id: str, since: datetime, suites_s: float
) -> ValidationTiming:
    """Return the time of a validation until now, and of the run's chunks before it."""
    staged_s = sum(chunk.seconds for chunk in context.runs.chunks(run_id))
    elapsed_s = (context.clock.now() - since).total_seconds()
    return ValidationTiming(round(elapsed_s, 3), round(suites_s, 3), round(staged_s + elapsed_s, 3))


def suite_checks(
    context: Context, compute: ComputePorts, plan: Plan
) -> tuple[list[CheckResult], float]:
    """Run the suites `on` output; return the results, and the seconds that they took.

    Values that fill several parameters are read once.
    """
    suites = [suite for suite in declared_suites(plan) if suite.on == "output"]
    if not suites:
        return [], 0.0
    started = context.clock.now()
    known: dict[str, list[Any]] = {}
    parameterised = tuple(
        (suite.file, suite_parameters(compute, plan, suite, known)) for suite in suites
    )
    output = compute.measuring.frame(plan.shadow_table, None, plan.resolved.scope)
    redaction = context.redaction(plan.resolved.contract)
    rows = sum(chunk.output_rows for chunk in context.runs.chunks(plan.run_id))
    checks = compute.judge.judge_all(output, parameterised, "quality", redaction, rows)
    return list(checks), (context.clock.now() - started).total_seconds()


@dataclass(frozen=True)
class PreparedSuite:
    """A suite file with its parameters, and what of it can be counted."""

    file: str
    parameters: dict[str, list[Any]]
    entries: tuple[SuiteEntry, ...]

    @property
    def of_rows(self) -> tuple[SuiteEntry, ...]:
        """Return the expectations that every part of the rows must meet."""
        return tuple(entry for entry in self.entries if entry.is_of_rows)

    @property
    def of_whole(self) -> tuple[str, ...]:
        """Return the names of those that only the whole result is judged by."""
        return tuple(entry.name for entry in self.entries if not entry.is_of_rows)


def prepare_suite(
    compute: ComputePorts,
    suite: SuiteRef | Assumption,
    parameters: dict[str, list[Any]],
    types: Mapping[str, str],
) -> PreparedSuite:
    """Read a suite file for rows with columns of these types. Raises ConfigError."""
    entries = compute.judge.entries(suite.file, parameters, types)
    return PreparedSuite(suite.file, parameters, entries)


def rules_of(entries: tuple[SuiteEntry, ...]) -> tuple[RowRule, ...]:
    """Return the rules that are counted, in the order of the entries."""
    return tuple(
        entry.rule
        for entry in entries
        if entry.rule is not None and not isinstance(entry.rule, RowCount)
    )


def judge_rows_by_counts(
    compute: ComputePorts,
    suite: PreparedSuite,
    counts: tuple[int, tuple[int, ...]],
    frame: Callable[[], Frame],
    redaction: Redaction,
) -> list[CheckResult]:
    """Judge the expectations of rows by `counts`: the rows, and those that break each rule.

    `frame` gives the same rows, for what Great Expectations has to judge.
    """
    return _judge(compute, suite, suite.of_rows, counts, (frame, "quality", redaction))


def judge_input_by_counts(
    compute: ComputePorts, suite: PreparedSuite, frame: Frame, redaction: Redaction
) -> list[CheckResult] | None:
    """Judge a suite on an input by one aggregate over it; None when not all of it can be counted.

    What the counts fail is judged by Great Expectations, too.
    """
    if any(entry.rule is None for entry in suite.entries):
        return None
    counts = compute.inspecting.breaking(frame, rules_of(suite.entries))
    return _judge(compute, suite, suite.entries, counts, (lambda: frame, "input", redaction))


def _judge(
    compute: ComputePorts,
    suite: PreparedSuite,
    entries: tuple[SuiteEntry, ...],
    counts: tuple[int, tuple[int, ...]],
    judged: tuple[Callable[[], Frame], CheckGroup, Redaction],
) -> list[CheckResult]:
    rows, broken = counts
    by_rule = iter(broken)
    faults = {entry.number: _faults(entry, rows, by_rule) for entry in entries}
    chosen = [number for number, count in faults.items() if count != 0]
    frame, group, redaction = judged
    results = (
        compute.judge.judge_entries(frame(), suite.file, suite.parameters, chosen, group, redaction)
        if chosen
        else {}
    )
    return [
        _believed(results[entry.number], faults[entry.number], rows)
        if entry.number in results
        else _counted_result(entry, group, rows)
        for entry in entries
    ]


def _faults(entry: SuiteEntry, rows: int, by_rule: Iterator[int]) -> int | None:
    """Return the number of rows that break an expectation; None when it was not counted."""
    if entry.rule is None:
        return None
    if isinstance(entry.rule, RowCount):
        return 0 if entry.rule.allows(rows) else 1
    return next(by_rule)


def _counted_result(entry: SuiteEntry, group: CheckGroup, rows: int) -> CheckResult:
    is_row_count = isinstance(entry.rule, RowCount)
    return CheckResult(
        name=entry.name,
        group=group,
        passed=True,
        detail=f"observed {rows}, counted" if is_row_count else f"{rows} rows, counted",
        observed=rows if is_row_count else 0,
        limit=entry.limit,
        counted=True,
    )


def _believed(result: CheckResult, faults: int | None, rows: int) -> CheckResult:
    """Return the verdict of Great Expectations, failed when it contradicts a count."""
    if faults is None or not result.passed:
        return result
    return result.model_copy(
        update={
            "passed": False,
            "counted": True,
            "observed": faults,
            "detail": f"{faults} of {rows} rows break it by count, and Great Expectations finds "
            "none: neither is believed",
        }
    )
