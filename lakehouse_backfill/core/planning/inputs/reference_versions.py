"""Which version of reference data a run reads, by the semantics that the manifest declares (D4).

`corrected_truth` is what `at` names, or the newest version. The others follow from what was
recorded: the accepted version of a product, the version in force when the rows that are replaced
were first recorded, or the version that the run behind these rows used. What cannot be known is an
error, never a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from lakehouse_backfill.core.planning.target.row_changes import is_partial_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, Reference
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import ConfigError, NotFound, TargetChanged, attach_error_field


class OldRows(NamedTuple):
    """The partitions that a run replaces: of which product, in which snapshot of which table."""

    product: str
    table: str
    snapshot_id: int | None
    scope: Scope


class ReferenceVersion(NamedTuple):
    """The snapshot that a reference is read at, and why it is this one."""

    table: str
    snapshot_id: int
    because: str


#: Table, snapshot and reason -> the partitions that it was found for.
_Found = Mapping[tuple[str, int, str], list[str]]


def find_reference_version(
    context: Context,
    name: str,
    reference: Reference,
    contracts: Mapping[str, Contract],
    old: OldRows,
) -> ReferenceVersion | None:
    """Return the version that the semantics of a reference name; None: what `at` says, or newest.

    Raises ConfigError where it cannot be known, or where `at` contradicts the semantics; NotFound
    where it is known and has expired.
    """
    if reference.semantics == "corrected_truth":
        return None
    field = f"reference_data.{name}"
    if reference.semantics == "current_accepted":
        with attach_error_field(field):
            return _accepted_version(context, name, reference, contracts.get(reference.table))
    if reference.at is not None:
        return None
    known = _KnownRuns(context, old)
    find = _used_version if reference.semantics == "as_used_by_original" else _recorded_version
    with attach_error_field(field):
        found = find(known, name, reference)
        _require_kept(context, name, found)
    return found


def describe_semantics(name: str, reference: Reference, found: ReferenceVersion | None) -> str:
    """Return the note of the plan: which version is read, by which semantics, and why."""
    if found is not None:
        version = f"{found.table}@{found.snapshot_id}"
        return f"{name} is read at {version} ({reference.semantics}): {found.because}"
    if reference.at is None:
        return f"{name} is read as it is now ({reference.semantics})"
    word = "" if reference.semantics == "corrected_truth" else ", on the word of the manifest"
    return f"{name} is read at {reference.at} ({reference.semantics}){word}"


def _accepted_version(
    context: Context, name: str, reference: Reference, contract: Contract | None
) -> ReferenceVersion:
    if reference.at is not None:
        raise ConfigError(
            f"{name} is current_accepted, which follows the pointer, and names `at` too",
            state=NOTHING_PLANNED,
            fix="remove `at`, or write semantics: corrected_truth",
        )
    if contract is None:
        raise ConfigError(
            f"{name} is current_accepted, but no contract of this project has {reference.table}: "
            "only a product has accepted versions",
            state=NOTHING_PLANNED,
            fix="name the table of a product, or write semantics: corrected_truth",
        )
    accepted = context.versions.pointer(contract.product).accepted
    if accepted is None or accepted.snapshot_id is None:
        raise ConfigError(
            f"{name} is current_accepted, but {contract.product} has no accepted version yet",
            state=NOTHING_PLANNED,
            fix=f"publish a run of {contract.product} first, or write semantics: corrected_truth",
        )
    if contract.publication == "follow" and accepted.table != contract.table:
        raise ConfigError(
            f"{name} is current_accepted, but what was accepted of {contract.product} are events "
            f"in {accepted.table}, not rows of {reference.table}",
            state=NOTHING_PLANNED,
            fix="write semantics: corrected_truth, with `at`",
        )
    because = f"version {accepted.version} of {contract.product} is accepted"
    return ReferenceVersion(accepted.table, accepted.snapshot_id, because)


class _KnownRuns:
    """What is recorded of the rows that are replaced."""

    def __init__(self, context: Context, old: OldRows) -> None:
        self.context, self.old = context, old
        self._plans: dict[str, Plan] = {}
        self.history = pointer.accepted_rows(context.versions.history(old.product))
        self.made_by = pointer.runs_by_partition(
            self.history, lambda run: is_partial_plan(self.plan(run)), old.scope.field
        )

    def plan(self, run_id: str) -> Plan:
        """Load a plan once."""
        if run_id not in self._plans:
            self._plans[run_id] = self.context.runs.plan(run_id)
        return self._plans[run_id]

    def makers(self, label: str) -> Iterable[Plan]:
        """Return the plans that computed a partition; a revision carries some over from another."""
        for run in self.made_by.get(label, ()):
            plan = self.plan(run)
            catch_up = plan.resolved.catch_up
            chunk = next((one for one in plan.resolved.chunks if label in one.partitions), None)
            origin = catch_up.origin(chunk.chunk_id) if catch_up and chunk else None
            yield self.plan(origin.run_id) if origin else plan

    def labels_with_rows(self) -> set[str]:
        """Return the partitions of the scope that hold rows now."""
        old = self.old
        if old.snapshot_id is None:
            return set()
        files = self.context.tables.files(old.table, old.snapshot_id, old.scope.field.whole)
        found = {label for file in files for label in file.spans or (str(file.partition),)}
        return found & set(old.scope.partitions)

    def first_publication(self, label: str) -> Publication | None:
        """Return the first publication of a partition."""
        rows = (row for row in reversed(self.history) if row.action == "publish")
        field = self.old.scope.field
        return next((row for row in rows if label in pointer.changed_labels(row, field)), None)


def _used_version(known: _KnownRuns, name: str, reference: Reference) -> ReferenceVersion:
    """Return the snapshot that the runs which made the old rows read."""
    found: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    unknown = [label for label in known.old.scope.partitions if label not in known.made_by]
    unknown = sorted(set(unknown) & known.labels_with_rows()) if unknown else []
    if unknown:
        raise _unknown_error(name, unknown, "were made by no published run")
    for label in known.old.scope.partitions:
        for plan in known.makers(label):
            pin = _pin_of_table(plan, name, reference.table)
            if pin is None:
                raise _unknown_error(
                    name, [label], f"were made by {plan.run_id}, which did not read it"
                )
            because = f"{plan.run_id}, which made the rows that are replaced, read it"
            found[pin.table, pin.snapshot_id, because].append(label)
    return _only_version(name, found, "no row is there to be replaced")


def _pin_of_table(plan: Plan, name: str, table: str) -> SourcePin | None:
    """Return how a run read a table: as the input of this name first."""
    declared = plan.resolved.manifest.inputs
    pins = [
        pin
        for pin in plan.resolved.sources
        if table in (pin.table, declared[pin.name].table if pin.name in declared else "")
    ]
    return next((pin for pin in pins if pin.name == name), pins[0] if pins else None)


def _recorded_version(known: _KnownRuns, name: str, reference: Reference) -> ReferenceVersion:
    """Return the snapshot that was in force when the old rows were first recorded.

    A run that read the reference as recorded hands its version on, so that a later run does not
    take the time of that run's publication for the time of the first record.
    """
    found: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    open_labels = []
    for label in known.old.scope.partitions:
        pins = [_pin_as_recorded(plan, name, reference) for plan in known.makers(label)]
        if not pins or None in pins:
            open_labels.append(label)
        for pin in pins if label not in open_labels else ():
            if pin is not None:
                because = "an earlier run read it as recorded"
                found[pin.table, pin.snapshot_id, because].append(label)
    for label, moments in _recorded_at(known, name, open_labels).items():
        for at in moments:
            ref = TableRef(table=reference.table, at=at.isoformat())
            try:
                snapshot = known.context.tables.resolve(ref)
            except NotFound as error:
                raise _unknown_error(
                    name, [label], f"were recorded at {at:%Y-%m-%d %H:%M:%S} UTC, and no snapshot "
                    f"of {reference.table} is left from then or before",
                ) from error  # fmt: skip
            because = "it was in force when the rows were first recorded"
            found[reference.table, snapshot.snapshot_id, because].append(label)
    return _only_version(name, found, "no row was recorded")


def _pin_as_recorded(plan: Plan, name: str, reference: Reference) -> SourcePin | None:
    earlier = plan.resolved.manifest.reference_data.get(name)
    is_same = earlier is not None and earlier.semantics == reference.semantics
    return _pin_of_table(plan, name, reference.table) if is_same else None


def _recorded_at(
    known: _KnownRuns, name: str, labels: list[str]
) -> dict[str, tuple[datetime, ...]]:
    """Return when rows of each partition were first recorded, by its live commits.

    Where none is known, by its first publication; partitions without rows are left out.
    """
    if not labels or known.old.snapshot_id is None:
        return {}
    scope = Scope(field=known.old.scope.field, partitions=tuple(labels))
    try:
        drifts = known.context.publisher.drifts(known.old.table, scope, None)
    except TargetChanged as error:
        raise _unknown_error(
            name, labels, f"have lost the commits that recorded them ({error.problem})"
        ) from error
    found: dict[str, tuple[datetime, ...]] = {}
    for label in labels:
        first = known.first_publication(label)
        live = [
            drift.at
            for drift in drifts
            if label in drift.partitions
            and not drift.only_deletes
            and not drift.writer.startswith("run ")
            and (first is None or drift.at < first.at)
        ]
        published = (first.at,) if first is not None else ()
        if moments := tuple(live) or published:
            found[label] = moments
    return found


def _only_version(name: str, found: _Found, nothing: str) -> ReferenceVersion:
    """Return the version of all partitions; raise ConfigError when there are several, or none."""
    by_snapshot: dict[tuple[str, int], list[str]] = defaultdict(list)
    for (table, snapshot_id, _), labels in found.items():
        by_snapshot[table, snapshot_id] += labels
    if not by_snapshot:
        raise ConfigError(
            f"the version of {name} cannot be known: {nothing}",
            state=NOTHING_PLANNED,
            fix="write semantics: corrected_truth, or name the version with `at`",
        )
    if len(by_snapshot) > 1:
        texts = [
            f"{table}@{snapshot_id} for {partitions.describe_labels(tuple(dict.fromkeys(labels)))}"
            for (table, snapshot_id), labels in sorted(by_snapshot.items())
        ]
        raise ConfigError(
            f"{name} has more than one version for these partitions: {'; '.join(texts)}",
            state=NOTHING_PLANNED,
            fix="plan a run for each of them, or name one version with `at`",
        )
    reasons = dict.fromkeys(because for _, _, because in found)
    (table, snapshot_id), _ = next(iter(by_snapshot.items()))
    return ReferenceVersion(table, snapshot_id, "; ".join(reasons))


def _unknown_error(name: str, labels: Iterable[str], why: str) -> ConfigError:
    return ConfigError(
        f"the version of {name} cannot be known: the rows of "
        f"{partitions.describe_labels(tuple(labels))} {why}",
        state=NOTHING_PLANNED,
        fix="name the version with `at`, leave these partitions out, or write semantics: "
        "corrected_truth",
    )


def _require_kept(context: Context, name: str, found: ReferenceVersion) -> None:
    """Raise NotFound when the version is known, and its snapshot has expired."""
    try:
        context.tables.resolve(TableRef(table=found.table, at=str(found.snapshot_id)))
    except NotFound as error:
        raise NotFound(
            f"{name} is to be read at {found.table}@{found.snapshot_id} ({found.because}), which "
            "has expired",
            state=NOTHING_PLANNED,
            fix="write semantics: corrected_truth, or name another version with `at`",
        ) from error


def resolve_references(
    context: Context,
    references: Mapping[str, Reference],
    contracts: Mapping[str, Contract],
    old: OldRows,
    kept: Mapping[str, SourcePin],
) -> dict[str, ReferenceVersion]:
    """Return the versions that the semantics of the references name, by name of the reference.

    `kept` are those that were approved of the run that this one revises. Raises as
    `find_reference_version`.
    """
    found: dict[str, ReferenceVersion] = {}
    for name, reference in references.items():
        if pin := kept.get(name):
            because = "the run that this one revises reads it"
            found[name] = ReferenceVersion(pin.table, pin.snapshot_id, because)
        elif version := find_reference_version(context, name, reference, contracts, old):
            found[name] = version
    return found


def semantics_notes(
    references: Mapping[str, Reference], versions: Mapping[str, ReferenceVersion]
) -> tuple[str, ...]:
    """Return a note for each reference: which version is read, and why."""
    return tuple(
        describe_semantics(name, one, versions.get(name)) for name, one in references.items()
    )
