"""Beyond the range of a run: partitions at its edges (Q10), and commits by others while it staged.

Partitions next to the run's are computed and compared with the accepted ones. Differences mean that
the restated range is too narrow.

What was committed to the tables of the catalog meanwhile, and by whom, is read from the lake
itself: snapshots name the application that made them. Whatever names none (PyIceberg in another
process, other engines), files, and tables that were dropped are not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any

from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.planning import resolve
from lakehouse_backfill.core.planning.target import catch_up, publish_modes
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult, EdgePartition, EdgeReport, EdgeSide
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.guards.outside import SECRET_ROWS_READ
from lakehouse_backfill.domain.manifest import Validation
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.table import CatalogMovements, parse_branch_shadow
from lakehouse_backfill.ports.compute import Staging

MAX_PROBED_PARTITIONS = 64


def next_edge_labels(scope: Scope, side: str, seen: tuple[str, ...]) -> tuple[str, ...]:
    """List the next partitions to probe on a side whose outermost partition differs."""
    step = -1 if side == "before" else 1
    if not seen or len(seen) >= MAX_PROBED_PARTITIONS:
        return ()
    return resolve.walk_labels(
        scope, seen[-1], step, min(len(seen) * 2, MAX_PROBED_PARTITIONS - len(seen))
    )


def report_edges(scope: Scope, found: tuple[EdgePartition, ...], tolerance_rows: int) -> EdgeReport:
    """Judge the edges; for open ones, return the half-open range of labels that closes them."""
    key = partitions.label_sort_key(scope.field)
    ordered = tuple(sorted(found, key=lambda edge: key(edge.partition)))
    differing = [edge for edge in ordered if edge.differing_rows]
    is_closed = sum(edge.differing_rows for edge in differing) <= tolerance_rows
    first = stop = None
    if not is_closed:
        first, stop = _closing(scope, ordered, "before"), _closing(scope, ordered, "after")
    if first is None or stop is None:
        first = stop = None
    return EdgeReport(partitions=ordered, is_closed=is_closed, closing_from=first, closing_to=stop)


def check_edges(edge: EdgeReport | None, wanted: Validation, why_not: str = "") -> CheckResult:
    """Build the gate of the edge check; the detail shows when nothing was probed."""
    tolerance_rows = wanted.edge_tolerance_rows
    if why_not:
        pass
    elif wanted.edge_partitions == 0:
        why_not = "not looked at: edge_partitions is 0"
    elif edge is None:
        why_not = "nothing is accepted beyond the edges yet"
    elif not edge.partitions:
        why_not = "not looked at: these partitions have no order, so nothing lies beyond an edge"
    if edge is None or why_not:
        return gate_registry.gate_result(
            "edges are closed", passed=True, detail=why_not, judged=False
        )
    rows = sum(item.differing_rows for item in edge.partitions)
    probed = partitions.describe_labels(tuple(item.partition for item in edge.partitions))
    detail = f"{probed} beyond the edges would be computed as they are accepted"
    if not edge.is_closed:
        open_at = ", ".join(item.partition for item in edge.partitions if item.differing_rows)
        texts = [_one_sided_text(edge), _changed_text(edge), _advice(edge)]
        detail = f"open at {open_at}: {'; '.join(text for text in texts if text)}"
    return gate_registry.gate_result(
        "edges are closed",
        passed=edge.is_closed,
        detail=detail,
        observed=rows,
        limit=tolerance_rows,
    )


def _one_sided_text(edge: EdgeReport) -> str:
    """Describe the rows that only one side has; of them, those that moved across the edge."""
    removed, added = (
        sum(getattr(item, name) for item in edge.partitions) for name in ("removed", "added")
    )
    if not removed and not added:
        return ""
    text = f"{removed:,} accepted rows are not computed there any more, and {added:,} others are"
    moves = [(item.moved_in, item.moved_out) for item in edge.partitions if item.differing_rows]
    if any(None in pair for pair in moves):
        effects = _effects(edge)
        return text + (f": where they moved across the edge, {effects}" if effects else "")
    moved_in, moved_out = (sum(each or 0 for each in side) for side in zip(*moves, strict=True))
    if not moved_in and not moved_out:
        return f"{text}; by key none of them moved across the edge"
    effects = _effects(edge) or "publishing would count rows twice or lose them"
    return (
        f"{text}; by key {moved_in:,} moved into the range and {moved_out:,} out of it: {effects}"
    )


def _effects(edge: EdgeReport) -> str:
    """Describe what publishing would do to the declared measures; empty when to none."""
    twice, lost = (
        _describe_totals(item.counted_twice for item in edge.partitions),
        _describe_totals(item.lost for item in edge.partitions),
    )
    found = [f"count {twice} twice"] if twice else []
    found += [f"lose {lost}"] if lost else []
    return f"publishing would {' and '.join(found)}" if found else ""


def _describe_totals(amounts: Iterable[Mapping[str, int]]) -> str:
    totals: Counter[str] = Counter()
    for each in amounts:
        totals.update(each)
    return ", ".join(f"{amount:,} of {name}" for name, amount in totals.items() if amount)


def _changed_text(edge: EdgeReport) -> str:
    """Describe the rows that stay in their partition; no total counts them twice."""
    changed = sum(item.changed for item in edge.partitions)
    return f"{changed:,} rows there would come out with other values, too" if changed else ""


def _advice(edge: EdgeReport) -> str:
    if edge.closing_from is None:
        return f"no range within {MAX_PROBED_PARTITIONS} partitions closes it"
    return f"restate from {edge.closing_from} to {edge.closing_to} (not included)"


def _closing(scope: Scope, found: tuple[EdgePartition, ...], side: str) -> str | None:
    """Return the bound of the range on a side; None where the outermost partition differs."""
    labels = [label for label in scope.partitions if label != "null"]
    beyond = [edge for edge in found if edge.side == side]
    differing = [edge.partition for edge in beyond if edge.differing_rows]
    if side == "before":
        is_open = bool(beyond) and beyond[0].differing_rows > 0
        return None if is_open else [*differing, *labels][0]
    if beyond and beyond[-1].differing_rows:
        return None
    return partitions.shift_label(scope.field, [*labels, *differing][-1], 1)


#: Returns the checksums of accepted partitions; those without rows are left out.
AcceptedChecksums = Callable[[tuple[str, ...]], Mapping[str, Checksum]]
LabelsBySide = Mapping[EdgeSide, tuple[str, ...]]


def probe_run_edges(context: Context, staging: Staging, plan: Plan) -> EdgeReport:
    """Compare what the run would compute beyond its edges with what is accepted there."""
    target, field = plan.resolved.target, plan.resolved.scope.field

    def accepted(labels: tuple[str, ...]) -> dict[str, Checksum]:
        scope = Scope(field=field, partitions=labels)
        return fingerprints.partition_checksums(
            context, target.table, target.snapshot_id, scope, plan.run_id
        )

    # Checksums are equal only where the run computes all rows, under the current columns.
    computes_all_rows = (
        not plan.resolved.manifest.target.row_predicate
        and not publish_modes.restates_columns(plan)
        and not declared_schema_change(plan)
        and catch_up.excluded_rows(plan.resolved).is_empty
    )
    return probe_edges(staging, plan, accepted if computes_all_rows else None)


def probe_edges(
    staging: Staging, plan: Plan, accepted: AcceptedChecksums | None = None
) -> EdgeReport:
    """Probe all edges together; where the outermost partition differs, probe further out.

    With `accepted`, partitions are compared by checksums first, and only those that differ by key.
    """
    scope, validation = plan.resolved.scope, plan.resolved.manifest.validation
    around = resolve.edge_labels(scope, validation.edge_partitions)
    edges: list[EdgePartition] = []
    seen: dict[EdgeSide, tuple[str, ...]] = {}
    while any(around.values()):
        probed = _probe_labels(staging, plan, around, accepted)
        edges += probed
        differing = {edge.partition for edge in probed if edge.differing_rows}
        open_sides = {
            side: labels
            for side, labels in around.items()
            if side != "inside" and labels and labels[-1] in differing
        }
        seen |= {side: seen.get(side, ()) + labels for side, labels in open_sides.items()}
        around = {
            side: _within_reach(plan, next_edge_labels(scope, side, seen[side]))
            for side in open_sides
        }
    return report_edges(scope, tuple(edges), validation.edge_tolerance_rows)


def _probe_labels(
    staging: Staging, plan: Plan, around: LabelsBySide, accepted: AcceptedChecksums | None
) -> tuple[EdgePartition, ...]:
    if accepted is None:
        return staging.edges(plan, around)
    labels = tuple(label for side_labels in around.values() for label in side_labels)
    if not labels:
        return ()
    # Accepted checksums are usually known, so they are available before the computed ones.
    with ThreadPoolExecutor(1, thread_name_prefix="edges") as pool:
        accepted_future = pool.submit(accepted, labels)
        computed = staging.edge_checksums(plan, around)
        old = accepted_future.result()
    differing = {label for label in labels if old.get(label) != computed.get(label)}
    to_compare: LabelsBySide = {
        side: tuple(label for label in side_labels if label in differing)
        for side, side_labels in around.items()
    }
    by_key = {edge.partition: edge for edge in staging.edges(plan, to_compare)} if differing else {}
    zeros = dict.fromkeys((measure.name for measure in plan.resolved.contract.measures), 0)
    return tuple(
        by_key.get(label)
        or EdgePartition(
            partition=label,
            side=side,
            added=0,
            removed=0,
            changed=0,
            counted_twice=zeros,
            lost=zeros,
        )
        for side, side_labels in around.items()
        for label in side_labels
    )


def _within_reach(plan: Plan, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the partitions that the declared input ranges still cover, nearest first."""

    def is_covered(label: str) -> bool:
        scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
        return all(resolve.range_covers_scope(pin, scope) for pin in plan.resolved.sources)

    return tuple(takewhile(is_covered, labels))


#: Tables whose metadata is read: those of the run, of their namespaces, then others. Shadows of
#: other runs are no part: each run publishes only the head of its shadow that it validated itself.
MAX_TABLES = 100
#: Movements that are kept in the run's log.
_MAX_KEPT = 20


def movements_since_staging(context: Context, plan: Plan) -> CatalogMovements:
    """Look at the catalog's tables for commits since the run's staging began."""
    began = next(
        event.at for event in context.runs.events(plan.run_id) if event.verb == "begin staging"
    )
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
