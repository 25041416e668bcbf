"""Scratch tables: clones that a command computes in and removes (`try`, `reproduce`, `audit`).

No run names one, so what is computed there can never be published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lakehouse_backfill import errors
from lakehouse_backfill.core.guards.privacy import masks, rules
from lakehouse_backfill.core.planning.inputs.pins import expired_pins, snapshot_exists
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.retention import LeftoverFiles, StagedShadow
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkRecord
from lakehouse_backfill.domain.tables.schema_change import added_column_names

#: The epoch of a scratch table's only writer.
SCRATCH_EPOCH = 1
#: Names the process that computes in a scratch table.
DRIVER_PROPERTY = "lakehouse-backfill.scratch-driver"


@dataclass
class ScratchTable:
    """A scratch table: computes chunks and sums their rows; it is dropped after the block."""

    context: Context
    plan: Plan

    @property
    def table(self) -> str:
        """Return the scratch table's name."""
        return self.plan.shadow_table

    @property
    def snapshot_id(self) -> int | None:
        """Return the head of the scratch table."""
        info = self.context.tables.describe(self.table)
        return info.snapshot_id if info else None

    def compute(self, chunk: Chunk, epoch: int = SCRATCH_EPOCH) -> ChunkRecord:
        """Compute a chunk from its inputs and overwrite exactly its partitions."""
        staging = self.context.compute().staging
        return staging.stage(_plan_with_origin_inputs(self.plan, chunk), chunk, epoch)

    def checksums(self, partitions: tuple[str, ...]) -> dict[str, str]:
        """Read the partitions and sum their rows, without lineage columns and added ones."""
        scope = self.plan.resolved.scope.model_copy(update={"partitions": partitions})
        ignored = (*LINEAGE_NAMES, *added_column_names(declared_schema_change(self.plan)))
        measuring = self.context.compute().measuring
        found = measuring.checksums(self.table, self.snapshot_id, scope, ignored)
        return {label: checksum.text for label, checksum in found.items()}


@contextmanager
def open_scratch_table(
    context: Context,
    plan: Plan,
    purpose: str,
    by: str,
    remove: Callable[[str], Any] | None = None,
) -> Iterator[ScratchTable]:
    """Create a scratch table of the run's base; at the end `remove` it, or drop it without purge.

    When the process is killed before the end, the table stays until `maintain` drops it. Raises
    NotFound, with the names, when a pinned snapshot is gone; Unsupported for a run whose rows
    another engine computes; what `require_permission_now` does when its input may not be replayed,
    or not by `by`.
    """
    if publish_modes.is_externally_written(plan):
        raise errors.Unsupported(
            f"{plan.run_id} was computed by another engine: there is no code to execute",
            fix="compare what that engine gives now: lakehouse-backfill reconcile OLD NEW",
        )
    rules.require_permission_now(context, plan, by)
    require_input_snapshots(context, plan)
    target, base = plan.resolved.target.table, _base_snapshot(context, plan)
    table = f"{plan.shadow_table}__{purpose}_{uuid4().hex[:8]}"
    scratch = ScratchTable(context, plan.model_copy(update={"shadow_table": table}))
    properties = {
        "lakehouse-backfill.run-id": plan.run_id,
        "lakehouse-backfill.scratch": purpose,
        DRIVER_PROPERTY: context.driver,
    }
    contract = plan.resolved.contract
    if contract.restricted_columns:
        properties |= masks.metrics_properties(contract, context.tables.describe(target))
    masks.require_same_key(plan, context.secrets)
    try:
        context.shadows.open(target, base, table, properties)
        context.shadows.fence(table, SCRATCH_EPOCH)
        change = declared_schema_change(plan)
        schema_id = plan.resolved.target.schema_id
        if change and schema_id is not None:
            context.shadows.evolve(table, schema_id, change)
        yield scratch
    finally:
        (remove or context.shadows.retire)(table)


def require_input_snapshots(context: Context, plan: Plan) -> None:
    """Raise NotFound, naming each, when snapshots that the run read are gone."""
    missing = [f"{pin.name} ({pin.table}@{pin.snapshot_id})" for pin in expired_pins(context, plan)]
    missing += [
        f"tombstones {pin.table}@{pin.snapshot_id}"
        for pin in plan.resolved.tombstones
        if pin.snapshot_id is not None and not snapshot_exists(context, pin.table, pin.snapshot_id)
    ]
    if missing:
        raise errors.NotFound(
            f"{plan.run_id} cannot be computed again, its pins are gone: {', '.join(missing)}",
            fix=f"lakehouse-backfill verify {plan.run_id} --deep, which compares what is stored",
        )


def _base_snapshot(context: Context, plan: Plan) -> int | None:
    """Return the base to clone; None when it is gone and no rows of it are carried over.

    Raises NotFound when it is gone and rows of it stay in the run's partitions.
    """
    target = plan.resolved.target
    if target.snapshot_id is None or snapshot_exists(context, target.table, target.snapshot_id):
        return target.snapshot_id
    if publish_modes.carries_base_rows(plan):
        raise errors.NotFound(
            f"{plan.run_id} cannot be computed again: rows of {target.table}@{target.snapshot_id} "
            "stay in its partitions, and that snapshot is gone",
            fix=f"lakehouse-backfill verify {plan.run_id} --deep",
        )
    return None


def _plan_with_origin_inputs(plan: Plan, chunk: Chunk) -> Plan:
    """Return the plan with the inputs of the revision that computed a carried-over chunk."""
    catch_up = plan.resolved.catch_up
    origin = catch_up and catch_up.carried_chunk(chunk.chunk_id)
    if not origin:
        return plan
    sources = tuple(
        pin.model_copy(update={"snapshot_id": origin.inputs.get(pin.name, pin.snapshot_id)})
        for pin in plan.resolved.sources
    )
    resolved = plan.resolved.model_copy(update={"sources": sources})
    return plan.model_copy(update={"resolved": resolved})


def remove_with_files(context: Context, name: str) -> LeftoverFiles | None:
    """Delete the files of a trial's scratch table and drop it; return what stays of them, and why.

    The table leads to its files, so a second call goes on where one was killed: 1 data files, then
    manifests and older metadata files, are deleted · 2 the table is dropped · 3 its metadata file
    is deleted. A kill between 2 and 3 leaves that one file. In doubt all files are kept.
    """
    staged = _describe_files(context, name)
    if staged is None:
        context.shadows.retire(name)
        return None
    last, left = tuple[str, ...](), None
    try:
        found = context.run_files.find(staged, None, (), (name,), is_begun=True)
        if found is not None:
            *before, last = found.groups
            context.run_files.delete(staged, tuple(before))
    except errors.BackfillError as error:
        left = _leftover(staged, error)
    context.shadows.retire(name)
    if last:
        context.run_files.delete(staged, (last,))
    return left


def _describe_files(context: Context, name: str) -> StagedShadow | None:
    """Return what leads to the files of a scratch table; None when there is no table."""
    info, found = context.tables.describe(name), context.run_files.describe(name)
    if info is None or found is None:
        return None
    marks: dict[str, Any] = {
        "run_id": info.properties.get("lakehouse-backfill.run-id", ""),
        "target": info.properties.get("lakehouse-backfill.target", ""),
    }
    return StagedShadow(product="", shadow=name, **marks, **found)


def _leftover(staged: StagedShadow, error: errors.BackfillError) -> LeftoverFiles:
    return LeftoverFiles(
        shadow=staged.shadow,
        size_bytes=staged.size_bytes,
        location=staged.location,
        command=None,
        run_id=staged.run_id,
        because=error.problem,
        fix=error.fix,
    )
