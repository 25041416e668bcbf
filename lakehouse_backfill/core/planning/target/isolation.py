"""Where a run writes: a zero-copy clone, or a branch of its target; what a branch cannot do.

A branch needs no new table UUID, no data path and no rights outside of the target.
"""

from __future__ import annotations

from lakehouse_backfill.core.guards.privacy import masks
from lakehouse_backfill.core.planning.target.publish_modes import stays_in_shadow
from lakehouse_backfill.core.planning.target.write_path import MAX_WRITTEN_FORMAT
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.table import TableInfo, branch_shadow, is_table_name
from lakehouse_backfill.errors import Unsupported


def shadow_name(context: Context, resolved: ResolvedManifest, run_id: str) -> str:
    """Return the name of the run's shadow, which says of which kind it is.

    Raises Unsupported when the profile asks for a branch and the run cannot use one.
    """
    target = resolved.contract.table
    if not is_on_branch(context):
        name = target.rpartition(".")[2]
        return f"{context.profile.shadow_namespace}.{name}__{run_id.replace('-', '_')}"
    if problem := branch_problem(resolved, context.tables.describe(target)):
        raise Unsupported(
            f"the run cannot write to a branch of {target}: {problem}",
            state="nothing was planned",
            fix="use a profile with isolation: clone, on a catalog that can make clones: "
            "docs/catalogs.md",
        )
    return branch_shadow(target, run_id).name


def is_on_branch(context: Context) -> bool:
    """Return whether runs of this lake write to a branch of their target."""
    return context.profile.isolation == "branch"


def branch_problem(resolved: ResolvedManifest, target: TableInfo | None) -> str:
    """Return what a run needs that a branch of its target does not have; empty if nothing."""
    manifest, contract = resolved.manifest, resolved.contract
    if not is_table_name(contract.table):
        return "its name needs quoting"
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


def isolation_notes(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe what a branch costs those who write and keep the table; nothing for a clone."""
    if not is_on_branch(context):
        return ()
    chunks, table = len(resolved.chunks), resolved.contract.table
    return (
        f"the run writes to a branch of {table}: its files lie among the table's own. Each of its "
        f"{chunks} chunks is one more commit to the table, and a live writer that commits at the "
        "same time has to try again (docs/catalogs.md). Until the branch is dropped, expiry keeps "
        "the history that it comes from",
    )
