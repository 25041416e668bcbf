"""Tables of event handlers: one conditional commit holds rows, ledger and the replay's state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    LessThan,
    NotNull,
)
from pyiceberg.table import Table, Transaction

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg.landing.conditional_commit import ConditionalCommits
from lakehouse_backfill.adapters.iceberg.metadata import PROPERTY_PREFIX
from lakehouse_backfill.adapters.iceberg.schema import contract_schema, create_table
from lakehouse_backfill.adapters.pyiceberg_rows import keep_null_lists
from lakehouse_backfill.domain.contract import Contract, ContractColumn, ContractPartition
from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.events import (
    HANDLER_COLUMNS,
    AggregateState,
    HandledRow,
    HandlerDeclaration,
    ReplayState,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.events import HandledEvents

if TYPE_CHECKING:
    import pyarrow as pa

keep_null_lists()

#: The state of the newest replay into a table.
STATE_PROPERTY = PROPERTY_PREFIX + "replay"
_LEDGER = ("event_id", "aggregate_id", "sequence_num", "state", "content_hash")
#: Columns that tables of older toolkits lack; `ensure` adds them.
_ADDED_LATER = frozenset({"content_hash"})


@dataclass(frozen=True)
class IcebergHandlerTables:
    """`ports.events.HandlerTables` on PyIceberg."""

    catalog: Catalog
    budget_s: float = catalogs.COMMIT_BUDGET_S

    def state(self, table: str) -> ReplayState | None:
        """Return the state of the newest replay; None where there was none, or no table."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        return None if loaded is None else self._commits.read(loaded)

    def ensure(self, handler: HandlerDeclaration) -> None:
        """Create the table unless it exists; raises Unsupported when it is another table."""
        contract = _as_contract(handler)
        if catalogs.load_table_or_none(self.catalog, handler.table) is None:
            create_table(self.catalog, contract)
        table = catalogs.load_table(self.catalog, handler.table)
        wanted = {field.name: str(field.field_type) for field in contract_schema(contract).fields}
        found = {field.name: str(field.field_type) for field in table.schema().fields}
        is_ours = self._commits.read(table) is not None or table.current_snapshot() is None
        lacking = wanted.keys() - found.keys()
        if is_ours and lacking and lacking <= _ADDED_LATER:
            self._add_columns(table, lacking, contract)
            found |= {name: wanted[name] for name in lacking}
        if found != wanted or not is_ours:
            raise Unsupported(
                f"{handler.table} is no table of an event handler",
                state="nothing was replayed",
                fix="name a table that does not exist; it is created",
            )

    def _add_columns(self, table: Table, names: Collection[str], contract: Contract) -> None:
        """Add columns that a table of an older toolkit lacks."""
        with commit_window("Catalog.update_schema"), table.update_schema() as update:
            for field in contract_schema(contract).fields:
                if field.name in names:
                    update.add_column(field.name, field.field_type, field.doc)

    def commit(self, table: str, rows: Sequence[HandledRow], state: ReplayState) -> None:
        """Make rows and state visible in one commit, exactly once.

        Raises Conflict when another process replays into the table, TooBusy, OutcomeUnknown.
        """
        written: list[list[Any]] = []

        def prepare(loaded: Table) -> Transaction:
            if not written:
                written.append(_write_files(loaded, rows, state))
            return _prepare(loaded, written[0], state)

        self._commits.commit(table, state, prepare)

    def handled(self, table: str, version: str) -> HandledEvents | None:
        """Return what reads the rows of a version; None when there are none."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        if loaded is None or loaded.current_snapshot() is None:
            return None
        wanted = EqualTo(term="handler_version", value=version)
        return partial(_tables, loaded, wanted, _LEDGER)

    def step_rows(self, table: str, state: ReplayState) -> Iterator[HandledRow]:
        """Yield the rows that the commit of this state brought in."""
        loaded = catalogs.load_table(self.catalog, table)
        wanted = And(
            EqualTo(term="replay_id", value=state.replay_id),
            EqualTo(term="step", value=state.step),
        )
        for found in _tables(loaded, wanted, HandledRow._fields):
            for row in found.to_pylist():
                yield HandledRow(**row)

    def newest_state(
        self, table: str, version: str, aggregate: str, below: int | None = None
    ) -> AggregateState | None:
        """Return the newest kept state of an aggregate, after an event with a number `below`."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        if loaded is None or loaded.current_snapshot() is None:
            return None
        wanted = And(
            EqualTo(term="handler_version", value=version),
            EqualTo(term="aggregate_id", value=aggregate),
            NotNull(term="state"),
            AlwaysTrue() if below is None else LessThan(term="sequence_num", value=below),
        )
        newest = None
        for found in _tables(loaded, wanted, AggregateState._fields):
            for row in found.to_pylist():
                if newest is None or row["sequence_num"] > newest.sequence_num:
                    newest = AggregateState(**row)
        return newest

    @property
    def _commits(self) -> ConditionalCommits[ReplayState]:
        return ConditionalCommits(
            self.catalog,
            STATE_PROPERTY,
            ReplayState.model_validate_json,
            lambda: commit_window("HandlerTables.commit"),
            _overtaken,
            "no reader sees a row of this commit; what was committed before it stays",
            self.budget_s,
        )


def _tables(table: Table, wanted: BooleanExpression, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the matching rows, one data file after another."""
    import pyarrow as pa

    with catalogs.translate_errors():
        present = {field.name for field in table.schema().fields}
        names = [name for name in columns if name in present or name not in _ADDED_LATER]
        scan = table.scan(row_filter=wanted, selected_fields=tuple(names))
        for batch in scan.to_arrow_batch_reader():
            yield pa.Table.from_batches([batch]).select(names)


def _write_files(table: Table, rows: Sequence[HandledRow], state: ReplayState) -> list[Any]:
    """Write data files that no reader sees yet; on an error they are deleted again."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    files: list[Any] = []
    try:
        if rows:
            files += _dataframe_to_data_files(
                table_metadata=table.metadata, df=_as_arrow(table, rows, state), io=table.io
            )
    except Exception:
        # No snapshot lists them, and nobody else knows their names.
        for file in files:
            with suppress(OSError):
                table.io.delete(file.file_path)
        raise
    return files


def _as_arrow(table: Table, rows: Sequence[HandledRow], state: ReplayState) -> pa.Table:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    same = {
        "handler_version": state.version,
        "replay_id": state.replay_id,
        "step": state.step,
        "handled_at": state.updated_at,
    }
    by_name = dict(zip(HandledRow._fields, zip(*rows, strict=True), strict=True))
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    columns = [
        pa.array(by_name[field.name], field.type)
        if field.name in by_name
        else pa.repeat(pa.scalar(same[field.name], field.type), len(rows))
        for field in schema
    ]
    # Rows of an aggregate lie together, so that a reader of one can leave row groups out.
    made = pa.table(columns, schema=schema)
    return made.sort_by([("aggregate_id", "ascending"), ("sequence_num", "ascending")])


def _prepare(table: Table, files: list[Any], state: ReplayState) -> Transaction:
    """Write manifests and stage the updates; the commit requires the head of `table`."""
    transaction = table.transaction()
    summary = {
        f"{PROPERTY_PREFIX}replay-id": state.replay_id,
        f"{PROPERTY_PREFIX}replay-step": str(state.step),
        f"{PROPERTY_PREFIX}replay-position": canonical_json(state.position),
        MODE_PROPERTY: state.mode,
    }
    # Without files too: the commit then still moves the head, and so meets other commits.
    with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
        for file in files:
            append.append_data_file(file)
    return transaction


def _overtaken(table: str, found: ReplayState | None, state: ReplayState) -> str:
    if found is None:
        return f"{table} was replaced while {state.replay_id} replayed into it"
    return f"another process replays into {table}: it is at {found.replay_id}, step {found.step}"


def _as_contract(handler: HandlerDeclaration) -> Contract:
    """Return what the table is created by: it has the form of a product's table."""
    return Contract(
        api_version="lakehouse-backfill/v1",
        product=handler.table,
        table=handler.table,
        description=f"What {handler.function} made of events: of an aggregate the row with the "
        "highest sequence_num that has a state counts.",
        owner="unknown",
        key=(),
        partitioning=(
            ContractPartition(column="aggregate_id", transform=f"bucket[{handler.buckets}]"),
        ),
        columns=tuple(
            ContractColumn(name=name, type=kind, description=meaning)
            for name, kind, meaning in HANDLER_COLUMNS
        ),
    )
