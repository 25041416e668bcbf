"""A lake in a folder for tests of `ports/tables.py`: tables, live writers, shadows, requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, In, Or
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import BucketTransform, parse_transform
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    SnapshotChange,
    SwapProducer,
    snapshot_change,
)
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.iceberg.shadow.branches import BranchShadows, IsolatedShadows
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.pyiceberg_rows import row_range_filter
from lakehouse_backfill.domain.partitions import (
    RowRange,
    Scope,
    ScopeField,
    partition_row_range,
    scope_row_ranges,
)
from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow
from lakehouse_backfill.domain.tables.commits import (
    AdoptRequest,
    CommitResult,
    PartitionRestore,
    RevertRequest,
)
from tests.support.lakes.catalogs import catalog_of

TARGET = "silver.t"
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "d", DateType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "region", StringType()),
    NestedField(5, "v", StringType()),
)
Row = dict[str, Any]
Isolation = Literal["clone", "branch"]


def row(key: int, day: str | None, v: str = "old", region: str | None = "EU", hour: int = 7) -> Row:
    """One row; `day` sets the date and the instant."""
    d = None if day is None else date.fromisoformat(day)
    ts = None if d is None else datetime(d.year, d.month, d.day, hour, tzinfo=timezone.utc)
    return {"id": key, "d": d, "ts": ts, "region": region, "v": v}


def field_of(column: str, transform: str = "identity") -> ScopeField:
    kinds = {"d": "date", "ts": "timestamptz", "region": "string", "id": "long"}
    return ScopeField(column=column, transform=transform, type=kinds[column])


DAY = field_of("d")
DAYS = ("2013-02-01", "2013-02-02", "2013-02-03")


def filter_of(table: Table, rows: RowRange) -> BooleanExpression:
    """Give the filter of a partition's rows; PyIceberg has no term for those of a bucket."""
    if rows.only:
        groups = (reduce(Or, (filter_of(table, one) for one in group)) for group in rows.only)
        return reduce(And, groups, filter_of(table, replace(rows, only=())))
    if not rows.buckets:
        return row_range_filter((rows,))
    column = table.schema().find_field(rows.column)
    number_of = BucketTransform(rows.buckets).transform(column.field_type)
    first, *rest = rows.path or (rows.column,)
    values = table.scan(selected_fields=(first,)).to_arrow()[first]
    held = (pc.struct_field(values, rest) if rest else values).to_pylist()
    return In(rows.column, {x for x in held if x is not None and number_of(x) == rows.equals})


class Kit:
    """The adapters over one folder, and live writers beside them."""

    def __init__(self, root: Path, budget_s: float = 30.0, isolation: Isolation = "clone") -> None:
        self.root = root
        self.isolation = isolation
        self.catalog = catalog_of(root)
        self.live = catalog_of(root)
        self.tables = IcebergTables(self.catalog)
        self.pins = IcebergPins(self.catalog)
        clones = IcebergShadows(self.catalog, "shadow")
        self.shadows = IsolatedShadows(clones, BranchShadows(self.catalog))
        self.publisher = IcebergPublisher(self.catalog, budget_s)

    def shadow_of(self, run: str = "r1", target: str = TARGET) -> str:
        """Name the shadow of a run: a table of its own, or a branch of the target."""
        if self.isolation == "branch":
            return branch_shadow(target, run).name
        return f"shadow.{run}"

    def create(self, *partitioning: tuple[str, str], version: int = 2, name: str = TARGET) -> Table:
        fields = [
            PartitionField(
                SCHEMA.find_field(column).field_id,
                1000 + position,
                parse_transform(transform),
                f"p{position}_{column}",
            )
            for position, (column, transform) in enumerate(partitioning)
        ]
        self.live.create_namespace_if_not_exists("silver")
        return self.live.create_table(
            name,
            SCHEMA,
            partition_spec=PartitionSpec(*fields),
            properties={"format-version": str(version)},
        )

    def create_days(self, days: Sequence[str] = DAYS, each: int = 1, version: int = 2) -> None:
        """Make the table by day; so many rows each, their ids from 0 on."""
        self.create(("d", "identity"), version=version)
        rows = (row(number, days[number // each]) for number in range(each * len(days)))
        self.append(*rows)

    def evolve(self, change: Callable[[UpdateSchema], Any], name: str = TARGET) -> None:
        """Change the columns of a table as a live writer does."""
        table = self.live.load_table(name)
        with table.update_schema(allow_incompatible_changes=True) as update:
            change(update)

    def respec(self, *changes: Callable[[UpdateSpec], Any], name: str = TARGET) -> int:
        """Change the partitioning of a table, one commit each; give the id of the last one."""
        for change in changes:
            with self.live.load_table(name).update_spec() as update:
                change(update)
        return self.live.load_table(name).spec().spec_id

    def set_back(self, snapshot_id: int | None) -> None:
        """Let `main` name an earlier snapshot."""
        manage = self.live.load_table(TARGET).manage_snapshots()
        manage.set_current_snapshot(snapshot_id=snapshot_id).commit()

    def append(self, *rows: Row, name: str = TARGET, **properties: str) -> int:
        table = self.live.load_table(name)
        table.append(_arrow(table, rows), snapshot_properties=properties)
        return self.head(name) or 0

    def arrow(self, name: str, rows: list[Row]) -> pa.Table:
        """Give rows in the columns of a table."""
        return _arrow(self.live.load_table(name), rows)

    def delete(self, field: ScopeField, label: str, name: str = TARGET) -> None:
        self.live.load_table(name).delete(row_range_filter((partition_row_range(field, label),)))

    def head(self, name: str = TARGET) -> int | None:
        return self.live.load_table(name).metadata.current_snapshot_id

    def rows(self, name: str = TARGET, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
        """Give (id, d, region, v) of all rows, sorted."""
        scan = self.live.load_table(name).scan(AlwaysTrue(), snapshot_id=snapshot_id)
        found = [(r["id"], str(r["d"]), r["region"], r["v"]) for r in scan.to_arrow().to_pylist()]
        return sorted(found, key=str)

    def total_rows(self, name: str = TARGET) -> int:
        snapshot = self.live.load_table(name).current_snapshot()
        return int(snapshot.summary["total-records"]) if snapshot and snapshot.summary else 0

    def stage(
        self, field: ScopeField, new: dict[str, list[Row]], run: str = "r1", name: str = TARGET
    ) -> AdoptRequest:
        """Open a shadow at the head and overwrite each label's partition by its rows."""
        base = self.head(name)
        shadow = self.shadow_of(run, name)
        if base is not None:
            self.pins.pin(name, base, f"lhb-base-{run}")
        self.shadows.open(name, base, shadow, {"lakehouse-backfill.run-id": run})
        for number, (label, rows) in enumerate(new.items()):
            self.write_chunk(shadow, field, label, rows, f"c{number}")
        return AdoptRequest(
            target=name,
            base_snapshot_id=base,
            shadow=shadow,
            shadow_snapshot_id=self.head(shadow),
            # PyIceberg, unlike Spark, commits nothing when an empty chunk finds nothing to remove.
            chunk_ids=tuple(dict.fromkeys(c.chunk_id for c in self.shadows.chunks(shadow))),
            scope=Scope(field=field, partitions=tuple(new)),
            token=f"token-{run}",
            tags={"before": f"lhb-before-{run}", "after": f"lhb-after-{run}"},
            properties={"lakehouse-backfill.run-id": run},
        )

    def write_chunk(
        self, shadow: str, field: ScopeField, label: str, rows: list[Row], chunk: str
    ) -> None:
        table = self.live.load_table(shadow)
        marks = {"lakehouse-backfill.chunk-id": chunk}
        (span,) = scope_row_ranges(Scope(field=field, partitions=(label,)))
        where = filter_of(table, span)
        if rows:
            table.overwrite(_arrow(table, rows), where, snapshot_properties=marks)
        else:
            table.delete(where, snapshot_properties=marks)

    def revert_request(
        self,
        swap: CommitResult,
        scope: Scope,
        run: str = "r1",
        since: int | None = None,
    ) -> RevertRequest:
        return RevertRequest(
            target=swap.table,
            scope=scope,
            restores=(
                PartitionRestore(
                    partitions=scope.partitions,
                    restore_snapshot_id=swap.before_snapshot_id,
                    since_snapshot_id=since or swap.snapshot_id,
                ),
            ),
            token=f"back-{run}",
            tags={"before": f"lhb-before-back-{run}", "after": f"lhb-after-back-{run}"},
            properties={"lakehouse-backfill.run-id": run, "version": "2"},
        )

    def compact(
        self,
        scope: Scope,
        name: str = TARGET,
        change: Callable[[list[Row]], list[Row]] | None = None,
    ) -> None:
        """Rewrite the scope's files into one per partition, as rewrite_data_files does.

        With `change`, the commit says `replace` all the same.
        """
        compact_files(self.live.load_table(name), scope, change)

    def before_commit(self, *actions: Callable[[], Any]) -> None:
        """Let `actions` happen one by one right before the adapter's next commits."""
        todo = list(actions)
        through = type(self.catalog).commit_table.__get__(self.catalog)

        def commit_table(table: Table, *args: Any, **kwargs: Any) -> Any:
            if todo:
                todo.pop(0)()
            return through(table, *args, **kwargs)

        vars(self.catalog)["commit_table"] = commit_table


def compact_files(
    table: Table, scope: Scope, change: Callable[[list[Row]], list[Row]] | None = None
) -> None:
    """Rewrite the scope's files in a commit that says `replace`, also with changed rows."""
    head = table.current_snapshot()
    assert head is not None
    cache = ManifestCache()
    old = ScopedReader(table, scope, cache).scope_files(head)
    where = row_range_filter(
        tuple(partition_row_range(scope.field, label) for label in scope.partitions)
    )
    data = table.scan(where).to_arrow()
    if change is not None:
        data = _arrow(table, change(data.to_pylist()))
    files = list(_dataframe_to_data_files(table.metadata, data, table.io))
    for file in files:
        file.spec_id = table.spec().spec_id
    new = {file.file_path: _entry(file) for file in files}
    gone = {**old.data, **old.deletes}
    change = SnapshotChange(head, tuple(head.manifests(table.io)), gone, new)
    snapshot = SwapProducer(cache).write_snapshot(table, change, {}, 1)
    assert snapshot.summary is not None
    summary = Summary(Operation.REPLACE, **snapshot.summary.additional_properties)
    snapshot_change(
        table, snapshot.model_copy(update={"summary": summary}), {}, "compaction"
    ).land()


def read_text(table: Table, path: str) -> str:
    """Read a file of the table, wherever its store is."""
    with table.io.new_input(path).open() as stream:
        return stream.read().decode("utf-8")


def write_text(table: Table, path: str, text: str) -> None:
    """Write a file of the table, or another in its place."""
    with table.io.new_output(path).create(overwrite=True) as stream:
        stream.write(text.encode("utf-8"))


def _entry(file: DataFile, snapshot_id: int | None = None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file
    )


def _arrow(table: Table, rows: Any) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=table.schema().as_arrow())
