"""The edge check (Q10): which partitions to look at, and what their differences mean."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult, EdgePartition, EdgeReport
from lakehouse_backfill.domain.manifest import Validation
from lakehouse_backfill.domain.scope import Scope

MAX_PROBED_PARTITIONS = 64


@dataclass(frozen=True)
class EdgeLabels:
    """Partitions around a scope, nearest to the scope first."""

    before: tuple[str, ...]
    inside: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def everything(self) -> tuple[str, ...]:
        """All of them."""
        return self.before + self.inside + self.after


def edge_labels(scope: Scope, count: int) -> EdgeLabels:
    """Give `count` partitions beyond each edge, and at most as many at each side of every gap."""
    ordered = [label for label in scope.partitions if label != "null"]
    if not ordered or count == 0:
        return EdgeLabels((), (), ())
    before = _walk_labels(scope, ordered[0], -1, count)
    after = _walk_labels(scope, ordered[-1], 1, count)
    chosen = set(scope.partitions) | set(before) | set(after)
    inside: list[str] = []
    for label in ordered:
        for step in (-1, 1):
            for near in _walk_labels(scope, label, step, count):
                if near in scope.partitions:
                    break
                if near not in chosen:
                    chosen.add(near)
                    inside.append(near)
    key = partitions.label_sort_key(scope.field)
    return EdgeLabels(before, tuple(sorted(inside, key=key)), after)


def next_edge_labels(scope: Scope, side: str, seen: tuple[str, ...]) -> tuple[str, ...]:
    """Give the next partitions to probe on a side whose outermost partition still differs."""
    step = -1 if side == "before" else 1
    if not seen or len(seen) >= MAX_PROBED_PARTITIONS:
        return ()
    return _walk_labels(
        scope, seen[-1], step, min(len(seen) * 2, MAX_PROBED_PARTITIONS - len(seen))
    )


def report_edges(scope: Scope, found: tuple[EdgePartition, ...], tolerance_rows: int) -> EdgeReport:
    """Judge the edges; when they are open, name the half-open range of labels that closes them."""
    key = partitions.label_sort_key(scope.field)
    ordered = tuple(sorted(found, key=lambda edge: key(edge.partition)))
    differing = [edge for edge in ordered if edge.differing_rows]
    is_closed = sum(edge.differing_rows for edge in differing) <= tolerance_rows
    if is_closed:
        return EdgeReport(partitions=ordered, is_closed=True, closing_from=None, closing_to=None)
    first, stop = _closing(scope, ordered, "before"), _closing(scope, ordered, "after")
    known = first is not None and stop is not None
    return EdgeReport(
        partitions=ordered,
        is_closed=False,
        closing_from=first if known else None,
        closing_to=stop if known else None,
    )


def check_edges(edge: EdgeReport | None, wanted: Validation, why_not: str = "") -> CheckResult:
    """Give the gate of the edge check; where nothing was looked at, it says so."""
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
        return CheckResult(name="edges are closed", group="edge", passed=True, detail=why_not)
    rows = sum(item.differing_rows for item in edge.partitions)
    twice = sum(sum(item.counted_twice.values()) for item in edge.partitions)
    lost = sum(sum(item.lost.values()) for item in edge.partitions)
    looked = partitions.describe_labels(tuple(item.partition for item in edge.partitions))
    detail = f"{looked} beyond the edges would be computed as they are accepted"
    if not edge.is_closed:
        open_at = ", ".join(item.partition for item in edge.partitions if item.differing_rows)
        detail = (
            f"open at {open_at}: publishing would count {twice} twice and lose {lost} "
            f"(declared totals); {_advice(edge)}"
        )
    return CheckResult(
        name="edges are closed",
        group="edge",
        passed=edge.is_closed,
        detail=detail,
        observed=rows,
        limit=tolerance_rows,
    )


def _advice(edge: EdgeReport) -> str:
    if edge.closing_from is None:
        return f"no range within {MAX_PROBED_PARTITIONS} partitions closes it"
    return f"restate from {edge.closing_from} to {edge.closing_to} (not included)"


def _walk_labels(scope: Scope, label: str, step: int, count: int) -> tuple[str, ...]:
    found: list[str] = []
    current: str | None = label
    for _ in range(count):
        current = partitions.shift_label(scope.field, current, step) if current else None
        if current is None:
            break
        found.append(current)
    return tuple(found)


def _closing(scope: Scope, found: tuple[EdgePartition, ...], side: str) -> str | None:
    ordered = [label for label in scope.partitions if label != "null"]
    beyond = [edge for edge in found if edge.side == side]
    if side == "before":
        beyond.reverse()
    outermost = ordered[0] if side == "before" else ordered[-1]
    for edge in beyond:
        if edge.differing_rows:
            outermost = edge.partition
    if beyond and beyond[-1].differing_rows:
        return None
    return outermost if side == "before" else partitions.shift_label(scope.field, outermost, 1)
