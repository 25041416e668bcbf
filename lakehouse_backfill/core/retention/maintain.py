"""Maintain: remove what nothing needs, and report what is kept and why.

What is removed is found first, by reading alone; a dry run shows exactly that. The only data files
that are deleted are those of trials, and of runs that were never published (`run_files`). Each act
may be repeated: a second call finds nothing to do, and one that was killed is finished by the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from lakehouse_backfill.core.retention import policy, run_files
from lakehouse_backfill.core.retention.policy import RetentionDecision, RetentionFacts
from lakehouse_backfill.core.retention.run_files import RunFilesOutcome
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.scratch import remove_with_files
from lakehouse_backfill.core.versions import retention, version_labels
from lakehouse_backfill.core.versions.retention import VersionRetention
from lakehouse_backfill.domain.contract import Contract, KeepVersions
from lakehouse_backfill.domain.labels.names import namespace_text
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.retention import (
    STATE_TABLE,
    TRIAL_TABLE,
    LeftoverFiles,
    OrphanFiles,
    PinLease,
    RetentionItem,
    RunFacts,
    is_kept_result,
)
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow
from lakehouse_backfill.errors import (
    BackfillError,
    Conflict,
    EnvironmentDown,
    NotFound,
    RunMoved,
    Unsupported,
)


def gather_facts(
    context: Context, contracts: Mapping[str, Contract], product: str | None, erasure: str
) -> RetentionFacts:
    """Read what the decision needs; the cost follows what still stands, not the history of runs.

    Leases are read before runs: a run that is being planned has its lease first.
    """
    leases, shadows = context.evidence.active_leases(), context.shadows.list()
    fences = context.runs.fenced()
    stored = context.audit.describe_runs()
    # Of a run that is planned meanwhile nothing is known, so its branch is kept.
    targets = {run["target"] for run in stored.values() if parse_branch_shadow(run["shadow"])}
    tags, unreadable = _read_tags(context, targets)
    targets -= unreadable.keys()
    if targets:
        shadows = tuple(dict.fromkeys((*shadows, *context.shadows.list(sorted(targets)))))
    named = {run_id for run_id, run in stored.items() if run["shadow"] in shadows}
    looked_at = named | {lease.run_id for lease in leases} | set(fences)
    runs = _run_facts(context, stored, looked_at)
    products = context.audit.products()
    keeping = {
        name: _retention_of_product(
            context, found, contracts.get(name), erasure * (name == product)
        )
        for name, found in products.items()
    }
    tables = _tables_with_tags(context, leases, shadows, contracts, keeping)
    rest, more = _read_tags(context, tables - tags.keys() - unreadable.keys())
    tags, unreadable = tags | rest, unreadable | more
    erased = _erased_tables(product, contracts, runs) if erasure else frozenset()
    _require_readable(erased, unreadable)
    readable = set(shadows) - unreadable.keys()
    state_products = _state_products(context, runs, readable) if product else {}
    if erasure:
        erased |= {name for name, of in state_products.items() if of == product}
    return RetentionFacts(
        now=context.clock.now(),
        runs=runs,
        shadows=shadows,
        leases=leases,
        version_retention=keeping,
        tags={table: found for table, found in tags.items() if found and table in tables},
        fences=fences,
        erased_tables=erased,
        erasure=erasure,
        unreadable_tables=unreadable,
        scratch_written_at=_scratch_written_at(context, readable),
        state_products=state_products,
    )


def _scratch_written_at(context: Context, shadows: Iterable[str]) -> dict[str, datetime]:
    scratches = sorted(name for name in shadows if policy.is_scratch(name))
    return {name: at for name in scratches if (at := context.tables.committed_at(name))}


def _state_products(
    context: Context, runs: Mapping[str, RunFacts], shadows: Iterable[str]
) -> dict[str, str]:
    """Return the product of each kept state, by the run that kept it; unknown ones are left out."""
    found = {}
    for name in filter(STATE_TABLE.fullmatch, shadows):
        info = context.tables.describe(name)
        run = runs.get(info.properties.get("lakehouse-backfill.run-id", "")) if info else None
        if run is not None:
            found[name] = run.product
    return found


def _tables_with_tags(
    context: Context,
    leases: Iterable[PinLease],
    shadows: Iterable[str],
    contracts: Mapping[str, Contract],
    keeping: Mapping[str, VersionRetention],
) -> set[str]:
    """Name the tables that may have tags of ours; those of a branch are those of its table."""
    tables = {lease.table for lease in leases}
    tables |= {name for name in shadows if not parse_branch_shadow(name)}
    tables |= {contract.table for contract in contracts.values()}
    return tables | _version_tables(context, keeping.values())


def _read_tags(
    context: Context, tables: Iterable[str]
) -> tuple[dict[str, dict[str, int] | None], dict[str, str]]:
    """Return our tags by table; and of each table that cannot be read, why.

    Raises EnvironmentDown: a catalog or store that does not answer says nothing about a table.
    """
    tags: dict[str, dict[str, int] | None] = {}
    unreadable: dict[str, str] = {}
    for table in sorted(tables):
        try:
            tags[table] = context.pins.tags(table)
        except EnvironmentDown:
            raise
        except BackfillError as error:
            unreadable[table] = error.problem
    return tags, unreadable


def _require_readable(erased: Iterable[str], unreadable: Mapping[str, str]) -> None:
    """Raise Unsupported where old content must go from a table that cannot be read."""
    for table in sorted(unreadable.keys() & set(erased)):
        raise Unsupported(
            f"nothing can be removed from {table}: {unreadable[table]}",
            state="nothing was removed",
            fix=f"make {table} readable, or drop it with its files; then give this command again",
        )


def _run_facts(
    context: Context, stored: Mapping[str, Mapping[str, str]], looked_at: set[str]
) -> dict[str, RunFacts]:
    """Return the facts of all runs; a lease's end is read from the log only where it matters."""
    statuses = {status.run_id: status for status in context.runs.list(open_only=False)}
    found = {}
    for run_id, run in stored.items():
        status = statuses.get(run_id)
        if status is None:
            continue
        events = context.runs.events(run_id) if run_id in looked_at else ()
        ends = policy.pin_lease_end(status, events)
        plan = None if ends else context.runs.plan(run_id)
        found[run_id] = RunFacts(
            run_id=run_id,
            state=status.state.value,
            ends=ends,
            needs=run_files.carried_shadows(plan) if plan else (),
            reads=_read_tables(context, plan) if plan else (),
            **run,
        )
    return found


def _read_tables(context: Context, plan: Plan) -> tuple[str, ...]:
    """Name the tables of other runs that an open run reads, and its own states."""
    kept = states.tables_of(plan.resolved, context.profile.shadow_namespace)
    return (*run_files.read_candidates(plan), *kept)


def _retention_of_product(
    context: Context,
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
    return retention.decide_version_retention(
        newest_first, keep, pending, context.clock.now(), erasure, is_pinned=is_pinned
    )


def _version_tables(context: Context, keeping: Iterable[VersionRetention]) -> set[str]:
    """Name the tables that versions are in, but for shadows: those that are left are known."""
    found = {row.table for one in keeping for row in one.accepted_rows}
    return {name for name in found if namespace_text(name) != context.profile.shadow_namespace}


def _erased_tables(
    product: str | None, contracts: Mapping[str, Contract], runs: Mapping[str, RunFacts]
) -> frozenset[str]:
    """Name the tables that may hold rows of the product."""
    shadows = {run.shadow for run in runs.values() if run.product == product}
    return frozenset(shadows | {one.table for one in contracts.values() if one.product == product})


#: Files of control tables this young may belong to a commit, or a reader, that is at work now.
CONTROL_FILES_GRACE = timedelta(days=1)


@dataclass(frozen=True)
class MaintainOutcome:
    """What was removed (or, in a dry run, would be) and what is kept, each with its reason."""

    retired: tuple[RetentionItem, ...]
    kept: tuple[RetentionItem, ...]
    run_files: RunFilesOutcome
    litter: OrphanFiles


def maintain(
    context: Context,
    contracts: Mapping[str, Contract],
    by: str,
    *,
    product: str | None = None,
    erasure: str = "",
    dry_run: bool = False,
) -> MaintainOutcome:
    """Remove shadows, pins, versions, fences and control files that nothing needs.

    `erasure`, a reason, ends all versions but the accepted one of the product, and the leases on
    its tables, early and for the record. Open runs keep everything all the same.

    Order of side effects: versions expired in the pointer table, and their rows out of tables of
    versions; the runs informed; shadows
    dropped, those of trials with their files; files of runs that were never published deleted; tags
    and snapshots out, one commit per table; leases ended; fences lifted; control files deleted.
    Raises NotFound, NotAllowed, CatalogDown.
    """
    if erasure:
        _require_may_erase(contracts, product, by, context.profile.environment)
    facts = gather_facts(
        context, contracts, product, f"erasure, by {by}: {erasure}" if erasure else ""
    )
    found = policy.decide_retention(facts)
    if product is not None:
        found.limit_to(product)
    at_once = bool(erasure)
    found.keep(_required_tags(context, found, at_once=at_once))
    left: list[LeftoverFiles] = []
    if not dry_run:
        _expire_versions(context, facts, found, by)
        problems = version_labels.show_all_labels(context, contracts, product)
        found.keep(_kept_for_labels(found, problems))
        _record_on_runs(context, facts, found, by)
        left = _drop_shadows(context, found)
    files = run_files.delete_run_files(
        context, facts.runs, found.retired, by, product=product, dry_run=dry_run
    )
    files.left += left
    if not dry_run:
        _release_pins(context, facts, found, by, at_once=at_once)
    litter = OrphanFiles() if product else _orphan_files(context, dry_run=dry_run)
    if not dry_run:
        context.journal.log(
            "maintained", retired=len(found.retired), kept=len(found.kept), by=by,
            files=sum(one.files for one in files.deleted),
        )  # fmt: skip
    return _maintain_result(found, files, litter)


def _drop_shadows(context: Context, found: RetentionDecision) -> list[LeftoverFiles]:
    """Drop shadows; trials and intermediate results with their files, of which some may stay."""
    left, shadows = [], [item.name for item in found.retired if item.kind == "shadow"]
    context.progress.count("maintain, dropping", len(shadows), "shadows")
    for name in shadows:
        if TRIAL_TABLE.fullmatch(name) or is_kept_result(name):
            left.append(remove_with_files(context, name))
        else:
            context.shadows.retire(name)
        context.progress.advance()
    context.progress.finish()
    return [one for one in left if one is not None]


def _require_may_erase(
    contracts: Mapping[str, Contract], product: str | None, by: str, environment: str
) -> None:
    contract = contracts.get(product or "")
    if contract is None:
        raise NotFound(f"no contract of {product}", fix="name a product of this project")
    roles.require_role(contract, "publish", by, environment)


def _orphan_files(context: Context, *, dry_run: bool) -> OrphanFiles:
    """Delete control files that no snapshot references; a dry run only counts them."""
    before = context.clock.now() - CONTROL_FILES_GRACE
    audit = context.audit
    return audit.count_orphans(before) if dry_run else audit.delete_orphans(before)


def _maintain_result(
    found: RetentionDecision, files: RunFilesOutcome, litter: OrphanFiles
) -> MaintainOutcome:
    retired = found.retired
    if litter.files:
        because = f"{litter.files} files, {litter.size_bytes} bytes: no snapshot reaches them"
        retired = [
            *retired,
            RetentionItem(name="control tables", kind="control files", because=because),
        ]
    return MaintainOutcome(tuple(retired), tuple(found.kept), files, litter)


def _required_tags(context: Context, found: RetentionDecision, *, at_once: bool) -> dict[str, str]:
    """Return the tags that must stay, so that no later expiry deletes live files, each with why."""
    kept, now = dict[str, str](), context.clock.now()
    for table, tags in _expiring_tags_by_table(found).items():
        reasons = context.pins.preview_expiry(table, tags, now, at_once=at_once).kept
        kept |= {f"{table}@{tag}": because for tag, because in reasons.items()}
    return kept


def _expiring_tags_by_table(found: RetentionDecision) -> dict[str, dict[str, int]]:
    """Return the tags that go by table; those of a shadow that goes need no commit of their own."""
    dropped = {item.name for item in found.retired if item.kind == "shadow"}
    tags: dict[str, dict[str, int]] = {}
    for item in found.retired:
        if item.kind in ("tag", "pin") and item.table not in dropped:
            tags.setdefault(item.table, {})[item.name.partition("@")[2]] = item.snapshot_id or 0
    return tags


def _kept_for_labels(found: RetentionDecision, problems: Mapping[str, str]) -> dict[str, str]:
    """Return what stays because a table of versions still lists its rows, each item with why."""
    return {
        item.name: f"the table of versions of {item.product} still lists its rows: {problem}"
        for item in found.retired
        if item.kind != "version" and (problem := problems.get(item.product))
    }


def _release_pins(
    context: Context, facts: RetentionFacts, found: RetentionDecision, by: str, *, at_once: bool
) -> None:
    """Remove tags with their snapshots; then end the leases of the pins, and lift fences."""
    kept, now, by_table = dict[str, str](), context.clock.now(), _expiring_tags_by_table(found)
    context.progress.count("maintain, expiring pins of", len(by_table), "tables")
    for table, tags in by_table.items():
        try:
            reasons = context.pins.expire(table, tags, now, at_once=at_once).kept
        except (Conflict, NotFound, Unsupported) as error:
            reasons = dict.fromkeys(tags, error.problem)
        kept |= {f"{table}@{tag}": because for tag, because in reasons.items()}
        context.progress.advance()
    context.progress.finish()
    found.keep(kept)
    reasons = {item.name: item.because for item in found.retired if item.kind == "pin"}
    context.evidence.end_leases(
        tuple(
            lease.model_copy(update={"at": now, "by": by, "reason": reasons[name]})
            for lease in facts.leases
            if (name := f"{lease.table}@{lease.tag}") in reasons
        )
    )
    fences = tuple(item.name for item in found.retired if item.kind == "fence")
    if fences:
        context.runs.lift_fences(fences)


def _expire_versions(
    context: Context, facts: RetentionFacts, found: RetentionDecision, by: str
) -> None:
    """Record in the pointer table which versions go, unless the pointer moved meanwhile.

    From then on no rollback leads to them; one that is under way keeps all of them.
    """
    kept: dict[str, str] = {}
    versions = [item for item in found.retired if item.kind == "version"]
    for product, items in groupby(versions, key=lambda item: item.product):
        expiring = {item.version or 0: item.because for item in items}
        seen = facts.version_retention[product].accepted_rows[0].token
        rows = retention.expiration_rows(product, expiring, context.clock.now(), by)

        def decide(
            pointer: Pointer, rows: tuple[Publication, ...] = rows, seen: str = seen
        ) -> tuple[Publication, ...]:
            is_same = pointer.accepted is not None and pointer.accepted.token == seen
            return rows if is_same and pointer.pending is None else ()

        before = context.versions.pointer(product).expirations
        if context.versions.move(product, decide).expirations == before:
            names = {item.name for item in found.retired if item.product == product}
            kept |= dict.fromkeys(names, f"{product} moved meanwhile: look again")
    found.keep(kept)


def _record_on_runs(
    context: Context, facts: RetentionFacts, found: RetentionDecision, by: str
) -> None:
    """Record on each run that what it kept is removed, unless it went on meanwhile.

    A run whose scratch table goes keeps all that it needs: nothing is noted, it can be published.
    """
    kept: dict[str, str] = {}
    mine = [item for item in found.retired if policy.is_held_by_run(facts, item)]
    for run_id in sorted({item.run_id for item in mine}):
        items = [item for item in mine if item.run_id == run_id]
        try:
            _record_retirement(context, facts.runs[run_id], items, by)
        except RunMoved as error:
            kept |= dict.fromkeys((item.name for item in items), error.problem)
    found.keep(kept)


def _record_retirement(
    context: Context, run: RunFacts, items: list[RetentionItem], by: str
) -> None:
    """Note on the run what is removed; with its shadow also what leads to the shadow's files."""
    status, events = context.runs.status(run.run_id), context.runs.events(run.run_id)
    retired = [event for event in events if event.verb == "retire"]
    has_shadow = any(item.name == run.shadow for item in items)
    if retired and (not has_shadow or any("staged" in event.detail for event in retired)):
        return
    if policy.pin_lease_end(status, events) is None:
        raise RunMoved(f"{run.run_id} is {status.state.value} by now: open runs keep everything")
    names, because = [item.name for item in items], items[0].because
    staged = context.run_files.describe(run.shadow) if has_shadow else None
    try:
        plan = context.runs.plan(run.run_id)
    except BackfillError as error:
        raise RunMoved(f"the plan of {run.run_id} cannot be read: {error.problem}") from error
    detail: dict[str, Any] = {"staged": staged} if staged else {}
    context.move(status, plan, "retire", by, let_go=names, because=because, **detail)
