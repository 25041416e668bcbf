"""Raw tables of sources: data files first, then one conditional commit with rows and state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In
from pyiceberg.table import Table, Transaction
from pyiceberg.table import update as updates

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg.landing.conditional_commit import ConditionalCommits
from lakehouse_backfill.adapters.iceberg.metadata import (
    LANDING_POSITION_PROPERTY,
    LANDING_PROPERTY,
    LANDING_SOURCE_PROPERTY,
    LANDING_STATE_PROPERTY,
    PROPERTY_PREFIX,
)
from lakehouse_backfill.adapters.iceberg.schema import contract_schema, create_table
from lakehouse_backfill.adapters.pyiceberg_rows import keep_null_lists, row_range_filter
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.declaration import LANDING_COLUMNS, SourceDeclaration
from lakehouse_backfill.domain.sources.landings import LandedSnapshot, LandingState
from lakehouse_backfill.domain.sources.schemas import WriterSchema
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.sources import StagedRows

if TYPE_CHECKING:
    import pyarrow as pa

keep_null_lists()

#: With the id behind it: the schema of a writer of landed rows. A re-read needs no registry.
SCHEMA_PROPERTY = PROPERTY_PREFIX + "schema."


@dataclass(frozen=True)
class IcebergRawTables:
    """`ports.sources.RawTables` on PyIceberg."""

    catalog: Catalog
    budget_s: float = catalogs.COMMIT_BUDGET_S

    def state(self, table: str) -> LandingState | None:
        """Return the state of the newest landing; None where there was none, or no table."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        return None if loaded is None else self._commits.read(loaded)

    def ensure(self, source: SourceDeclaration) -> None:
        """Create the raw table unless it exists; add columns that are newer than it.

        Raises Unsupported when a column has another type, or a required one is newer, and for a
        table with rows that no landing brought in.
        """
        contract = _as_contract(source)
        if catalogs.load_table_or_none(self.catalog, source.table) is None:
            create_table(self.catalog, contract)
        table = catalogs.load_table(self.catalog, source.table)
        if self._commits.read(table) is None and table.current_snapshot() is not None:
            raise Unsupported(
                f"{source.table} has snapshots that are of no landing",
                state="nothing was landed",
                fix=f"name a table that does not exist in catalog/sources/{source.source}.yaml",
            )
        missing = _missing_columns(source, table)
        if missing:
            catalogs.commit_with_retry(
                lambda: self._add_columns(source, missing), f"columns for {source.table}"
            )

    def stage(self, table: str, batches: Iterable[Any], state: LandingState) -> StagedRows:
        """Write data files that no reader sees yet; on an error they are deleted again."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        loaded = catalogs.load_table(self.catalog, table)
        files: list[Any] = []
        rows = 0
        try:
            with catalogs.translate_errors():
                for batch in batches:
                    if batch.num_rows == 0:
                        continue
                    full = _with_landing_columns(batch, state, loaded)
                    files += _dataframe_to_data_files(
                        table_metadata=loaded.metadata, df=full, io=loaded.io
                    )
                    rows += batch.num_rows
        except Exception:
            # No snapshot lists them, and nobody else knows their names.
            for file in files:
                with suppress(OSError):
                    loaded.io.delete(file.file_path)
            raise
        return StagedRows(rows, tuple(files))

    def commit(
        self,
        table: str,
        staged: tuple[StagedRows, ...],
        state: LandingState,
        replaces: tuple[str, ...] = (),
        schemas: Mapping[int, WriterSchema] | None = None,
    ) -> LandedSnapshot:
        """Make staged rows and the state visible in one commit, exactly once.

        `schemas` are kept with them. Raises Conflict when another process lands the source,
        TooBusy, OutcomeUnknown.
        """
        return self._land(table, _LandingCommit(state, staged, replaces, schemas=schemas or {}))

    def schemas(self, table: str) -> dict[int, WriterSchema]:
        """Return the schemas of writers that were kept with landed rows, by id."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        kept = {} if loaded is None else loaded.properties
        names = [name for name in kept if name.startswith(SCHEMA_PROPERTY)]
        try:
            return {
                int(name[len(SCHEMA_PROPERTY) :]): WriterSchema.model_validate_json(kept[name])
                for name in names
            }
        except ValueError as error:
            raise Unsupported(
                f"a property {SCHEMA_PROPERTY}… of {table} is no schema of a writer",
                state="nothing was read or changed",
                fix="set it as it was in an older metadata file of the table, or remove it: land "
                "asks for the schema again",
            ) from error

    def seal(self, table: str, state: LandingState, keep_days: int) -> LandedSnapshot:
        """Mark the landing as complete, and tag its snapshot, in one commit."""
        age_ms = timedelta(days=keep_days) // timedelta(milliseconds=1)
        return self._land(table, _LandingCommit(state, tag_age_ms=age_ms))

    def rows(
        self, table: str, where: Mapping[str, str], columns: tuple[str, ...]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the rows with these values, in no order."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        if loaded is None or loaded.current_snapshot() is None:
            return
        wanted: BooleanExpression = AlwaysTrue()
        for name, value in where.items():
            wanted = And(wanted, EqualTo(term=name, value=value))
        with catalogs.translate_errors():
            found = loaded.scan(row_filter=wanted, selected_fields=columns).to_arrow_batch_reader()
        for batch in found:
            yield from batch.to_pylist()

    def deliveries(
        self, table: str, snapshot_id: int, ranges: tuple[RowRange, ...]
    ) -> frozenset[tuple[str, int]]:
        """Return file and attempt of the rows in these ranges that a snapshot holds."""
        import pyarrow as pa

        names = ("source_file", "source_attempt")
        found: set[tuple[str, int]] = set()
        loaded = catalogs.load_table(self.catalog, table)
        with catalogs.translate_errors():
            scan = loaded.scan(
                row_range_filter(ranges), selected_fields=names, snapshot_id=snapshot_id
            )
            for batch in scan.to_arrow_batch_reader():
                distinct = pa.Table.from_batches([batch]).group_by(list(names)).aggregate([])
                found.update((row[names[0]], row[names[1]]) for row in distinct.to_pylist())
        return frozenset(found)

    def pinned(self, table: str, landing_id: str) -> LandedSnapshot:
        """Return the snapshot that the landing is pinned at, with its tag."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        return LandedSnapshot(table, None) if loaded is None else _pinned(table, loaded, landing_id)

    @staticmethod
    def record_schema(source: SourceDeclaration) -> pa.Schema:
        """Return the Arrow schema of what a reader of the source yields."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        whole = schema_to_pyarrow(contract_schema(_as_contract(source)), include_field_ids=False)
        for name, _, _ in LANDING_COLUMNS:
            whole = whole.remove(whole.get_field_index(name))
        return whole

    @property
    def _commits(self) -> ConditionalCommits[LandingState]:
        return ConditionalCommits(
            self.catalog,
            LANDING_STATE_PROPERTY,
            LandingState.model_validate_json,
            lambda: commit_window("RawTables.commit"),
            _overtaken,
            "no reader sees a row of this commit; what was committed before it stays",
            self.budget_s,
        )

    def _land(self, name: str, commit: _LandingCommit) -> LandedSnapshot:
        self._commits.commit(name, commit.state, commit.prepare)
        return _pinned(name, catalogs.load_table(self.catalog, name), commit.state.landing_id)

    def _add_columns(self, source: SourceDeclaration, names: tuple[str, ...]) -> None:
        table = catalogs.load_table(self.catalog, source.table)
        wanted = contract_schema(_as_contract(source))
        with commit_window("Catalog.update_schema"), table.update_schema() as update:
            for name in names:
                if name not in table.schema().column_names:
                    field = wanted.find_field(name)
                    update.add_column(name, field.field_type, field.doc)


@dataclass(frozen=True)
class _LandingCommit:
    """One commit: rows in, rows of replaced files out, and a tag at the end."""

    state: LandingState
    staged: tuple[StagedRows, ...] = ()
    replaces: tuple[str, ...] = ()
    tag_age_ms: int | None = None
    schemas: Mapping[int, WriterSchema] = field(default_factory=dict)

    def prepare(self, table: Table) -> Transaction:
        """Write manifests and stage the updates; the commit requires the head of `table`."""
        transaction = table.transaction()
        if self.replaces:
            transaction.delete(
                In(term="source_file", literals=set(self.replaces)),
                snapshot_properties=self._summary(),
            )
        update = transaction.update_snapshot(snapshot_properties=self._summary())
        # Without files too: the commit then still moves the head, and so meets other commits.
        with update.fast_append() as append:
            for staged in self.staged:
                for file in staged.files:
                    append.append_data_file(file)
        if self.tag_age_ms is not None:
            tag = updates.SetSnapshotRefUpdate.model_validate(
                {
                    "ref-name": self.state.landing_id,
                    "type": "tag",
                    "snapshot-id": append.snapshot_id,
                    "max-ref-age-ms": self.tag_age_ms,
                }
            )
            transaction._apply((tag,), ())
        kept = {
            f"{SCHEMA_PROPERTY}{number}": one.model_dump_json(by_alias=True, exclude_defaults=True)
            for number, one in self.schemas.items()
        }
        if kept:
            transaction.set_properties(kept)
        return transaction

    def _summary(self) -> dict[str, str]:
        state = self.state
        return {
            LANDING_PROPERTY: state.landing_id,
            LANDING_SOURCE_PROPERTY: state.source,
            f"{PROPERTY_PREFIX}landing-step": str(state.step),
            MODE_PROPERTY: state.mode,
            LANDING_POSITION_PROPERTY: canonical_json(state.position),
        }


def _overtaken(table: str, found: LandingState | None, state: LandingState) -> str:
    if found is None:
        return f"{table} was replaced while {state.source} was landed"
    return (
        f"another process lands {state.source}: {table} is at {found.landing_id}, step {found.step}"
    )


def _pinned(name: str, table: Table, landing_id: str) -> LandedSnapshot:
    ref = table.metadata.refs.get(landing_id)
    head = table.current_snapshot()
    if ref is not None:
        return LandedSnapshot(name, ref.snapshot_id, landing_id)
    return LandedSnapshot(name, head.snapshot_id if head else None)


def _as_contract(source: SourceDeclaration) -> Contract:
    """Return what the raw table is created by: it has the form of a product's table."""
    return Contract(
        api_version=source.api_version,
        product=source.table,
        table=source.table,
        description=source.description or f"Raw rows of the source {source.source}.",
        owner=source.owner or "unknown",
        key=(),
        partitioning=source.partitioning,
        columns=source.all_columns,
    )


def _missing_columns(source: SourceDeclaration, table: Table) -> tuple[str, ...]:
    """Return the declared columns that the table lacks; raise Unsupported when others differ."""
    wanted = contract_schema(_as_contract(source))
    present = {field.name: field for field in table.schema().fields}
    faults = [
        f"{field.name} is {present[field.name].field_type}, not {field.field_type}"
        if field.name in present
        else f"{field.name} is new, and required"
        for field in wanted.fields
        if (field.name in present and not _has_type(present[field.name], field))
        or (field.name not in present and field.required)
    ]
    declared = {field.name for field in wanted.fields}
    faults += [
        f"{name} is required, and not declared"
        for name, field in present.items()
        if field.required and name not in declared
    ]
    if faults:
        raise Unsupported(
            f"{source.table} does not fit the source {source.source}: {'; '.join(faults)}",
            state="nothing was landed",
            fix="declare the columns as the table has them, or name a table that does not exist",
        )
    return tuple(field.name for field in wanted.fields if field.name not in present)


def _has_type(present: Any, wanted: Any) -> bool:
    # Ids of nested fields differ between a schema and the table that was made of it.
    plain = [str(field.field_type) for field in (present, wanted)]
    return plain[0] == plain[1] or not present.field_type.is_primitive


def _with_landing_columns(batch: Any, state: LandingState, table: Table) -> Any:
    """Return the rows in the order and the types of the table, with the landing's own columns."""
    import pyarrow as pa

    schema = table.schema().as_arrow()
    values = {"landing_id": state.landing_id, "landed_at": state.started_at}
    columns = []
    for own in schema:
        if own.name in batch.column_names:
            columns.append(batch[own.name].cast(own.type))
        else:
            value = pa.scalar(values.get(own.name), own.type)
            columns.append(pa.repeat(value, batch.num_rows))
    return pa.table(columns, schema=schema)
