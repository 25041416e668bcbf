"""Proofs of a transform before its run: enough warm-up, and no dependence on the order of rows.

Computes the same output twice: with rows of the inputs and shuffles in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructType

from lakehouse_backfill.adapters.spark import row_hash
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, quoted_column
from lakehouse_backfill.adapters.spark.pinned_inputs import PinnedInputs
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging.transform import TransformRunner
from lakehouse_backfill.core.planning.inputs.read_windows import needed_window, range_covers_scope
from lakehouse_backfill.domain.comparison.checksums import Checksum, Repetition
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin, declared_schema_change
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.errors import ConfigError, Unsupported


class TransformProofs:
    """Computes a partition in two ways that must give the same rows; writes nothing."""

    def __init__(
        self, tables: SparkTables, inputs: PinnedInputs, transform_runner: TransformRunner
    ) -> None:
        self._tables = tables
        self._inputs = inputs
        self._transform_runner = transform_runner

    def prove_warm_up(self, plan: Plan, label: str) -> tuple[Checksum, Checksum]:
        """Compute one partition with the declared warm-up and with twice as much.

        Raises ConfigError when the declared ranges do not cover the doubled warm-up: reading less
        would prove nothing. Raises Unsupported when the target does not exist yet, or when the run
        changes its columns.
        """
        start = plan.resolved.state_start
        if start is not None and not start.warm_up:
            raise Unsupported(
                f"the run reads no warm-up: {start.why}", fix="plan without --prove-warm-up"
            )
        scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
        target = self._schema_for_proof(plan, "--prove-warm-up")
        doubled = tuple(_doubled(pin, scope) for pin in plan.resolved.sources)
        with spark_errors("proving the warm-up"):
            declared, twice = (
                row_hash.frame_checksum(
                    self._transform_runner.compute_partitions(plan, scope, target, pins),
                    LINEAGE_NAMES,
                )
                for pins in (plan.resolved.sources, doubled)
            )
        return declared, twice

    def prove_determinism(self, plan: Plan, label: str) -> Repetition:
        """Compute one partition twice, with rows and shuffles in another order.

        Raises Unsupported as `prove_warm_up` does.
        """
        scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
        target = self._schema_for_proof(plan, "--prove-determinism")

        def build(change: Callable[[DataFrame], DataFrame]) -> DataFrame:
            frames = self._inputs.frames_for_scope(plan, scope, change=change)
            frames |= self._transform_runner.intermediate_frames(plan, change)
            output = self._transform_runner.run(plan, scope, frames, target)
            return self._transform_runner.in_scope(plan, scope, output).drop(*LINEAGE_NAMES)

        with spark_errors("proving that the transform is deterministic"):
            return compare_repeated(self._tables.spark, build)

    def _schema_for_proof(self, plan: Plan, option: str) -> StructType:
        """Return the columns of the target's output; raises Unsupported when no table has them."""
        base = plan.resolved.target
        if base.uuid is None:
            raise Unsupported(
                f"{base.table} does not exist yet, so nothing says what the output must look like",
                fix=f"plan without {option}",
            )
        if declared_schema_change(plan):
            raise Unsupported(
                f"the run changes columns of {base.table}, which no table has yet",
                fix=f"plan without {option}",
            )
        return self._tables.schema(base.table)


def _doubled(pin: SourcePin, scope: Scope) -> SourcePin:
    if pin.range is None:
        return pin
    doubled_pin = pin.model_copy(
        update={
            "warm_up_days": max(2 * pin.warm_up_days, 1),
            "cool_down_days": 2 * pin.cool_down_days,
        }
    )
    window = needed_window(doubled_pin, scope)
    if window is not None and not range_covers_scope(doubled_pin, scope):
        first, last = window[0].date(), window[1].date() + timedelta(days=1)
        raise ConfigError(
            f"twice the warm-up of {pin.name} lies outside its declared range",
            fix=f"declare sources.{pin.name}.range from {first} to {last}",
        )
    return doubled_pin


#: Shuffle partitions of the second computation: no multiple of what people configure.
_OTHER_PARTITIONS = 7
_OTHER_SETTINGS = {
    "spark.sql.shuffle.partitions": str(_OTHER_PARTITIONS),
    # Small shuffles would be brought to one partition again.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}
_LOW_BITS = (1 << 40) - 1


class _Computed(NamedTuple):
    checksum: Checksum
    columns: dict[str, tuple[int, int]]


def compare_repeated(
    spark: SparkSession,
    build: Callable[[Callable[[DataFrame], DataFrame]], DataFrame],
    ignore: tuple[str, ...] = (),
) -> Repetition:
    """Compute an output twice and compare it as a multiset of rows.

    `build` makes it from inputs that it passes through the function that it is given: once as they
    are, once with their rows in other partitions and in another order.
    """
    first = _compute(build(lambda frame: frame), ignore)
    with _other_shuffles(spark):
        second = _compute(build(reordered), ignore)
    columns = tuple(
        name for name, value in first.columns.items() if second.columns.get(name) != value
    )
    return Repetition(first=first.checksum, second=second.checksum, columns=columns)


def reordered(frame: DataFrame) -> DataFrame:
    """Return the same rows in other partitions and another order, which depends on values only."""
    hashable = [
        quoted_column(field.name)
        for field in frame.schema.fields
        if not isinstance(field.dataType, MapType)
    ]
    if not hashable:
        return frame.repartition(_OTHER_PARTITIONS)
    order = F.xxhash64(*hashable)
    return frame.repartition(_OTHER_PARTITIONS, order).sortWithinPartitions(order.desc())


@contextmanager
def _other_shuffles(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in _OTHER_SETTINGS}
    for name, value in _OTHER_SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _compute(output: DataFrame, ignore: tuple[str, ...]) -> _Computed:
    """Compute the checksum of all rows, and a sum for each column, in one job."""
    fields = [field for field in output.schema.fields if field.name not in ignore]
    aggregates = row_hash.hash_aggregates(row_hash.row_hash_column(output.schema, ignore))
    for number, field in enumerate(fields):
        hashed = row_hash.row_hash_column(StructType([field]))
        aggregates += [
            F.bit_xor(hashed).alias(f"lhb_xor_{number}"),
            F.sum(hashed.bitwiseAND(F.lit(_LOW_BITS))).alias(f"lhb_sum_{number}"),
        ]
    values = output.agg(*aggregates).collect()[0].asDict()
    shape = row_hash.shape_digest(output.schema, ignore)
    sums = {
        field.name: (values[f"lhb_xor_{number}"], values[f"lhb_sum_{number}"])
        for number, field in enumerate(fields)
    }
    return _Computed(row_hash.to_checksum(values, shape), sums)
