"""Writes the earlier content of partitions into a rollback's shadow: the Restoring port."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters, readers
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.adapters.spark.staging.leaving_out import DeletedRowFilter
from lakehouse_backfill.adapters.spark.staging.lineage import ATTEMPT_ID_PROPERTY, CHUNK_ID_PROPERTY
from lakehouse_backfill.adapters.spark.staging.shadow_writer import ShadowWriter
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.restoring import RestoreChunk
from lakehouse_backfill.errors import ChecksFailed, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What Hadoop, S3 and Iceberg say when a file that a snapshot lists is not there.
_MISSING_FILE_MESSAGES = (
    "FileNotFoundException",
    "NotFoundException",
    "FILE_NOT_EXIST",
    "NoSuchKey",
)
_NOTHING_ROLLED_BACK = "nothing was rolled back; readers see what they saw before"


class SparkRestoring:
    """Reads old snapshots as their readers did, and writes nothing but shadows."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._writer = ShadowWriter(spark, catalog)
        self._leaving_out = DeletedRowFilter(spark, catalog)

    def restore(self, chunk: RestoreChunk) -> int:
        """Overwrite exactly the chunk's partitions by their rows in the snapshot, in one commit.

        Delete files are applied, so that the shadow holds none for them. Gives the shadow's
        snapshot. Raises NotFound when a file of the old snapshot is gone from storage,
        ChecksFailed when the shadow does not hold as many rows afterwards.
        """
        rows = partitions.scope_row_ranges(chunk.scope)
        properties = {CHUNK_ID_PROPERTY: chunk.chunk_id, ATTEMPT_ID_PROPERTY: str(uuid.uuid4())}
        try:
            with spark_errors(f"restoring {chunk.table}@{chunk.snapshot_id}"):
                frame = self._content(chunk)
            commit = self._writer.overwrite(
                frame.where(filters.is_in_ranges(rows)),
                chunk.shadow,
                filters.range_filter(rows),
                {**chunk.properties, **properties},
                epoch=0,
            )
        except Exception as error:
            if any(words in _error_chain_text(error) for words in _MISSING_FILE_MESSAGES):
                raise _missing_file_error(chunk) from error
            raise
        return self._checked(chunk, commit.snapshot_id)

    def _content(self, chunk: RestoreChunk) -> DataFrame:
        """Give the old rows under the shadow's columns; those that came later are null."""
        from pyspark.sql import functions as F

        target = readers.read_table(self._spark, self._catalog, chunk.shadow, None).schema
        if chunk.snapshot_id is None:
            return readers.empty_frame(self._spark, target)
        frame = readers.read_scope(
            self._spark, self._catalog, chunk.table, chunk.snapshot_id, chunk.scope
        )
        was = dict(chunk.columns)
        chosen = []
        for field in target.fields:
            old = was.get(field.name)
            value = F.lit(None) if old is None else quoted_column(old)
            chosen.append(value.cast(field.dataType).alias(field.name))
        frame = frame.select(*chosen)
        return frame if chunk.left_out is None else self._leaving_out.kept(frame, chunk.left_out)

    def _checked(self, chunk: RestoreChunk, snapshot_id: int) -> int:
        """Count both sides: what the shadow holds now is what the old snapshot held."""
        if chunk.snapshot_id is None:
            return snapshot_id
        with spark_errors(f"checking {chunk.shadow}"):
            old = self._content(chunk).count()
            new = readers.read_scope(
                self._spark, self._catalog, chunk.shadow, snapshot_id, chunk.scope
            ).count()
        if old != new:
            raise ChecksFailed(
                f"{chunk.shadow} holds {new} rows, {chunk.table}@{chunk.snapshot_id} holds {old}",
                state=_NOTHING_ROLLED_BACK,
                fix="repeat the command",
            )
        return snapshot_id


def _error_chain_text(error: BaseException) -> str:
    """Give what the error and all its causes say."""
    texts = []
    found: BaseException | None = error
    while found is not None:
        texts.append(str(found))
        found = found.__cause__
    return "\n".join(texts)


def _missing_file_error(chunk: RestoreChunk) -> NotFound:
    return NotFound(
        f"a file of {chunk.table}@{chunk.snapshot_id} is gone from storage: what "
        f"{partitions.describe_labels(chunk.scope.partitions)} held then cannot be read",
        state=_NOTHING_ROLLED_BACK,
        fix="restore the file from the store's own history, or restate the partitions: "
        "lakehouse-backfill new PRODUCT --from P --to P --reason TEXT",
    )
