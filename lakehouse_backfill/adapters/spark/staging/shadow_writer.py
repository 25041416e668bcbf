"""Writes one chunk into a shadow: exactly its partitions, in one validated, fenced commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import holding
from lakehouse_backfill.adapters.spark.failures import spark_errors, translate_spark_error
from lakehouse_backfill.adapters.spark.names import quoted_table_name
from lakehouse_backfill.adapters.spark.session import guard
from lakehouse_backfill.adapters.spark.staging.lineage import ATTEMPT_ID_PROPERTY, EPOCH_PROPERTY
from lakehouse_backfill.errors import BackfillError, Conflict, OutcomeUnknown, RunMoved
from lakehouse_backfill.fault_points import commit_window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: What Iceberg and Spark say when a table is not the one that they held.
_TABLE_CHANGED_MESSAGES = ("UUID does not match", "TABLE_ID_MISMATCH")


@dataclass(frozen=True)
class ShadowCommit:
    """A snapshot of the shadow, and the rows that Iceberg says it added."""

    snapshot_id: int
    added_rows: int


class ShadowWriter:
    """Commits chunks to shadow tables and finds them again in the snapshot log."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def overwrite(
        self, frame: DataFrame, shadow: str, rows: Column, properties: Mapping[str, str], epoch: int
    ) -> ShadowCommit:
        """Replace what the shadow holds where `rows` is true, also by nothing.

        `frame` must hold no other rows: Spark would append them. Validated serializably from the
        head that was read here, so that a concurrent write to the same rows is a conflict. When the
        outcome is unknown, the snapshot log is asked for this very attempt.

        Raises RunMoved, and commits nothing, when the shadow was fenced by a later epoch: before
        the write by the shadow's property, from then on by its UUID.
        """
        name = quoted_table_name(self._catalog, shadow)
        with spark_errors(f"reading {shadow}"):
            held = holding.pin_table_identity(self._spark, name)
        head = self._require_epoch(shadow, epoch)
        writer = frame.unionByName(held).writeTo(name)
        writer = writer.option("isolation-level", "serializable")
        if head is not None:
            writer = writer.option("validate-from-snapshot-id", str(head))
        for key, value in properties.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        failure: Exception | None = None
        try:
            with guard.allow_own_writes(), commit_window("Spark.overwrite"):
                writer.overwrite(rows)
        except Exception as error:  # noqa: BLE001 (judged below by what the table holds)
            failure = error
        if failure is not None and holding.TABLE_MOVED_MARKER in str(failure):
            raise self._moved(shadow, epoch) from failure
        return self._outcome(shadow, properties[ATTEMPT_ID_PROPERTY], failure)

    def _require_epoch(self, shadow: str, epoch: int) -> int | None:
        """Give the head (None: no snapshot); raises RunMoved when a later epoch has fenced it."""
        shown = self._shown(shadow)
        fenced = int(shown.get(EPOCH_PROPERTY, 0))
        if fenced > epoch:
            raise _taken_over_error(
                shadow, f"epoch {fenced} is at work, this process is of epoch {epoch}"
            )
        head = shown["current-snapshot-id"]
        return None if head == "none" else int(head)

    def _shown(self, shadow: str) -> dict[str, str]:
        # A command on the driver: the `refs` table would start a job.
        command = f"SHOW TBLPROPERTIES {quoted_table_name(self._catalog, shadow)}"
        with spark_errors(f"reading {shadow}"), guard.allow_own_writes():
            return {row["key"]: row["value"] for row in self._spark.sql(command).collect()}

    def _moved(self, shadow: str, epoch: int) -> BackfillError:
        """Say who committed between the look and the write, which was not begun."""
        if int(self._shown(shadow).get(EPOCH_PROPERTY, 0)) > epoch:
            return _taken_over_error(shadow, "it was fenced during the write")
        return Conflict(
            f"{shadow} was committed to while a chunk was about to be written",
            state="the chunk was not written; the target was not touched",
            fix="run the step again",
        )

    def _outcome(self, shadow: str, attempt_id: str, failure: Exception | None) -> ShadowCommit:
        doing = f"writing a chunk to {shadow}"
        try:
            found = self._attempt(shadow, attempt_id)
        except BackfillError as error:
            raise OutcomeUnknown(
                f"{doing}: whether the commit landed is unknown: {error.problem}",
                state="the shadow may hold the chunk; the target was not touched",
                fix="run the step again: it looks before it writes",
            ) from (failure or error)
        if found is not None:
            return found
        if failure is None:
            raise OutcomeUnknown(
                f"{doing}: the commit was reported, but is not in the snapshot log",
                state="the target was not touched",
                fix="run the step again: it looks before it writes",
            )
        if any(words in str(failure) for words in _TABLE_CHANGED_MESSAGES):
            raise _taken_over_error(shadow, "it was fenced during the write") from failure
        raise translate_spark_error(failure, doing) from failure

    def _attempt(self, shadow: str, attempt_id: str) -> ShadowCommit | None:
        with spark_errors(f"reading the snapshots of {shadow}"):
            snapshots = self._spark.table(f"{quoted_table_name(self._catalog, shadow)}.`snapshots`")
            own = snapshots.where(f"summary['{ATTEMPT_ID_PROPERTY}'] = '{attempt_id}'")
            found = own.select("snapshot_id", "summary").collect()
        if not found:
            return None
        row = max(found, key=lambda each: each["snapshot_id"])
        return ShadowCommit(
            int(row["snapshot_id"]), int((row["summary"] or {}).get("added-records", 0))
        )


def _taken_over_error(shadow: str, how: str) -> RunMoved:
    return RunMoved(
        f"another process took the run over: {how} on {shadow}",
        state="that process goes on; this one changed nothing in the shadow since",
        fix="lakehouse-backfill status, to see how the run goes on",
    )
