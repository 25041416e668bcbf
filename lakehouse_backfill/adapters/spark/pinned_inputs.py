"""Reads the pinned inputs of plans: the rows that partitions need, and no commit after a pin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial, reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, quoted_column
from lakehouse_backfill.adapters.spark.stateful import lateness
from lakehouse_backfill.core.planning.inputs.pins import own_rows
from lakehouse_backfill.core.planning.inputs.read_windows import (
    TIME_TYPES,
    window_row_ranges,
    window_to_read,
)
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.partitions import RowRange, Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.stateful.declaration import LATE_COLUMN, Stateful
from lakehouse_backfill.errors import ConfigError, NotFound

#: Iceberg reads up to 16 MiB in one task; small inputs would leave other cores idle.
_SMALL_BYTES = 64 * 1024 * 1024


_SMALL_SPLITS = {"split-size": str(4 * 1024 * 1024)}


class PinnedInputs:
    """Reads the pinned inputs of plans; commits after a pin are never visible."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables

    def read_whole(self, pin: SourcePin, options: Mapping[str, str] | None = None) -> DataFrame:
        """Read all rows of the pinned snapshot."""
        return self._tables.read(pin.table, pin.snapshot_id, options)

    def read_declared_range(self, pin: SourcePin) -> DataFrame:
        """Read the rows of the declared range; reference data as a whole."""
        if pin.range is None:
            return self.read_whole(pin)
        window = as_instant(pin.range.from_), as_instant(pin.range.to)
        return self._read_window(pin, pin.range.column, window)

    def read_for_scope(
        self, pin: SourcePin, scope: Scope, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Read the rows that the scope needs, warm-up included, inside the declared range."""
        if pin.range is None:
            return self.read_whole(pin, options)
        window = window_to_read(pin, scope)
        frame = self._read_window(pin, pin.range.column, window, options)
        own = own_rows(pin, scope)
        return self._tables.restrict_to_ranges(pin.table, frame, own) if own else frame

    def frames_for_scope(
        self,
        plan: Plan,
        scope: Scope,
        pins: tuple[SourcePin, ...] | None = None,
        change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> dict[str, DataFrame]:
        """Return every input of the plan by name, restricted to the rows that the scope needs.

        Those of a stateful run begin behind the state that they start from, with late rows as its
        watermark policy says. `pins` take the place of the plan's; `change` is applied to what is
        read.
        """
        options = _SMALL_SPLITS if plan.estimate.input_bytes <= _SMALL_BYTES else {}
        wanted, has_warm_up = states.labels_to_read(plan.resolved, scope)
        found = {}
        for pin in plan.resolved.sources if pins is None else pins:
            mine = states.read_pin(pin, has_warm_up=has_warm_up)
            frame = change(self.read_for_scope(mine, wanted, options))
            found[pin.name] = self._as_declared(plan, mine, wanted, frame)
        return found

    def _as_declared(
        self, plan: Plan, pin: SourcePin, wanted: Scope, frame: DataFrame
    ) -> DataFrame:
        """Apply the watermark policy of a stateful run to the source that it is about."""
        declared = plan.resolved.manifest.stateful
        if declared is None or pin.name != states.watermark_source(plan.resolved):
            return frame
        return lateness.apply_policy(declared, frame, self._marked(declared, pin, wanted, frame))

    def _marked(
        self, declared: Stateful, pin: SourcePin, wanted: Scope, frame: DataFrame
    ) -> DataFrame | None:
        cut = lateness.Cut.of(pin.range.column if pin.range else "", wanted.field)
        whole = partial(self.read_declared_range, pin)
        return lateness.with_late_marks(declared, frame, cut, whole)

    def count_late(self, plan: Plan, scope: Scope) -> int | None:
        """Count the late rows in the input of some partitions; None where no row can be late."""
        declared = plan.resolved.manifest.stateful
        if declared is None:
            return None
        wanted, has_warm_up = states.labels_to_read(plan.resolved, scope)
        name = states.watermark_source(plan.resolved)
        pin = states.read_pin(find_pin(plan, name), has_warm_up=has_warm_up)
        marked = self._marked(declared, pin, wanted, self.read_for_scope(pin, wanted))
        return None if marked is None else marked.where(quoted_column(LATE_COLUMN)).count()

    def count_source_rows(self, plan: Plan, scope: Scope, frames: dict[str, DataFrame]) -> int:
        """Count the rows of the sources (not of reference data) that the scope needs.

        Metadata tells it where whole files are read. Else the count is a separate query: an
        Observation on the input would prevent Spark from pushing the transform's filters down to
        the files, and is lost when a join is empty.
        """
        total, unknown = 0, list[DataFrame]()
        for pin in plan.resolved.sources:
            if pin.role == "source":
                # What a stateful run reads follows from its state and its late rows.
                is_plain = plan.resolved.manifest.stateful is None
                known = self._count_by_metadata(pin, scope, frames[pin.name]) if is_plain else None
                total += known or 0
                if known is None:
                    unknown.append(frames[pin.name].agg(F.count(F.lit(1)).alias("n")))
        if not unknown:
            return total
        union = reduce(lambda one, other: one.unionAll(other), unknown)
        return total + sum(int(row["n"]) for row in union.collect())

    def _count_by_metadata(self, pin: SourcePin, scope: Scope, frame: DataFrame) -> int | None:
        """Count what `read_for_scope` reads; None where its rows must be read."""
        if self._tables.counted is None or pin.partition_column is not None:
            return None
        rows: tuple[RowRange, ...] = ()
        if pin.range is not None:
            kind = dataframes.iceberg_type(frame.schema, pin.range.column)
            window = window_to_read(pin, scope)
            rows = window_row_ranges(str(kind), pin.range.column, *window)
        return self._tables.counted(pin.table, pin.snapshot_id, rows)

    def _read_window(
        self,
        pin: SourcePin,
        name: str,
        window: tuple[datetime, datetime],
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        frame = self.read_whole(pin, options)
        if name not in frame.columns:
            raise NotFound(f"{pin.table} has no column {name}, by which {pin.name} is cut")
        kind = dataframes.iceberg_type(frame.schema, name)
        if kind is None or kind not in TIME_TYPES:
            raise ConfigError(
                f"sources.{pin.name}.range.column {name} is of type "
                f"{frame.schema[name].dataType.typeName()}",
                fix="name a date or timestamp column",
            )
        rows = window_row_ranges(kind, name, *window)
        return self._tables.restrict_to_ranges(pin.table, frame, rows)


def find_pin(plan: Plan, name: str) -> SourcePin:
    """Return the pin of the input `name`; raises NotFound."""
    for pin in plan.resolved.sources:
        if pin.name == name:
            return pin
    known = ", ".join(pin.name for pin in plan.resolved.sources)
    raise NotFound(f"the run has no input {name}", fix=f"its inputs are {known}")
