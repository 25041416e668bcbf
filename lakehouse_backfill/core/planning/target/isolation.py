"""Where a run writes: a zero-copy clone, or a branch of its target; what the catalog cannot do.

A branch needs no new table UUID, no data path and no rights outside of the target.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from lakehouse_backfill.core.guards.privacy import masks
from lakehouse_backfill.core.planning.target.publish_modes import stays_in_shadow
from lakehouse_backfill.core.planning.target.write_path import (
    MAX_WRITTEN_FORMAT,
    staging_location_notes,
)
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.profile import Isolation
from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import Unsupported


def shadow_name(context: Context, resolved: ResolvedManifest, run_id: str) -> str:
    """Return the name of the run's shadow, which says of which kind it is.

    Raises Unsupported when the profile asks for a branch and the run cannot use one.
    """
    target = resolved.contract.table
    if not is_on_branch(context, resolved):
        name = names.unique_plain_name(names.last_part(target))
        return f"{context.profile.shadow_namespace}.{name}__{run_id.replace('-', '_')}"
    if problem := branch_problem(resolved, context.tables.describe(target)):
        raise Unsupported(
            f"the run cannot write to a branch of {target}: {problem}",
            state="nothing was planned",
            fix="use a profile with isolation: clone, on a catalog that can make clones: "
            "docs/catalogs.md",
        )
    return branch_shadow(target, run_id).name


class ChosenIsolation(NamedTuple):
    """Where runs write, and why."""

    kind: Literal["clone", "branch"]
    why: str


def choose_isolation(
    setting: Isolation, found: Capabilities | None, *, is_under_target: bool = False
) -> ChosenIsolation:
    """Choose by what `doctor` found of the catalog, never by its name; a clone wherever it works.

    `is_under_target`: the manifest wants staged files under the target's prefix. `found` is None
    when `doctor` has not looked.
    """
    if setting != "auto":
        return ChosenIsolation(setting, "the profile says so")
    if found is None:
        return ChosenIsolation("clone", "`doctor` has not looked at this catalog yet")
    lacking = _clone_problem(found, is_under_target=is_under_target)
    if not lacking:
        return ChosenIsolation(
            "clone", "the catalog can make and fence them, at no price for writers"
        )
    if not found.branches:
        return ChosenIsolation("clone", f"{lacking}, and no branch is kept: nothing can be staged")
    price = "live writers try again more often"
    if not found.branch_commits:
        price = (
            "a live writer fails when a chunk is committed beside it, and must repeat its commit"
        )
    return ChosenIsolation("branch", f"{lacking}; {price}")


def _clone_problem(found: Capabilities, *, is_under_target: bool) -> str:
    """Return why the catalog cannot have clones that are fenced and read; empty if it can."""
    if not (found.register_table or found.built_clones):
        return "no table can be made that shares another's files"
    if not found.new_uuid:
        return "a table takes no new UUID, which fences a clone"
    if is_under_target and not (found.data_path and found.overlap):
        return "a table keeps no write.data.path, and files are to lie under the target"
    return "" if found.rights_beside else "the credentials of a table end at its location"


def chosen_isolation(context: Context, *, is_under_target: bool = False) -> ChosenIsolation:
    """Return where runs of this lake write; asks the catalog only for `isolation: auto`."""
    setting = context.profile.isolation
    found = context.shadows.capabilities() if setting == "auto" else None
    return choose_isolation(setting, found, is_under_target=is_under_target)


def is_on_branch(context: Context, resolved: ResolvedManifest | None = None) -> bool:
    """Return whether a run of this lake writes to a branch of its target."""
    place = resolved.manifest.compute.staging_location if resolved else "shadow"
    return chosen_isolation(context, is_under_target=place == "under_target").kind == "branch"


def branch_problem(resolved: ResolvedManifest, target: TableInfo | None) -> str:
    """Return what a run needs that a branch of its target does not have; empty if nothing."""
    manifest, contract = resolved.manifest, resolved.contract
    if target is not None and target.format_version > MAX_WRITTEN_FORMAT:
        return f"its format {target.format_version} is not written by PyIceberg"
    if contract.publication == "pinned" and not stays_in_shadow(manifest):
        return "its versions are tables of their own, which are clones"
    if manifest.target.schema_change:
        return "new columns would be the target's at once"
    properties = target.properties if target else {}
    wanted = masks.metrics_properties(contract, target)
    missing = sorted(name for name, mode in wanted.items() if properties.get(name) != mode)
    if missing:
        return (
            "bounds of restricted columns are kept out of manifests by properties that a branch "
            f"does not have; set {missing[0]} = {wanted[missing[0]]} on the table"
        )
    return ""


def place_warnings(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe what the place of a clone's files costs; those of a branch are the table's own."""
    if is_on_branch(context, resolved):
        return ()
    choice = resolved.manifest.compute.staging_location
    return staging_location_notes(choice, context.tables.describe(resolved.target.table))


def isolation_notes(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe what a branch costs those who write and keep the table; nothing for a clone."""
    place = resolved.manifest.compute.staging_location
    chosen = chosen_isolation(context, is_under_target=place == "under_target")
    if chosen.kind == "clone":
        return ()
    chunks, table = len(resolved.chunks), resolved.contract.table
    return (
        f"the run writes to a branch of {table} ({chosen.why}): its files lie among the table's "
        f"own. Each of its "
        f"{chunks} chunks is one more commit to the table, and a live writer that commits at the "
        "same time has to try again (docs/catalogs.md). Until the branch is dropped, expiry keeps "
        "the history that it comes from",
    )


def catalog_warnings(context: Context, contract: Contract) -> tuple[str, ...]:
    """Describe what the run cannot have on this catalog, by what `doctor` found last."""
    found = context.found_by_doctor()
    return limits_of_catalog(found, contract) if found else ()


def limits_of_catalog(found: Capabilities, contract: Contract) -> tuple[str, ...]:
    """Return what a catalog denies to each run of a product: proofs, and its SQL view."""
    limits = [found.proof_limit] if found.proof_limit else []
    if contract.view and not found.views:
        limits.append(
            f"`doctor` found that views cannot be made here (views: no): `publish` will make the "
            f"rows visible, and then fail at {contract.view}; take `view` out of the contract"
        )
    return tuple(limits)
