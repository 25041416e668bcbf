"""Commits by others while a run staged and was judged, and where the run itself wrote.

What was committed to the tables of the catalog meanwhile, and by whom, is read from the lake
itself: snapshots name the application that made them. Whatever names none (PyIceberg in another
process, other engines), files, and tables that were dropped are not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.guards.outside import SECRET_ROWS_READ
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow
from lakehouse_backfill.domain.tables.table import CatalogMovements

#: Tables whose metadata is read: those of the run, of their namespaces, then others. Shadows of
#: other runs are no part: each run publishes only the head of its shadow that it validated itself.
MAX_TABLES = 100
#: Movements that are kept in the run's log.
_MAX_KEPT = 20


def movements_since_staging(
    context: Context, plan: Plan, events: Iterable[Event]
) -> CatalogMovements:
    """Look at the catalog's tables for commits since the run's staging began."""
    began = next(event.at for event in events if event.verb == "begin staging")
    named = [plan.shadow_table, plan.resolved.target.table]
    named += [pin.table for pin in plan.resolved.sources]
    # What is committed to a branch is in the history of its table.
    first = dict.fromkeys(name for name in named if parse_branch_shadow(name) is None)
    own = {context.profile.control_namespace, context.profile.shadow_namespace}
    return context.tables.movements(began, first, own, MAX_TABLES)


def check_only_shadow_written(
    plan: Plan,
    found: CatalogMovements,
    application: str,
    *,
    is_shared: bool,
    tried: tuple[dict[str, Any], ...] = (),
) -> CheckResult:
    """Check that no application that wrote the run's shadow, or checks it, wrote other tables.

    `application` is the engine's of this process. Where it `is_shared`, others compute in it too:
    then only the target counts. Commits of runs of this toolkit, which name the run, do not count.
    What the job's code `tried` was stopped, and closes the gate too.
    The result is the same as long as the run's own commits are: it says nothing of other writers.
    """
    own = {one.application for one in found.moved if one.made_for == plan.run_id} | {application}
    own.discard("")
    target = plan.resolved.target.table
    wrong = [
        one
        for one in found.moved
        if one.application in own and not one.made_for and (one.table == target or not is_shared)
    ]
    detail = "; ".join(map(str, wrong)) or "no commit elsewhere names its application"
    judged = bool(own or tried)
    if not own:
        detail = "its engine names no application: commits elsewhere cannot be assigned to it"
    if publish_modes.is_externally_written(plan):
        wrong, judged = [], bool(tried)
        detail = "another engine wrote it: its commits elsewhere are not judged"
    if tried:
        detail = f"its code tried {'; '.join(effect_log.describe_attempts(tried))}; {detail}"
    return gate_registry.gate_result(
        "the run wrote only its shadow",
        passed=not wrong and not tried,
        detail=detail,
        observed=sum(one.commits for one in wrong) + len(tried),
        limit=0,
        judged=judged,
    )


def describe_secret_search(plan: Plan, chunk_rows: Iterable[int]) -> str:
    """Describe in which rows staging looked for values of secrets; `chunk_rows` are of each chunk.

    Chunks that were taken over from an earlier run were looked at when that run staged them.
    """
    if publish_modes.is_externally_written(plan):
        return "values of secrets were not looked for in its rows"
    counts = tuple(chunk_rows)
    looked_at, rows = sum(min(one, SECRET_ROWS_READ) for one in counts), sum(counts)
    whole = "values of secrets were looked for as whole texts in all rows"
    if looked_at == rows:
        return f"{whole}, and inside longer texts"
    return f"{whole}, and inside longer texts in {looked_at:,} of {rows:,}"


def describe_movements(plan: Plan, found: CatalogMovements) -> dict[str, Any]:
    """Return what the run's log keeps: how many tables were read, and what others committed."""
    others = [one for one in found.moved if one.made_for != plan.run_id]
    return {
        "tables_looked_at": found.looked_at,
        "all_tables": found.is_whole,
        "unreadable": list(found.unreadable[:_MAX_KEPT]),
        "moved": [
            one.model_dump(mode="json", exclude={"application", "made_for"})
            for one in others[:_MAX_KEPT]
        ],
        "more_moved": max(0, len(others) - _MAX_KEPT),
    }


def describe_range(found: Mapping[str, Any]) -> str:
    """Describe which tables of the catalog were looked at, and which were not."""
    text = f"{found['tables_looked_at']} tables, "
    text += "all" if found["all_tables"] else "not all"
    text += " of the catalog beside the toolkit's own"
    if found["unreadable"]:
        text += f"; not readable: {', '.join(found['unreadable'])}"
    return text + (f"; {found['more_moved']} more movements" if found["more_moved"] else "")


def newest_movements(events: tuple[Event, ...]) -> dict[str, Any] | None:
    """Return what the newest validation saw move; None for runs of earlier builds."""
    found = (event.detail.get("moved_tables") for event in reversed(events))
    return next(filter(None, found), None)
