"""Computes the output of a plan's transform for some partitions, from pinned inputs only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters
from lakehouse_backfill.adapters.spark.staging.inputs import PinnedInputs
from lakehouse_backfill.adapters.spark.staging.jobs import Job, JobContext, load_job
from lakehouse_backfill.adapters.spark.staging.merging import with_deletion_flag
from lakehouse_backfill.adapters.spark.staging.output_shape import fit_to_target
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.partitions import partition_row_range, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.scope import Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class TransformRunner:
    """Loads transforms, once per run, and calls them; writes nothing."""

    def __init__(
        self, spark: SparkSession, code: Path | Callable[[Plan], Path], inputs: PinnedInputs
    ) -> None:
        """`code` is the folder in which jobs lie, or gives that of a plan."""
        self._spark = spark
        self._code = code
        self._inputs = inputs
        self._jobs: dict[tuple[str, str], Job] = {}

    def load(self, plan: Plan) -> None:
        """Import the plan's transform and check name, version and inputs."""
        names = {pin.name for pin in plan.resolved.sources}
        wanted = plan.resolved.manifest.transform
        folder = self._code if isinstance(self._code, Path) else self._code(plan)
        self._jobs[_code_key(plan)] = load_job(self._spark, folder, wanted, names)

    def output(
        self, plan: Plan, scope: Scope, frames: Mapping[str, DataFrame], target: StructType
    ) -> DataFrame:
        """Run the transform and fit its output to the target, lineage columns left out."""
        if _code_key(plan) not in self._jobs:
            self.load(plan)
        output = self._jobs[_code_key(plan)].run(_context(plan, scope), frames)
        left_out = LINEAGE_NAMES if plan.resolved.contract.lineage_columns else ()
        return fit_to_target(output, with_deletion_flag(plan, target), left_out)

    def partitions(
        self, plan: Plan, scope: Scope, target: StructType, pins: tuple[SourcePin, ...]
    ) -> DataFrame:
        """Compute exactly the scope's partitions, without writing them."""
        frames = {pin.name: self._inputs.needed(pin, scope) for pin in pins}
        output = self.output(plan, scope, frames, target)
        rows = output.where(filters.range_filter(scope_row_ranges(scope)))
        return rows.drop(*LINEAGE_NAMES)


def _code_key(plan: Plan) -> tuple[str, str]:
    """Attribution runs the code of another run on the inputs of this one."""
    return plan.run_id, plan.code_of


def _context(plan: Plan, scope: Scope) -> JobContext:
    manifest = plan.resolved.manifest
    rows = [partition_row_range(scope.field, label) for label in scope.partitions]
    lowers = [row.lower for row in rows if row.lower is not None]
    uppers = [row.upper for row in rows if row.upper is not None]
    is_bounded = len(lowers) == len(uppers) == len(rows)
    versions = {
        pin.name: pin.snapshot_id for pin in plan.resolved.sources if pin.role == "reference"
    }
    return JobContext(
        run_id=plan.run_id,
        mode=manifest.run.mode,
        clock=plan.created_at,
        transform_version=manifest.transform.version,
        config=MappingProxyType(dict(manifest.transform.config)),
        publish_from=min(lowers) if is_bounded else None,
        publish_to=max(uppers) if is_bounded else None,
        reference_versions=MappingProxyType(versions),
    )
