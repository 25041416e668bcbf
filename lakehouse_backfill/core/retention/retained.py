"""What is there to be kept or let go: everything that `maintain` looks at before it decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from lakehouse_backfill.core.retention import retention
from lakehouse_backfill.core.retention.retention import RetentionDecision, RetentionFacts
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import keep_versions
from lakehouse_backfill.core.versions.keep_versions import VersionRetention
from lakehouse_backfill.domain.contract import Contract, KeepVersions
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.retention import LeftoverFiles, RunFacts


def gather_facts(
    bench: Context, contracts: Mapping[str, Contract], product: str | None, erasure: str
) -> RetentionFacts:
    """Read what the decision needs; the cost follows what still stands, not the history of runs.

    Leases are read before runs: a run that is being planned has its lease first.
    """
    leases, shadows = bench.pin_leases.standing(), tuple(bench.upkeep.shadows())
    fences = bench.control_upkeep.fenced()
    stored = bench.control_upkeep.runs()
    named = {run_id for run_id, run in stored.items() if run["shadow"] in shadows}
    looked_at = named | {lease.run_id for lease in leases} | set(fences)
    runs = _run_facts(bench, stored, looked_at)
    products = bench.audit.products()
    keeping = {
        name: _retention_of_product(bench, found, contracts.get(name), erasure * (name == product))
        for name, found in products.items()
    }
    tables = {lease.table for lease in leases} | set(shadows)
    tables |= {contract.table for contract in contracts.values()}
    tables |= _version_tables(bench, keeping.values())
    tags = {table: bench.upkeep.tags(table) for table in sorted(tables)}
    return RetentionFacts(
        now=bench.clock.now(),
        runs=runs,
        shadows=shadows,
        leases=leases,
        keeping=keeping,
        tags={table: found for table, found in tags.items() if found},
        fences=fences,
        erased=_erased_tables(product, contracts, runs) if erasure else frozenset(),
        erasure=erasure,
        written=_scratch_write_times(bench, shadows),
    )


def _scratch_write_times(bench: Context, shadows: Iterable[str]) -> dict[str, datetime]:
    """Say when each scratch table was last written to."""
    scratches = [name for name in shadows if retention.SCRATCH_NAME.fullmatch(name)]
    found = {name: bench.upkeep.written(name) for name in scratches}
    return {name: at for name, at in found.items() if at is not None}


def _run_facts(
    bench: Context, stored: Mapping[str, Mapping[str, str]], looked_at: set[str]
) -> dict[str, RunFacts]:
    """Give the facts of all runs; when a lease ends is read from the log only where it matters."""
    statuses = {status.run_id: status for status in bench.runs.list(open_only=False)}
    found = {}
    for run_id, run in stored.items():
        status = statuses.get(run_id)
        if status is None:
            continue
        events = bench.runs.events(run_id) if run_id in looked_at else ()
        ends = retention.pin_lease_end(status, events)
        needs = () if ends else _carried_shadows(bench.runs.plan(run_id))
        state = status.state.value
        found[run_id] = RunFacts(run_id=run_id, state=state, ends=ends, needs=needs, **run)
    return found


def _carried_shadows(plan: Plan) -> tuple[str, ...]:
    """Name the shadows of earlier revisions that hold chunks which the run takes over."""
    follow = plan.resolved.catch_up
    taken = (*follow.carried, *follow.erased) if follow else ()
    return tuple(dict.fromkeys(chunk.shadow_table for chunk in taken))


def _retention_of_product(
    bench: Context,
    found: tuple[tuple[Publication, ...], Pointer | None],
    contract: Contract | None,
    erasure: str,
) -> VersionRetention:
    rows, pointer = found
    newest_first = tuple(reversed(rows))
    is_pinned = contract is not None and contract.publication == "pinned"
    keep = contract.keep_versions if contract else KeepVersions()
    # A pointer that cannot be read says of nothing that it may go.
    pending = pointer.pending if pointer else next(iter(newest_first), None)
    return keep_versions.decide_version_retention(
        newest_first, keep, pending, bench.clock.now(), erasure, is_pinned=is_pinned
    )


def _version_tables(bench: Context, keeping: Iterable[VersionRetention]) -> set[str]:
    """Name the tables that versions are in, but for shadows: those that are left are known."""
    found = {row.table for one in keeping for row in one.acts}
    return {name for name in found if name.rpartition(".")[0] != bench.profile.shadow_namespace}


def _erased_tables(
    product: str | None, contracts: Mapping[str, Contract], runs: Mapping[str, RunFacts]
) -> frozenset[str]:
    """Name the tables that may hold rows of the product."""
    shadows = {run.shadow for run in runs.values() if run.product == product}
    return frozenset(shadows | {one.table for one in contracts.values() if one.product == product})


def find_leftovers(
    bench: Context, found: RetentionDecision, facts: RetentionFacts
) -> tuple[LeftoverFiles, ...]:
    """Name the files that no table lists once the shadows are gone: of runs never published."""
    published = {row.run_id for one in facts.keeping.values() for row in one.acts}
    written = bench.upkeep.shadows()
    busy = {item.product for item in found.kept if item.kind == "shadow"}
    left = []
    for item in found.retired:
        info = bench.tables.describe(item.name) if item.kind == "shadow" else None
        size = written.get(item.name, 0)
        if info is None or not size or item.run_id in published:
            continue
        command = (
            None if item.product in busy else _cleanup_command(facts, item.run_id, info.location)
        )
        left.append(
            LeftoverFiles(
                shadow=item.name, size_bytes=size, location=info.location, command=command
            )
        )
    return tuple(left)


def _cleanup_command(facts: RetentionFacts, run_id: str, location: str) -> str:
    target = facts.runs[run_id].target
    return (
        f"CALL system.remove_orphan_files(table => '{target}', location => '{location}', "
        "dry_run => true)"
    )
