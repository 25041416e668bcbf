"""Tables of migrations: files are added to a branch, which becomes the main one when accepted.

Files of the old place are adopted where they lie. They have no field ids, so the table maps their
columns by name (Iceberg spec, column projection); a partition column that is only in their path has
its value from the partition of the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table import update as updates
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import set_tag_update
from lakehouse_backfill.adapters.iceberg.landing.conditional_commit import ConditionalCommits
from lakehouse_backfill.adapters.iceberg.metadata import PROPERTY_PREFIX
from lakehouse_backfill.adapters.iceberg.schema import (
    contract_schema,
    contract_spec,
    create_table,
)
from lakehouse_backfill.adapters.pyiceberg_rows import keep_null_lists
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.migration import (
    MIGRATION_BRANCH,
    MigrationPart,
    MigrationState,
)
from lakehouse_backfill.errors import Blocked, Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.migration import OldPlace, RowSums, StagedPart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

keep_null_lists()

#: The state of the migration that made a table.
STATE_PROPERTY = PROPERTY_PREFIX + "migration"
#: In the summary of each snapshot of a migration.
_ID_PROPERTY = PROPERTY_PREFIX + "migration-id"
_KEPT = "no reader sees a row of the migration; what was committed before stays"
#: Rows are written in files of about this size in memory.
_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class IcebergMigratedTables:
    """`ports.migration.MigratedTables` on PyIceberg."""

    catalog: Catalog
    budget_s: float = catalogs.COMMIT_BUDGET_S

    def state(self, table: str) -> MigrationState | None:
        """Return the state of the migration; None: no table. Raises Unsupported for another one."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        if loaded is None:
            return None
        found = self._commits.read(loaded)
        if found is None:
            raise Unsupported(
                f"{table} exists, and no migration made it",
                state="nothing was migrated",
                fix="name a table that does not exist in the product's contract",
            )
        return found

    def create(self, contract: Contract, state: MigrationState) -> None:
        """Create the table with the state; raises Conflict when another process was first.

        While files of the old place are its files, `gc.enabled` is false: engines then refuse to
        delete files that no snapshot needs, and DROP TABLE PURGE.
        """
        properties = {STATE_PROPERTY: canonical_json(state)}
        if state.keeps_files:
            properties["gc.enabled"] = "false"
        create_table(self.catalog, contract, properties)
        found = self.state(contract.table)
        if found is None or found.token != state.token:
            raise Conflict(
                f"another process made {contract.table}",
                state=_KEPT,
                fix="wait for it, then give the command again",
            )

    def stage(
        self, table: str, parts: tuple[MigrationPart, ...], place: OldPlace
    ) -> tuple[StagedPart, ...]:
        """Describe adopted files, and write the rows of other parts as files no reader sees."""
        loaded = catalogs.load_table(self.catalog, table)
        with catalogs.translate_errors():
            return tuple(
                StagedPart((_adopted_file(loaded, part),))
                if part.action == "adopt"
                else StagedPart(tuple(_written_files(loaded, place.batches(part))))
                for part in parts
            )

    def commit(self, table: str, staged: tuple[StagedPart, ...], state: MigrationState) -> None:
        """Add staged files to the branch together with the state, exactly once."""
        files = [file for one in staged for file in one.files]
        self._open_branch(table, state)

        def prepare(loaded: Table) -> Transaction:
            transaction = loaded.transaction()
            _branch_head(loaded, table)
            update = transaction.update_snapshot(
                snapshot_properties=_summary(state), branch=MIGRATION_BRANCH
            )
            with update.fast_append() as append:
                for file in files:
                    append.append_data_file(file)
            return transaction

        self._commits.commit(table, state, prepare)

    def note(self, table: str, state: MigrationState) -> None:
        """Store the state alone, while the branch is as it was."""
        head = self.branch_snapshot(table)

        def prepare(loaded: Table) -> Transaction:
            transaction = loaded.transaction()
            transaction._apply((), (_branch_is(head),))
            return transaction

        self._commits.commit(table, state, prepare)

    def branch_snapshot(self, table: str) -> int:
        """Return the snapshot that the migration has committed last."""
        return _branch_head(catalogs.load_table(self.catalog, table), table)

    def sums(self, table: str, state: MigrationState, sums: RowSums) -> int:
        """Read the branch as readers will, and add all of its rows; return its files.

        Raises Blocked when a file is listed twice.
        """
        loaded = catalogs.load_table(self.catalog, table)
        scan = loaded.scan(snapshot_id=_branch_head(loaded, table))
        with catalogs.translate_errors():
            paths = [task.file.file_path for task in scan.plan_files()]
            if len(set(paths)) < len(paths):
                raise Blocked(
                    f"{table} lists a file twice, so rows of {state.migration_id} are doubled",
                    state=_KEPT,
                    fix=f"lakehouse-backfill product migrate {state.migration} --undo, and again",
                )
            for batch in scan.to_arrow_batch_reader():
                sums.add(batch)
        return len(paths)

    def accept(self, table: str, state: MigrationState, tag: str) -> int:
        """Make the branch the main one, with a tag that keeps it, in one commit."""
        loaded = catalogs.load_table(self.catalog, table)
        if self._commits.is_at(loaded, state):
            return _tagged(loaded, tag)
        head = _branch_head(loaded, table)
        main = loaded.current_snapshot()
        if main is None or not _is_own(main, state) or main.snapshot_id != self._first(loaded):
            raise Conflict(
                f"something else was committed to {table} while it was migrated",
                state=_KEPT,
                fix="look at who writes there; then lakehouse-backfill product migrate "
                f"{state.migration} --undo, and again",
            )

        def prepare(current: Table) -> Transaction:
            transaction = current.transaction()
            transaction._apply(
                (
                    updates.SetSnapshotRefUpdate.model_validate(
                        {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": head}
                    ),
                    set_tag_update(tag, head),
                    updates.RemoveSnapshotRefUpdate.model_validate({"ref-name": MIGRATION_BRANCH}),
                ),
                (
                    updates.AssertRefSnapshotId.model_validate(
                        {"ref": MAIN_BRANCH, "snapshot-id": main.snapshot_id}
                    ),
                    _branch_is(head),
                ),
            )
            return transaction

        self._commits.commit(table, state, prepare)
        return head

    def foreign_snapshot(self, table: str) -> int | None:
        """Return a snapshot of the table that the migration did not make; None: there is none."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        for snapshot in loaded.metadata.snapshots if loaded else ():
            if snapshot.summary is None or snapshot.summary.get(_ID_PROPERTY) is None:
                return int(snapshot.snapshot_id)
        return None

    def drop(self, table: str, state: MigrationState) -> None:
        """Drop the table from the catalog; no file is deleted."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        if loaded is None:
            return
        found = self._commits.read(loaded)
        if found is None or found.migration_id != state.migration_id:
            raise Conflict(f"{table} was replaced meanwhile", state="it was not dropped")
        with catalogs.translate_errors(), commit_window("MigratedTables.drop"):
            self.catalog.drop_table(table)

    @property
    def _commits(self) -> ConditionalCommits[MigrationState]:
        return ConditionalCommits(
            self.catalog,
            STATE_PROPERTY,
            MigrationState.model_validate_json,
            lambda: commit_window("MigratedTables.commit"),
            _overtaken,
            _KEPT,
            self.budget_s,
        )

    def _open_branch(self, name: str, state: MigrationState) -> None:
        """Make the branch, on an empty snapshot: PyIceberg makes none in a table without one.

        The same commit maps columns by name, as only the table says which id a column has: a
        catalog counts nested ones in another order than the contract's schema.
        """

        def prepare(table: Table) -> Transaction:
            transaction = table.transaction()
            update = transaction.update_snapshot(snapshot_properties=_summary(state))
            with update.fast_append() as append:
                pass
            branch = {
                "ref-name": MIGRATION_BRANCH,
                "type": "branch",
                "snapshot-id": append.snapshot_id,
            }
            transaction._apply((updates.SetSnapshotRefUpdate.model_validate(branch),), ())
            mapping = table.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
            return transaction

        self._commits.commit_without_state(
            name, state, prepare, lambda table: bool(table.metadata.snapshots)
        )

    @staticmethod
    def _first(table: Table) -> int:
        """Return the snapshot that the branch was made on."""
        oldest = min(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
        return int(oldest.snapshot_id)


def table_shape(contract: Contract) -> tuple[Any, Any, frozenset[str], frozenset[str]]:
    """Return schema and partitioning of the contract's table, its identity columns, its leaves."""
    from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
    from pyiceberg.transforms import IdentityTransform

    schema = contract_schema(contract)
    spec = contract_spec(contract, schema)
    identity = frozenset(
        schema.find_field(each.source_id).name
        for each in spec.fields
        if isinstance(each.transform, IdentityTransform)
    )
    return schema, spec, identity, frozenset(parquet_path_to_id_mapping(schema))


def _adopted_file(table: Table, part: MigrationPart) -> DataFile:
    """Describe a file where it lies: statistics of its footer, the partition of its rows."""
    from pyarrow import parquet as pq
    from pyiceberg.io.pyarrow import (
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    with table.io.new_input(part.path).open() as stored:
        footer = pq.read_metadata(stored)
    metadata = table.metadata
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=_statistics_plan(metadata, footer),
        parquet_column_mapping=parquet_path_to_id_mapping(metadata.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=part.path,
        file_format=FileFormat.PARQUET,
        partition=_partition(metadata, part),
        file_size_in_bytes=part.size_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _statistics_plan(metadata: TableMetadata, footer: pq.FileMetaData) -> Any:
    """Return which statistics are taken: only whole ones, no bounds of decimals stored narrower.

    PyIceberg 0.12 refuses a decimal whose physical type is not that of the table's precision.
    """
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        parquet_path_to_id_mapping,
    )

    schema = metadata.schema()
    plan = dict(compute_statistics_plan(schema, metadata.properties))
    ids = parquet_path_to_id_mapping(schema)
    for path, mode in _unsure_statistics(footer).items():
        plan[ids[path]] = replace(plan[ids[path]], mode=MetricsMode(mode))
    stored: pa.Schema = footer.schema.to_arrow_schema()
    for name in stored.names:
        found = schema.find_field(name)
        kind, own = found.field_type, stored.field(name).type
        if isinstance(kind, DecimalType) and own.precision != kind.precision:
            own_plan = plan[found.field_id]
            if own_plan.mode.type != MetricModeTypes.NONE:
                plan[found.field_id] = replace(own_plan, mode=MetricsMode(MetricModeTypes.COUNTS))
    return plan


def _unsure_statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return by column what may be taken of it, when one of its row groups says less than others.

    Writers leave out the bounds of long values. PyIceberg would take the bounds of the other
    groups for those of the file, and readers with a filter would pass its rows over.
    """
    from pyiceberg.io.pyarrow import MetricModeTypes

    found: dict[str, Any] = {}
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            stored = column.statistics if column.is_stats_set else None
            if stored is None or not stored.has_null_count:
                found[column.path_in_schema] = MetricModeTypes.NONE
            elif not stored.has_min_max and stored.null_count < column.num_values:
                found.setdefault(column.path_in_schema, MetricModeTypes.COUNTS)
    return found


def _partition(metadata: TableMetadata, part: MigrationPart) -> Record:
    kinds: Any = metadata.spec().partition_type(metadata.schema()).fields
    return Record(
        *(
            None if text is None else from_bytes(field.field_type, bytes.fromhex(text))
            for field, text in zip(kinds, part.partition, strict=True)
        )
    )


def _written_files(table: Table, batches: Iterable[Any]) -> Iterable[DataFile]:
    """Write rows as data files; on an error those that were written are deleted again."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    schema = table.schema().as_arrow()
    files: list[DataFile] = []
    held: list[pa.RecordBatch] = []

    def write() -> None:
        rows = pa.Table.from_batches(held).cast(schema)
        _require_numbers(table, rows, _KEPT)
        files.extend(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))
        held.clear()

    try:
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
            if sum(one.nbytes for one in held) >= _FILE_BYTES:
                write()
        if held:
            write()
    except Exception:
        # No snapshot lists them, and nobody else knows their names.
        for file in files:
            with suppress(OSError):
                table.io.delete(file.file_path)
        raise
    return files


def _overtaken(table: str, found: MigrationState | None, _: MigrationState) -> str:
    if found is None:
        return f"another process works on {table}, or replaced it"
    return f"another process works on {table}: {found.migration_id} is at step {found.step}"


def _summary(state: MigrationState) -> dict[str, str]:
    return {_ID_PROPERTY: state.migration_id, MODE_PROPERTY: state.mode}


def _is_own(snapshot: Snapshot, state: MigrationState) -> bool:
    return snapshot.summary is not None and snapshot.summary.get(_ID_PROPERTY) == state.migration_id


def _branch_is(head: int) -> updates.TableRequirement:
    return updates.AssertRefSnapshotId.model_validate(
        {"ref": MIGRATION_BRANCH, "snapshot-id": head}
    )


def _branch_head(table: Table, name: str) -> int:
    ref = table.metadata.refs.get(MIGRATION_BRANCH)
    if ref is None:
        raise Unsupported(
            f"{name} has no branch {MIGRATION_BRANCH}: the catalog does not keep branches, or "
            "somebody removed it",
            state=_KEPT,
            fix="use a catalog that keeps branches (docs/catalogs.md)",
        )
    return int(ref.snapshot_id)


def _tagged(table: Table, tag: str) -> int:
    ref = table.metadata.refs.get(tag)
    head = table.current_snapshot()
    if ref is None and head is None:
        raise Unsupported(f"the catalog kept neither {tag} nor the main branch")
    return int(ref.snapshot_id if ref is not None else head.snapshot_id)  # type: ignore[union-attr]


def _require_numbers(table: Table, rows: Any, state: str) -> None:
    """Raise Unsupported for NaN in a column by whose own value the table is partitioned.

    PyIceberg 0.12 looks for the rows of each value, and NaN equals none: it fails on no rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for each in table.spec().fields:
        name = table.schema().find_field(each.source_id).name
        is_own = str(each.transform) == "identity"
        if not is_own or not pa.types.is_floating(rows.schema.field(name).type):
            continue
        if pc.any(pc.is_nan(rows[name])).as_py():
            raise Unsupported(
                f"column {name} has NaN, and the table is partitioned by it: no such partition "
                "can be written",
                state=state,
                fix="partition the product by another column, or put another value in the old "
                "place",
            )
