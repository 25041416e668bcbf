"""Writes one chunk into a shadow: exactly its partitions, in one validated, fenced commit.

The chunk's origin is recorded in the snapshot's properties and, if the contract has lineage
columns, in its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import dataframes, write_tasks
from lakehouse_backfill.adapters.spark.dataframes import EPOCH_PROPERTY, SparkTables
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.session.spark_errors import (
    spark_errors,
    translate_spark_error,
)
from lakehouse_backfill.core.planning.inputs.read_windows import input_window
from lakehouse_backfill.core.planning.target import file_sizes, publish_modes
from lakehouse_backfill.core.planning.target.file_sizes import (
    GROUPED,
    NOTHING_KNOWN,
    Expected,
    WriteDistribution,
)
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan, reference_data_version
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.errors import BackfillError, Conflict, OutcomeUnknown, RunMoved
from lakehouse_backfill.fault_points import commit_window

_ADAPTIVE = "spark.sql.adaptive.enabled"
PROPERTY_PREFIX = "lakehouse-backfill."
CHUNK_ID_PROPERTY = f"{PROPERTY_PREFIX}chunk-id"
ATTEMPT_ID_PROPERTY = f"{PROPERTY_PREFIX}attempt-id"
DISTRIBUTION_PROPERTY = f"{PROPERTY_PREFIX}distribution"
FENCE_UUID_PROPERTY = f"{PROPERTY_PREFIX}fence-uuid"


def snapshot_properties(
    plan: Plan, chunk: Chunk, scope: Scope, attempt_id: str, epoch: int
) -> dict[str, str]:
    """Return the snapshot properties that every chunk commit has (requirement D3)."""
    manifest = plan.resolved.manifest
    first, last = input_window(plan, scope) or (None, None)
    # A carried chunk keeps the inputs of the revision that computed it.
    origin = plan.resolved.catch_up and plan.resolved.catch_up.origin(chunk.chunk_id)
    inputs = origin.inputs if origin else {}
    values: dict[str, str | None] = {
        "chunk-id": chunk.chunk_id,
        "attempt-id": attempt_id,
        "epoch": str(epoch),
        "run-id": plan.run_id,
        "product": manifest.product,
        "manifest-hash": plan.manifest_hash,
        "transform": manifest.transform.name,
        "transform-version": manifest.transform.version,
        "input-snapshot-ids": _source_ids_text(plan, inputs),
        "carried-from": origin.run_id if origin else None,
        "input-range-start": first.isoformat() if first else None,
        "input-range-end": last.isoformat() if last else None,
        "processing-mode": manifest.run.mode,
        "reference-data-version": reference_data_version(plan, inputs),
        "restatement-reason": manifest.run.reason,
    }
    return {
        f"{PROPERTY_PREFIX}{name}": value for name, value in values.items() if value is not None
    }


def add_lineage_columns(
    frame: DataFrame, plan: Plan, scope: Scope, target: StructType
) -> DataFrame:
    """Add the lineage columns to the rows, in the target's own types."""
    first, last = input_window(plan, scope) or (None, None)
    values: dict[str, Any] = {
        **publish_modes.expected_lineage(plan),
        "input_range_start": first,
        "input_range_end": last,
        "reference_data_version": reference_data_version(plan),
        "produced_at": datetime.now(timezone.utc),
    }
    types = {field.name: field.dataType for field in target.fields}
    return frame.withColumns(
        {
            name: F.lit(_literal_value(values[name])).cast(types.get(name, "string"))
            for name in LINEAGE_NAMES
        }
    )


def _literal_value(value: Any) -> str | int | None:
    """Return instants as text with their offset, independent of the local time zone."""
    return value.isoformat(sep=" ") if isinstance(value, datetime) else value


def _source_ids_text(plan: Plan, inputs: Mapping[str, int]) -> str | None:
    """List the sources with their snapshots; `inputs` overrides those of the plan."""
    pins = [pin for pin in plan.resolved.sources if pin.role == "source"]
    texts = [f"{pin.name}={inputs.get(pin.name, pin.snapshot_id)}" for pin in pins]
    return ",".join(texts) or None


@dataclass(frozen=True)
class ShadowCommit:
    """A snapshot of the shadow, and the number of rows that it added according to Iceberg."""

    snapshot_id: int
    added_rows: int


class ShadowWriter:
    """Commits chunks to shadow tables and finds the commits in the snapshot log."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables
        self._partitioned: dict[str, bool] = {}
        #: Held while the first part of a table is written; the others are added to it.
        self._first_part = threading.Lock()
        self._task_sizes = write_tasks.TaskSizes(tables)

    def overwrite(
        self,
        frame: DataFrame,
        shadow: str,
        rows: Column | None,
        properties: Mapping[str, str],
        epoch: int,
        expected: Expected = NOTHING_KNOWN,
    ) -> ShadowCommit:
        """Replace the shadow's rows where `rows` is true by those of `frame`, which may be empty.

        Without `rows`, those of the frame are added, and none is replaced.

        `frame` must not contain other rows: Spark would append them. The commit is validated with
        isolation level serializable from the head that is read here, so a concurrent write to the
        same rows is a conflict. After an error, the snapshot log shows whether this attempt was
        committed. Files reach the table's target size: `file_sizes`; the snapshot tells by which
        distribution, which is chosen by what is `expected`.

        Raises RunMoved, and commits nothing, when a later epoch has fenced the shadow. The
        shadow's property shows this before the write, its UUID during the write.
        """
        with spark_errors(f"reading {shadow}"):
            identity = self._tables.pin_identity(shadow)
        found = self._tables.stored_properties(shadow)
        head = self._require_epoch(shadow, found, epoch)
        distribution = self._distribution(frame, shadow, found, expected)
        properties = {**properties, DISTRIBUTION_PROPERTY: distribution.mode}
        spread = write_tasks.spread(frame, distribution).unionByName(identity)
        writer = self._tables.writer(spread, shadow, head, properties)
        for key, value in write_tasks.options(distribution).items():
            writer = writer.option(key, value)
        failure: Exception | None = None
        try:
            with (
                self._task_sizes.in_force(distribution),
                write_guard.allow_own_writes(),
                commit_window("Spark.overwrite"),
            ):
                writer.append() if rows is None else writer.overwrite(rows)
        except Exception as error:  # noqa: BLE001 (the table's snapshots decide below)
            failure = error
        if failure is not None and dataframes.TABLE_MOVED_MARKER in str(failure):
            raise self._concurrent_commit_error(shadow, epoch) from failure
        commit = self._resolve_outcome(shadow, properties[ATTEMPT_ID_PROPERTY], failure)
        # Nothing refuses a commit to the branch of an epoch that is over; nobody reads it.
        self._require_newest_branch(shadow, epoch)
        return commit

    def add_part(
        self,
        frame: DataFrame,
        shadow: str,
        rows: Column,
        properties: Mapping[str, str],
        epoch: int,
        expected: Expected = NOTHING_KNOWN,
        *,
        base: int | None,
    ) -> ShadowCommit:
        """Write a part of the rows where `rows` is true beside the other parts, as `overwrite`.

        While the shadow's head is still the `base`, a part replaces all of these rows; later ones
        are added. Iceberg cannot tell by a file's statistics which bucket its rows are in, so that
        no part can be replaced alone. Of two first parts the second commit is refused, as each is
        validated from the head that it was read at; within one process the others wait for it.
        """
        wanted = "none" if base is None else str(base)
        with self._first_part:
            if self._tables.stored_properties(shadow)["current-snapshot-id"] == wanted:
                return self.overwrite(frame, shadow, rows, properties, epoch, expected)
        return self.overwrite(frame, shadow, None, properties, epoch, expected)

    def _distribution(
        self, frame: DataFrame, shadow: str, properties: Mapping[str, str], expected: Expected
    ) -> WriteDistribution:
        """Choose how the rows are spread; the shadow's partition spec never changes."""
        if shadow not in self._partitioned:
            with spark_errors(f"reading {shadow}"):
                listed = self._tables.spark.table(f"{self._tables.quoted_name(shadow)}.partitions")
                self._partitioned[shadow] = "partition" in listed.columns
        adaptive = self._tables.spark.conf.get(_ADAPTIVE, "true")
        chosen = file_sizes.choose_distribution(
            properties,
            has_partitions=self._partitioned[shadow],
            is_adaptive=str(adaptive).lower() == "true",
            expected=expected,
        )
        cores = self._task_sizes.cores()
        if cores is None or not file_sizes.may_be_grouped(chosen, expected, cores):
            return chosen
        sizes = self._group_sizes(frame, shadow)
        return GROUPED if file_sizes.may_stay(sizes, cores, properties) else chosen

    def _group_sizes(self, frame: DataFrame, shadow: str) -> tuple[int, ...]:
        """Return the bytes of the tasks if each has the rows of one partition already; or nothing.

        Then no row need be written and read once more between tasks.
        """
        try:
            with self._task_sizes.in_force(GROUPED):
                table = self._tables.spark.table(self._tables.quoted_name(shadow))
                return write_tasks.group_sizes(frame, table) or ()
        except Exception:  # noqa: BLE001 (rows are moved then; the write says what is wrong)
            return ()

    @staticmethod
    def _require_epoch(shadow: str, properties: Mapping[str, str], epoch: int) -> int | None:
        """Return the head (None: no snapshot); raise RunMoved when a later epoch has fenced it."""
        fence_epoch = int(properties.get(EPOCH_PROPERTY, 0))
        if fence_epoch > epoch:
            raise _taken_over_error(
                shadow, f"epoch {fence_epoch} is at work, this process is of epoch {epoch}"
            )
        head = properties["current-snapshot-id"]
        return None if head == "none" else int(head)

    def _require_newest_branch(self, shadow: str, epoch: int) -> None:
        """Raise RunMoved when another epoch has a branch by now. Raises OutcomeUnknown."""
        try:
            branch = self._tables.branch_of(shadow)
        except BackfillError as error:
            raise OutcomeUnknown(
                f"whether the chunk landed on the newest branch of {shadow} is unknown: "
                f"{error.problem}",
                state="the shadow may hold the chunk; nothing was published",
                fix="run the step again: it looks before it writes",
            ) from error
        if branch is not None and branch.epoch != epoch:
            raise _taken_over_error(shadow, "it was fenced during the write")

    def _concurrent_commit_error(self, shadow: str, epoch: int) -> BackfillError:
        """Return the error for a commit between inspection and write; nothing was written."""
        if int(self._tables.stored_properties(shadow).get(EPOCH_PROPERTY, 0)) > epoch:
            return _taken_over_error(shadow, "it was fenced during the write")
        return Conflict(
            f"{shadow} was committed to while a chunk was about to be written",
            state="the chunk was not written; nothing was published",
            fix="run the step again",
        )

    def _resolve_outcome(
        self, shadow: str, attempt_id: str, failure: Exception | None
    ) -> ShadowCommit:
        doing = f"writing a chunk to {shadow}"
        try:
            commit = self._find_attempt(shadow, attempt_id)
        except BackfillError as error:
            raise OutcomeUnknown(
                f"{doing}: whether the commit landed is unknown: {error.problem}",
                state="the shadow may hold the chunk; nothing was published",
                fix="run the step again: it looks before it writes",
            ) from (failure or error)
        if commit is not None:
            return commit
        if failure is None:
            raise OutcomeUnknown(
                f"{doing}: the commit was reported, but is not in the snapshot log",
                state="nothing was published",
                fix="run the step again: it looks before it writes",
            )
        if any(words in str(failure) for words in dataframes.TABLE_CHANGED_MESSAGES):
            raise _taken_over_error(shadow, "it was fenced during the write") from failure
        known = translate_spark_error(failure, doing)
        if _may_land_later(str(failure)):
            raise OutcomeUnknown(
                f"{known.problem}; the catalog may still be at work on the commit",
                state="the shadow may hold the chunk; nothing was published",
                fix="run the step again: it looks before it writes",
            ) from failure
        raise known from failure

    def _find_attempt(self, shadow: str, attempt_id: str) -> ShadowCommit | None:
        summaries = self._tables.summaries(shadow)
        # An attempt that was just made is among the newest of thousands.
        for snapshot_id in reversed([*summaries]):
            summary = summaries[snapshot_id]
            if summary.get(ATTEMPT_ID_PROPERTY) == attempt_id:
                return ShadowCommit(snapshot_id, int(summary.get("added-records", 0)))
        return None


#: What Iceberg says of a commit that got no answer, or one that does not tell; and of a request
#: that was never sent.
_UNTOLD = ("CommitStateUnknownException", "processing POST request")
_UNSENT = ("Connection refused", "ConnectTimeoutException", "UnknownHostException", "NoRouteToHost")


def _may_land_later(text: str) -> bool:
    is_untold = any(words in text for words in _UNTOLD)
    return is_untold and not any(words in text for words in _UNSENT)


def _taken_over_error(shadow: str, how: str) -> RunMoved:
    return RunMoved(
        f"another process took the run over: {how} on {shadow}",
        state="that process goes on; this one changed nothing in the shadow since",
        fix="lakehouse-backfill status   # shows how the run goes on",
    )
