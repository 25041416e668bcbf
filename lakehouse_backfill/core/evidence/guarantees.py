"""audit guarantees: determinism, idempotence, pins and fences, tested on a sample (O7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse_backfill.core.evidence.recompute import (
    SCRATCH_EPOCH,
    ScratchTable,
    open_scratch_table,
)
from lakehouse_backfill.core.evidence.verifying import (
    check_each_equal,
    check_equal,
    failed_check,
    unknown_check,
)
from lakehouse_backfill.core.planning import external
from lakehouse_backfill.core.planning.pinning import pin_name
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import publications
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.scope import Chunk
from lakehouse_backfill.domain.stored import StoredCheck
from lakehouse_backfill.domain.value import digest
from lakehouse_backfill.errors import BackfillError, NotFound, RunMoved

_DETERMINISM, _IDEMPOTENCE = "determinism", "idempotence"
_FENCES, _PINS = "fences", "pins"


@dataclass(frozen=True)
class ProductGuarantees:
    """What was sampled of a product, why, and what held."""

    product: str
    run_id: str | None
    chunk_id: str | None
    partitions: tuple[str, ...]
    because: str
    checks: tuple[StoredCheck, ...] = ()


def audit_guarantees(bench: Context, product: str | None) -> tuple[ProductGuarantees, ...]:
    """Sample one chunk of the newest published run of a product, or of each, and test it.

    It is computed twice into a scratch table; another chunk is sampled each day. Raises NotFound
    for a product without a published run.
    """
    products = {run.product for run in bench.runs.list(open_only=False)}
    found = tuple(
        _audit_product(bench, name) for name in sorted({product} if product else products)
    )
    if product is not None and found[0].run_id is None:
        raise NotFound(
            f"{product}: {found[0].because}", fix="lakehouse-backfill status --all, for its runs"
        )
    return found


def _audit_product(bench: Context, product: str) -> ProductGuarantees:
    run_id = publications.newest_published_run(bench.versions.history(product))
    if run_id is None:
        return ProductGuarantees(product, None, None, (), "no run of it was ever published")
    plan = bench.runs.plan(run_id)
    pins = _check_pins(bench, plan)
    if external.is_externally_written(plan):
        because = "another engine computed it: only its pins were looked at"
        return ProductGuarantees(product, run_id, None, (), because, (pins,))
    chunk, because = sample_chunk(bench, plan)
    checks = (*_check_computation(bench, plan, chunk), pins)
    return ProductGuarantees(product, run_id, chunk.chunk_id, chunk.partitions, because, checks)


def sample_chunk(bench: Context, plan: Plan) -> tuple[Chunk, str]:
    """Choose a chunk by run and day: another one each day, the same for everybody."""
    today, chunks = bench.clock.now().date().isoformat(), plan.resolved.chunks
    number = int(digest([plan.run_id, today])[:8], 16) % len(chunks)
    return chunks[number], f"chunk {number + 1} of {len(chunks)}, drawn by run and day {today}"


def _check_computation(bench: Context, plan: Plan, chunk: Chunk) -> tuple[StoredCheck, ...]:
    """Compute the chunk twice, then let a writer of an older epoch try."""
    known = {one.chunk_id: one for one in bench.ledger.chunks(plan.run_id)}.get(chunk.chunk_id)
    if known is None:
        return (failed_check(_DETERMINISM, f"the ledger has no row of {chunk.chunk_id}"),)
    try:
        with open_scratch_table(bench, plan, "audit") as again:
            first = again.compute(chunk)
            once = _scratch_checksums(again, chunk)
            second = again.compute(chunk)
            return (
                _check_determinism(known, first, second),
                check_each_equal(
                    _IDEMPOTENCE, once, _scratch_checksums(again, chunk), "partitions, staged twice"
                ),
                _check_fencing(bench, again, chunk),
            )
    except NotFound as error:
        return tuple(
            unknown_check(name, error.problem) for name in (_DETERMINISM, _IDEMPOTENCE, _FENCES)
        )


def _scratch_checksums(again: ScratchTable, chunk: Chunk) -> dict[str, str]:
    change = rules_schema_change.declared_schema_change(again.plan)
    found = again.checksums(chunk.partitions, tuple(rules_schema_change.added_column_names(change)))
    return {label: one.text for label, one in found.items()}


def _check_determinism(known: ChunkRecord, first: ChunkRecord, second: ChunkRecord) -> StoredCheck:
    recorded = known.checksum
    return check_equal(
        _DETERMINISM, [recorded, recorded], [first.checksum, second.checksum],
        f"{known.chunk_id} computed twice, against the ledger: count and checksum of its rows",
    )  # fmt: skip


def _check_fencing(bench: Context, again: ScratchTable, chunk: Chunk) -> StoredCheck:
    """A writer of an older epoch is refused, and leaves nothing."""
    bench.shadows.fence(again.table, SCRATCH_EPOCH + 1)
    before = again.snapshot_id
    try:
        again.compute(chunk, SCRATCH_EPOCH)
    except RunMoved:
        return check_equal(
            _FENCES, before, again.snapshot_id, "a write of an overtaken epoch was refused"
        )
    except BackfillError as error:
        return failed_check(
            _FENCES, f"an overtaken write ended otherwise than refused: {error.problem}"
        )
    return failed_check(_FENCES, "a write of an overtaken epoch was not refused")


def _check_pins(bench: Context, plan: Plan) -> StoredCheck:
    """Every pin of the run whose lease stands holds the snapshot that it was made for."""
    standing = [lease for lease in bench.pin_leases.standing() if lease.run_id == plan.run_id]
    if not standing:
        return unknown_check(_PINS, f"all pins {pin_name(plan.run_id)}* were let go")
    expected = {f"{lease.table}@{lease.tag}": lease.snapshot_id for lease in standing}
    found = {f"{one.table}@{one.tag}": bench.pins.pinned(one.table, one.tag) for one in standing}
    return check_each_equal(_PINS, expected, _without_missing(found.items()), "tags of pins")


def _without_missing(found: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    return {name: snapshot_id for name, snapshot_id in found if snapshot_id is not None}
