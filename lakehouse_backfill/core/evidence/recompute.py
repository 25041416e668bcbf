"""Computing partitions of a run once more, into a scratch table that can never be published.

The archived code on the pinned inputs gives what was accepted; with one input or the code of
another run swapped, it shows what that input or that code did (`variant`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from lakehouse_backfill.core.planning import external, modes
from lakehouse_backfill.core.planning.pinning import is_pin_expired
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.scope import Chunk
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.errors import NotFound, Unsupported

#: The epoch of whoever made the scratch table: nobody else writes there.
SCRATCH_EPOCH = 1


@dataclass
class ScratchTable:
    """A scratch table: compute chunks into it, look at them; it is gone after the block."""

    bench: Context
    plan: Plan
    records: dict[str, ChunkRecord] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The scratch table's name."""
        return self.plan.shadow_table

    @property
    def snapshot_id(self) -> int | None:
        """The head of the scratch table."""
        info = self.bench.tables.describe(self.table)
        return info.snapshot_id if info else None

    def compute(self, chunk: Chunk, epoch: int = SCRATCH_EPOCH) -> ChunkRecord:
        """Compute a chunk from its inputs and overwrite exactly its partitions."""
        staging = self.bench.compute().staging
        record = staging.stage(_plan_with_origin_inputs(self.plan, chunk), chunk, epoch)
        self.records[chunk.chunk_id] = record
        return record

    def checksums(
        self, partitions: tuple[str, ...], ignore: tuple[str, ...] = ()
    ) -> dict[str, Checksum]:
        """Read the partitions and sum their rows, without lineage columns and `ignore`."""
        scope = self.plan.resolved.scope.model_copy(update={"partitions": partitions})
        measuring = self.bench.compute().measuring
        return measuring.checksums(self.table, self.snapshot_id, scope, (*LINEAGE_NAMES, *ignore))


@contextmanager
def open_scratch_table(bench: Context, plan: Plan, purpose: str) -> Iterator[ScratchTable]:
    """Make a scratch table of the run's base; it is dropped at the end, without purge.

    No run ever names it, so that nothing can publish it. Killed before the end it stays, until
    `maintain` lets it go. Raises NotFound, with the names, when a pinned snapshot is gone;
    Unsupported for a run whose rows another engine computes.
    """
    if external.is_externally_written(plan):
        raise Unsupported(
            f"{plan.run_id} was computed by another engine: there is no code to execute",
            fix="compare what that engine gives now: lakehouse-backfill reconcile OLD NEW",
        )
    require_input_snapshots(bench, plan)
    target, base = plan.resolved.target.table, _base_snapshot(bench, plan)
    table = f"{plan.shadow_table}__{purpose}_{uuid4().hex[:8]}"
    made = ScratchTable(bench, plan.model_copy(update={"shadow_table": table}))
    marks = {"lakehouse-backfill.run-id": plan.run_id, "lakehouse-backfill.scratch": purpose}
    try:
        bench.shadows.open(target, base, table, marks)
        bench.shadows.fence(table, SCRATCH_EPOCH)
        change = rules_schema_change.declared_schema_change(plan)
        schema_id = plan.resolved.target.schema_id
        if change and schema_id is not None:
            bench.shadows.evolve(table, schema_id, change)
        yield made
    finally:
        bench.shadows.retire(table)


def require_input_snapshots(bench: Context, plan: Plan) -> None:
    """Raise NotFound, naming each, when snapshots that the run read are gone."""
    gone = [
        f"{pin.name} ({pin.table}@{pin.snapshot_id})"
        for pin in plan.resolved.sources
        if is_pin_expired(bench, pin)
    ]
    gone += [
        f"tombstones {pin.table}@{pin.snapshot_id}"
        for pin in plan.resolved.tombstones
        if pin.snapshot_id is not None and not _snapshot_exists(bench, pin.table, pin.snapshot_id)
    ]
    if gone:
        raise NotFound(
            f"{plan.run_id} cannot be computed again, its pins are gone: {', '.join(gone)}",
            fix=f"lakehouse-backfill verify {plan.run_id} --deep, which compares what is stored",
        )


def plan_variant(
    plan: Plan, *, inputs: Mapping[str, SourcePin] | None = None, code: Plan | None = None
) -> Plan:
    """Give the plan with some inputs, by name, or with the code of another run, swapped.

    It is for `scratch` only: its hash is not the one that was approved.
    """
    changes: dict[str, object] = {}
    if inputs:
        pins = plan.resolved.sources
        changes["sources"] = tuple(inputs.get(pin.name, pin) for pin in pins)
    if code is not None:
        theirs = code.resolved
        manifest = plan.resolved.manifest.model_copy(
            update={"transform": theirs.manifest.transform}
        )
        changes |= {"manifest": manifest, "code_hash": theirs.code_hash, "files": theirs.files}
    resolved = plan.resolved.model_copy(update=changes)
    said = {
        "resolved": resolved,
        "code_of": (code.code_of or code.run_id) if code else plan.code_of,
    }
    return plan.model_copy(update=said)


def _base_snapshot(bench: Context, plan: Plan) -> int | None:
    """Give the base to clone; one that is gone is needed only where rows of it stay."""
    target = plan.resolved.target
    if target.snapshot_id is None or _snapshot_exists(bench, target.table, target.snapshot_id):
        return target.snapshot_id
    if modes.carries_base_rows(plan):
        raise NotFound(
            f"{plan.run_id} cannot be computed again: rows of {target.table}@{target.snapshot_id} "
            "stay in its partitions, and that snapshot is gone",
            fix=f"lakehouse-backfill verify {plan.run_id} --deep",
        )
    return None


def _snapshot_exists(bench: Context, table: str, snapshot_id: int) -> bool:
    try:
        bench.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
    except NotFound:
        return False
    return True


def _plan_with_origin_inputs(plan: Plan, chunk: Chunk) -> Plan:
    """Let a chunk that an earlier revision computed read what that revision read."""
    catch_up = plan.resolved.catch_up
    origin = catch_up and catch_up.carried_chunk(chunk.chunk_id)
    if not origin:
        return plan
    inputs = {
        pin.name: pin.model_copy(update={"snapshot_id": origin.inputs[pin.name]})
        for pin in plan.resolved.sources
        if pin.name in origin.inputs
    }
    return plan_variant(plan, inputs=inputs)
