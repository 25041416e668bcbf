"""Writes the earlier content of partitions into a rollback's shadow: the Restoring port."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters, readers
from lakehouse_backfill.adapters.spark.failures import translated
from lakehouse_backfill.adapters.spark.names import column
from lakehouse_backfill.adapters.spark.staging.leaving_out import LeavingOut
from lakehouse_backfill.adapters.spark.staging.lineage import ATTEMPT_ID, CHUNK_ID
from lakehouse_backfill.adapters.spark.staging.shadow_writer import ShadowWriter
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.restoring import RestoreChunk
from lakehouse_backfill.errors import ChecksFailed, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What Hadoop, S3 and Iceberg say when a file that a snapshot lists is not there.
_GONE = ("FileNotFoundException", "NotFoundException", "FILE_NOT_EXIST", "NoSuchKey")
_STATE = "nothing was rolled back; readers see what they saw before"


class SparkRestoring:
    """Reads old snapshots as their readers did, and writes nothing but shadows."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._writer = ShadowWriter(spark, catalog)
        self._leaving_out = LeavingOut(spark, catalog)

    def restore(self, chunk: RestoreChunk) -> int:
        """Overwrite exactly the chunk's partitions by their rows in the snapshot, in one commit.

        Delete files are applied, so that the shadow holds none for them. Gives the shadow's
        snapshot. Raises NotFound when a file of the old snapshot is gone from storage,
        ChecksFailed when the shadow does not hold as many rows afterwards.
        """
        rows = partitions.ranges(chunk.scope)
        properties = {CHUNK_ID: chunk.chunk_id, ATTEMPT_ID: str(uuid.uuid4())}
        try:
            with translated(f"restoring {chunk.table}@{chunk.snapshot_id}"):
                frame = self._content(chunk)
            commit = self._writer.overwrite(
                frame.where(filters.inside(rows)),
                chunk.shadow,
                filters.condition(rows),
                {**chunk.properties, **properties},
                epoch=0,
            )
        except Exception as error:
            if any(words in _said(error) for words in _GONE):
                raise _gone(chunk) from error
            raise
        return self._checked(chunk, commit.snapshot_id)

    def _content(self, chunk: RestoreChunk) -> DataFrame:
        """Give the old rows under the shadow's columns; those that came later are null."""
        from pyspark.sql import functions as F

        target = readers.read(self._spark, self._catalog, chunk.shadow, None).schema
        if chunk.snapshot_id is None:
            return readers.no_rows(self._spark, target)
        frame = readers.read_scope(
            self._spark, self._catalog, chunk.table, chunk.snapshot_id, chunk.scope
        )
        was = dict(chunk.columns)
        chosen = []
        for field in target.fields:
            old = was.get(field.name)
            value = F.lit(None) if old is None else column(old)
            chosen.append(value.cast(field.dataType).alias(field.name))
        frame = frame.select(*chosen)
        return frame if chunk.left_out is None else self._leaving_out.kept(frame, chunk.left_out)

    def _checked(self, chunk: RestoreChunk, snapshot_id: int) -> int:
        """Count both sides: what the shadow holds now is what the old snapshot held."""
        if chunk.snapshot_id is None:
            return snapshot_id
        with translated(f"checking {chunk.shadow}"):
            old = self._content(chunk).count()
            new = readers.read_scope(
                self._spark, self._catalog, chunk.shadow, snapshot_id, chunk.scope
            ).count()
        if old != new:
            raise ChecksFailed(
                f"{chunk.shadow} holds {new} rows, {chunk.table}@{chunk.snapshot_id} holds {old}",
                state=_STATE,
                fix="repeat the command",
            )
        return snapshot_id


def _said(error: BaseException) -> str:
    """Give what the error and all its causes say."""
    texts = []
    found: BaseException | None = error
    while found is not None:
        texts.append(str(found))
        found = found.__cause__
    return "\n".join(texts)


def _gone(chunk: RestoreChunk) -> NotFound:
    return NotFound(
        f"a file of {chunk.table}@{chunk.snapshot_id} is gone from storage: what "
        f"{partitions.describe(chunk.scope.partitions)} held then cannot be read",
        state=_STATE,
        fix="restore the file from the store's own history, or restate the partitions: "
        "lakehouse-backfill new PRODUCT --from P --to P --reason TEXT",
    )
