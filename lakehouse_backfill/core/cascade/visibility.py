"""What readers see of the products of a cascade, and rollbacks that would show them a mix.

Loads nothing that computes: each rollback is checked here, also of products without a cascade.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.cascade.graph import CascadeNode


def pinned_runs(nodes: tuple[CascadeNode, ...]) -> dict[str, str]:
    """Return the runs of the pinned products, each with its product."""
    return {
        node.run_id: node.product for node in nodes if node.run_id and node.publication == "pinned"
    }


def visibility_notes(context: Context, nodes: tuple[CascadeNode, ...]) -> tuple[str, ...]:
    """Return that followed products cannot move at once, where `doctor` found that of the catalog.

    Without a finding nothing is said: the catalog is asked when they are published.
    """
    followed = [one.product for one in nodes if one.run_id and one.publication == "follow"]
    found = context.found_by_doctor() if len(followed) > 1 else None
    if found is None or found.multi_table_commit:
        return ()
    return (
        f"{', '.join(followed)} become visible one after the other, in this order: `doctor` found "
        "no commit of several tables here (multi_table_commit: no), which `--together` needs",
    )


def is_visible(context: Context, product: str, run_id: str) -> bool:
    """Return whether readers see what a run published, as the rows of the pointer table say."""
    return pointer.visible_publication(context.versions.history(product), run_id) is not None


def require_whole_rollback(context: Context, ways: Mapping[str, RollbackTarget]) -> None:
    """Raise Blocked when a rollback would take some pinned products of a cascade, not all.

    Readers would see a mix of what became visible by one commit. `ways` are the rollbacks that are
    done by one commit, by product. A run whose plan was edited is not looked at, so that it keeps
    no wrong rows at readers.
    """
    for way in ways.values():
        for run_id in (*way.runs_rolled_back, *way.runs_reinstated):
            is_back = run_id in way.runs_reinstated
            with suppress(errors.Tampered):
                _require_others_alike(context, run_id, set(ways), becomes_visible=is_back)


def _require_others_alike(
    context: Context, run_id: str, products: set[str], *, becomes_visible: bool
) -> None:
    plan = context.runs.plan(run_id)
    if plan.cascade is None:
        return
    cascade_id = plan.cascade.cascade_id
    first = context.runs.plan(plan.cascade.first_run_id)
    pinned = pinned_runs(first.cascade.nodes if first.cascade else ())
    if run_id not in pinned:
        return
    left = sorted(
        product
        for other, product in pinned.items()
        if product not in products and is_visible(context, product, other) is not becomes_visible
    )
    if left:
        verb = "publish" if becomes_visible else "rollback"
        more = () if becomes_visible else ("--reason", "TEXT")
        raise errors.Blocked(
            f"{run_id} of {plan.product} belongs to {cascade_id}, whose pinned products change "
            f"by one commit: readers would see a mix with {', '.join(left)}",
            state="nothing was rolled back",
            fix=command_line(verb, cascade_id, *more),
        )
