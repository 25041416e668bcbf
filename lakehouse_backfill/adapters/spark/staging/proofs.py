"""Proofs of a transform before its run: enough warm-up, and no dependence on the order of rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import row_hash
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.measuring.repetition import compare_repeated
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging.transform import PinnedInputs, TransformRunner
from lakehouse_backfill.core.planning import resolve
from lakehouse_backfill.domain.diff import Checksum, Repetition
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
        inputs = {
            pin.name: self._inputs.read_for_scope(pin, scope) for pin in plan.resolved.sources
        }

        def build(change: Callable[[DataFrame], DataFrame]) -> DataFrame:
            frames = {name: change(frame) for name, frame in inputs.items()}
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
    window = resolve.needed_window(doubled_pin, scope)
    if window is not None and not resolve.range_covers_scope(doubled_pin, scope):
        first, last = window[0].date(), window[1].date() + timedelta(days=1)
        raise ConfigError(
            f"twice the warm-up of {pin.name} lies outside its declared range",
            fix=f"declare sources.{pin.name}.range from {first} to {last}",
        )
    return doubled_pin
