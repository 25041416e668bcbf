"""Recomputation of a run's partitions in scratch tables: `reproduce` and `audit guarantees`.

A scratch table can never be published; readers, the run and its shadow stay unchanged. `reproduce`
executes the archived code on the pinned inputs and compares the result with what was accepted.
`audit_guarantees` tests determinism, idempotence, pins and fences on a sample (O7).
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval.decisions import logged_validation, trusted_events
from lakehouse_backfill.core.evidence.verification.deep_verify import (
    check_each_equal,
    check_equal,
    failed_check,
    unknown_check,
)
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.guards.privacy import rules
from lakehouse_backfill.core.planning.inputs.pins import pin_name
from lakehouse_backfill.core.planning.job_code import code_files
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.scratch import (
    SCRATCH_EPOCH,
    ScratchTable,
    open_scratch_table,
)
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.checks import StoredCheck, ValidationResult
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.serialization import digest

_DETERMINISM, _IDEMPOTENCE = "determinism", "idempotence"
_FENCES, _PINS = "fences", "pins"


@dataclass(frozen=True)
class ProductGuarantees:
    """The sample of a product, the reason for it, and the checks on it."""

    product: str
    run_id: str | None
    chunk_id: str | None
    partitions: tuple[str, ...]
    because: str
    checks: tuple[StoredCheck, ...] = ()


def audit_guarantees(
    context: Context, product: str | None, by: str
) -> tuple[ProductGuarantees, ...]:
    """Sample one chunk of the newest published run of a product, or of each, and test it.

    The chunk is computed twice into a scratch table; each day another chunk is sampled. Raises
    NotFound for a product without a published run, and what `require_permission_now` does for one
    whose input may no longer be replayed; without `product`, that is the reason of an empty sample.
    """
    products = {run.product for run in context.runs.list(open_only=False)}
    audited = tuple(
        _audit_product(context, name, by, is_named=product is not None)
        for name in sorted({product} if product else products)
    )
    if product is not None and audited[0].run_id is None:
        raise errors.NotFound(
            f"{product}: {audited[0].because}", fix="lakehouse-backfill status --all, for its runs"
        )
    return audited


def _audit_product(context: Context, product: str, by: str, *, is_named: bool) -> ProductGuarantees:
    run_id = pointer.newest_published_run(context.versions.history(product))
    if run_id is None:
        return ProductGuarantees(product, None, None, (), "no run of it was ever published")
    plan = context.runs.plan(run_id)
    pins = _check_pins(context, plan)
    if publish_modes.is_externally_written(plan):
        because = "another engine computed it: only its pins were looked at"
        return ProductGuarantees(product, run_id, None, (), because, (pins,))
    try:
        rules.require_permission_now(context, plan, by)
    except errors.BackfillError as error:
        if is_named:
            raise
        because = f"only its pins were looked at, nothing was computed: {error.problem}"
        return ProductGuarantees(product, run_id, None, (), because, (pins,))
    chunk, because = sample_chunk(context, plan)
    checks = (*_check_computation(context, plan, chunk, by), pins)
    return ProductGuarantees(product, run_id, chunk.chunk_id, chunk.partitions, because, checks)


def sample_chunk(context: Context, plan: Plan) -> tuple[Chunk, str]:
    """Choose a chunk by run and day: each day another one, the same in every process."""
    today, chunks = context.clock.now().date().isoformat(), plan.resolved.chunks
    number = int(digest([plan.run_id, today])[:8], 16) % len(chunks)
    return chunks[number], f"chunk {number + 1} of {len(chunks)}, drawn by run and day {today}"


def _check_computation(
    context: Context, plan: Plan, chunk: Chunk, by: str
) -> tuple[StoredCheck, ...]:
    """Compute the chunk twice, then write with an older epoch."""
    record = {row.chunk_id: row for row in context.runs.chunks(plan.run_id)}.get(chunk.chunk_id)
    if record is None:
        return (failed_check(_DETERMINISM, f"the ledger has no row of {chunk.chunk_id}"),)
    try:
        with open_scratch_table(context, plan, "audit", by) as scratch:
            first = scratch.compute(chunk)
            first_checksums = scratch.checksums(chunk.partitions)
            second = scratch.compute(chunk)
            return (
                _check_determinism(record, first, second),
                check_each_equal(
                    _IDEMPOTENCE,
                    first_checksums,
                    scratch.checksums(chunk.partitions),
                    "partitions, staged twice",
                ),
                _check_fencing(context, scratch, chunk),
            )
    except errors.ChecksFailed as error:
        # A chunk of a stateful run that leaves another state than before.
        return (failed_check(_DETERMINISM, error.problem),)
    except errors.NotFound as error:
        return tuple(
            unknown_check(name, error.problem) for name in (_DETERMINISM, _IDEMPOTENCE, _FENCES)
        )


def _check_determinism(known: ChunkRecord, first: ChunkRecord, second: ChunkRecord) -> StoredCheck:
    recorded = known.checksum
    return check_equal(
        _DETERMINISM, [recorded, recorded], [first.checksum, second.checksum],
        f"{known.chunk_id} computed twice, against the ledger: count and checksum of its rows",
    )  # fmt: skip


def _check_fencing(context: Context, again: ScratchTable, chunk: Chunk) -> StoredCheck:
    """Check that a writer of an older epoch is refused and writes nothing."""
    context.shadows.fence(again.table, SCRATCH_EPOCH + 1)
    before = again.snapshot_id
    try:
        again.compute(chunk, SCRATCH_EPOCH)
    except errors.RunMoved:
        return check_equal(
            _FENCES, before, again.snapshot_id, "a write of an overtaken epoch was refused"
        )
    except errors.BackfillError as error:
        return failed_check(
            _FENCES, f"an overtaken write ended otherwise than refused: {error.problem}"
        )
    return failed_check(_FENCES, "a write of an overtaken epoch was not refused")


def _check_pins(context: Context, plan: Plan) -> StoredCheck:
    """Check that every pin with an active lease holds the snapshot that it was made for."""
    leases = [lease for lease in context.evidence.active_leases() if lease.run_id == plan.run_id]
    if not leases:
        return unknown_check(_PINS, f"all pins {pin_name(plan.run_id)}* were let go")
    expected = {f"{lease.table}@{lease.tag}": lease.snapshot_id for lease in leases}
    found = {
        f"{lease.table}@{lease.tag}": snapshot_id
        for lease in leases
        if (snapshot_id := context.pins.pinned(lease.table, lease.tag)) is not None
    }
    return check_each_equal(_PINS, expected, found, "tags of pins")


@dataclass(frozen=True)
class ReproducedPartition:
    """One partition: the accepted checksum, and the recomputed one (`again`)."""

    partition: str
    accepted: str
    again: str
    equal: bool


@dataclass(frozen=True)
class ReproduceOutcome:
    """The recomputed partitions; `code` is the digest of the executed files."""

    run_id: str
    code: str
    scratch_table: str
    partitions: tuple[ReproducedPartition, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Return whether every partition has the accepted checksum."""
        return all(partition.equal for partition in self.partitions)


def reproduce(context: Context, run_id: str, by: str) -> ReproduceOutcome:
    """Compute all chunks of a run again and compare each partition's checksum.

    Lineage columns are left out. Raises NotFound when pins are gone, ApprovalMissing when nothing
    was validated, Unsupported for a run of another engine, and what `require_permission_now` does
    when its input may no longer be replayed.
    """
    plan, status = context.runs.plan(run_id), context.runs.status(run_id)
    events = trusted_events(context, status)
    validation = logged_validation(context, events, run_id)
    if validation is None:
        raise errors.ApprovalMissing(
            f"{run_id} has no result that could come out again",
            fix=f"lakehouse-backfill validate {run_id}",
        )
    chunks = plan.resolved.chunks
    with (
        open_scratch_table(context, plan, "again", by) as scratch,
        effect_log.record_attempts_of_check(context, run_id, "reproduction", status.seq),
    ):
        context.progress.start("reproduce", len(chunks), "chunks")
        for chunk in chunks:
            record = scratch.compute(chunk)
            context.progress.advance(1, record.output_rows)
        context.progress.finish()
        context.progress.start("reproduce, reading the rows that were written", 0, "")
        checksums = scratch.checksums(plan.resolved.scope.partitions)
        context.progress.finish()
        return ReproduceOutcome(
            run_id=run_id,
            code=digest(code_files(plan.resolved)),
            scratch_table=scratch.table,
            partitions=_compare_checksums(validation[1], checksums),
            notes=_carry_over_notes(plan),
        )


def _compare_checksums(
    validation: ValidationResult, again: dict[str, str]
) -> tuple[ReproducedPartition, ...]:
    compared = []
    for balance in validation.balances:
        # A partition without rows has no checksum of its own.
        recomputed = again.get(
            balance.partition, balance.new_checksum if not balance.new_count else "no rows"
        )
        compared.append(
            ReproducedPartition(
                balance.partition,
                balance.new_checksum,
                recomputed,
                equal=recomputed == balance.new_checksum,
            )
        )
    return tuple(compared)


def _carry_over_notes(plan: Plan) -> tuple[str, ...]:
    carried = plan.resolved.catch_up.carried if plan.resolved.catch_up else ()
    runs = sorted({origin.run_id for origin in carried})
    if not runs:
        return ()
    return (f"chunks carried over from {', '.join(runs)} were computed from what that run read",)
