"""What validation reads of the base and of the candidate: each row once where one pass can tell.

The diff reads both sides where they differ, and adds them up as it goes. What it does not read is
measured beside it: earlier partitions, and all of both sides where their rows are Spark's to add up
(nested values, wide decimals, sums of floating-point numbers) or a schema change is declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.comparison.diff import candidate_request, choose_diff
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import anomalies, gates
from lakehouse_backfill.core.validation.partition_totals import measured_sides
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.schema_change import added_column_names
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.ports.comparison import ReadSides, SummedDiff
from lakehouse_backfill.ports.compute import MeasuredSides, Measuring


@dataclass(frozen=True)
class KnownBase:
    """What is known of the base without reading a row; `history_labels` are earlier partitions."""

    base: fingerprints.FingerprintedState
    is_fully_known: bool
    history_labels: tuple[str, ...]
    #: Values by partition and measure; None: they must be read.
    counts: dict[str, tuple[int, ...]] | None

    def earlier_measures(
        self, measures: Sequence[Measure], read: anomalies.MeasuresByLabel
    ) -> anomalies.MeasuresByLabel:
        """Return rows and measures of the earlier partitions; `read` where they had to be read."""
        if measures and self.counts is None:
            return read
        return anomalies.rows_by_partition(
            self.history_labels, self.base.files, measures, self.counts or {}
        )

    def scope_counts(self, scope: Scope) -> dict[str, tuple[int, ...]] | None:
        """Return the counted values of the scope's own partitions."""
        if self.counts is None:
            return None
        return {label: self.counts[label] for label in scope.partitions if label in self.counts}


def look_up_base(context: Context, plan: Plan, measures: tuple[Measure, ...]) -> KnownBase:
    """Look up what is known of the base.

    With a declared schema change nothing counts as known: a file reads as other rows.
    """
    scope, target = plan.resolved.scope, plan.resolved.target
    change = declared_schema_change(plan)
    counted_columns = {measure.count for measure in measures if measure.count}
    base = fingerprints.look_up_fingerprints(
        context, target.table, target.snapshot_id, scope, rely=not change, counting=counted_columns
    )
    is_whole, history = base.is_known and not change, anomalies.history_partitions(plan, base.files)
    labels = (*scope.partitions, *history)
    counts = anomalies.values_by_partition(labels, base.files, measures) if is_whole else None
    return KnownBase(base, is_whole, history, counts)


#: Differing rows of each kind that are kept as examples.
MAX_DIFF_SAMPLES = 10


@dataclass(frozen=True)
class SidesReading:
    """What is read of both sides of a run, and by whom."""

    plan: Plan
    known: KnownBase
    shadow: TableInfo
    #: Those of the contract, and of lineage columns.
    measures: tuple[Measure, ...]

    def start(
        self, context: Context, measuring: Measuring, pool: ThreadPoolExecutor
    ) -> tuple[Future[SummedDiff], Future[MeasuredSides]]:
        """Start the reading; return the diff, and checksums and totals of both sides.

        The pool has a thread for each. They are independent tasks where the diff cannot add up the
        rows, and each alone leaves part of the machine idle.
        """
        request = candidate_request(context, self.plan, self.shadow.snapshot_id, MAX_DIFF_SAMPLES)
        chosen = choose_diff(context, replace(request, read_sides=self.wanted_sums()))
        diff = pool.submit(chosen.compute)
        if not chosen.adds_up:
            return diff, pool.submit(self._measure, measuring)
        return diff, pool.submit(self._take_sums, measuring, diff)

    def wanted_sums(self) -> ReadSides | None:
        """Return what the diff is to add up; None where the base is read as other rows."""
        if declared_schema_change(self.plan):
            return None
        if not self.known.is_fully_known:
            return ReadSides(self.measures, self._ignored, "hashed")
        if self.measures and self._counts is None:
            return ReadSides(self.measures, self._ignored, "measured")
        return ReadSides(self.measures, self._ignored)

    def _take_sums(self, measuring: Measuring, diff: Future[SummedDiff]) -> MeasuredSides:
        """Return what the diff added up; measure it where it could not."""
        earlier = self._measure(measuring, only_earlier=True).earlier if self._unread else {}
        _, new, old = diff.result()
        if new is None:
            return self._measure(measuring)
        found = measured_sides(
            self.measures, self.plan.resolved.scope, old, new,
            has_old=self._old[1] is not None, has_new=self.shadow.snapshot_id is not None,
            old_is_known=self.known.is_fully_known, old_measures=self._counts,
        )  # fmt: skip
        return replace(found, earlier=earlier)

    def _measure(self, measuring: Measuring, *, only_earlier: bool = False) -> MeasuredSides:
        """Read both sides, as far as they are not known, or the base's earlier partitions alone."""
        new = self.shadow.table, None if only_earlier else self.shadow.snapshot_id
        return measuring.measure(
            self._old, new, self.plan.resolved.scope, self.measures, self._ignored,
            declared_schema_change(self.plan),
            old_is_known=only_earlier or self.known.is_fully_known,
            old_measures={} if only_earlier else self._counts,
            earlier=self._unread,
        )  # fmt: skip

    @property
    def _old(self) -> tuple[str, int | None]:
        target = self.plan.resolved.target
        return target.table, target.snapshot_id

    @property
    def _ignored(self) -> tuple[str, ...]:
        return (*LINEAGE_NAMES, *added_column_names(declared_schema_change(self.plan)))

    @cached_property
    def _counts(self) -> dict[str, tuple[int, ...]] | None:
        return self.known.scope_counts(self.plan.resolved.scope)

    @property
    def _unread(self) -> tuple[str, ...]:
        """The earlier partitions whose rows must be read."""
        declared = self.plan.resolved.contract.measures
        return self.known.history_labels if declared and self.known.counts is None else ()


def lineage_counts(plan: Plan) -> tuple[Measure, ...]:
    """Return a count of each lineage column: each must have as many values as there are rows."""
    names = gates.REQUIRED_LINEAGE if plan.resolved.contract.lineage_columns else ()
    return tuple(Measure(name=name, count=name) for name in names)
