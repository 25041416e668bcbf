"""Publish modes: which may be published, and for which kind of product."""

from __future__ import annotations

from lakehouse_backfill.errors import Blocked, Unsupported
from lakehouse_backfill.model.plan import Plan

#: publish mode -> the kinds of product that it fits
FITS: dict[str, frozenset[str]] = {
    "replace_partitions": frozenset({"follow"}),
    "pointer_swap": frozenset({"pinned"}),
}


def is_pinned(plan: Plan) -> bool:
    """Tell whether readers of the product resolve its pointer."""
    return plan.resolved.contract.publication == "pinned"


def require_publishable(plan: Plan) -> None:
    """Raise Blocked for a run that is never published, Unsupported when its mode does not fit."""
    contract, mode = plan.resolved.contract, plan.resolved.manifest.target.publish_mode
    if plan.resolved.manifest.run.mode == "dry_run" or mode == "shadow_only":
        raise Blocked(f"{plan.run_id} can never be published: it is a {mode} run")
    if contract.publication not in FITS.get(mode, frozenset()):
        fitting = [name for name, kinds in FITS.items() if contract.publication in kinds]
        raise Unsupported(
            f"publish mode {mode} does not fit a product that is {contract.publication}",
            fix=f"use one of: {', '.join(fitting)}",
        )
