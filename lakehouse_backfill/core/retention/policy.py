"""What is removed and what is kept, each with its reason: shadows, pins, versions' tags, fences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.core.versions.retention import VersionRetention, is_publication_tag
from lakehouse_backfill.domain.contract import PIN_DAYS
from lakehouse_backfill.domain.retention import (
    INTERMEDIATE_TABLE,
    STATE_TABLE,
    TRIAL_TABLE,
    PinLease,
    RetentionItem,
    RunFacts,
    is_kept_result,
)
from lakehouse_backfill.domain.run import Event, RunStatus

PIN_PREFIX = "lhb-pin-"


@dataclass(frozen=True)
class RetentionFacts:
    """Everything that the decision looks at, as it is now.

    `tags` holds ours by table, `state_products` the products of kept states, where they are known.
    `erased`: the tables whose old content must not be kept for the reason `erasure`.
    `scratch_written_at`: when a scratch table was last written to; absent: not known.
    `unreadable_tables`: why each of them cannot be read; all that depends on one stays.
    """

    now: datetime
    runs: Mapping[str, RunFacts]
    shadows: tuple[str, ...]
    leases: tuple[PinLease, ...]
    version_retention: Mapping[str, VersionRetention]
    tags: Mapping[str, Mapping[str, int]]
    fences: tuple[str, ...] = ()
    erased_tables: frozenset[str] = frozenset()
    erasure: str = ""
    scratch_written_at: Mapping[str, datetime] = field(default_factory=dict)
    unreadable_tables: Mapping[str, str] = field(default_factory=dict)
    state_products: Mapping[str, str] = field(default_factory=dict)


_RETIRED_PREFIX = "let go: "


def _is_retired(because: str) -> bool:
    return because.startswith(_RETIRED_PREFIX)


@dataclass
class RetentionDecision:
    """What is removed, and what is kept."""

    retired: list[RetentionItem] = field(default_factory=list)
    kept: list[RetentionItem] = field(default_factory=list)

    def add(self, because: str, run: RunFacts | None = None, **fields: object) -> None:
        """Add an item: it is removed if `because` has the prefix for that, else kept.

        Owner, product and end are those of `run`, unless `fields` give others.
        """
        if run is not None:
            of_run = {"owner": run.owner, "until": run.ends, "run_id": run.run_id}
            fields = {**of_run, "product": run.product, **fields}
        item = RetentionItem.model_validate(
            {**fields, "because": because.removeprefix(_RETIRED_PREFIX)}
        )
        (self.retired if _is_retired(because) else self.kept).append(item)

    def limit_to(self, product: str) -> None:
        """Leave out the items of other products."""
        self.retired = [item for item in self.retired if item.product == product]
        self.kept = [item for item in self.kept if item.product == product]

    def keep(self, reasons: Mapping[str, str]) -> None:
        """Keep items after all: those named in `reasons`, each for its reason."""
        self.kept += [
            item.model_copy(update={"because": reasons[item.name]})
            for item in self.retired
            if item.name in reasons
        ]
        self.retired = [item for item in self.retired if item.name not in reasons]


def pin_lease_end(status: RunStatus, events: tuple[Event, ...]) -> datetime | None:
    """Return when a run's lease ends: days after acceptance or closing; None while it is open."""
    if event_log.is_open_run(status):
        return None
    accepted = [one.at for one in events if one.verb in ("accept", "carry acceptance")]
    moves = [one.at for one in events if one.from_state != one.to_state]
    return (accepted or moves or [status.at])[-1] + timedelta(days=PIN_DAYS)


def decide_retention(facts: RetentionFacts) -> RetentionDecision:
    """Decide for everything; what an open run, a lease or a kept version needs stays."""
    found = RetentionDecision()
    keeping = {name: _with_unreadable(facts, one) for name, one in facts.version_retention.items()}
    facts = replace(facts, version_retention=keeping)
    shadows = _shadow_reasons(facts)
    for name, because in shadows.items():
        run = _run_of_shadow(facts, name) or _run_of_scratch(facts, name)
        of_state = {"product": made_of} if (made_of := facts.state_products.get(name)) else {}
        found.add(because, run, name=name, kind="shadow", table=name, **of_state)
    _decide_versions(facts, found)
    kept = {name for name, because in shadows.items() if not _is_retired(because)}
    _decide_pins(facts, _with_clone_sources(facts, kept), found)
    for run_id in facts.fences:
        run = facts.runs.get(run_id)
        found.add(_lease_reason(facts, run), run, name=run_id, kind="fence")
    return found


#: A shadow's name, what a command computes in it for, eight hex digits: no run has such a shadow.
SCRATCH_NAME = re.compile(r"(.+)__[a-z]+_[0-9a-f]{8}")
#: A scratch table this young may belong to a command that is at work now.
SCRATCH_GRACE = timedelta(days=1)
#: How long a kept intermediate result stays after its last use.
INTERMEDIATE_KEPT = timedelta(days=7)
#: How long a state stays from which a later run may start.
STATE_KEPT = timedelta(days=90)


def is_scratch(table: str) -> bool:
    """Return whether a table is a scratch table, or a kept result or state, by its name."""
    return bool(SCRATCH_NAME.fullmatch(table)) or is_kept_result(table)


def _run_of_shadow(facts: RetentionFacts, shadow: str) -> RunFacts | None:
    return next((run for run in facts.runs.values() if run.shadow == shadow), None)


def _run_of_scratch(facts: RetentionFacts, table: str) -> RunFacts | None:
    """Return the run for which a command made a table to compute in, which it drops at its end."""
    found = SCRATCH_NAME.fullmatch(table)
    return _run_of_shadow(facts, found[1]) if found else None


def is_held_by_run(facts: RetentionFacts, item: RetentionItem) -> bool:
    """Return whether the run depends on the item, so that it ends without it."""
    run = facts.runs.get(item.run_id)
    return run is not None and (item.kind != "shadow" or item.name == run.shadow)


def _scratch_reason(facts: RetentionFacts, table: str) -> str | None:
    """Decide on a scratch table, whatever the state of its run; None: it is no scratch table.

    That of a trial belongs to no run.
    """
    if is_scratch(table) and (unreadable := _unreadable_reason(facts, table)):
        return unreadable
    if INTERMEDIATE_TABLE.fullmatch(table):
        return _unused_reason(facts, table, "an intermediate result", INTERMEDIATE_KEPT)
    if STATE_TABLE.fullmatch(table):
        is_erased = table in facts.erased_tables
        unneeded = f"{_RETIRED_PREFIX}{facts.erasure}" if is_erased else ""
        return unneeded or _unused_reason(facts, table, "a state", STATE_KEPT)
    run = _run_of_scratch(facts, table)
    if run is None and not TRIAL_TABLE.fullmatch(table):
        return None
    what = f"a scratch table of {run.run_id if run else 'a try'}"
    written = facts.scratch_written_at.get(table)
    if written is None or written + SCRATCH_GRACE > facts.now:
        return f"{what}, written within a day: a command may be at work"
    return f"{_RETIRED_PREFIX}{what}, left behind by a command that was cut off"


def _unused_reason(facts: RetentionFacts, table: str, what: str, kept: timedelta) -> str:
    """Decide on a kept result by its last commit: a use of an intermediate result is noted in one.

    A state is committed once, so it is kept for a time after that.
    """
    used = facts.scratch_written_at.get(table)
    if used is None or used + kept > facts.now:
        return f"{what}, used within {kept.days} days"
    return f"{_RETIRED_PREFIX}{what}, not used since {used:%Y-%m-%d}"


def _lease_reason(facts: RetentionFacts, run: RunFacts | None, *tables: str) -> str:
    """Describe why what a run has on the tables is kept, or removed."""
    if run is None:
        return "no run of this lake is known to need it, and nobody said that it may go"
    if run.ends is None:
        return f"{run.run_id} is {run.state}: open runs keep everything ({run.reason})"
    if unreadable := _unreadable_reason(facts, run.target, *tables):
        return unreadable
    if facts.erased_tables.intersection(tables):
        return f"{_RETIRED_PREFIX}{facts.erasure}"
    if run.ends > facts.now:
        return f"{run.run_id} is {run.state}, its lease ends on {run.ends:%Y-%m-%d}"
    return f"{_RETIRED_PREFIX}{run.run_id} is {run.state}, its lease ended on {run.ends:%Y-%m-%d}"


def _unreadable_reason(facts: RetentionFacts, *tables: str) -> str:
    """Return why what is on the tables stays: one cannot be read. Empty: all can."""
    for table in tables:
        if table in facts.unreadable_tables:
            return f"{table} cannot be read, nothing on it goes: {facts.unreadable_tables[table]}"
    return ""


def _shadow_reasons(facts: RetentionFacts) -> dict[str, str]:
    """Decide for each shadow whether it is kept, and why."""
    found = {}
    for name in facts.shadows:
        run = _run_of_shadow(facts, name)
        because = _lease_reason(facts, run, name, run.target if run else "")
        found[name] = (None if run else _scratch_reason(facts, name)) or because
    for product, keeping in facts.version_retention.items():
        for row in keeping.accepted_rows[: keeping.last_kept + 1]:
            if _is_retired(found.get(row.table, "")):
                found[row.table] = f"it is version {row.version} of {product}, which is kept"
    for run in facts.runs.values():
        does = dict.fromkeys(run.reads, "reads it")
        does |= dict.fromkeys(run.needs, "takes chunks over from it")
        for name, what in does.items():
            if _is_retired(found.get(name, "")):
                found[name] = f"{run.run_id}, which is {run.state}, {what}"
    return found


def _with_clone_sources(facts: RetentionFacts, kept: set[str]) -> set[str]:
    """Return the kept shadows, and all that they were cloned from: their files are the same.

    Of those only the names are dropped, but the base that the first was cloned from is a table that
    expires: its pin stays.
    """
    found, waiting = set(kept), list(kept)
    while waiting:
        run = _run_of_shadow(facts, waiting.pop())
        if run is not None and run.target not in found and _run_of_shadow(facts, run.target):
            found.add(run.target)
            waiting.append(run.target)
    return found


def _with_unreadable(facts: RetentionFacts, keeping: VersionRetention) -> VersionRetention:
    """Keep all versions of a product of which a table cannot be read, with what they need."""
    rows = keeping.accepted_rows
    reason = _unreadable_reason(facts, *sorted({row.table for row in rows}))
    if not reason or not keeping.expiring:
        return keeping
    kept = dict.fromkeys(keeping.expiring, reason) | keeping.kept
    oldest = max(number for number, row in enumerate(rows) if row.version in keeping.expiring)
    return replace(keeping, kept=kept, expiring={}, last_kept=max(oldest, keeping.last_kept))


def _decide_versions(facts: RetentionFacts, found: RetentionDecision) -> None:
    for product, keeping in facts.version_retention.items():
        expiring = {version: _RETIRED_PREFIX + why for version, why in keeping.expiring.items()}
        for version, because in [*sorted(keeping.kept.items()), *sorted(expiring.items())]:
            name = f"{product} version {version}"
            found.add(because, name=name, kind="version", version=version, product=product)
    for table, tag, snapshot_id in _tags(facts):
        if is_publication_tag(tag):
            unneeded = facts.erasure or "no kept version and no way back needs it"
            found.add(
                _tag_reason(facts, table, tag) or _RETIRED_PREFIX + unneeded,
                name=f"{table}@{tag}", kind="tag", table=table, snapshot_id=snapshot_id,
                product=_product_of_tag(facts, tag),
            )  # fmt: skip


def _tags(facts: RetentionFacts) -> Iterator[tuple[str, str, int]]:
    """Yield table, tag and snapshot of each of our tags."""
    for table, tags in facts.tags.items():
        for tag, snapshot_id in sorted(tags.items()):
            yield table, tag, snapshot_id


def _product_of_tag(facts: RetentionFacts, tag: str) -> str:
    return next(
        (name for name, one in facts.version_retention.items() if one.has_made_tag(tag)), ""
    )


def _tag_reason(facts: RetentionFacts, table: str, tag: str) -> str | None:
    reasons = (keeping.tag_reason(tag) for keeping in facts.version_retention.values())
    found = next((reason for reason in reasons if reason), None)
    if found is None and not _product_of_tag(facts, tag):
        return f"no product of this lake is known to have made it on {table}"
    return found


def _decide_pins(facts: RetentionFacts, shadows: set[str], found: RetentionDecision) -> None:
    """Decide for each lease, and for pins without one, that an older release made."""
    for lease in facts.leases:
        run = facts.runs.get(lease.run_id)
        pin = (lease.table, lease.tag, lease.snapshot_id)
        found.add(
            _pin_reason(facts, shadows, pin, run) if run else _unstored_run_reason(facts, lease),
            run, name=f"{lease.table}@{lease.tag}", kind="pin", table=lease.table,
            snapshot_id=lease.snapshot_id, owner=lease.owner, run_id=lease.run_id,
            product=lease.product, until=run.ends if run else lease.until,
        )  # fmt: skip
    leased = {(lease.table, lease.tag) for lease in facts.leases}
    for table, tag, snapshot_id in _tags(facts):
        if not tag.startswith(PIN_PREFIX) or (table, tag) in leased:
            continue
        rest = f"{tag.removeprefix(PIN_PREFIX)}-"
        run = next((one for name, one in facts.runs.items() if rest.startswith(f"{name}-")), None)
        found.add(
            _pin_reason(facts, shadows, (table, tag, snapshot_id), run),
            run, name=f"{table}@{tag}", kind="pin", table=table, snapshot_id=snapshot_id,
        )  # fmt: skip


def _unstored_run_reason(facts: RetentionFacts, lease: PinLease) -> str:
    day = f"{lease.until:%Y-%m-%d}"
    if unreadable := _unreadable_reason(facts, lease.table):
        return unreadable
    if lease.until > facts.now:
        return f"{lease.run_id} was never stored; its lease ends on {day}"
    return f"{_RETIRED_PREFIX}{lease.run_id} was never stored, its lease ended on {day}"


def _pin_reason(
    facts: RetentionFacts, shadows: set[str], pin: tuple[str, str, int], run: RunFacts | None
) -> str:
    because = _lease_reason(facts, run, pin[0])
    if run is None or not _is_retired(because):
        return because
    return _dependency_reason(facts, shadows, pin, run) or because


def _dependency_reason(
    facts: RetentionFacts, shadows: set[str], pin: tuple[str, str, int], run: RunFacts
) -> str:
    """Return what else needs a pin: a shadow cloned from it, or a version without a tag."""
    table, tag, snapshot_id = pin
    is_base = table == run.target and tag == f"{PIN_PREFIX}{run.run_id}"
    if is_base and run.shadow in shadows and _run_of_shadow(facts, table) is None:
        return f"what was cloned by {run.run_id} is kept, and shares its files"
    for product, keeping in facts.version_retention.items():
        if (table, snapshot_id) in keeping.kept_snapshots and not _has_kept_tag(
            facts, table, snapshot_id
        ):
            return f"it alone keeps a version of {product} that is kept"
    return ""


def _has_kept_tag(facts: RetentionFacts, table: str, snapshot_id: int) -> bool:
    """Return whether a tag of a publication that is kept holds the snapshot."""
    return any(
        held == snapshot_id and is_publication_tag(tag) and _tag_reason(facts, table, tag)
        for tag, held in facts.tags.get(table, {}).items()
    )
