"""Writes one chunk into a shadow: exactly its partitions, in one validated commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse_backfill.errors import BackfillError, OutcomeUnknown
from lakehouse_backfill.spark import guard
from lakehouse_backfill.spark.failures import translate, translated
from lakehouse_backfill.spark.lineage import ATTEMPT_ID
from lakehouse_backfill.spark.names import full_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Commit:
    """A snapshot of the shadow, and the rows that Iceberg says it added."""

    snapshot_id: int
    added_rows: int


class ShadowWriter:
    """Commits chunks to shadow tables and finds them again in the snapshot log."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def overwrite(
        self, frame: DataFrame, shadow: str, rows: Column, properties: Mapping[str, str]
    ) -> Commit:
        """Replace what the shadow holds where `rows` is true, also by nothing.

        `frame` must hold no other rows: Spark would append them. Validated serializably from the
        head that was read here, so that a concurrent write to the same rows is a conflict. When the
        outcome is unknown, the snapshot log is asked for this very attempt.
        """
        head = self.head(shadow)
        writer = frame.writeTo(full_name(self._catalog, shadow))
        writer = writer.option("isolation-level", "serializable")
        if head is not None:
            writer = writer.option("validate-from-snapshot-id", str(head))
        for name, value in properties.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        failure: Exception | None = None
        try:
            with guard.own_writes():
                writer.overwrite(rows)
        except Exception as error:  # noqa: BLE001 (judged below by what the table holds)
            failure = error
        return self._outcome(shadow, properties[ATTEMPT_ID], failure)

    def head(self, shadow: str) -> int | None:
        """Give the shadow's current snapshot, None when it has none."""
        with translated(f"reading the references of {shadow}"):
            refs = self._spark.table(f"{full_name(self._catalog, shadow)}.`refs`")
            found = refs.where("name = 'main'").select("snapshot_id").collect()
        return int(found[0][0]) if found else None

    def commit(self, shadow: str, snapshot_id: int) -> Commit:
        """Give a snapshot's counts."""
        return self._one(shadow, f"snapshot_id = {snapshot_id:d}") or Commit(snapshot_id, 0)

    def _outcome(self, shadow: str, attempt_id: str, failure: Exception | None) -> Commit:
        doing = f"writing a chunk to {shadow}"
        try:
            found = self._attempt(shadow, attempt_id)
        except BackfillError as error:
            raise OutcomeUnknown(
                f"{doing}: whether the commit landed is unknown: {error.problem}",
                state="the shadow may hold the chunk; the target was not touched",
                fix="run the step again: it looks before it writes",
            ) from (failure or error)
        if found is None and failure is not None:
            raise translate(failure, doing) from failure
        if found is None:
            raise OutcomeUnknown(
                f"{doing}: the commit was reported, but is not in the snapshot log",
                state="the target was not touched",
                fix="run the step again: it looks before it writes",
            )
        return found

    def _attempt(self, shadow: str, attempt_id: str) -> Commit | None:
        return self._one(shadow, f"summary['{ATTEMPT_ID}'] = '{attempt_id}'")

    def _one(self, shadow: str, where: str) -> Commit | None:
        with translated(f"reading the snapshots of {shadow}"):
            snapshots = self._spark.table(f"{full_name(self._catalog, shadow)}.`snapshots`")
            found = snapshots.where(where).select("snapshot_id", "summary").collect()
        if not found:
            return None
        row = max(found, key=lambda each: each["snapshot_id"])
        return Commit(int(row["snapshot_id"]), int((row["summary"] or {}).get("added-records", 0)))
