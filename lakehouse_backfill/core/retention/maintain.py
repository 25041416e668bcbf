"""maintain: let go of what nobody needs any more, by metadata alone, and say what is kept and why.

What is let go is worked out first, by reading alone; a dry run shows exactly that. No data file of
a product is ever deleted here. Each act may be repeated: a second call finds nothing to do, and one
that was killed is finished by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

from lakehouse_backfill.core.retention import retention
from lakehouse_backfill.core.retention.retained import gather, leftovers
from lakehouse_backfill.core.retention.retention import Decision, Facts
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.versions import keep_versions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.retention import Item, Leftover, Litter
from lakehouse_backfill.errors import BackfillError, Conflict, NotFound, RunMoved, Unsupported

#: Files of control tables this young may belong to a commit, or a reader, that is at work now.
CONTROL_FILES_GRACE = timedelta(days=1)


@dataclass(frozen=True)
class Maintained:
    """What was let go (or, in a dry run, would be) and what is kept, each with its reason."""

    retired: tuple[Item, ...]
    kept: tuple[Item, ...]
    left: tuple[Leftover, ...]
    litter: Litter


def maintain(
    bench: Workbench,
    contracts: Mapping[str, Contract],
    by: str,
    *,
    product: str | None = None,
    erasure: str = "",
    dry_run: bool = False,
) -> Maintained:
    """Let go of shadows, pins, versions, fences and control files that nothing needs.

    `erasure`, a reason, ends all versions but the accepted one of the product, and the leases on
    its tables, early and for the record. Open runs keep everything all the same.

    Order of side effects: versions let go by the pointer; the runs told; shadows dropped; tags and
    snapshots out, one commit per table; leases ended; fences lifted; control files deleted.
    Raises NotFound, NotAllowed, CatalogDown.
    """
    if erasure:
        contract = contracts.get(product or "")
        if contract is None:
            raise NotFound(f"no contract of {product}", fix="name a product of this project")
        roles.require_role(contract, "publish", by)
    facts = gather(bench, contracts, product, f"erasure, by {by}: {erasure}" if erasure else "")
    found = _wanted(retention.decide(facts), product)
    found = _foreseen(bench, found, at_once=bool(erasure))
    left = leftovers(bench, found, facts)
    before = bench.clock.now() - CONTROL_FILES_GRACE
    if dry_run:
        litter = Litter() if product else bench.control_upkeep.litter(before)
        return _maintained(found, left, litter)
    found = _act(bench, facts, found, by, at_once=bool(erasure))
    litter = Litter() if product else bench.control_upkeep.sweep(before)
    bench.journal.log("maintained", retired=len(found.retired), kept=len(found.kept), by=by)
    return _maintained(found, left, litter)


def _wanted(found: Decision, product: str | None) -> Decision:
    if product is None:
        return found
    return Decision(
        [item for item in found.retired if item.product == product],
        [item for item in found.kept if item.product == product],
    )


def _maintained(found: Decision, left: tuple[Leftover, ...], litter: Litter) -> Maintained:
    retired = found.retired
    if litter.files:
        because = f"{litter.files} files, {litter.size_bytes} bytes: no snapshot reaches them"
        retired = [*retired, Item(name="control tables", kind="control files", because=because)]
    return Maintained(tuple(retired), tuple(found.kept), left, litter)


def _foreseen(bench: Workbench, found: Decision, *, at_once: bool) -> Decision:
    """Take tags that must stay, so that no later expiry deletes live files, out of the decision."""
    kept: dict[str, str] = {}
    for table, tags in _by_table(found).items():
        said = bench.upkeep.would_let_go(table, tags, at_once=at_once).kept
        kept |= {f"{table}@{tag}": because for tag, because in said.items()}
    return _without(found, kept)


def _without(found: Decision, kept: Mapping[str, str]) -> Decision:
    """Give the decision without the items named in `kept`, which are kept for that reason."""
    stays = [
        item.model_copy(update={"because": kept[item.name]})
        for item in found.retired
        if item.name in kept
    ]
    return Decision([i for i in found.retired if i.name not in kept], [*found.kept, *stays])


def _by_table(found: Decision) -> dict[str, dict[str, int]]:
    """Give the tags that go by table; those of a shadow that goes need no commit of their own."""
    dropped = {item.name for item in found.retired if item.kind == "shadow"}
    tags: dict[str, dict[str, int]] = {}
    for item in found.retired:
        if item.kind in ("tag", "pin") and item.table not in dropped:
            tags.setdefault(item.table, {})[item.name.partition("@")[2]] = item.snapshot_id or 0
    return tags


def _act(bench: Workbench, facts: Facts, found: Decision, by: str, *, at_once: bool) -> Decision:
    found = _expire(bench, facts, found, by)
    found = _tell(bench, facts, found, by)
    for item in [item for item in found.retired if item.kind == "shadow"]:
        bench.shadows.retire(item.name)
    kept: dict[str, str] = {}
    for table, tags in _by_table(found).items():
        try:
            said = bench.upkeep.let_go(table, tags, at_once=at_once).kept
        except (Conflict, NotFound, Unsupported) as error:
            said = dict.fromkeys(tags, error.problem)
        kept |= {f"{table}@{tag}": because for tag, because in said.items()}
    found = _without(found, kept)
    gone = {item.name for item in found.retired if item.kind == "pin"}
    ended = [lease for lease in facts.leases if f"{lease.table}@{lease.tag}" in gone]
    because = {item.name: item.because for item in found.retired}
    bench.pin_leases.end(
        tuple(
            lease.model_copy(
                update={
                    "at": bench.clock.now(), "by": by,
                    "reason": because[f"{lease.table}@{lease.tag}"],
                }
            )
            for lease in ended
        )
    )  # fmt: skip
    fences = tuple(item.name for item in found.retired if item.kind == "fence")
    if fences:
        bench.control_upkeep.lift(fences)
    return found


def _expire(bench: Workbench, facts: Facts, found: Decision, by: str) -> Decision:
    """Say in the pointer table which versions go, unless the pointer moved meanwhile.

    From then on no rollback leads to them; one that is under way keeps all of them.
    """
    kept: dict[str, str] = {}
    versions = [item for item in found.retired if item.kind == "version"]
    for product, items in groupby(versions, key=lambda item: item.product):
        expiring = {item.version or 0: item.because for item in items}
        seen = facts.keeping[product].acts[0].token
        rows = keep_versions.expirations(product, expiring, bench.clock.now(), by)

        def decide(
            pointer: Pointer, rows: tuple[Publication, ...] = rows, seen: str = seen
        ) -> tuple[Publication, ...]:
            is_same = pointer.accepted is not None and pointer.accepted.token == seen
            return rows if is_same and pointer.pending is None else ()

        before = bench.versions.pointer(product).expirations
        if bench.versions.move(product, decide).expirations == before:
            tags = {i.name for i in found.retired if i.product == product and i.kind == "tag"}
            names = tags | {f"{product} version {version}" for version in expiring}
            shadows = {i.name for i in found.retired if i.product == product}
            kept |= dict.fromkeys(names | shadows, f"{product} moved meanwhile: look again")
    return _without(found, kept)


def _tell(bench: Workbench, facts: Facts, found: Decision, by: str) -> Decision:
    """Note on each run that what it kept is let go, unless it went on meanwhile.

    A run whose scratch table goes keeps all that it needs: nothing is noted, it can be published.
    """
    kept: dict[str, str] = {}
    mine = [item for item in found.retired if retention.is_own(facts, item)]
    for run_id in sorted({item.run_id for item in mine}):
        items = [item for item in mine if item.run_id == run_id]
        try:
            _note(bench, run_id, items, by)
        except RunMoved as error:
            kept |= dict.fromkeys((item.name for item in items), error.problem)
    return _without(found, kept)


def _note(bench: Workbench, run_id: str, items: list[Item], by: str) -> None:
    status, events = bench.runs.status(run_id), bench.runs.events(run_id)
    if any(event.verb == "retire" for event in events):
        return
    if retention.lease_end(status, events) is None:
        raise RunMoved(f"{run_id} is {status.state.value} by now: open runs keep everything")
    names, because = [item.name for item in items], items[0].because
    try:
        plan = bench.runs.plan(run_id)
    except BackfillError as error:
        raise RunMoved(f"the plan of {run_id} cannot be read: {error.problem}") from error
    bench.move(status, plan, "retire", by, let_go=names, because=because)
