"""The other runs of a product: what a new one conflicts with, repeats, revises and supersedes."""

from __future__ import annotations

from contextlib import suppress

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.guards.outside.effect_log import undo_messages
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.labels import spans
from lakehouse_backfill.domain.plan import ConflictingRun, Plan, ResolvedManifest
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import BackfillError, NotFound, Tampered


def find_conflicting_runs(
    context: Context, resolved: ResolvedManifest, ignore: set[str | None]
) -> tuple[ConflictingRun, ...]:
    """Name the open runs of the product whose partitions overlap.

    A run that is never published has none, and is none. Neither is a rejected run: it must not
    block its repair. If its gates are waived later, the publication that comes second is refused,
    as the partitions have changed.
    """
    found = []
    is_seen = not publish_modes.stays_in_shadow(resolved.manifest)
    for status in context.runs.list(open_only=True):
        if (
            status.run_id in ignore
            or status.product != resolved.manifest.product
            or status.state is RunState.REJECTED
        ):
            continue
        other = context.runs.plan(status.run_id)
        overlap = sorted(spans.overlap(resolved.scope, other.resolved.scope))
        if is_seen and overlap and not publish_modes.is_never_published(other):
            state, labels = status.state.value, tuple(overlap)
            found.append(ConflictingRun(run_id=status.run_id, state=state, partitions=labels))
    return tuple(found)


#: Publish modes by which a run decides all rows of its partitions.
_WHOLE_MODES = ("replace_partitions", "append", "pointer_swap", "versioned")


def find_repeated_run(context: Context, resolved: ResolvedManifest) -> str:
    """Return the run whose published rows this one would compute again; empty without one.

    It is the newest accepted one, by the same code and settings, from the same snapshots; nobody
    has committed to the partitions since. Where that cannot be told, it is empty too.
    """
    try:
        accepted = context.versions.pointer(resolved.contract.product).accepted
        if accepted is None or accepted.action != "publish" or not accepted.run_id:
            return ""
        before = context.runs.plan(accepted.run_id).resolved
    except (NotFound, Tampered):  # `audit verify` names what is wrong; a plan needs none of it
        return ""
    published = set(accepted.scope.partitions) if accepted.scope else set()
    if not published.issuperset(resolved.scope.partitions) or _recipe(before) != _recipe(resolved):
        return ""
    if resolved.contract.publication == "follow":
        with suppress(BackfillError):
            table, scope, since = accepted.table, resolved.scope, accepted.snapshot_id
            if since is not None and context.publisher.changes(table, scope, since) is None:
                return accepted.run_id
        return ""
    return accepted.run_id


def repeats_published_rows(plan: Plan) -> bool:
    """Return whether the run would compute what readers see already, as far as code tells.

    Code with findings of non-determinism may compute other rows from the same input.
    """
    return bool(plan.repeats) and not plan.findings


def nothing_to_do_warnings(repeated: str, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Describe a run by the code and input of what readers see already; empty for any other."""
    if not repeated:
        return ()
    same = (
        f"{repeated} published these partitions by the same code from the same snapshots, and "
        "nobody has written to them since"
    )
    if not findings:
        return (f"nothing to do: {same}",)
    places = "1 place" if len(findings) == 1 else f"{len(findings)} places"
    return (
        f"{same}; but the code is not deterministic in {places}, so that its rows may come out "
        "differently",
    )


_SNAPSHOT_FIELDS = ("table", "snapshot_id", "schema_id", "mode", "candidate", "privacy")


def recipe_of(resolved: ResolvedManifest) -> object:
    """Return all that decides what is computed of a partition but the snapshots that are read.

    Unique where rows are carried, so that it equals no other.
    """
    return _recipe(resolved, _SNAPSHOT_FIELDS), resolved.contract.lineage_columns


def _recipe(
    resolved: ResolvedManifest, left_out: tuple[str, ...] = ("requested", "privacy")
) -> object:
    """Return all that decides what is computed of a partition; unique where rows are carried."""
    manifest, target = resolved.manifest, resolved.manifest.target
    is_whole = target.publish_mode in _WHOLE_MODES and not target.row_predicate
    if not is_whole or resolved.catch_up or target.schema_change or resolved.tombstones:
        return object()
    return (
        resolved.code_hash,
        resolved.config_hash,
        resolved.lock_hash,
        manifest.transform,
        target.columns,
        tuple(pin.model_dump(exclude=set(left_out)) for pin in resolved.sources),
        resolved.contract.columns,
        resolved.mask_key,
    )


def require_revisable(context: Context, product: str, revise: str | None) -> None:
    """Raise unless `revise` names a run of the product that can still be superseded.

    Checked before anything is written: a revision that fails half way leaves two open runs.
    """
    if revise is None:
        return
    status = context.runs.status(revise)
    if status.product != product:
        raise errors.ConfigError(
            f"{revise} restates {status.product}, so a run of {product} cannot revise it",
            fix="name a run of the same product, or plan without --revise",
        )
    if status.state is not RunState.SUPERSEDED:
        lifecycle.require_legal_move(status, "supersede")


def supersede_revised_run(context: Context, plan: Plan, by: str) -> None:
    """Close the run that the plan revises; once superseded, nothing changes any more."""
    if plan.revises is None or plan.revises == plan.run_id:
        return
    status = context.runs.status(plan.revises)
    if status.state is RunState.SUPERSEDED:
        return
    context.move(status, context.runs.plan(plan.revises), "supersede", by, by_run=plan.run_id)
    undo_messages(context, plan.revises)


def require_changed_intent(
    context: Context, run_id: str, revise: str | None, manifest_file: str
) -> None:
    """Raise ConfigError when a plan would revise the open run of exactly the same intent."""
    if run_id != revise:
        return
    state = context.runs.status(run_id).state.value
    again = f"{command_line('cancel', run_id)}, then {plan_command(manifest_file)}"
    raise errors.ConfigError(
        f"{manifest_file} says what {run_id} was planned from: neither manifest, code nor pinned "
        "inputs have changed, so there is nothing to revise",
        state=f"nothing was registered; {run_id} stays {state}",
        fix=f"correct the manifest or its files, then give the same command again; to run the same "
        f"intent once more: {again}",
    )


def find_status(context: Context, run_id: str) -> RunStatus | None:
    """Return the status of a run; None when there is no such run."""
    try:
        return context.runs.status(run_id)
    except errors.NotFound:
        return None


def free_run_id(context: Context, wanted: str) -> str:
    """Return `wanted`, with a number behind it where closed runs of the same intent have it."""
    run_id, number = wanted, 1
    while (known := find_status(context, run_id)) and known.state not in lifecycle.OPEN_STATES:
        number += 1
        run_id = f"{wanted}-{number}"
    return run_id
