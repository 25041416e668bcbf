"""Runs a plan's transform for some partitions, on pinned inputs only, and fits its output.

Inputs are restricted to the rows that the partitions need. Output that does not fit the target's
columns is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField, StructType

from lakehouse_backfill.adapters.spark.dataframes import SparkTables, quoted_column
from lakehouse_backfill.adapters.spark.guard import driver_guard
from lakehouse_backfill.adapters.spark.guard.job_source import check_job_source
from lakehouse_backfill.adapters.spark.pinned_inputs import PinnedInputs
from lakehouse_backfill.adapters.spark.session.session import hide_values
from lakehouse_backfill.adapters.spark.staging import column_scope
from lakehouse_backfill.adapters.spark.staging.intermediates import Intermediate, IntermediateStore
from lakehouse_backfill.adapters.spark.staging.jobs import (
    STATE_FRAME,
    Job,
    JobContext,
    JobSinks,
    load_job,
)
from lakehouse_backfill.adapters.spark.staging.masks import SecretReader, mask_output
from lakehouse_backfill.adapters.spark.staging.merge import with_deletion_flag
from lakehouse_backfill.adapters.spark.staging.rejects import (
    accepted_rows,
    declares_rejects,
    with_reason,
)
from lakehouse_backfill.adapters.spark.stateful.store import StateStore
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.planning.target.row_changes import context_row_predicate
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope, partition_row_range
from lakehouse_backfill.domain.plan import Plan, SourcePin, has_restricted_columns
from lakehouse_backfill.domain.run import LINEAGE_NAMES, REJECT_REASON
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import ChecksFailed, ConfigError
from lakehouse_backfill.ports.compute import KeptIntermediate

_INTEGERS = ("byte", "short", "integer", "long")
_FLOATS = ("float", "double")
_TEXTS = ("string", "char", "varchar")


def fit_to_target(
    frame: DataFrame, target: StructType, left_out: Collection[str] = ()
) -> DataFrame:
    """Return the output in the target's column order and types; only widen without loss.

    Raises ChecksFailed, which lists every missing, extra and clashing column.
    """
    fields = [field for field in target.fields if field.name not in left_out]
    output_fields = {field.name: field for field in frame.schema.fields}
    faults = _faults(output_fields, fields, len(frame.schema.fields))
    if faults:
        raise ChecksFailed(
            "the transform's output does not fit the target: " + "; ".join(faults),
            state="nothing was written",
            fix="correct the transform, or change the contract and plan again",
        )
    if _same_columns(frame.schema.fields, fields):
        return frame
    columns = []
    for field in fields:
        value, kind = quoted_column(field.name), output_fields[field.name].dataType
        is_same_type = kind.simpleString() == field.dataType.simpleString()
        columns.append(value if is_same_type else value.cast(field.dataType).alias(field.name))
    return frame.select(*columns)


def _same_columns(given: list[StructField], wanted: list[StructField]) -> bool:
    """Return whether names, types and order are equal: then no column has to be selected."""
    pairs = [
        [(each.name, each.dataType.simpleString()) for each in fields] for fields in (given, wanted)
    ]
    return pairs[0] == pairs[1]


def _faults(given: dict[str, StructField], wanted: list[StructField], width: int) -> list[str]:
    names = {field.name for field in wanted}
    missing = [f"missing {field.name}" for field in wanted if field.name not in given]
    extra = [f"extra {name}" for name in given if name not in names]
    duplicate = ["a column name appears twice"] if width != len(given) else []
    clashing = [
        f"{field.name} is {given[field.name].dataType.simpleString()}, "
        f"the target has {field.dataType.simpleString()}"
        for field in wanted
        if field.name in given and not _is_lossless(given[field.name].dataType, field.dataType)
    ]
    return missing + extra + duplicate + clashing


def _is_lossless(given: DataType, wanted: DataType) -> bool:
    """Return whether the target type can represent every value of the given type exactly."""
    if given.simpleString() == wanted.simpleString() or isinstance(given, T.NullType):
        return True
    if isinstance(given, T.DecimalType) and isinstance(wanted, T.DecimalType):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return whole and wanted.scale >= given.scale
    before, after = given.typeName(), wanted.typeName()
    if before in _TEXTS and after in _TEXTS:
        return after == "string"
    return any(
        before in chain and after in chain and chain.index(before) <= chain.index(after)
        for chain in (_INTEGERS, _FLOATS)
    )


class TransformRunner:
    """Loads transforms, once per run, and calls them; writes nothing."""

    def __init__(
        self,
        tables: SparkTables,
        code: Callable[[Plan], Path],
        secret: SecretReader,
        sinks: Callable[[Plan, int | None], JobSinks] | None = None,
        intermediates: IntermediateStore | None = None,
        kept_states: StateStore | None = None,
    ) -> None:
        """Set up.

        `code` returns the folder of a plan's jobs, `secret` that of its masks, `sinks` what its
        code may act on; without `intermediates`, none are kept; without `kept_states`, no stateful
        job runs.
        """
        self._states = kept_states
        self._sinks = sinks
        self._intermediates = intermediates
        #: What chunks of a plan read, by its run and shadow: a scratch table is no run's shadow.
        self._kept: dict[tuple[str, str], dict[str, KeptIntermediate]] = {}
        self._tables = tables
        self._spark = tables.spark
        self._code = code
        self._secret = secret
        self._inputs = PinnedInputs(tables)
        self._jobs: dict[tuple[str, ...], Job] = {}

    def load(self, plan: Plan) -> None:
        """Import the plan's transform and check name, version and inputs."""
        if has_restricted_columns(plan):
            hide_values()
        driver_guard.declare_secrets(_secret_variables(plan.resolved.contract))
        names = {pin.name for pin in plan.resolved.sources}
        transform, folder = plan.resolved.manifest.transform, self._code(plan)
        for file in job_code.code_files(plan.resolved):
            # The job itself is checked where it is loaded; its modules have the same rules.
            if file.endswith(".py") and file != transform.file and (folder / file).is_file():
                check_job_source((folder / file).read_text(encoding="utf-8"), file)
        job = load_job(self._spark, folder, transform, names)
        if bool(job.info.state) != bool(plan.resolved.manifest.stateful):
            has, lacks = ("a state", "no `stateful`") if job.info.state else ("no state", "one")
            raise ConfigError(
                f"transform {transform.name} declares {has}, and the run manifest {lacks}",
                state="nothing was written",
                fix="declare it in both: @transform(..., state=...), and `stateful`; or in none",
            )
        self._jobs[_code_key(plan)] = job

    def run(
        self, plan: Plan, scope: Scope, frames: Mapping[str, DataFrame], target: StructType
    ) -> DataFrame:
        """Run the transform, fit its output to the target and mask it, without lineage columns."""
        return self.fit(plan, self.run_job(plan, scope, frames)[0], target)

    def run_job(
        self,
        plan: Plan,
        scope: Scope,
        frames: Mapping[str, DataFrame],
        epoch: int | None = None,
    ) -> tuple[DataFrame, DataFrame | None]:
        """Return the output of the transform as it gives it, and the state of a stateful one.

        Its messages to sinks are sent where it stages a chunk, as the driver with the epoch.
        """
        sinks = self._sinks(plan, epoch) if self._sinks else None
        context = replace(_context(plan, scope), sinks=sinks)
        # Frames that are given are changed on purpose, as proofs do.
        made = self.intermediate_frames(plan, is_staging=epoch is not None, given=frames)
        job = self._job(plan)
        if not job.info.state or self._states is None:
            return job.run(context, {**made, **frames})
        columns = job.info.state
        before = {STATE_FRAME: self._states.restore(plan, scope, columns)}
        rows, after = job.run(context, {**made, **frames, **before})
        wanted = self._tables.spark.createDataFrame([], columns).schema
        return rows, None if after is None else fit_to_target(after, wanted)

    def _job(self, plan: Plan) -> Job:
        if _code_key(plan) not in self._jobs:
            self.load(plan)
        return self._jobs[_code_key(plan)]

    def intermediates(self, plan: Plan) -> tuple[str, ...]:
        """Return the names of the intermediate results that the transform reads."""
        return tuple(one.info.name for one in self._job(plan).intermediates)

    def keep_intermediates(self, plan: Plan) -> tuple[KeptIntermediate, ...]:
        """Keep the intermediate results of a plan; its chunks read those that are kept."""
        job, found = self._job(plan), list[KeptIntermediate]()
        for one in job.intermediates:
            build = partial(self._compute_intermediate, plan, job, one, lambda frame: frame)
            if self._intermediates is None:
                found.append(KeptIntermediate(one.info.name, because="there is no place for it"))
            else:
                found.append(self._intermediates.keep(plan, one, build))
        self._kept[_kept_key(plan)] = {one.name: one for one in found if one.table}
        return tuple(found)

    def intermediate_frames(
        self,
        plan: Plan,
        change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        *,
        is_staging: bool = False,
        given: Collection[str] = (),
    ) -> dict[str, DataFrame]:
        """Return the intermediate results that are not given: computed from the pinned inputs.

        `change` is applied to these inputs. Where the plan's chunks are staged, kept results are
        read instead.
        """
        job, found = self._job(plan), dict[str, DataFrame]()
        kept = self._kept.get(_kept_key(plan), {}) if is_staging else {}
        for one in job.intermediates:
            name = one.info.name
            if name in kept and self._intermediates is not None:
                found[name] = self._intermediates.read(kept[name])
            elif name not in given:
                found[name] = self._compute_intermediate(plan, job, one, change)
        return found

    def kept_properties(self, plan: Plan) -> dict[str, str]:
        """Return what the snapshots of a plan's chunks say of the kept results that they read."""
        kept = self._kept.get(_kept_key(plan), {}).values()
        texts = [f"{one.name}={one.table}@{one.snapshot_id}" for one in kept]
        return {"lakehouse-backfill.intermediates": ",".join(texts)} if texts else {}

    def _compute_intermediate(
        self, plan: Plan, job: Job, wanted: Intermediate, change: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        pins = wanted.find_pins(plan)
        frames = {pin.name: change(self._inputs.read_whole(pin)) for pin in pins}
        return job.run_intermediate(wanted, MappingProxyType(wanted.config(plan)), frames)

    def fit(self, plan: Plan, output: DataFrame, target: StructType) -> DataFrame:
        """Fit what the transform doesn't reject to the target, masked, without lineage columns.

        Raises ChecksFailed when a run that keeps all rows is to reject some.
        """
        if publish_modes.restates_columns(plan) and declares_rejects(output):
            raise ChecksFailed(
                f"the transform may reject rows ({REJECT_REASON}), but a run of target.columns "
                "keeps all rows",
                state="nothing was written",
                fix="let it give each row, or restate whole rows: remove target.columns",
            )
        return self._fit(plan, accepted_rows(output), target)

    def fit_rejects(self, plan: Plan, output: DataFrame, target: StructType) -> DataFrame:
        """Fit all rows, as `fit` does, with the column that says why one is rejected."""
        return self._fit(plan, output, with_reason(target))

    def _fit(self, plan: Plan, output: DataFrame, target: StructType) -> DataFrame:
        excluded = LINEAGE_NAMES if plan.resolved.contract.lineage_columns else ()
        wanted = column_scope.given_columns(plan, output, with_deletion_flag(plan, target))
        fitting = fit_to_target(output, wanted, excluded)
        return mask_output(fitting, plan.resolved.contract, self._secret)

    def place(self, plan: Plan) -> tuple[str, int]:
        """Return the file and the line of the transform."""
        job = self._jobs.get(_code_key(plan))
        return (job.file, job.line) if job else (plan.resolved.manifest.transform.file, 1)

    def require_no_attempts(self, plan: Plan) -> None:
        """Raise WriteForbidden for outside effects that threads of the job tried meanwhile."""
        if _code_key(plan) in self._jobs:
            self._jobs[_code_key(plan)].require_no_attempts()

    def compute_partitions(
        self, plan: Plan, scope: Scope, target: StructType, pins: tuple[SourcePin, ...]
    ) -> DataFrame:
        """Compute exactly the scope's partitions, without writing them."""
        frames = self._inputs.frames_for_scope(plan, scope, pins)
        output = self.run(plan, scope, frames, target)
        return self.in_scope(plan, scope, output).drop(*LINEAGE_NAMES)

    def in_scope(self, plan: Plan, scope: Scope, output: DataFrame) -> DataFrame:
        """Return the rows of the output that lie in the scope's partitions."""
        return column_scope.restrict_to_scope(self._tables, plan, scope, output)


def _secret_variables(contract: Contract) -> set[str]:
    """Return the variables of the environment that a contract names as secret."""
    tokens = {one.token_env for one in contract.sinks} | {one.token_env for one in contract.hooks}
    key = contract.privacy.key if contract.privacy else None
    return {name for name in (*tokens, key.env if key else None) if name}


def _code_key(plan: Plan) -> tuple[str, ...]:
    """Return a job's cache key: attribution runs other code than the run's on a run's inputs."""
    transform = plan.resolved.manifest.transform
    code = digest(job_code.code_files(plan.resolved))
    return plan.run_id, plan.code_of, transform.name, transform.version, code


def _kept_key(plan: Plan) -> tuple[str, str]:
    return plan.run_id, plan.shadow_table


def _context(plan: Plan, scope: Scope) -> JobContext:
    manifest = plan.resolved.manifest
    rows = [partition_row_range(scope.field, label) for label in scope.partitions]
    lowers = [row.lower for row in rows if row.lower is not None]
    uppers = [row.upper for row in rows if row.upper is not None]
    # Truncations are ranges of values, but are named one by one: other partitions lie between.
    is_ordered = not scope.field.has_no_order
    is_bounded = is_ordered and len(lowers) == len(uppers) == len(rows)
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
        config_hash=digest(manifest.transform.config),
        row_predicate=MappingProxyType(
            dict(context_row_predicate(manifest, plan.resolved.contract))
        ),
    )
