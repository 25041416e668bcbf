"""Pinning: which snapshots a run reads and changes, and the tags that keep them.

Inputs that no tag keeps (`pin: lease_only`): each read of them looks for their snapshots first.

A snapshot of such an input may expire at any time. The computing ports are wrapped, so that no
caller can leave the look out: staging, its checks, edges, totals, masks, proofs and attribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import Any, Literal

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.guards.privacy import rules
from lakehouse_backfill.core.planning.inputs import topics
from lakehouse_backfill.core.planning.inputs.reference_versions import ReferenceVersion
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.catch_up import TombstonePin
from lakehouse_backfill.domain.contract import PIN_DAYS, Contract, Tombstones
from lakehouse_backfill.domain.guards.privacy import InputPrivacy
from lakehouse_backfill.domain.labels.key_ranges import KEY_RANGE
from lakehouse_backfill.domain.labels.values import TIME_TYPES
from lakehouse_backfill.domain.manifest import Reference, RunManifest, Source, unplannable
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.retention import PinLease
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.domain.tables.table import Snapshot, TableInfo, TableRef
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.ports.compute import ComputePorts, InputSwapRequest

#: When a snapshot may expire by its table's settings; Iceberg's default is five days.
_MAX_AGE_PROPERTY = "history.expire.max-snapshot-age-ms"
_DEFAULT_MAX_AGE_MS = 432_000_000


def resolve_sources(
    context: Context,
    manifest: RunManifest,
    contracts: Mapping[str, Contract],
    approved: Mapping[str, InputPrivacy | None] | None = None,
    versions: Mapping[str, ReferenceVersion] | None = None,
) -> tuple[SourcePin, ...]:
    """Resolve each input of the manifest to a snapshot, with what its contract says of privacy.

    For a revision, `approved` says it instead, by input. `versions` are those that the semantics
    of reference data name. Raises NotFound.
    """
    known = versions or {}
    return tuple(
        _source_pin(context, name, item, known.get(name)).model_copy(
            update={
                "privacy": rules.input_privacy(name, item, contracts)
                if approved is None
                else approved[name]
            }
        )
        for name, item in manifest.inputs.items()
    )


def require_current_names(info: TableInfo, snapshot: Snapshot, field: str) -> None:
    """Raise Unsupported when a column has another name in the snapshot than in the table now.

    A snapshot is read with the columns of its own time. After a rename, or a drop and an addition
    under the same name, no commit has a snapshot with the names that readers use.
    """
    _require_distinct_names(info.table, snapshot, field)
    then = {column.field_id: column.name for column in snapshot.columns}
    now = {column.field_id: column.name for column in info.columns}
    renamed = [
        f"{then[key]} is {name} now" for key, name in now.items() if then.get(key, name) != name
    ]
    again = [
        f"{name} was dropped and added again"
        for key, name in now.items()
        if key not in then and name in then.values()
    ]
    if changed := renamed + again:
        raise unplannable(
            f"{info.table}: {', '.join(changed)}, and its newest snapshot "
            f"{snapshot.snapshot_id} is from before: it would be read with the old columns",
            fix="commit anything to the table first (for example rewrite its data files, or append "
            "no rows), so that a snapshot has the columns of today; then plan again",
            field=field,
        )


def _require_distinct_names(table: str, snapshot: Snapshot, field: str) -> None:
    """Raise Unsupported when two columns differ by upper and lower case only."""
    by_lower: dict[str, str] = {}
    for column in snapshot.columns:
        other = by_lower.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise unplannable(
                f"{table} has the columns {other} and {column.name}, which Spark cannot tell apart",
                fix="rename one of them",
                field=field,
            )


def resolve_tombstones(context: Context, contract: Contract) -> tuple[TombstonePin, ...]:
    """Resolve the contract's tombstone tables to their heads. Raises NotFound."""
    found = []
    for item in contract.tombstones:
        info = context.tables.describe(item.table)
        if info is None:
            raise NotFound(
                f"{item.table} does not exist, where {contract.product} has its tombstones",
                fix="correct `tombstones` of the contract, or create the table",
                field="tombstones",
            )
        types = {column.name: column.type for column in info.columns}
        wrong = [name for name in item.columns.values() if name not in types]
        if wrong:
            raise ConfigError(
                f"{item.table} has no column {wrong[0]}",
                fix="correct `tombstones.columns` of the contract",
                field="tombstones",
            )
        _require_same_types(contract, item, types)
        found.append(
            TombstonePin(table=item.table, snapshot_id=info.snapshot_id, columns=item.columns)
        )
    return tuple(found)


def _require_same_types(contract: Contract, tombstones: Tombstones, types: dict[str, str]) -> None:
    """Raise ConfigError for values of other types: they are never equal, so nothing is left out."""
    own = {column.name: column.type for column in contract.columns}
    for ours, theirs in tombstones.columns.items():
        pair = {own.get(ours, ""), types[theirs]}
        if ours not in own or (len(pair) > 1 and not pair <= {"int", "long"}):
            kind = f"is {own[ours]} there" if ours in own else "is not among its columns"
            raise ConfigError(
                f"{contract.product}: {ours} {kind}, and {tombstones.table}.{theirs} is "
                f"{types[theirs]}",
                fix="name columns of the contract, and of the same type, in `tombstones.columns`",
                field="tombstones",
            )


def _source_pin(
    context: Context, name: str, item: Source | Reference, version: ReferenceVersion | None
) -> SourcePin:
    at, table = item.at, item.table
    if isinstance(at, datetime):
        at = at.replace(tzinfo=at.tzinfo or timezone.utc).isoformat()
    if version is not None:
        at, table = version.snapshot_id, version.table
    ref = TableRef(table=table, at=None if at is None else str(at))
    is_source = isinstance(item, Source)
    field = f"{'sources' if is_source else 'reference_data'}.{name}"
    snapshot = _resolve_snapshot(context, ref, field)
    _require_distinct_names(table, snapshot, f"{field}.table")
    if at is None and (info := context.tables.describe(item.table)) is not None:
        require_current_names(info, snapshot, f"{field}.table")
    return SourcePin(
        name=name,
        role="source" if is_source else "reference",
        table=table,
        requested=str(ref),
        snapshot_id=snapshot.snapshot_id,
        mode=item.pin,
        range=item.range if isinstance(item, Source) else None,
        warm_up_days=item.warm_up_days if isinstance(item, Source) else 0,
        cool_down_days=item.cool_down_days if isinstance(item, Source) else 0,
        partition_column=item.partition_column if isinstance(item, Source) else None,
        schema_id=snapshot.schema_id,
        columns=snapshot.columns,
        topic=topics.pin_topic(context, table, snapshot.snapshot_id),
    )


def own_rows(pin: SourcePin, scope: Scope) -> tuple[RowRange, ...]:
    """Return which rows of a source belong to the partitions; none: it is not cut by them."""
    if pin.partition_column is None:
        return ()
    ranges = scope_row_ranges(scope.whole)
    return tuple(replace(rows, column=pin.partition_column, path=()) for rows in ranges)


def own_rows_notes(
    scope: Scope, pins: tuple[SourcePin, ...], keys: ScopeField | None = None
) -> tuple[str, ...]:
    """Say which sources are cut by the partitions; raises ConfigError where one cannot be.

    `keys` is the field of chunks by key. There all sources are cut, or none: of a job that reads
    one of them whole, nobody could tell whether the rows beside a chunk are in another one.
    """
    cut = [pin for pin in pins if pin.partition_column]
    whole = [pin.name for pin in pins if pin.role == "source" and not pin.partition_column]
    if keys is not None and cut and whole:
        raise ConfigError(
            f"sources.{whole[0]} is read whole by chunks by key, and sources.{cut[0].name} is not",
            fix="name partition_column of all sources, or of none",
            field=f"sources.{whole[0]}.partition_column",
        )
    parts = "partitions"
    if keys is not None:
        parts = "ranges" if keys.transform == KEY_RANGE else "buckets"
    return tuple(_own_rows_note(keys or scope.field, pin, parts) for pin in cut)


def _own_rows_note(field: ScopeField, pin: SourcePin, parts: str) -> str:
    name, place = pin.partition_column, f"sources.{pin.name}.partition_column"
    is_time = field.type in TIME_TYPES and not field.has_no_order
    if field.is_whole_table or is_time:
        what = "the whole table" if field.is_whole_table else f"{field.column}, which is a time"
        raise ConfigError(
            f"{place}: the run is scoped by {what}",
            fix=f"remove it; sources.{pin.name}.range cuts what is read by time",
            field=place,
        )
    found = {column.name: column.type for column in pin.columns}.get(name or "")
    if found != field.type and {found, field.type} != {"int", "long"}:
        fitting = [one.name for one in pin.columns if one.type == field.type]
        raise ConfigError(
            f"{place}: {name} of {pin.table} is {found or 'no column of it'}, and the target's "
            f"{field.column} is {field.type}",
            fix=f"name a column of the same type: {', '.join(fitting) or 'it has none'}",
            field=place,
        )
    return f"{pin.name}: a chunk reads only rows whose {name} is in its own {parts}"


def unaccepted_input_warnings(
    context: Context, resolved: ResolvedManifest, contracts: Mapping[str, Contract]
) -> tuple[str, ...]:
    """Warn of sources that are pinned products read at another state than their readers get.

    Readers of a pinned product follow its pointer, often to another table; without `at` a source is
    the head of the table that it names. `contracts` are those of the inputs' tables, by table.
    """
    found = []
    for name, source in resolved.manifest.sources.items():
        contract = contracts.get(source.table)
        if contract is None or contract.publication != "pinned" or source.at is not None:
            continue
        accepted = context.versions.pointer(contract.product).accepted
        pin = next(one for one in resolved.sources if one.name == name)
        if accepted is None or pin.table != source.table:
            continue  # Nothing is accepted yet, or a cascade reads what it stages itself.
        if (accepted.table, accepted.snapshot_id) != (pin.table, pin.snapshot_id):
            found.append(
                f"sources.{name} reads the head of {pin.table}, and readers of {contract.product} "
                f"get version {accepted.version}, snapshot {accepted.snapshot_id} of "
                f"{accepted.table}: declare it under reference_data with semantics: "
                "current_accepted, or plan a cascade"
            )
    return tuple(found)


def _resolve_snapshot(context: Context, ref: TableRef, field: str) -> Snapshot:
    """Find the snapshot; an error says whether the table or the reference is wrong."""
    try:
        return context.tables.resolve(ref)
    except NotFound as error:
        is_table = ref.at is None or context.tables.describe(ref.table) is None
        error.field = f"{field}.{'table' if is_table else 'at'}"
        raise


def snapshot_exists(context: Context, table: str, snapshot_id: int) -> bool:
    """Return whether a table still has a snapshot."""
    try:
        context.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
    except NotFound:
        return False
    return True


def expired_pins(
    context: Context, plan: Plan, mode: Literal["tag", "lease_only"] | None = None
) -> list[SourcePin]:
    """List the plan's inputs, or those of a mode, whose pinned snapshot is gone from its table."""
    pins = [pin for pin in plan.resolved.sources if mode in (None, pin.mode)]
    return [pin for pin in pins if not snapshot_exists(context, pin.table, pin.snapshot_id)]


def expiry_notes(context: Context, pins: tuple[SourcePin, ...]) -> tuple[str, ...]:
    """Say from when on the snapshots that no tag keeps may expire, by their tables' settings."""
    notes = []
    for pin in pins:
        if pin.mode != "lease_only":
            continue
        info = context.tables.describe(pin.table)
        snapshot = context.tables.resolve(TableRef(table=pin.table, at=str(pin.snapshot_id)))
        age_ms = int((info.properties if info else {}).get(_MAX_AGE_PROPERTY, _DEFAULT_MAX_AGE_MS))
        horizon = datetime.fromtimestamp((snapshot.committed_at_ms + age_ms) / 1000, timezone.utc)
        notes.append(
            f"{pin.name} is lease_only: nothing keeps snapshot {pin.snapshot_id} of {pin.table}; "
            f"once it is not the newest, it may expire from {horizon:%Y-%m-%d %H:%M} UTC on; it is "
            "looked for before each read"
        )
    return tuple(notes)


def require_pinned_snapshots(
    context: Context, plan: Plan, mode: Literal["tag", "lease_only"] | None = None
) -> None:
    """Raise NotFound when a snapshot that the plan reads, by pins of `mode`, has expired since.

    The tags keep what they name; who drops one, or reads with `lease_only`, may lose it.
    """
    gone = expired_pins(context, plan, mode)
    if gone:
        names = ", ".join(f"{pin.name} ({pin.table}@{pin.snapshot_id})" for pin in gone)
        raise NotFound(
            f"{plan.run_id} reads what has expired since it was planned: {names}",
            state="nothing more was computed; chunks that are staged are kept",
            fix=_way_out(context, plan),
        )


def _way_out(context: Context, plan: Plan) -> str:
    """Return the command that leads on: for an open run a revision, for a closed one `verify`."""
    try:
        is_open = context.runs.status(plan.run_id).state in lifecycle.OPEN_STATES
    except NotFound:  # of a proof or a trial: the plan is not registered
        return f"{plan_command(plan.manifest_file)}, to pin what is there now"
    if is_open:
        return f"{plan_command(plan.manifest_file, plan.run_id)}, to pin what is there now"
    return f"{command_line('verify', plan.run_id)} --deep, which compares what is stored"


def pin_name(run_id: str) -> str:
    """The name of the tags that protect what a run reads and changes."""
    return f"lhb-pin-{run_id}"


def pin_snapshots(context: Context, plan: Plan) -> None:
    """Tag what the plan reads and the base that it changes; the same again does nothing.

    The leases are written first: a tag of ours always has one, also when this is cut off.
    """
    run, now = plan.resolved.manifest.run, context.clock.now()
    leases = tuple(
        PinLease(
            table=table,
            tag=tag,
            snapshot_id=snapshot_id,
            run_id=plan.run_id,
            product=plan.product,
            owner=run.requested_by,
            reason=run.reason,
            until=now + timedelta(days=PIN_DAYS),
            at=now,
            by=plan.created_by,
        )
        for table, snapshot_id, tag in _tags_to_set(plan)
    )
    context.evidence.grant_leases(leases)
    for lease in leases:
        context.pins.pin(lease.table, lease.snapshot_id, lease.tag)


def _tags_to_set(plan: Plan) -> list[tuple[str, int, str]]:
    """List what is tagged: table, snapshot and tag."""
    name, target = pin_name(plan.run_id), plan.resolved.target
    sources = [
        # What is read of a candidate is kept by the run that stages it.
        pin
        for pin in plan.resolved.sources
        if pin.mode == "tag" and pin.candidate is None
    ]
    found = [
        *((pin.table, pin.snapshot_id, f"{name}-{pin.name}") for pin in sources),
        *(
            (pin.table, pin.snapshot_id, f"{name}-tombstones-{number}")
            for number, pin in enumerate(plan.resolved.tombstones, start=1)
        ),
        (target.table, target.snapshot_id, name),
    ]
    return [(table, held, tag) for table, held, tag in found if held is not None]


def base_files(context: Context, plan: Plan) -> list[LiveFile]:
    """List the live files of the target as it was planned; none where it held no snapshot."""
    target = plan.resolved.target
    if target.snapshot_id is None:
        return []
    return context.tables.files(target.table, target.snapshot_id, plan.resolved.scope.field)


def head_snapshot_id(context: Context, table: str) -> int | None:
    """Return the snapshot that readers of a table see; None where it holds nothing, or is none."""
    info = context.tables.describe(table)
    return None if info is None else info.snapshot_id


#: Methods of the computing ports that read pinned inputs of the plan that they are given.
INPUT_READS = frozenset(
    {
        "analysed_plan",
        "begin_edges",
        "distinct",
        "edge_checksums",
        "edges",
        "input",
        "keep_intermediates",
        "masked",
        "periods",
        "prove_determinism",
        "prove_warm_up",
        "rejects",
        "remeasure",
        "source_totals",
        "stage",
        "swap",
        "tables_read",
    }
)


def look_before_reads(context: Callable[[], Context], ports: ComputePorts) -> ComputePorts:
    """Return the ports so that each method of `INPUT_READS` looks for `lease_only` inputs first.

    It raises NotFound, before anything is read, when a snapshot has expired. Plans without such
    inputs cost nothing.
    """
    held = {one.name: _LookingPort(context, getattr(ports, one.name)) for one in fields(ports)}
    return replace(ports, **held)


class _LookingPort:
    """A computing port whose reads of inputs look for their snapshots first."""

    def __init__(self, context: Callable[[], Context], port: Any) -> None:
        self._context = context
        self._port = port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        return self._looking(method) if name in INPUT_READS else method

    def _looking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def read(subject: Plan | InputSwapRequest, *arguments: Any, **named: Any) -> Any:
            # Of a swap, old inputs may be gone: what they gave is left out, with a note.
            plan = subject if isinstance(subject, Plan) else subject.new
            require_pinned_snapshots(self._context(), plan, "lease_only")
            return method(subject, *arguments, **named)

        return read
