"""Staging and measuring without Spark: PyIceberg on the same tables, by the same rules.

The chunk's commit is conditional on the head that was loaded, and is refused once a later epoch
has fenced the shadow, as `adapters/spark/staging/shadow_writer.py` does it.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import ArrowScan

from lakehouse_backfill.adapters.iceberg.catalog import translate_errors
from lakehouse_backfill.adapters.local.row_hash import shape_of, table_hashes
from lakehouse_backfill.adapters.pyiceberg_rows import row_range_filter
from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.planning.target import catch_up, row_changes
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import ExcludedRows, RestoreChunk
from lakehouse_backfill.domain.checks import RowRule
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import (
    LINEAGE_NAMES,
    ChunkCounts,
    ChunkFacts,
    ChunkRecord,
    RejectedRow,
    Rejects,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.compute import KeptIntermediate, MeasuredSides
from tests.support.oracles import merging

MARK = "lakehouse-backfill."
_NO_SHAPE = "c" * 64


#: Iceberg's names of types, by Arrow's.
_TYPES = {
    "date32[day]": "date", "int64": "long", "string": "string", "large_string": "string",
}  # fmt: skip


def marked_rows(
    rows: pa.Table, ignore: Collection[str] = ()
) -> Iterator[tuple[dict[str, Any], Checksum]]:
    """Yield each row with its checksum, as the toolkit's other readers hash it.

    Columns of lineage and those of `ignore` do not count; types without a hash are told by text.
    """
    hashed = rows.drop_columns([*({*LINEAGE_NAMES, *ignore} & {*rows.column_names})])
    shape = _shape(hashed.schema)
    if shape == _NO_SHAPE:
        marks = [zlib.crc32(repr(row).encode()) for row in hashed.to_pylist()]
    else:
        marks = table_hashes(hashed).tolist()
    for row, mark in zip(rows.to_pylist(), marks, strict=True):
        yield row, Checksum(rows=1, xor=mark, total=mark, shape=shape)


def _shape(schema: pa.Schema) -> str:
    try:
        return shape_of(pa.schema([field for field in schema if field.name not in LINEAGE_NAMES]))
    except Unsupported:
        return _NO_SHAPE


def is_named(row: dict[str, Any], predicate: RowPredicate) -> bool:
    """Return whether the predicate names the row."""
    return all(row[name] in values for name, values in predicate.items())


#: A transform whose v is the sum over all of its inputs, instead of ten times the first one.
SUMMED = "summed"


class PlainEngine:
    """The ports that need an engine, over the small product of the lab: v becomes ten times v."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def load(self, plan: Plan) -> None:
        """There is no job to import."""

    def intermediates(self, plan: Plan) -> tuple[str, ...]:
        """Name none: there is no job that declares one."""
        return ()

    def keep_intermediates(self, plan: Plan) -> tuple[KeptIntermediate, ...]:
        """Keep none."""
        return ()

    def beside(self, plan: Plan) -> Any:
        """Threads share nothing but the catalog."""
        return nullcontext()

    def interrupt(self, plan: Plan) -> None:
        """A chunk takes no time worth it."""

    def analysed_plan(self, plan: Plan, chunk: Chunk) -> str:
        """Give a plan in which there is nothing to find."""
        relation = "org.apache.spark.sql.catalyst.plans.logical.OneRowRelation"
        return f'[{{"class": "{relation}", "num-children": 0}}]'

    def tables_read(self, plan: Plan, chunk: Chunk) -> None:
        """There is no plan of an engine here."""

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        scope = plan.chunk_scope(chunk)
        where = row_range_filter(partitions.scope_row_ranges(scope))
        with translate_errors():
            shadow = self._catalog.load_table(plan.shadow_table)
            fence = int(shadow.properties.get(f"{MARK}epoch", "0"))
            event_log.require_current_epoch(plan.run_id, epoch, fence)
            # PyIceberg would build the same commit again on whatever it finds then.
            shadow.metadata.properties["commit.retry.num-retries"] = "0"
            rows, counts = self._composed(plan, scope, self._source(plan, scope))
            rows, counts = self._without_deleted(plan, chunk, rows, counts)
            marks = counts.properties | {
                f"{MARK}run-id": plan.run_id,
                f"{MARK}chunk-id": chunk.chunk_id,
                f"{MARK}attempt-id": str(uuid.uuid4()),
                f"{MARK}epoch": str(epoch),
            }
            try:
                with commit_window("Spark.overwrite"):
                    shadow.overwrite(rows, where, snapshot_properties=marks)
            except Exception:
                if not self._landed(plan.shadow_table, marks[f"{MARK}attempt-id"]):
                    self._require_newest(plan, epoch)
                    raise
            # A branch refuses no commit of an epoch that is over.
            self._require_newest(plan, epoch)
        head = self._catalog.load_table(plan.shadow_table).current_snapshot()
        assert head is not None
        return self.remeasure(plan, chunk, head.snapshot_id, epoch)

    def _require_newest(self, plan: Plan, epoch: int) -> None:
        now = self._catalog.load_table(plan.shadow_table).properties.get(f"{MARK}epoch", "0")
        event_log.require_current_epoch(plan.run_id, epoch, int(now))

    def rejects(self, plan: Plan, chunk: Chunk) -> Rejects | None:
        """Give a row for each chunk of a run that may reject some; others declare none."""
        if not plan.resolved.manifest.safety.max_rejected_share:
            return None
        row = {"d": chunk.partitions[0], "k": "4", "v": None}
        rejected = RejectedRow(reason="no amount", key={"d": row["d"], "k": "4"}, record=row)
        return Rejects(rows=1, reasons={"no amount": 1}, records=(rejected,))

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        scope = plan.chunk_scope(chunk)
        found = self.checksums(plan.shadow_table, snapshot_id, scope)
        stored = self._catalog.load_table(plan.shadow_table).schema().as_arrow()
        total = Checksum.empty(_shape(stored))
        for part in found.values():
            total = total + part
        return ChunkRecord(
            run_id=plan.run_id, chunk_id=chunk.chunk_id, partitions=chunk.partitions,
            status="done", input_rows=total.rows, output_rows=total.rows, outside_rows=0,
            checksum=total.text, seconds=0.0, snapshot_id=snapshot_id,
            finished_at=datetime.now(timezone.utc), epoch=epoch,
            **self._counted(plan, snapshot_id).known,
        )  # fmt: skip

    def _composed(self, plan: Plan, scope: Scope, rows: pa.Table) -> tuple[pa.Table, ChunkCounts]:
        """What the partitions are to hold, as the Spark adapter composes it."""
        target = plan.resolved.manifest.target
        if not target.row_predicate and not target.columns and target.merge is None:
            return rows, ChunkCounts()
        base = self._base(plan, scope)
        if target.columns:
            key = plan.resolved.contract.key
            given = {tuple(row[c] for c in key): row for row in rows.to_pylist()}
            found = [
                row | {name: given[tuple(row[c] for c in key)][name] for name in target.columns}
                for row in base.to_pylist()
            ]
            return pa.Table.from_pylist(found, base.schema), ChunkCounts()
        if target.merge is not None:
            merge = target.merge
            key = plan.resolved.contract.key
            found, counts = merging.merge(
                base.to_pylist(), rows.to_pylist(), key, merge.version, merge.deleted
            )
            return pa.Table.from_pylist(found, base.schema), counts
        types = {field.name: _TYPES[str(field.type)] for field in base.schema}
        named = row_changes.resolve_row_predicate(target, types)
        mine = [row for row in rows.to_pylist() if is_named(row, named)]
        others = [row for row in base.to_pylist() if not is_named(row, named)]
        counts = ChunkCounts(carried_rows=len(others), stray_rows=len(rows) - len(mine))
        return pa.Table.from_pylist([*mine, *others], base.schema), counts

    def _without_deleted(
        self, plan: Plan, chunk: Chunk, rows: pa.Table, counts: ChunkCounts
    ) -> tuple[pa.Table, ChunkCounts]:
        """Leave out what must not come back, as the Spark adapter does."""
        left_out = catch_up.excluded_rows(plan.resolved)
        source = plan.resolved.catch_up and plan.resolved.catch_up.erased_chunk(chunk.chunk_id)
        if source:
            scope = Scope(field=left_out.field, partitions=chunk.partitions)
            old = self._catalog.load_table(source.shadow_table)
            where = row_range_filter(partitions.scope_row_ranges(scope))
            rows = old.scan(where, snapshot_id=source.shadow_snapshot_id).to_arrow()
        if left_out.is_empty:
            return rows, counts
        kept = self._kept(rows, left_out)
        return kept, counts.model_copy(update={"left_out_rows": len(rows) - len(kept)})

    def _kept(self, rows: pa.Table, left_out: ExcludedRows) -> pa.Table:
        names = [
            (tuple(pin.columns), self._values(pin.table, pin.snapshot_id, pin.columns.values()))
            for pin in left_out.tombstones
        ]
        for one in left_out.erasures:
            before = self._values(one.table, one.before_snapshot_id, one.key)
            names.append(
                (one.key, before - self._values(one.table, one.after_snapshot_id, one.key))
            )
        found = [
            row
            for row in rows.to_pylist()
            if not any(tuple(row[c] for c in columns) in named for columns, named in names)
        ]
        return pa.Table.from_pylist(found, rows.schema)

    def _values(self, table: str, snapshot_id: int | None, columns: Any) -> set[tuple[Any, ...]]:
        rows = self._catalog.load_table(table).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        return {tuple(row[column] for column in columns) for row in rows}

    def _base(self, plan: Plan, scope: Scope) -> pa.Table:
        base = plan.resolved.target
        table = self._catalog.load_table(base.table)
        where = row_range_filter(partitions.scope_row_ranges(scope))
        found = table.scan(where, snapshot_id=base.snapshot_id).to_arrow()
        return found if base.snapshot_id is not None else found.slice(0, 0)

    def _counted(self, plan: Plan, snapshot_id: int) -> ChunkCounts:
        snapshot = self._catalog.load_table(plan.shadow_table).snapshot_by_id(snapshot_id)
        assert snapshot is not None
        assert snapshot.summary is not None
        return ChunkCounts.from_properties(snapshot.summary.additional_properties)

    def restore(self, chunk: RestoreChunk) -> int:
        where = row_range_filter(partitions.scope_row_ranges(chunk.scope))
        with translate_errors():
            old = self._catalog.load_table(chunk.table).scan(where, snapshot_id=chunk.snapshot_id)
            shadow = self._catalog.load_table(chunk.shadow)
            marks = chunk.properties | {f"{MARK}chunk-id": chunk.chunk_id}
            rows = old.to_arrow()
            if chunk.left_out is not None:
                rows = self._kept(rows, chunk.left_out)
            with commit_window("Spark.overwrite"):
                shadow.overwrite(rows, where, snapshot_properties=marks)
        head = self._catalog.load_table(chunk.shadow).current_snapshot()
        assert head is not None
        return head.snapshot_id

    def application(self) -> str:
        """PyIceberg's commits name no application."""
        return ""

    def edges(self, plan: Plan, around: Any) -> tuple[Any, ...]:
        """Rows never move between partitions here."""
        return ()

    def edge_checksums(self, plan: Plan, around: Any) -> dict[str, Checksum]:
        """What lies beyond comes out as it is accepted."""
        labels = tuple(label for some in around.values() for label in some)
        target, field = plan.resolved.target, plan.resolved.scope.field
        return self.checksums(
            target.table, target.snapshot_id, Scope(field=field, partitions=labels)
        )

    def begin_edges(self, plan: Plan, around: Any) -> Future[dict[str, Checksum]]:
        computed: Future[dict[str, Checksum]] = Future()
        computed.set_result(self.edge_checksums(plan, around))
        return computed

    def checksums(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        beside: RowPredicate | None = None,
        without: ExcludedRows | None = None,
    ) -> dict[str, Checksum]:
        return fingerprints.checksums_by_label(
            self.by_file(table, snapshot_id, scope, ignore, beside=beside)
        )

    def by_file(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        skip: frozenset[str] = frozenset(),
        beside: RowPredicate | None = None,
    ) -> dict[tuple[str, str], Checksum]:
        found: dict[tuple[str, str], Checksum] = {}
        if snapshot_id is None:
            return found
        loaded, where = (
            self._catalog.load_table(table),
            row_range_filter(partitions.scope_row_ranges(scope)),
        )
        scan = loaded.scan(where, snapshot_id=snapshot_id)
        reader = ArrowScan(loaded.metadata, loaded.io, scan.projection(), where)
        for task in scan.plan_files():
            path = task.file.file_path
            for row, one in (
                marked_rows(reader.to_table([task]), ignore) if path not in skip else ()
            ):
                if beside is not None and is_named(row, beside):
                    continue
                label = partitions.partition_label(scope.field, row.get(scope.field.column))
                place = label, path
                found[place] = found.get(place, Checksum.empty(one.shape)) + one
        return found

    def measure(
        self, old: Any, new: Any, scope: Scope, measures: Any, *ignored: Any, **named: Any
    ) -> MeasuredSides:
        before, after = self.by_file(*old, scope), self.by_file(*new, scope)
        return MeasuredSides(
            fingerprints.checksums_by_label(before),
            fingerprints.checksums_by_label(after),
            (),
            before,
            after,
        )

    def periods(self, plan: Plan, name: str, unit: str) -> tuple[str, ...]:
        rows = self._source(plan, plan.resolved.scope)
        return tuple(sorted({str(day) for day in rows["d"].to_pylist()}))

    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...] = ()
    ) -> ChunkFacts:
        assert not rules, "this engine has no suites"
        scope = plan.chunk_scope(chunk)
        found = self.checksums(plan.shadow_table, snapshot_id, scope)
        rows = {label: checksum.rows for label, checksum in found.items()}
        return ChunkFacts(rows=rows, null_keys={}, duplicate_keys=0)

    def frame(self, table: str, snapshot_id: int, scope: Scope) -> pa.Table:
        where = row_range_filter(partitions.scope_row_ranges(scope))
        return self._catalog.load_table(table).scan(where, snapshot_id=snapshot_id).to_arrow()

    def _source(self, plan: Plan, scope: Scope) -> pa.Table:
        where = row_range_filter(partitions.scope_row_ranges(scope))
        inputs = [
            self._catalog.load_table(pin.table).scan(where, snapshot_id=pin.snapshot_id).to_arrow()
            for pin in plan.resolved.sources
        ]
        # A raw table has columns of its landings beside them.
        rows = inputs[0].select(["d", "k", "v"])
        if plan.resolved.manifest.transform.name != SUMMED:
            return rows.set_column(2, "v", pc.multiply(rows["v"], 10))
        whole = pa.concat_tables(inputs).group_by(["d", "k"]).aggregate([("v", "sum")])
        return whole.select(["d", "k", "v_sum"]).rename_columns(["d", "k", "v"]).cast(rows.schema)

    def _landed(self, shadow: str, attempt: str) -> bool:
        snapshots = self._catalog.load_table(shadow).snapshots()
        marks = [s.summary.additional_properties for s in snapshots if s.summary is not None]
        return any(found.get(f"{MARK}attempt-id") == attempt for found in marks)
