"""Pinning: which snapshots a run reads and changes, and the tags that keep them."""

from __future__ import annotations

from datetime import datetime, timezone

from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.model.manifest import Reference, RunManifest, Source
from lakehouse_backfill.model.plan import Plan, SourcePin
from lakehouse_backfill.model.table import LiveFile, Snapshot, TableRef
from lakehouse_backfill.rules import commands
from lakehouse_backfill.stages.workbench import Workbench


def resolve_sources(bench: Workbench, manifest: RunManifest) -> tuple[SourcePin, ...]:
    """Resolve each input of the manifest to a snapshot. Raises NotFound, ConfigError."""
    pins = [_source_pin(bench, name, item) for name, item in manifest.sources.items()]
    pins += [_source_pin(bench, name, item) for name, item in manifest.reference_data.items()]
    if len({pin.name for pin in pins}) < len(pins):
        raise ConfigError(
            "a name stands in sources and in reference_data",
            fix="rename one of them",
            field="reference_data",
        )
    return tuple(pins)


def _source_pin(bench: Workbench, name: str, item: Source | Reference) -> SourcePin:
    at = item.at
    if isinstance(at, datetime):
        at = at.replace(tzinfo=at.tzinfo or timezone.utc).isoformat()
    ref = TableRef(table=item.table, at=None if at is None else str(at))
    is_source = isinstance(item, Source)
    snapshot = _resolved(bench, ref, f"{'sources' if is_source else 'reference_data'}.{name}")
    return SourcePin(
        name=name,
        role="source" if is_source else "reference",
        table=item.table,
        requested=str(ref),
        snapshot_id=snapshot.snapshot_id,
        mode=item.pin,
        range=item.range if isinstance(item, Source) else None,
        warm_up_days=item.warm_up_days if isinstance(item, Source) else 0,
        cool_down_days=item.cool_down_days if isinstance(item, Source) else 0,
        schema_id=snapshot.schema_id,
        columns=snapshot.columns,
    )


def _resolved(bench: Workbench, ref: TableRef, field: str) -> Snapshot:
    """Find the snapshot; an error says whether the table or the reference is wrong."""
    try:
        return bench.tables.resolve(ref)
    except NotFound as error:
        is_table = ref.at is None or bench.tables.describe(ref.table) is None
        error.field = f"{field}.{'table' if is_table else 'at'}"
        raise


def is_expired(bench: Workbench, pin: SourcePin) -> bool:
    """Tell whether the pinned snapshot is gone from its table."""
    try:
        bench.tables.resolve(TableRef(table=pin.table, at=str(pin.snapshot_id)))
    except NotFound:
        return True
    return False


def require_pins(bench: Workbench, plan: Plan) -> None:
    """Raise NotFound when a snapshot that the plan reads or changes has expired since.

    The tags keep what they name; who drops one, or reads with `lease_only`, may lose it.
    """
    gone = [pin for pin in plan.resolved.sources if is_expired(bench, pin)]
    if gone:
        names = ", ".join(f"{pin.name} ({pin.table}@{pin.snapshot_id})" for pin in gone)
        raise NotFound(
            f"{plan.run_id} reads what has expired since it was planned: {names}",
            state="nothing was computed",
            fix=f"{commands.plan(plan.manifest_file, plan.run_id)}, to pin what is there now",
        )


def pin_name(run_id: str) -> str:
    """The name of the tags that protect what a run reads and changes."""
    return f"lhb-pin-{run_id}"


def pin(bench: Workbench, plan: Plan) -> None:
    """Tag what the plan reads and the base that it changes; the same again does nothing."""
    for source in plan.resolved.sources:
        if source.mode == "tag":
            name = f"{pin_name(plan.run_id)}-{source.name}"
            bench.pins.pin(source.table, source.snapshot_id, name)
    target = plan.resolved.target
    if target.snapshot_id is not None:
        bench.pins.pin(target.table, target.snapshot_id, pin_name(plan.run_id))


def base_files(bench: Workbench, plan: Plan) -> list[LiveFile]:
    """List the live files of the target as it was planned; none where it held no snapshot."""
    target = plan.resolved.target
    if target.snapshot_id is None:
        return []
    return bench.tables.files(target.table, target.snapshot_id, plan.resolved.scope.field)
