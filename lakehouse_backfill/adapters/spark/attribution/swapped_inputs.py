"""The inputs of two pins, mixed: each part as it is at the old pin, or at the new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters
from lakehouse_backfill.adapters.spark.attribution import input_parts
from lakehouse_backfill.adapters.spark.staging.inputs import PinnedInputs
from lakehouse_backfill.core.planning import windows
from lakehouse_backfill.domain.attribution import Factor, InputChange
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.ports.attributing import InputSwapRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ICEBERG_TIME_TYPES = {"date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}


class SwappedInputs:
    """What differs between the pins, and inputs with only some of that swapped.

    An input that only one of the runs reads belongs to its code: it has no other pin.
    """

    def __init__(
        self, spark: SparkSession, catalog: str, request: InputSwapRequest, scope: Scope
    ) -> None:
        self._inputs = PinnedInputs(spark, catalog)
        self._scope = scope
        self._new = {pin.name: pin for pin in request.new.resolved.sources}
        self._old = {pin.name: pin for pin in request.old_pins}
        self._parts: dict[str, input_parts.InputParts] = {}
        self._changes: list[InputChange] = []
        self._factors: list[Factor] = []
        for name, new in self._new.items():
            old = self._old.get(name)
            if old is not None and (old.table, old.snapshot_id) != (new.table, new.snapshot_id):
                self._compare(spark, catalog, (old, new), request.keys.get(name, ()))

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Name what can be swapped, in the order of the inputs."""
        return tuple(self._factors)

    @property
    def changes(self) -> tuple[InputChange, ...]:
        """Say in numbers what came to each input of which the pin moved."""
        return tuple(self._changes)

    def plan(self, plan: Plan, swapped: Sequence[Factor]) -> Plan:
        """Give the plan with the reference data that is new pinned, as its context names it."""
        wanted = {each.input for each in swapped if each.cause == "reference"}
        pins = tuple(self._pin(pin, wanted) for pin in plan.resolved.sources)
        resolved = plan.resolved.model_copy(update={"sources": pins})
        return plan.model_copy(update={"resolved": resolved})

    def frames(self, plan: Plan, swapped: Sequence[Factor]) -> dict[str, DataFrame]:
        """Give every input that the plan reads; old ones, but for what is swapped."""
        return {pin.name: self._frame(pin, swapped) for pin in plan.resolved.sources}

    def release(self) -> None:
        """Let go of what is kept in memory."""
        for parts in self._parts.values():
            parts.rows.unpersist()

    def _pin(self, pin: SourcePin, new: set[str | None]) -> SourcePin:
        """Give the pin that a state reads; an input that only one run has keeps its own."""
        pins = self._new if pin.name in new else self._old
        return pins.get(pin.name, pin) if pin.role == "reference" else pin

    def _frame(self, pin: SourcePin, swapped: Sequence[Factor]) -> DataFrame:
        mine = {each.cause for each in swapped if each.input == pin.name}
        known = self._parts.get(pin.name)
        if known is not None:
            return _restrict_to_pin(known.state(mine), pin, self._scope)
        pins = self._new if mine else self._old
        chosen = pins.get(pin.name, pin)
        read = pin.model_copy(update={"table": chosen.table, "snapshot_id": chosen.snapshot_id})
        return self._inputs.needed(read, self._scope)

    def _compare(
        self,
        spark: SparkSession,
        catalog: str,
        pins: tuple[SourcePin, SourcePin],
        key: Sequence[str],
    ) -> None:
        old, new = pins
        if new.role == "reference":
            self._whole(pins, Factor(cause="reference", input=new.name), "swapped as a whole")
            return
        frames = (self._window(old, pins), self._window(new, pins))
        if old.table != new.table or not input_parts.has_same_columns(*frames):
            factor = Factor(cause="upstream", input=new.name)
            self._whole(pins, factor, "its columns changed: swapped as a whole")
            return
        parts = input_parts.split_input(spark, catalog, pins, frames, key)
        self._parts[new.name] = parts
        self._changes.append(parts.change(old, new))
        self._factors += [Factor(cause=cause, input=new.name) for cause in parts.causes]

    def _whole(self, pins: tuple[SourcePin, SourcePin], factor: Factor, told_by: str) -> None:
        old, new = pins
        self._factors.append(factor)
        self._changes.append(
            InputChange(
                input=new.name, table=new.table, role=new.role, told_by=told_by,
                old_snapshot_id=old.snapshot_id, new_snapshot_id=new.snapshot_id,
            )
        )  # fmt: skip

    def _window(self, pin: SourcePin, pins: tuple[SourcePin, SourcePin]) -> DataFrame:
        """Give what either of the two runs would read of the input at a pin."""
        old, new = pins
        if old.range is None or new.range is None:
            return self._inputs.whole(pin)
        wide = new.range.model_copy(
            update={
                "from_": min(old.range.from_, new.range.from_, key=str),
                "to": max(old.range.to, new.range.to, key=str),
            }
        )
        widest = pin.model_copy(
            update={
                "range": wide,
                "warm_up_days": max(old.warm_up_days, new.warm_up_days),
                "cool_down_days": max(old.cool_down_days, new.cool_down_days),
            }
        )
        return self._inputs.needed(widest, self._scope)


def _restrict_to_pin(frame: DataFrame, pin: SourcePin, scope: Scope) -> DataFrame:
    """Give of rows that were read for two pins what one of them reads."""
    if pin.range is None:
        return frame
    name = pin.range.column
    kind = _ICEBERG_TIME_TYPES[frame.schema[name].dataType.typeName()]
    first, last = windows.window_to_read(pin, scope)
    return frame.where(filters.is_in_ranges(windows.window_row_ranges(kind, name, first, last)))
