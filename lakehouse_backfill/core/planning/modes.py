"""Publish modes: which may be published, and for which kind of product."""

from __future__ import annotations

from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import Blocked, Unsupported

#: publish mode -> the kinds of product that it fits
PUBLICATIONS_BY_MODE: dict[str, frozenset[str]] = {
    "replace_partitions": frozenset({"follow"}),
    "append": frozenset({"follow"}),
    "merge": frozenset({"follow"}),
    "correction_events": frozenset({"follow"}),
    "pointer_swap": frozenset({"pinned"}),
    "versioned": frozenset({"pinned"}),
}


#: publish mode -> what it does, for people who read a plan
MODE_MEANINGS: dict[str, str] = {
    "replace_partitions": "the run's partitions get the new rows in place of their own, in one "
    "commit of metadata; later live commits to other partitions stay",
    "append": "the partitions are empty and get their first rows, in one commit that only adds: "
    "streaming readers go on; a row in them before that is a conflict",
    "merge": "by key: newer versions replace, new keys come, deleted ones go, all other rows stay; "
    "published as a swap of the partitions' files",
    "correction_events": "the table stays as it is; each differing key becomes an event in a table "
    "of corrections, by one append",
    "pointer_swap": "the pointer moves to the whole new table; nothing is committed on any other",
    "versioned": "the whole new table gets a name of its own, then the pointer moves to it; every "
    "version stays readable by name",
    "shadow_only": "never published: the result stays in the shadow table, to look at",
}


def fitting_modes(publication: str) -> tuple[str, ...]:
    """Name the modes that fit a kind of product, the usual one first."""
    return tuple(name for name, kinds in PUBLICATIONS_BY_MODE.items() if publication in kinds)


def is_merge(plan: Plan) -> bool:
    """Tell whether the job gives change rows, not the rows of partitions."""
    return plan.resolved.manifest.target.publish_mode == "merge"


def carries_base_rows(plan: Plan) -> bool:
    """Tell whether rows of the base stay in the run's partitions, beside the job's."""
    return is_merge(plan) or bool(plan.resolved.manifest.target.row_predicate)


def is_append(plan: Plan) -> bool:
    """Tell whether the run only adds rows, to partitions that hold none."""
    return plan.resolved.manifest.target.publish_mode == "append"


def version_table(table: str, version: int) -> str:
    """Name the table of an output version; nobody else's table is ever taken."""
    return f"{table}_v{version}"


def why_no_edge_check(plan: Plan) -> str:
    """Say why nothing is computed beyond the edges; empty when it is."""
    if is_merge(plan):
        return "not looked at: change rows do not say what the partitions beyond would hold"
    return ""


def is_pinned_product(plan: Plan) -> bool:
    """Tell whether readers of the product resolve its pointer."""
    return plan.resolved.contract.publication == "pinned"


def require_publishable_mode(plan: Plan) -> None:
    """Raise Blocked for a run that is never published, Unsupported when its mode does not fit."""
    contract, mode = plan.resolved.contract, plan.resolved.manifest.target.publish_mode
    if plan.resolved.manifest.run.mode == "dry_run" or mode == "shadow_only":
        raise Blocked(f"{plan.run_id} can never be published: it is a {mode} run")
    if contract.publication not in PUBLICATIONS_BY_MODE.get(mode, frozenset()):
        raise Unsupported(
            f"publish mode {mode} does not fit a product that is {contract.publication}",
            fix=f"use one of: {', '.join(fitting_modes(contract.publication))}",
        )
