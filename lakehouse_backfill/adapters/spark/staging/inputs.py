"""The pinned inputs of a plan as DataFrames, cut to what a set of partitions needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import readers
from lakehouse_backfill.core.planning import windows
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.scope import RowRange, Scope
from lakehouse_backfill.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Iceberg reads up to 16 MiB in one task, while the other cores have nothing to do.
_SMALL_BYTES = 64 * 1024 * 1024
_SMALL_SPLITS = {"split-size": str(4 * 1024 * 1024)}
_ICEBERG_TIME_TYPES = {"date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}


class PinnedInputs:
    """Reads the pinned inputs of plans; nothing that was committed after a pin is ever seen."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def whole(self, pin: SourcePin, options: Mapping[str, str] | None = None) -> DataFrame:
        """Give all rows of the pinned snapshot."""
        return readers.read_table(self._spark, self._catalog, pin.table, pin.snapshot_id, options)

    def declared(self, pin: SourcePin) -> DataFrame:
        """Give the rows that the run may read at most; reference data whole."""
        if pin.range is None:
            return self.whole(pin)
        first, last = windows.to_utc_instant(pin.range.from_), windows.to_utc_instant(pin.range.to)
        return self._between(pin, pin.range.column, first, last)

    def needed(
        self, pin: SourcePin, scope: Scope, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Give the rows that the scope needs, warm-up included, inside the declared range."""
        if pin.range is None:
            return self.whole(pin, options)
        first, last = windows.window_to_read(pin, scope)
        return self._between(pin, pin.range.column, first, last, options)

    def frames(self, plan: Plan, scope: Scope) -> dict[str, DataFrame]:
        """Give every input of the plan by name, cut to what the scope needs."""
        options = _SMALL_SPLITS if plan.estimate.input_bytes <= _SMALL_BYTES else {}
        return {pin.name: self.needed(pin, scope, options) for pin in plan.resolved.sources}

    def count(self, plan: Plan, frames: dict[str, DataFrame]) -> int:
        """Count the rows of the sources (not of reference data), mostly from metadata.

        A query of its own: an Observation on the input would keep Spark from pushing the
        transform's filters down to the files, and is lost when a join comes out empty.
        """
        from pyspark.sql import functions as F

        counted = [
            frames[pin.name].agg(F.count(F.lit(1)).alias("n"))
            for pin in plan.resolved.sources
            if pin.role == "source"
        ]
        if not counted:
            return 0
        union = counted[0]
        for one in counted[1:]:
            union = union.unionAll(one)
        return sum(int(row["n"]) for row in union.collect())

    def restricted(self, pin: SourcePin, frame: DataFrame, rows: Sequence[RowRange]) -> DataFrame:
        """Keep the rows of a pinned input that lie in any of the ranges."""
        return readers.restrict_to_ranges(self._spark, self._catalog, pin.table, frame, rows)

    def _between(
        self,
        pin: SourcePin,
        name: str,
        first: datetime,
        last: datetime,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        frame = self.whole(pin, options)
        field = next((field for field in frame.schema.fields if field.name == name), None)
        if field is None:
            raise NotFound(f"{pin.table} has no column {name}, by which {pin.name} is cut")
        kind = _ICEBERG_TIME_TYPES.get(field.dataType.typeName())
        if kind is None:
            raise ConfigError(
                f"sources.{pin.name}.range.column {name} is of type {field.dataType.typeName()}",
                fix="name a date or timestamp column",
            )
        return self.restricted(pin, frame, windows.window_row_ranges(kind, name, first, last))


def find_pin(plan: Plan, name: str) -> SourcePin:
    """Give the pin of the input called `name`; raises NotFound."""
    for pin in plan.resolved.sources:
        if pin.name == name:
            return pin
    known = ", ".join(pin.name for pin in plan.resolved.sources)
    raise NotFound(f"the run has no input {name}", fix=f"its inputs are {known}")
