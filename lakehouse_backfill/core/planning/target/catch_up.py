"""Decisions about revisions that follow live data: what is made again, what carries over."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.catch_up import CatchUp, Drift, ExcludedRows
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.partitions import Chunk, Scope, describe_labels
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.errors import ApprovalMissing, NotFound, Tampered, TooBusy, Unsupported

#: Modes whose partitions can be made again one by one on a newer head.
_MODES = ("replace_partitions", "merge")


def require_catch_up_possible(manifest: RunManifest) -> None:
    """Raise Unsupported when the run could not catch up in the way that it is published."""
    mode: str = manifest.target.publish_mode
    if manifest.safety.on_conflict == "catch_up" and manifest.target.progressive is not None:
        mode = "target.progressive"
    if manifest.safety.on_conflict == "catch_up" and mode not in _MODES:
        raise Unsupported(
            f"safety.on_conflict: catch_up computes whole partitions again, which {mode} does not",
            state="nothing was planned, pinned or changed",
            fix=f"write fail, or target.publish_mode: {', '.join(_MODES)}",
            field="safety.on_conflict",
        )


#: What an approval that is carried over was given to.
_APPROVED_FIELDS = (
    "manifest", "contract", "scope", "code_hash", "files", "config_hash", "previous_code",
    "environment", "git_commit", "lock_hash", "mask_key",
)  # fmt: skip
#: Of an input: all but the snapshot, which may be a newer one, and what follows from it.
_MOVING_PIN_FIELDS = frozenset({"snapshot_id", "schema_id", "columns", "requested"})


def require_same_intent(first: Plan, revision: Plan) -> None:
    """Raise ApprovalMissing unless a revision does what was approved of the run that it follows."""
    others = [
        name
        for name in _APPROVED_FIELDS
        if getattr(first.resolved, name) != getattr(revision.resolved, name)
    ]
    others += ["created_by"] * (first.created_by != revision.created_by)
    others += ["inputs"] * (_declared_inputs(first) != _declared_inputs(revision))
    others += ["target"] * (_target(first) != _target(revision))
    if others:
        raise ApprovalMissing(
            f"{revision.run_id} differs from {first.run_id} in {', '.join(others)}: its approval "
            "does not carry over",
            fix=f"lakehouse-backfill approve {revision.run_id}",
        )


def _declared_inputs(plan: Plan) -> list[dict[str, object]]:
    return [pin.model_dump(exclude=set(_MOVING_PIN_FIELDS)) for pin in plan.resolved.sources]


def _target(plan: Plan) -> tuple[str, str | None]:
    return plan.resolved.target.table, plan.resolved.target.uuid


def first_plan(context: Context, plan: Plan) -> Plan:
    """Return the plan of the run that a revision, or a revision of revisions, takes the place of.

    Raises Tampered when revisions follow each other in a circle.
    """
    seen = {plan.run_id}
    while plan.revises is not None and plan.revises != plan.run_id:
        plan = context.runs.plan(plan.revises)
        if plan.run_id in seen:
            raise Tampered(
                f"{plan.run_id} revises a run that revises it",
                state="nothing was planned, computed or published",
                fix="lakehouse-backfill audit verify",
            )
        seen.add(plan.run_id)
    return plan


def revision_warnings(
    context: Context, resolved: ResolvedManifest, revise: str | None
) -> tuple[str, ...]:
    """Describe how a revision goes beyond the first plan of the run: scope, contract, environment.

    An approver sees it, however many revisions lie between them.
    """
    if revise is None or resolved.catch_up is not None:
        return ()
    try:
        first = first_plan(context, context.runs.plan(revise))
    except (NotFound, Tampered) as error:
        return (f"it cannot be compared with the first plan of the run: {error.problem}",)
    before, found = first.resolved, list[str]()
    added = set(resolved.scope.partitions) - set(before.scope.partitions)
    if added:
        labels = tuple(label for label in resolved.scope.partitions if label in added)
        found.append(f"{describe_labels(labels)} were not in its scope")
    if resolved.scope.field != before.scope.field:
        found.append(f"it restated {before.scope.field}, and this one {resolved.scope.field}")
    fields = ("roles", "roles_in", "four_eyes", "classification", "privacy", "retention_days")
    found += [
        f"{name} of the contract was another"
        for name in fields
        if getattr(resolved.contract, name) != getattr(before.contract, name)
    ]
    if resolved.environment != before.environment:
        found.append(f"it was planned in {before.environment}")
    return tuple(f"compared with the first plan, {first.run_id}: {one}" for one in found)


def drifted_partitions(scope: Scope, drifts: Iterable[Drift]) -> tuple[str, ...]:
    """Name the scope's partitions that any of the commits changed, in the scope's order."""
    touched = {label for drift in drifts for label in drift.partitions}
    return tuple(label for label in scope.partitions if label in touched)


def drifts_as_json(drifts: Iterable[Drift]) -> list[dict[str, object]]:
    """Return the commits for programs: snapshot, operation, writer, time, partitions."""
    return [drift.model_dump(mode="json") for drift in drifts]


def next_catch_up_attempt(plan: Plan) -> int:
    """Return the number of the next revision; raises TooBusy when there were enough of them."""
    done = plan.resolved.catch_up.attempt if plan.resolved.catch_up else 0
    limit = plan.resolved.manifest.safety.catch_up_attempts
    if done >= limit:
        raise TooBusy(
            f"{plan.run_id} caught up {done} times, and live commits changed its partitions again",
            state="nothing was published; what was staged is kept",
            fix="too busy: pause the writer, or use safety.publish_window; then "
            + command_line("publish", plan.run_id),
        )
    return done + 1


def recut_chunks(
    old: tuple[Chunk, ...], erased: tuple[str, ...], recomputed: tuple[str, ...], size: int
) -> tuple[tuple[Chunk, ...], dict[str, str]]:
    """Cut the partitions anew: what stays and what loses rows of each old chunk, then the rest.

    Gives all chunks, and of those that an old chunk is the origin of, that chunk's id. Chunks by
    key are computed again as they were cut; what is not computed is one chunk.
    """
    is_by_key = old[0].keys is not None
    if is_by_key and recomputed:
        return old, {}
    groups: list[tuple[str, tuple[str, ...]]] = []
    for chunk in old[:1] if is_by_key else old:
        rest = [label for label in chunk.partitions if label not in recomputed]
        stays = tuple(label for label in rest if label not in erased)
        loses = tuple(label for label in rest if label in erased)
        groups += [(chunk.chunk_id, labels) for labels in (stays, loses) if labels]
    groups += [("", labels) for labels in resolve.group_labels(recomputed, size)]
    chunks = tuple(
        resolve.make_chunk(number, labels) for number, (_, labels) in enumerate(groups, start=1)
    )
    origins = {
        chunk.chunk_id: origin for chunk, (origin, _) in zip(chunks, groups, strict=True) if origin
    }
    return chunks, origins


def accepted_rows_and_checksum(
    validation: ValidationResult, labels: tuple[str, ...]
) -> tuple[int, str]:
    """Return rows and checksum of some partitions as they were validated."""
    balances = [balance for balance in validation.balances if balance.partition in labels]
    if not balances:
        return 0, ""
    total = reduce(Checksum.__add__, (Checksum.parse(one.new_checksum) for one in balances))
    return total.rows, total.text


def excluded_rows(resolved: ResolvedManifest) -> ExcludedRows:
    """Everything that names rows which the run must not write."""
    erasures = resolved.catch_up.erasures if resolved.catch_up else ()
    return ExcludedRows(
        field=resolved.scope.field, tombstones=resolved.tombstones, erasures=tuple(erasures)
    )


def reasons_for_review(
    old: ValidationResult, new: ValidationResult, catch_up: CatchUp, inexact: tuple[str, ...]
) -> tuple[str, ...]:
    """Return why a person must accept the revision's result; empty: the acceptance carries over.

    `inexact`: partitions that should differ by deleted rows alone, and differ by more.
    """
    found = []
    # A gate that only reports, and failed before too, was seen by whoever accepted that result.
    known = {(one.group, one.name) for one in old.checks if not one.passed and not one.blocking}
    failed = [one for one in new.checks if not one.passed]
    closed = [one.name for one in failed if one.blocking or (one.group, one.name) not in known]
    if closed:
        found.append(f"not all gates are open: {', '.join(closed)}")
    before = {one.partition: (one.new_count, one.new_checksum) for one in old.balances}
    may_differ = set(catch_up.drifted)
    for one in new.balances:
        is_same = before.get(one.partition) == (one.new_count, one.new_checksum)
        if not is_same and one.partition not in may_differ:
            found.append(f"{one.partition} is not what was accepted, and no live commit changed it")
    return tuple(found + [f"{label}: more differs than the deleted rows" for label in inexact])


def origin_run_ids(plan: Plan) -> set[str]:
    """Name the runs that computed any of the plan's chunks."""
    catch_up = plan.resolved.catch_up
    found = [catch_up and catch_up.origin(chunk.chunk_id) for chunk in plan.resolved.chunks]
    return {origin.run_id if origin else plan.run_id for origin in found}
