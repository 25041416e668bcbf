"""What is known of the base of a run before a row of it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse_backfill.core.comparison import fingerprinting
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.validation import unusual
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Scope


@dataclass(frozen=True)
class KnownBase:
    """What is known of the base without reading a row; `before` are partitions of its history."""

    base: fingerprinting.FingerprintedState
    is_whole: bool
    before: tuple[str, ...]
    #: Values by partition and measure; None: they have to be read.
    counts: dict[str, tuple[int, ...]] | None

    @property
    def unread(self) -> tuple[str, ...]:
        """The partitions of its history whose measures have to be read."""
        return self.before if self.counts is None else ()

    def history(
        self, measures: Sequence[Measure], read: unusual.MeasuresByLabel
    ) -> unusual.MeasuresByLabel:
        """Give rows and measures of the earlier partitions: what was read, if it had to be."""
        if measures and self.counts is None:
            return read
        return unusual.rows_by_partition(self.before, self.base.files, measures, self.counts or {})

    def counts_of(self, scope: Scope) -> dict[str, tuple[int, ...]] | None:
        """Give the values of the scope's own partitions."""
        if self.counts is None:
            return None
        return {each: self.counts[each] for each in scope.partitions if each in self.counts}


def look_up_base(bench: Context, plan: Plan, measures: tuple[Measure, ...]) -> KnownBase:
    """Look at the base; under other columns a file reads as other rows."""
    scope, target = plan.resolved.scope, plan.resolved.target
    change, named = (
        rules_schema_change.declared_schema_change(plan),
        {each.count for each in measures if each.count},
    )
    base = fingerprinting.look_up_fingerprints(
        bench, target.table, target.snapshot_id, scope, rely=not change, counting=named
    )
    is_whole, before = base.is_known and not change, unusual.history_partitions(plan, base.files)
    labels = (*scope.partitions, *before)
    counts = unusual.values_by_partition(labels, base.files, measures) if is_whole else None
    return KnownBase(base, is_whole, before, counts)
