"""The suites of the output, on the restated partitions: all of them over one read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lakehouse_backfill.core.runs.workbench import ComputePorts, Context
from lakehouse_backfill.core.validation.spent import ValidationTiming
from lakehouse_backfill.core.validation.suites import declared_suites, suite_parameters
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.ports.clock import Clock


@dataclass
class Stopwatch:
    """Tells how long a judgement took, and how long its suites did."""

    clock: Clock
    suites_s: float = 0.0
    _since: Any = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock.now()

    def spent(self, bench: Context, run_id: str) -> ValidationTiming:
        """Give what was spent until now, and on the chunks of the run before that."""
        staged = sum(chunk.seconds for chunk in bench.ledger.chunks(run_id))
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
