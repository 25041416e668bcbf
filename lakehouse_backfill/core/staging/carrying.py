"""Chunks that a revision takes over from the shadow of the run that it revises."""

from __future__ import annotations

from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.carrying import CarryRequest
from lakehouse_backfill.domain.catch_up import CarriedChunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import ChunkCommit
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.scope import Chunk, Scope


def find_carried_chunk(plan: Plan, chunk: Chunk) -> CarriedChunk | None:
    """Give what is known of a chunk that is taken over; None: the run makes it itself."""
    catch_up = plan.resolved.catch_up
    return None if catch_up is None else catch_up.carried_chunk(chunk.chunk_id)


def carry_chunk(
    bench: Context,
    plan: Plan,
    chunk: Chunk,
    source: CarriedChunk,
    known: ChunkRecord | None,
    epoch: int,
) -> ChunkRecord:
    """Give the ledger row of a chunk that is taken over, once its files are in the shadow.

    Its rows and checksum are those that were accepted: validation compares them with what the
    shadow holds. Nothing is computed or copied; the same again does nothing.
    """
    started = bench.clock.now()
    commit = bench.carrying.carry(_carry_request(plan, chunk, source, epoch))
    if known is not None and known.snapshot_id == commit.snapshot_id:
        return known
    bench.journal.bind(**plan.labels).log(
        "chunk carried over", chunk_id=chunk.chunk_id, carried_from=source.run_id
    )
    return _carried_record(bench, plan, chunk, source, commit).model_copy(
        update={
            "seconds": round((bench.clock.now() - started).total_seconds(), 3),
            "epoch": epoch,
        }
    )


def _carry_request(plan: Plan, chunk: Chunk, source: CarriedChunk, epoch: int) -> CarryRequest:
    inputs = ",".join(f"{name}={number}" for name, number in source.inputs.items())
    manifest = plan.resolved.manifest
    said = {
        "run-id": plan.run_id,
        "carried-from": source.run_id,
        "product": manifest.product,
        "manifest-hash": plan.manifest_hash,
        "epoch": str(epoch),
        "attempt-id": f"{plan.run_id} {chunk.chunk_id}",
        "transform": manifest.transform.name,
        "transform-version": manifest.transform.version,
        "input-snapshot-ids": inputs,
        "processing-mode": manifest.run.mode,
        "restatement-reason": manifest.run.reason,
    }
    return CarryRequest(
        shadow=plan.shadow_table,
        source=source.shadow_table,
        source_snapshot_id=source.shadow_snapshot_id,
        scope=Scope(field=plan.resolved.scope.field, partitions=chunk.partitions),
        chunk_id=chunk.chunk_id,
        epoch=epoch,
        properties={f"lakehouse-backfill.{name}": text for name, text in said.items()},
    )


def _carried_record(
    bench: Context, plan: Plan, chunk: Chunk, source: CarriedChunk, commit: ChunkCommit
) -> ChunkRecord:
    return ChunkRecord(
        run_id=plan.run_id,
        chunk_id=chunk.chunk_id,
        partitions=chunk.partitions,
        status="done",
        input_rows=0,
        output_rows=source.rows,
        outside_rows=0,
        checksum=source.checksum,
        seconds=0.0,
        snapshot_id=commit.snapshot_id,
        finished_at=bench.clock.now(),
        carried_from=source.run_id,
    )
