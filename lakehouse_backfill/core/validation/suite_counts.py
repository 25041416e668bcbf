"""Suites judged by counts: Great Expectations judges what no count covers, and what a count fails.

An expectation that counts as a rule of rows is judged by the number of rows that break it. When
there are none it passes, and the result says that it was counted. Otherwise Great Expectations
judges the same rows, for its report and its examples; a verdict that contradicts the count fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult
from lakehouse_backfill.domain.contract import Assumption, SuiteRef
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.quality.row_rules import RowCount, RowRule, SuiteEntry
from lakehouse_backfill.ports.compute import ComputePorts, Frame


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
