"""Counts rows of pinned inputs and of single chunks: the Inspecting port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import quoted_column, spark_errors
from lakehouse_backfill.adapters.spark.staging.transform import PinnedInputs, find_pin
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkFacts, Period
from lakehouse_backfill.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LABEL, _ROWS, _TWICE, _NULLS = "lhb_label", "lhb_rows", "lhb_twice", "lhb_nulls_"
_ICEBERG_TIME_TYPES = {"date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}


class SparkInspecting:
    """Aggregates about many rows; nothing large is collected or cached."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._inputs = PinnedInputs(spark, catalog)

    def periods(self, plan: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Return the labels of hours, days or months with a row, in the part that the run reads.

        The cost is one aggregate over one column. Raises NotFound for an input without a range,
        ConfigError for hours of a date column.
        """
        pin = find_pin(plan, name)
        if pin.range is None:
            raise NotFound(f"{name} is read whole: it has no range that could have gaps")
        frame = self._inputs.read_for_scope(pin, plan.resolved.scope)
        kind = _ICEBERG_TIME_TYPES.get(frame.schema[pin.range.column].dataType.typeName())
        if kind == "date" and unit == "hour":
            raise ConfigError(
                f"sources.{name}.complete is hour, but {pin.range.column} holds dates",
                fix="write day or month",
            )
        field = ScopeField.model_validate(
            {"column": pin.range.column, "transform": unit, "type": kind}
        )
        with spark_errors(f"looking for gaps in {name}"):
            labels = frame.select(dataframes.raw_label(field).alias(_LABEL)).distinct().collect()
        return tuple(sorted(dataframes.format_label(field, row[_LABEL]) for row in labels))

    def chunk(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> ChunkFacts:
        """Count a chunk's rows in the shadow, null keys and duplicate keys.

        Only key columns are read, in one pass when the key contains the partition column.
        """
        frame, field = self.rows(plan, chunk, snapshot_id), plan.resolved.scope.field
        key = plan.resolved.contract.key
        with spark_errors(f"checking chunk {chunk.chunk_id}"):
            if not key or field.column in key:
                by_partition = _key_facts_by_partition(frame, field, key)
                duplicates = sum(row[_TWICE] for row in by_partition)
            else:
                by_partition = _key_facts_by_partition(frame, field, key, keys_lie_inside=False)
                duplicates = _duplicates(frame, key)
        nulls = {
            name: sum(row[f"{_NULLS}{at}"] for row in by_partition) for at, name in enumerate(key)
        }
        return ChunkFacts(
            rows={dataframes.format_label(field, row[_LABEL]): row[_ROWS] for row in by_partition},
            null_keys={name: count for name, count in nulls.items() if count},
            duplicate_keys=duplicates,
        )

    def snapshot(self, table: str, snapshot_id: int | None, scope: Scope | None) -> DataFrame:
        """Return the rows of a table at a snapshot, all or of some partitions, for the suites."""
        if scope is None:
            return dataframes.read_table(self._spark, self._catalog, table, snapshot_id)
        return dataframes.read_scope(self._spark, self._catalog, table, snapshot_id, scope)

    def visible(self, table: str, snapshot_id: int, scope: Scope) -> DataFrame:
        """Return the rows of some partitions of a table as its readers see them, for the suites."""
        return dataframes.read_scope(self._spark, self._catalog, table, snapshot_id, scope)

    def rows(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> DataFrame:
        """Return a chunk's rows in the shadow, for the suites."""
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        return dataframes.read_scope(
            self._spark, self._catalog, plan.shadow_table, snapshot_id, scope
        )


def _key_facts_by_partition(
    frame: DataFrame, field: ScopeField, key: tuple[str, ...], *, keys_lie_inside: bool = True
) -> list[Any]:
    """Return one row per partition: its rows, nulls by key column, duplicate keys.

    With `keys_lie_inside`, no key spans two partitions: the rows are counted by key first, and
    duplicates are exact.
    """
    from pyspark.sql import functions as F

    key_columns = [quoted_column(name).alias(f"lhb_key_{at}") for at, name in enumerate(key)]
    rows = frame.select(dataframes.raw_label(field).alias(_LABEL), *key_columns)
    count = F.lit(1)
    if keys_lie_inside and key:
        rows = rows.groupBy(*rows.columns).agg(F.count(F.lit(1)).alias(_ROWS))
        count = quoted_column(_ROWS)
    nulls = [
        F.sum(F.when(quoted_column(f"lhb_key_{at}").isNull(), count).otherwise(0)).alias(
            f"{_NULLS}{at}"
        )
        for at in range(len(key))
    ]
    duplicates = F.sum(F.when(count > 1, 1).otherwise(0)).alias(_TWICE)
    return rows.groupBy(_LABEL).agg(F.sum(count).alias(_ROWS), duplicates, *nulls).collect()


def _duplicates(frame: DataFrame, key: tuple[str, ...]) -> int:
    from pyspark.sql import functions as F

    counted = frame.groupBy(*(quoted_column(name) for name in key)).agg(
        F.count(F.lit(1)).alias(_ROWS)
    )
    return int(counted.where(quoted_column(_ROWS) > 1).count())
