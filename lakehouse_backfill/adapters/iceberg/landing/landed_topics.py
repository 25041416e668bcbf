"""Raw tables of topics at a snapshot: what their landings say, and where events of a span lie."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import Or

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.pyiceberg_rows import null_term, row_range_filter
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.sources.topic_offsets import EventOffsets, LandedEvents, TableLanding

_PARTITION, _OFFSET = "kafka_partition", "kafka_offset"


@dataclass(frozen=True)
class IcebergLandedTopics:
    """`ports.tables.LandedTopics` on PyIceberg."""

    catalog: Catalog

    def landing(self, table: str, snapshot_id: int) -> TableLanding | None:
        """Return the newest landing behind a snapshot; None: there is none."""
        loaded = load_table(self.catalog, table)
        if meta.LANDING_STATE_PROPERTY not in loaded.properties:
            return None  # No raw table: its history may be long.
        pinned = meta.find_snapshot(loaded.metadata, snapshot_id, table)
        for one in meta.snapshot_ancestors(loaded.metadata, snapshot_id):
            summary = meta.snapshot_summary(one)
            position = summary.get(meta.LANDING_POSITION_PROPERTY)
            if position is not None:
                return TableLanding(
                    landing_id=summary[meta.LANDING_PROPERTY],
                    source=summary[meta.LANDING_SOURCE_PROPERTY],
                    position=json.loads(position),
                    rows=_live_rows(meta.snapshot_summary(pinned)),
                )
        return None

    def events(self, table: str, snapshot_id: int, span: RowRange) -> LandedEvents:
        """Return where the events of a span lie; rows without a time are counted apart."""
        import pyarrow as pa
        from pyarrow import compute as pc

        loaded, found, without_time = load_table(self.catalog, table), [], 0
        with translate_errors():
            scan = loaded.scan(
                Or(row_range_filter((span,)), null_term(span.column)),
                selected_fields=(_PARTITION, _OFFSET, span.column),
                snapshot_id=snapshot_id,
            )
            for batch in scan.to_arrow_batch_reader():
                rows = pa.Table.from_batches([batch])
                has_time = pc.is_valid(rows[span.column])
                own = rows.filter(has_time)
                without_time += rows.num_rows - own.num_rows
                found.append(own.group_by(_PARTITION).aggregate(
                    [(_OFFSET, "min"), (_OFFSET, "max"), (_OFFSET, "count")]
                ))  # fmt: skip
        whole = pa.concat_tables(found).group_by(_PARTITION).aggregate(
            [(f"{_OFFSET}_min", "min"), (f"{_OFFSET}_max", "max"), (f"{_OFFSET}_count", "sum")]
        ) if found else pa.table({})  # fmt: skip
        offsets = tuple(
            EventOffsets(
                row[_PARTITION], row[f"{_OFFSET}_min_min"], row[f"{_OFFSET}_max_max"],
                row[f"{_OFFSET}_count_sum"],
            )
            for row in whole.to_pylist()
        )  # fmt: skip
        return LandedEvents(tuple(sorted(offsets)), without_time)


def _live_rows(summary: dict[str, str]) -> int | None:
    """Return the rows of a snapshot; None: its summary does not tell, or has delete files."""
    rows = summary.get("total-records")
    return None if rows is None or int(summary.get("total-delete-files", "0")) else int(rows)
