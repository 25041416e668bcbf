"""Computes partitions again with single inputs swapped: the Attributing port.

Each part of an input is read at the old pin or at the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.attribution import row_changes
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, quoted_column
from lakehouse_backfill.adapters.spark.pinned_inputs import PinnedInputs
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging.compose import ChunkComposer, DeletedRowFilter
from lakehouse_backfill.adapters.spark.staging.masks import SecretReader
from lakehouse_backfill.adapters.spark.staging.transform import TransformRunner
from lakehouse_backfill.core.evidence import attribution
from lakehouse_backfill.core.planning.inputs.pins import own_rows
from lakehouse_backfill.core.planning.inputs.read_windows import window_row_ranges, window_to_read
from lakehouse_backfill.core.planning.target import catch_up
from lakehouse_backfill.domain import partitions, plan
from lakehouse_backfill.domain.catch_up import TableState
from lakehouse_backfill.domain.comparison.attribution import (
    Cause,
    ComparedState,
    Factor,
    InputChange,
)
from lakehouse_backfill.domain.partitions import Scope, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.errors import BackfillError, Unsupported
from lakehouse_backfill.ports.compute import InputSwapRequest, InputSwapResult


class SwappedInputs:
    """Differences between old and new pins, and inputs with only some of them swapped.

    An input that only one of the runs reads has no other pin: it belongs to the run's code.
    """

    def __init__(self, tables: SparkTables, request: InputSwapRequest, scope: Scope) -> None:
        self._tables = tables
        self._inputs = PinnedInputs(tables)
        self._scope = scope
        self._new = {pin.name: pin for pin in request.new.resolved.sources}
        self._old = {pin.name: pin for pin in request.old_pins}
        self._parts: dict[str, row_changes.InputParts] = {}
        #: The counts of changed rows of each input with a changed pin.
        self.changes: tuple[InputChange, ...] = ()
        #: The factors that can be swapped, in the order of the inputs.
        self.factors: tuple[Factor, ...] = ()
        for name, new in self._new.items():
            old = self._old.get(name)
            if old is not None and (old.table, old.snapshot_id) != (new.table, new.snapshot_id):
                self._compare_pins(old, new, request.keys.get(name, ()))

    def plan_with_pins(self, plan: Plan, swapped: Sequence[Factor]) -> Plan:
        """Return the plan with new pins for swapped reference data, which its job context shows."""
        swapped_inputs = {each.input for each in swapped if each.cause == "reference"}
        pins = tuple(self._state_pin(pin, swapped_inputs) for pin in plan.resolved.sources)
        resolved = plan.resolved.model_copy(update={"sources": pins})
        return plan.model_copy(update={"resolved": resolved})

    def frames(self, plan: Plan, swapped: Sequence[Factor]) -> dict[str, DataFrame]:
        """Return every input that the plan reads: old rows, except for swapped factors."""
        return {pin.name: self._input_frame(pin, swapped) for pin in plan.resolved.sources}

    def release(self) -> None:
        """Release cached frames."""
        for parts in self._parts.values():
            parts.rows.unpersist()

    def _state_pin(self, pin: SourcePin, new: set[str | None]) -> SourcePin:
        """Return the pin that a state reads; an input of only one run keeps its own."""
        pins = self._new if pin.name in new else self._old
        return pins.get(pin.name, pin) if pin.role == "reference" else pin

    def _input_frame(self, pin: SourcePin, swapped: Sequence[Factor]) -> DataFrame:
        causes = {each.cause for each in swapped if each.input == pin.name}
        parts = self._parts.get(pin.name)
        if parts is not None:
            return _restrict_to_pin(parts.state_rows(causes), pin, self._scope)
        pins = self._new if causes else self._old
        chosen = pins.get(pin.name, pin)
        read_pin = pin.model_copy(update={"table": chosen.table, "snapshot_id": chosen.snapshot_id})
        return self._inputs.read_for_scope(read_pin, self._scope)

    def _compare_pins(self, old: SourcePin, new: SourcePin, key: Sequence[str]) -> None:
        if new.role == "reference":
            self._swap_whole(old, new, "reference", "swapped as a whole")
            return
        frames = self._read_wide(old, old, new), self._read_wide(new, old, new)
        if old.table != new.table or not row_changes.has_same_columns(
            frames[0].schema, frames[1].schema
        ):
            self._swap_whole(old, new, "upstream", "its columns changed: swapped as a whole")
            return
        parts = row_changes.split_input(self._tables, (old, new), frames, key)
        self._parts[new.name] = parts
        self.changes += (parts.input_change(old, new),)
        self.factors += tuple(Factor(cause=cause, input=new.name) for cause in parts.causes)

    def _swap_whole(self, old: SourcePin, new: SourcePin, cause: Cause, told_by: str) -> None:
        self.factors += (Factor(cause=cause, input=new.name),)
        change = InputChange(
            input=new.name, table=new.table, role=new.role, told_by=told_by,
            old_snapshot_id=old.snapshot_id, new_snapshot_id=new.snapshot_id,
        )  # fmt: skip
        self.changes += (change,)

    def _read_wide(self, pin: SourcePin, old: SourcePin, new: SourcePin) -> DataFrame:
        """Read, at a pin, the rows of the input that either of the two runs reads."""
        if old.range is None or new.range is None:
            return self._inputs.read_whole(pin)
        first = min(old.range.from_, new.range.from_, key=str)
        last = max(old.range.to, new.range.to, key=str)
        wide = {
            "range": new.range.model_copy(update={"from_": first, "to": last}),
            "warm_up_days": max(old.warm_up_days, new.warm_up_days),
            "cool_down_days": max(old.cool_down_days, new.cool_down_days),
            "partition_column": (
                old.partition_column if old.partition_column == new.partition_column else None
            ),
        }
        return self._inputs.read_for_scope(pin.model_copy(update=wide), self._scope)


def _restrict_to_pin(frame: DataFrame, pin: SourcePin, scope: Scope) -> DataFrame:
    """Restrict rows that were read for two pins to those that one pin reads."""
    if pin.range is None:
        return frame
    name, window = pin.range.column, window_to_read(pin, scope)
    kind = str(dataframes.iceberg_type(frame.schema, name))
    ranges = [window_row_ranges(kind, name, *window), own_rows(pin, scope)]
    for rows in filter(None, ranges):
        frame = frame.where(dataframes.is_in_ranges(rows))
    return frame


@dataclass(frozen=True)
class _CodeSide:
    """The plan whose code computes, and the columns of its output."""

    plan: Plan
    target: StructType
    is_old: bool


class SparkAttributing:
    """Runs archived code on chosen pins; the results are compared, never stored."""

    def __init__(
        self, tables: SparkTables, code: Callable[[Plan], Path], secret: SecretReader
    ) -> None:
        """Set up; `code` returns the folder of a plan's jobs, `secret` that of its masks."""
        self._tables = tables
        self._transform_runner = TransformRunner(tables, code, secret)
        self._chunk_composer = ChunkComposer(tables)
        self._deleted_row_filter = DeletedRowFilter(tables)

    def swap(self, request: InputSwapRequest) -> InputSwapResult:
        """Compute the states of the partitions and compare them by key, partition by partition.

        A state that cannot be computed (old code on a new input) is omitted, with a note. Errors
        of the all-old and the all-new state are raised: this code ran on these inputs before.
        """
        if request.new.resolved.manifest.stateful is not None:
            raise Unsupported(
                f"{request.new.run_id} is stateful: a state of swapped inputs is not kept",
                fix="compare the rows: lakehouse-backfill diff, without --attribute",
            )
        scope = Scope(field=request.new.resolved.scope.field, partitions=request.partitions)
        with ExitStack() as stack:
            inputs = SwappedInputs(self._tables, request, scope)
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
            compared = self._comparable_states(request, frames)
            what = partitions.describe_labels(request.partitions)
            with spark_errors(f"comparing the states of {what}"):
                patterns = row_changes.find_patterns(compared)
        return InputSwapResult(factors, tuple(frames), patterns, inputs.changes, tuple(notes))

    def _side(self, plan: Plan, like: TableState, *, is_old: bool) -> _CodeSide:
        target = self._tables.schema(like.table, like.snapshot_id)
        self._transform_runner.load(plan)
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
        """Return the frame of each state, oldest first, and notes on states that failed."""
        has_code = any(factor.cause == "code" for factor in factors)
        whole = frozenset(range(len(factors)))
        states = {ComparedState("replaced"): self._stored_rows(request, request.replaced, scope)}
        notes: list[str] = []
        if request.published is not None:
            states[ComparedState("published")] = self._stored_rows(
                request, request.published, scope
            )
        for state in attribution.states_to_compute(len(factors)):
            side = sides[0] if has_code and 0 not in state.swapped else sides[1]
            swapped = tuple(factors[place] for place in sorted(state.swapped))
            try:
                rows = self._computed_rows(side, scope, inputs, swapped, stack)
            except BackfillError as error:
                if state.swapped in (frozenset(), whole):
                    raise
                notes.append(f"{state.words(factors)} could not be computed: {error.problem}")
                continue
            change = plan.declared_schema_change(request.new) if side.is_old else ()
            states[state] = dataframes.apply_schema_change(rows, change)
        start, final = states[ComparedState("computed")], states[ComparedState("computed", whole)]
        states |= self._without_excluded(ComparedState("was_kept"), request.old, start)
        states |= self._without_excluded(ComparedState("kept"), request.new, final)
        candidate = request.candidate
        states[ComparedState("candidate")] = self._tables.read_scope(
            candidate.table, candidate.snapshot_id, scope
        )
        return states, notes

    def _computed_rows(
        self,
        side: _CodeSide,
        scope: Scope,
        inputs: SwappedInputs,
        swapped: tuple[Factor, ...],
        stack: ExitStack,
    ) -> DataFrame:
        """Run a side's code on its inputs, with the factors of `swapped` at the new pins."""
        plan = inputs.plan_with_pins(side.plan, swapped)
        frames = inputs.frames(side.plan, swapped)
        with spark_errors(f"computing {partitions.describe_labels(scope.partitions)} again"):
            output = self._transform_runner.run(plan, scope, frames, side.target)
        composed = stack.enter_context(
            self._chunk_composer.compose(plan, scope, output, side.target, is_strict=False)
        )
        return composed.rows.where(dataframes.range_filter(scope_row_ranges(scope)))

    def _without_excluded(
        self, state: ComparedState, plan: Plan | None, rows: DataFrame
    ) -> dict[ComparedState, DataFrame]:
        """Return a run's rows without those that it must exclude; empty when it excludes none."""
        excluded = catch_up.excluded_rows(plan.resolved) if plan else None
        if excluded is None or excluded.is_empty:
            return {}
        return {state: self._deleted_row_filter.drop_excluded(rows, excluded)}

    def _stored_rows(self, request: InputSwapRequest, state: TableState, scope: Scope) -> DataFrame:
        """Read stored rows under the candidate's columns."""
        if state.snapshot_id is None:
            candidate = request.candidate
            schema = self._tables.schema(candidate.table, candidate.snapshot_id)
            return self._tables.empty_frame(schema)
        rows = self._tables.read_scope(state.table, state.snapshot_id, scope)
        change = plan.declared_schema_change(request.new)
        return dataframes.apply_schema_change(rows, change)

    def _comparable_states(
        self, request: InputSwapRequest, frames: Mapping[ComparedState, DataFrame]
    ) -> row_changes.ComparedStates:
        """Restrict all states to their common columns, without lineage columns."""
        common = [
            name
            for name in frames[ComparedState("candidate")].columns
            if name not in LINEAGE_NAMES and all(name in frame.columns for frame in frames.values())
        ]
        field = request.new.resolved.scope.field
        label = dataframes.raw_label(field).alias(row_changes.PARTITION_COLUMN)
        restricted = [
            frame.select(*(quoted_column(name) for name in common), label)
            for frame in frames.values()
        ]
        key = request.new.resolved.contract.key
        return row_changes.ComparedStates(
            restricted, key if set(key) <= set(common) else (), request.samples, field
        )
