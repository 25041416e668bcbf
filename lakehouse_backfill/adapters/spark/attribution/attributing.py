"""Computes a partition again with single inputs swapped: the Attributing port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import evolving, filters, readers
from lakehouse_backfill.adapters.spark.attribution import row_patterns
from lakehouse_backfill.adapters.spark.attribution.swapped_inputs import SwappedInputs
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.adapters.spark.staging.composing import ChunkComposer
from lakehouse_backfill.adapters.spark.staging.computing import TransformRunner
from lakehouse_backfill.adapters.spark.staging.inputs import PinnedInputs
from lakehouse_backfill.adapters.spark.staging.leaving_out import DeletedRowFilter
from lakehouse_backfill.core.evidence import attribution
from lakehouse_backfill.core.planning import catching_up
from lakehouse_backfill.domain import partitions, rules_schema_change
from lakehouse_backfill.domain.attribution import ComparedState, Factor
from lakehouse_backfill.domain.carrying import TableState
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.errors import BackfillError
from lakehouse_backfill.ports.attributing import InputSwapRequest, InputSwapResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class _CodeSide:
    """Who computes, into which columns."""

    plan: Plan
    target: StructType
    is_old: bool


class SparkAttributing:
    """Runs archived code on chosen pins; what it computes is compared, never stored."""

    def __init__(
        self, spark: SparkSession, catalog: str, code: Path | Callable[[Plan], Path]
    ) -> None:
        """`code` is the folder in which jobs lie, or gives that of a plan."""
        self._spark = spark
        self._catalog = catalog
        self._computing = TransformRunner(spark, code, PinnedInputs(spark, catalog))
        self._composing = ChunkComposer(spark, catalog)
        self._leaving_out = DeletedRowFilter(spark, catalog)

    def swap(self, request: InputSwapRequest) -> InputSwapResult:
        """Compute the states of a partition and compare them by key.

        A state that cannot be computed (old code on a new input) is left out, and a note says so.
        Raises what the code raises on inputs on which it ran before.
        """
        scope = Scope(field=request.new.resolved.scope.field, partitions=(request.partition,))
        with ExitStack() as stack:
            inputs = SwappedInputs(self._spark, self._catalog, request, scope)
            stack.callback(inputs.release)
            new = self._side(request.new, request.candidate, is_old=False)
            old: _CodeSide = new
            code: tuple[Factor, ...] = ()
            if request.old is not None and not attribution.is_same_code(request.old, request.new):
                before = request.published or request.replaced
                old = self._side(request.old, before, is_old=True)
                code = (Factor(cause="code"),)
            factors = (*code, *inputs.factors)
            frames, notes = self._states(request, scope, factors, inputs, (old, new), stack)
            compared = self._compared(request, frames)
            with spark_errors(f"comparing the states of {request.partition}"):
                found = row_patterns.find_patterns(compared)
        return InputSwapResult(factors, tuple(frames), found, inputs.changes, tuple(notes))

    def _side(self, plan: Plan, like: TableState, *, is_old: bool) -> _CodeSide:
        target = readers.read_table(self._spark, self._catalog, like.table, like.snapshot_id).schema
        self._computing.load(plan)
        return _CodeSide(plan, target, is_old)

    def _states(
        self,
        request: InputSwapRequest,
        scope: Scope,
        factors: tuple[Factor, ...],
        inputs: SwappedInputs,
        sides: tuple[_CodeSide, _CodeSide],
        stack: ExitStack,
    ) -> tuple[dict[ComparedState, DataFrame], list[str]]:
        """Give the frame of each state, oldest first, and what could not be computed."""
        has_code = any(factor.cause == "code" for factor in factors)
        whole = frozenset(range(len(factors)))
        found = {ComparedState("replaced"): self._stored(request, request.replaced, scope)}
        notes: list[str] = []
        if request.published is not None:
            found[ComparedState("published")] = self._stored(request, request.published, scope)
        for state in attribution.states_to_compute(len(factors)):
            side = sides[0] if has_code and 0 not in state.swapped else sides[1]
            swapped = tuple(factors[place] for place in sorted(state.swapped))
            try:
                rows = self._computed(side, scope, inputs, swapped, stack)
            except BackfillError as error:
                if state.swapped in (frozenset(), whole):
                    raise
                notes.append(f"{state.words(factors)} could not be computed: {error.problem}")
                continue
            change = rules_schema_change.declared_schema_change(request.new) if side.is_old else ()
            found[state] = evolving.apply_schema_change(rows, change)
        start, final = found[ComparedState("computed")], found[ComparedState("computed", whole)]
        found |= self._kept(ComparedState("was_kept"), request.old, start)
        found |= self._kept(ComparedState("kept"), request.new, final)
        found[ComparedState("candidate")] = self._read(request.candidate, scope)
        return found, notes

    def _computed(
        self,
        side: _CodeSide,
        scope: Scope,
        inputs: SwappedInputs,
        swapped: tuple[Factor, ...],
        stack: ExitStack,
    ) -> DataFrame:
        """Give what a side's code makes of its inputs with those of `swapped` new."""
        plan = inputs.plan(side.plan, swapped)
        frames = inputs.frames(side.plan, swapped)
        with spark_errors(f"computing {scope.partitions[0]} again"):
            output = self._computing.output(plan, scope, frames, side.target)
        composed = stack.enter_context(self._composing.composed(plan, scope, output, side.target))
        return composed.rows.where(filters.range_filter(partitions.scope_row_ranges(scope)))

    def _kept(
        self, state: ComparedState, plan: Plan | None, rows: DataFrame
    ) -> dict[ComparedState, DataFrame]:
        """Give what is left of a run's rows without those that it had to leave out, if any."""
        left_out = catching_up.excluded_rows(plan.resolved) if plan else None
        if left_out is None or left_out.is_empty:
            return {}
        return {state: self._leaving_out.kept(rows, left_out)}

    def _stored(self, request: InputSwapRequest, state: TableState, scope: Scope) -> DataFrame:
        """Give stored rows under the candidate's columns."""
        if state.snapshot_id is None:
            schema = readers.read_table(
                self._spark, self._catalog, request.candidate.table, request.candidate.snapshot_id
            ).schema
            return readers.empty_frame(self._spark, schema)
        change = rules_schema_change.declared_schema_change(request.new)
        return evolving.apply_schema_change(self._read(state, scope), change)

    def _read(self, state: TableState, scope: Scope) -> DataFrame:
        return readers.read_scope(self._spark, self._catalog, state.table, state.snapshot_id, scope)

    def _compared(
        self, request: InputSwapRequest, frames: Mapping[ComparedState, DataFrame]
    ) -> row_patterns.ComparedStates:
        """Cut all states to the columns that each of them has; lineage tells of runs, not rows."""
        common = [
            name
            for name in frames[ComparedState("candidate")].columns
            if name not in LINEAGE_NAMES and all(name in frame.columns for frame in frames.values())
        ]
        cut = [frame.select(*(quoted_column(name) for name in common)) for frame in frames.values()]
        key = request.new.resolved.contract.key
        return row_patterns.ComparedStates(
            cut, key if set(key) <= set(common) else (), request.samples
        )
