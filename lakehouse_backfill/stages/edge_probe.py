"""Looking beyond the edges of a run's partitions, whether others would change too (Q10)."""

from __future__ import annotations

from lakehouse_backfill.model.checks import EdgePartition, EdgeReport, EdgeSide
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.ports.compute import Staging
from lakehouse_backfill.rules import edges, windows


def probe_edges(staging: Staging, plan: Plan) -> EdgeReport:
    """Look at all edges together; where the outermost partition differs, look further out."""
    scope, validation = plan.resolved.scope, plan.resolved.manifest.validation
    first = edges.labels(scope, validation.edge_partitions)
    around: dict[EdgeSide, tuple[str, ...]] = {
        "inside": first.inside,
        "before": first.before,
        "after": first.after,
    }
    found: list[EdgePartition] = []
    seen: dict[EdgeSide, tuple[str, ...]] = {}
    while any(around.values()):
        probed = staging.edges(plan, around)
        found += probed
        differing = {edge.partition for edge in probed if edge.differing_rows}
        open_sides = {
            side: labels
            for side, labels in around.items()
            if side != "inside" and labels and labels[-1] in differing
        }
        seen |= {side: seen.get(side, ()) + labels for side, labels in open_sides.items()}
        around = {
            side: _within_reach(plan, edges.further(scope, side, seen[side])) for side in open_sides
        }
    return edges.report(scope, tuple(found), validation.edge_tolerance_rows)


def _within_reach(plan: Plan, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Keep the partitions that the declared input ranges still cover, nearest first."""
    reachable = []
    for label in labels:
        around = Scope(field=plan.resolved.scope.field, partitions=(label,))
        pins = [pin for pin in plan.resolved.sources if pin.range is not None]
        if not all(
            pin.range and windows.covers(pin.range, windows.needed(pin, around)) for pin in pins
        ):
            break
        reachable.append(label)
    return tuple(reachable)
