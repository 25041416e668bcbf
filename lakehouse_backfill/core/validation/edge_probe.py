"""Looking beyond the edges of a run's partitions, whether others would change too (Q10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from lakehouse_backfill.core.comparison import fingerprinting
from lakehouse_backfill.core.planning import catching_up, windows
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.validation import edges
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.checks import EdgePartition, EdgeReport, EdgeSide
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.ports.compute import Staging

#: Gives the checksums of accepted partitions; those without rows are left out.
AcceptedChecksums = Callable[[tuple[str, ...]], Mapping[str, Checksum]]
LabelsBySide = Mapping[EdgeSide, tuple[str, ...]]


def compares_whole_partitions(plan: Plan) -> bool:
    """Tell whether a run would compute all rows of a partition, under the columns it has now."""
    return not (
        plan.resolved.manifest.target.row_predicate
        or rules_schema_change.declared_schema_change(plan)
        or not catching_up.excluded_rows(plan.resolved).is_empty
    )


def probe_run_edges(bench: Context, staging: Staging, plan: Plan) -> EdgeReport:
    """Hold what the run would compute beyond its edges against what is accepted there."""
    target, field = plan.resolved.target, plan.resolved.scope.field

    def accepted(labels: tuple[str, ...]) -> dict[str, Checksum]:
        scope = Scope(field=field, partitions=labels)
        return fingerprinting.partition_checksums(
            bench, target.table, target.snapshot_id, scope, plan.run_id
        )

    whole = compares_whole_partitions(plan)
    return probe_edges(staging, plan, accepted if whole else None)


def probe_edges(
    staging: Staging, plan: Plan, accepted: AcceptedChecksums | None = None
) -> EdgeReport:
    """Look at all edges together; where the outermost partition differs, look further out.

    With `accepted` partitions are compared by checksums first, and only those that differ by key.
    """
    scope, validation = plan.resolved.scope, plan.resolved.manifest.validation
    first = edges.edge_labels(scope, validation.edge_partitions)
    around: dict[EdgeSide, tuple[str, ...]] = {
        "inside": first.inside,
        "before": first.before,
        "after": first.after,
    }
    found: list[EdgePartition] = []
    seen: dict[EdgeSide, tuple[str, ...]] = {}
    while any(around.values()):
        probed = _probe_labels(staging, plan, around, accepted)
        found += probed
        differing = {edge.partition for edge in probed if edge.differing_rows}
        open_sides = {
            side: labels
            for side, labels in around.items()
            if side != "inside" and labels and labels[-1] in differing
        }
        seen |= {side: seen.get(side, ()) + labels for side, labels in open_sides.items()}
        around = {
            side: _within_reach(plan, edges.next_edge_labels(scope, side, seen[side]))
            for side in open_sides
        }
    return edges.report_edges(scope, tuple(found), validation.edge_tolerance_rows)


def _probe_labels(
    staging: Staging, plan: Plan, around: LabelsBySide, accepted: AcceptedChecksums | None
) -> tuple[EdgePartition, ...]:
    if accepted is None:
        return staging.edges(plan, around)
    labels = tuple(label for some in around.values() for label in some)
    if not labels:
        return ()
    # What is accepted is known, as a rule: then it is there before anything is computed.
    with ThreadPoolExecutor(1, thread_name_prefix="edges") as pool:
        knowing = pool.submit(accepted, labels)
        computed = staging.edge_checksums(plan, around)
        old = knowing.result()
    differing = {label for label in labels if old.get(label) != computed.get(label)}
    closer: LabelsBySide = {
        side: tuple(label for label in some if label in differing) for side, some in around.items()
    }
    by_key = {each.partition: each for each in staging.edges(plan, closer)} if differing else {}
    none = dict.fromkeys((measure.name for measure in plan.resolved.contract.measures), 0)
    return tuple(
        by_key.get(label)
        or EdgePartition(
            partition=label, side=side, added=0, removed=0, changed=0, counted_twice=none, lost=none
        )
        for side, some in around.items()
        for label in some
    )


def _within_reach(plan: Plan, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Keep the partitions that the declared input ranges still cover, nearest first."""
    reachable = []
    for label in labels:
        around = Scope(field=plan.resolved.scope.field, partitions=(label,))
        pins = [pin for pin in plan.resolved.sources if pin.range is not None]
        if not all(
            pin.range and windows.range_covers_window(pin.range, windows.needed_window(pin, around))
            for pin in pins
        ):
            break
        reachable.append(label)
    return tuple(reachable)
