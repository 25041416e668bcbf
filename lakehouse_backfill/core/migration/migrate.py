"""The verb `migrate`: rows of an old place become a product's table, proven on both sides.

Side effects, in order: 1 the survey, as evidence · 2 the table, with an empty main branch · for
each checkpoint: 3 data files that no reader sees · 4 one commit on the branch `migration`, with
files and state · 5 the proof, as evidence · 6 its digest, in the table's state · 7 one commit that
makes the branch the main one · 8 the product's pointer. The old place is only read. A migration
that was cut off between any two of them is continued by the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.core.migration import proof
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.reserve import refresh_view
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.profile import FOUR_EYES_ENVIRONMENTS
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.domain.sources.migration import (
    MigrationDeclaration,
    MigrationPart,
    MigrationState,
    MigrationSurvey,
    new_migration_id,
    next_migration_state,
)
from lakehouse_backfill.errors import Blocked, Conflict, NotFound, Unsupported
from lakehouse_backfill.ports.migration import MigratedTables, OldPlace, RowSums

_NOTHING = "nothing was migrated"
_UNSEEN = "no reader sees a row of the migration; the old place is as it was"
#: The reason of the row by which a migration is undone.
_UNDONE = "undone: "


@dataclass(frozen=True)
class MigrationPorts:
    """What a migration works with, beside the context."""

    place: OldPlace
    tables: MigratedTables
    new_sums: Callable[[], RowSums]
    #: Answers a reader's query from both sides: the rows of the old place, table and snapshot.
    compare: Callable[[ReaderQuery, Iterator[Any], str, int], QueryComparison]


@dataclass(frozen=True)
class MigrationOutcome:
    """What a migration has done; without a state it was blocked by bad parts."""

    survey: MigrationSurvey
    state: MigrationState | None
    snapshot_id: int | None = None
    proof: dict[str, Any] | None = None
    is_resumed: bool = False
    notes: tuple[str, ...] = ()


def preview_migration(ports: MigrationPorts, contract: Contract) -> MigrationSurvey:
    """Return what is good and bad in the old place; nothing is changed.

    Raises Unsupported when a table is there that no migration made.
    """
    ports.tables.state(contract.table)
    return ports.place.survey()


def migrate(
    context: Context, ports: MigrationPorts, declared: MigrationDeclaration, contract: Contract,
    by: str,
) -> MigrationOutcome:  # fmt: skip
    """Migrate, or go on with a migration that was cut off; once it is accepted, change nothing.

    Raises Blocked (bad parts, sides that differ), Conflict (the old place changed).
    """
    environment = context.profile.environment
    roles.require_role(contract, "publish", by, environment)
    roles.require_switched_on(context.profile, "publish", contract.product, _NOTHING)
    roles.require_pilot(context.profile, contract.product)
    state = ports.tables.state(contract.table)
    _require_own(state, declared, contract)
    notes: tuple[str, ...] = ()
    if state is not None and not ports.place.is_lasting and not state.proof:
        notes = ("a new snapshot of the database was taken, and the copy began again",)
        if ports.tables.foreign_snapshot(contract.table) is not None:
            raise Conflict(
                f"something else was committed to {contract.table} while it was migrated",
                state="nothing was dropped",
                fix="look at who writes there, and drop the table by hand",
            )
        ports.tables.drop(contract.table, state)
        state = None
    is_resumed = state is not None
    if state is None:
        _require_unpublished(context.versions.pointer(contract.product))
        survey = ports.place.survey()
        if survey.rejected and declared.bad_parts == "block":
            return MigrationOutcome(survey, None, notes=notes)
        state = _begin(context, ports, declared, contract, survey, by)
    else:
        survey = proof.recorded_survey(context.evidence, state)
    state = _copy(context, ports, declared, contract, survey, state)
    found, state = _prove(context, ports, declared, contract, survey, state)
    is_same_person = by.casefold() == state.by.casefold()
    if environment in FOUR_EYES_ENVIRONMENTS and is_same_person and not state.is_accepted:
        notes = (
            *notes,
            f"both sides agree; in {environment} it is accepted once somebody else than {by} gives "
            f"the command: lakehouse-backfill product migrate {declared.migration}",
        )
        return MigrationOutcome(survey, state, None, found, is_resumed, notes)
    state, snapshot_id = _accept(context, ports, contract, state, by)
    return MigrationOutcome(survey, state, snapshot_id, found, is_resumed, notes)


def undo_migration(
    context: Context, ports: MigrationPorts, declared: MigrationDeclaration, contract: Contract,
    by: str,
) -> MigrationState | None:  # fmt: skip
    """Take a migration back: the pointer first, then the table, without deleting a file.

    Returns None when there is nothing to take back. Raises Blocked once a run was published, or
    rows were written that are in no other place.
    """
    roles.require_role(contract, "publish", by, context.profile.environment)
    state = ports.tables.state(contract.table)
    if state is None:
        return None
    _require_name(state, declared)
    _require_nothing_since(context, ports, contract)

    def withdraw(pointer: Pointer) -> tuple[Publication, ...]:
        row = pointer.accepted
        if row is None or row.token != state.migration_id:
            return ()
        return (_baseline(context, contract, state, None, by, f"{_UNDONE}{state.migration_id}"),)

    context.versions.move(contract.product, withdraw)
    ports.tables.drop(contract.table, state)
    context.journal.bind(processing_mode=state.mode).log(
        "migration undone", migration=state.migration_id, table=contract.table
    )
    return state


def _require_nothing_since(context: Context, ports: MigrationPorts, contract: Contract) -> None:
    """Raise Blocked when the table is needed by a run, or holds what is in no other place."""
    foreign = ports.tables.foreign_snapshot(contract.table)
    pointer = context.versions.pointer(contract.product)
    if foreign is not None or pointer.last_version or pointer.pending:
        what = "a run was published" if foreign is None else f"snapshot {foreign} was committed"
        raise Blocked(
            f"{contract.table} is more than the migration: {what} since",
            state="nothing was taken back",
            fix="roll the runs back and keep the table: only it holds what was written since",
        )
    open_run = next((r for r in context.runs.list() if r.product == contract.product), None)
    if open_run is not None:
        raise Blocked(
            f"{open_run.run_id} is an open run of {contract.product}, and needs its table",
            state="nothing was taken back",
            fix=f"lakehouse-backfill cancel {open_run.run_id}",
        )


def _begin(
    context: Context, ports: MigrationPorts, declared: MigrationDeclaration, contract: Contract,
    survey: MigrationSurvey, by: str,
) -> MigrationState:  # fmt: skip
    """Record the survey, then make the table."""
    if not survey.good:
        raise Blocked(
            f"{ports.place.name} holds nothing that can be migrated",
            state=_NOTHING,
            fix="look at the reasons: lakehouse-backfill product migrate "
            f"{declared.migration} --dry-run",
        )
    now = context.clock.now()
    migration_id = new_migration_id(declared.migration, now)
    header = proof.record_survey(context.evidence, migration_id, ports.place.name, survey)
    state = next_migration_state(
        MigrationState(
            migration_id=migration_id,
            migration=declared.migration,
            product=contract.product,
            declared=_declared_digest(declared, contract),
            survey=header,
            parts=len(survey.good),
            started_at=now,
            keeps_files=any(part.action == "adopt" for part in survey.good),
            by=by,
        )
    )
    ports.tables.create(contract, state)
    return state


def _copy(
    context: Context, ports: MigrationPorts, declared: MigrationDeclaration, contract: Contract,
    survey: MigrationSurvey, state: MigrationState,
) -> MigrationState:  # fmt: skip
    """Commit the good parts in the order of their names, checkpoint by checkpoint."""
    good = survey.good
    context.progress.start(f"migrating {declared.migration}", len(good), "parts")
    context.progress.advance(state.position, was_done=True)
    try:
        while state.position < len(good):
            group = good[state.position : state.position + declared.files_per_commit]
            try:
                staged = ports.tables.stage(contract.table, group, ports.place)
            except NotFound:
                _require_unchanged(ports.place, declared, group)
                raise
            _require_unchanged(ports.place, declared, group)
            state = next_migration_state(
                state,
                position=state.position + len(group),
                files=state.files + sum(len(one.files) for one in staged),
            )
            ports.tables.commit(contract.table, staged, state)
            context.progress.advance(len(group), rows=sum(part.rows for part in group))
    finally:
        context.progress.finish()
    return state


def _prove(
    context: Context, ports: MigrationPorts, declared: MigrationDeclaration, contract: Contract,
    survey: MigrationSurvey, state: MigrationState,
) -> tuple[dict[str, Any], MigrationState]:  # fmt: skip
    """Compare both sides and record it; raises Blocked when they differ, Conflict on a change."""
    table = contract.table
    if state.proof:
        recorded = context.evidence.document(state.migration_id, state.proof)
        if recorded is None:
            raise Blocked(
                f"the proof of {state.migration_id} is not in the evidence any more",
                state=_UNSEEN if not state.is_accepted else "the table is accepted",
                fix=f"lakehouse-backfill product migrate {declared.migration} --undo, and again",
            )
        if not state.is_accepted:
            _require_unchanged(ports.place, declared, survey.parts)
            _require_none_added(ports.place, declared, survey)
        return recorded, state
    _require_unchanged(ports.place, declared, survey.parts)
    snapshot_id = ports.tables.branch_snapshot(table)
    sums = ports.new_sums()
    files = ports.tables.sums(table, state, sums)
    found = {label: one.checksum for label, one in sums.groups().items()}
    answers = tuple(
        ports.compare(query, _all_rows(ports.place, survey), table, snapshot_id)
        for query in declared.readers
    )
    document = proof.proof_document(survey, state, snapshot_id, (files, found), answers)
    # What changed while it was read is named as that, and not as sides that differ.
    _require_unchanged(ports.place, declared, survey.parts)
    _require_none_added(ports.place, declared, survey)
    recorded_digest = context.evidence.record(state.migration_id, proof.PROOF, document, 0)
    proof.require_agreement(document, declared.migration)
    state = next_migration_state(state, proof=recorded_digest)
    ports.tables.note(table, state)
    return document, state


def _all_rows(place: OldPlace, survey: MigrationSurvey) -> Iterator[Any]:
    for part in survey.good:
        yield from place.batches(part)


def _accept(
    context: Context, ports: MigrationPorts, contract: Contract, state: MigrationState, by: str
) -> tuple[MigrationState, int]:
    """Make the branch what the table is, then move the pointer; the same again changes nothing."""
    row = _baseline(context, contract, state, 0, by, f"migration {state.migration_id}")
    if not state.is_accepted:
        state = next_migration_state(state, is_accepted=True)
    snapshot_id = ports.tables.accept(contract.table, state, row.tags["after"])

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        accepted = pointer.accepted
        if accepted is not None and accepted.token == state.migration_id:
            return ()
        if pointer.last_version:
            return ()  # a run was published since, and perhaps rolled back
        _require_unpublished(pointer)
        return (row.model_copy(update={"snapshot_id": snapshot_id}),)

    context.versions.move(contract.product, decide)
    refresh_view(context, contract)
    context.journal.bind(processing_mode=state.mode).log(
        "migration accepted", migration=state.migration_id, table=contract.table,
        snapshot=snapshot_id,
    )  # fmt: skip
    return state, snapshot_id


def _baseline(
    context: Context, contract: Contract, state: MigrationState, snapshot_id: int | None, by: str,
    reason: str,
) -> Publication:  # fmt: skip
    """Return the row of version 0: what readers see before the first run."""
    is_undone = reason.startswith(_UNDONE)
    return Publication(
        product=contract.product,
        version=0,
        token=f"{state.migration_id}-undone" if is_undone else state.migration_id,
        action="baseline",
        run_id=None,
        table=contract.table,
        snapshot_id=snapshot_id,
        before_snapshot_id=snapshot_id if is_undone else None,
        scope=None,
        supersedes=None,
        at=context.clock.now(),
        by=by,
        evidence_digest=None if is_undone else state.proof,
        reason=reason,
    )


def _require_unpublished(pointer: Pointer) -> None:
    """Raise Blocked when the product has an accepted version that holds rows."""
    row = pointer.accepted
    is_free = row is None or (row.version == 0 and row.snapshot_id is None)
    if pointer.pending is None and is_free:
        return
    product = (pointer.pending or row).product  # type: ignore[union-attr]
    raise Blocked(
        f"{product} has an accepted version already",
        state=_NOTHING,
        fix="migrate into a product of its own, or restate this one",
    )


def _require_own(
    state: MigrationState | None, declared: MigrationDeclaration, contract: Contract
) -> None:
    """Raise Unsupported, or Conflict, unless the table is of this migration as it is declared."""
    if state is None:
        return
    _require_name(state, declared)
    if not state.is_accepted and state.declared != _declared_digest(declared, contract):
        raise Conflict(
            f"the declaration, or the contract's table, changed since {state.migration_id} began",
            state=_UNSEEN,
            fix=f"lakehouse-backfill product migrate {declared.migration} --undo, and again",
        )


def _require_name(state: MigrationState, declared: MigrationDeclaration) -> None:
    if state.migration != declared.migration:
        raise Unsupported(
            f"the table of {declared.product} was made by the migration {state.migration}",
            state=_NOTHING,
            fix=f"name another product in catalog/migrations/{declared.migration}.yaml",
        )


def _declared_digest(declared: MigrationDeclaration, contract: Contract) -> str:
    """Return the digest of what decides about rows; readers and pace may change in between."""
    open_fields = {"readers", "reason", "files_per_commit"}
    return digest(
        [
            declared.model_dump(mode="json", exclude=open_fields),
            contract.table,
            [column.model_dump(mode="json") for column in contract.columns],
            [field.model_dump(mode="json") for field in contract.partitioning],
        ]
    )


def _require_none_added(
    place: OldPlace, declared: MigrationDeclaration, survey: MigrationSurvey
) -> None:
    """Raise Conflict when parts are there that the survey did not find."""
    added = place.added(survey)
    if added:
        raise _changed(declared, added, "are new")


def _require_unchanged(
    place: OldPlace, declared: MigrationDeclaration, parts: tuple[MigrationPart, ...]
) -> None:
    changed = place.changed(parts)
    if changed:
        raise _changed(declared, changed, "changed or vanished")


def _changed(declared: MigrationDeclaration, names: tuple[str, ...], what: str) -> Conflict:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    error = Conflict(
        f"{names[0]}{more} {what} since the old place was read",
        state=_UNSEEN,
        fix="stop whoever writes there; then "
        f"lakehouse-backfill product migrate {declared.migration} --undo, and again",
    )
    error.data["parts"] = list(names)
    return error
