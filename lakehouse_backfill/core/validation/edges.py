"""Beyond the range of a run: the partitions at its edges (Q10).

Partitions next to the run's are computed and compared with the accepted ones. Differences mean that
the restated range is too narrow. They are computed while the chunks are written, where that can be
kept in the run's log, else by validation.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import takewhile
from typing import Any

from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.planning import stages
from lakehouse_backfill.core.planning.inputs.read_windows import range_covers_scope
from lakehouse_backfill.core.planning.pace import ComputesEdges, PacedEdges
from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult, EdgePartition, EdgeReport, EdgeSide
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.manifest import Validation
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import EDGES_DETAIL, Event
from lakehouse_backfill.errors import BackfillError, WriteForbidden
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


LabelsBySide = Mapping[EdgeSide, tuple[str, ...]]
#: By label the checksum of what was computed beyond the edges; None for a partition without rows.
KeptEdges = Mapping[str, str | None]


#: Seconds between two looks at edges that are computed, and how often they are ended.
_LOOK_S, _ENDINGS = 0.5, 20


class EdgesWhileStaging:
    """Computes the partitions beyond the edges while the chunks are computed.

    What fails here is left to validation, which then says why it fails. Attempts of job code to
    reach outside fail the run, as those of a chunk do: each is told to one thread only.
    """

    def __init__(self, context: Context, staging: Staging, plan: Plan) -> None:
        self._context, self._staging, self._plan = context, staging, plan
        self._around = stages.edges_while_staging(plan)
        self._computed: Future[dict[str, Checksum]] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start to compute them; again does nothing. Raises NotFound when an input has expired."""
        with self._lock:
            if self._around and self._computed is None:
                self._computed = self._staging.begin_edges(self._plan, self._around)

    def __enter__(self) -> None:
        """Nothing is computed before `begin`."""

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """End what is computed for a run that stopped; between two jobs, the next one is ended."""
        if error is None or self._computed is None:
            return
        for _ending in range(_ENDINGS):
            if self._computed.done():
                return
            # An engine that is gone computes nothing; why the run stopped is what counts.
            with suppress(Exception):
                self._staging.interrupt(self._plan)
            wait([self._computed], _LOOK_S)

    def detail(self, require_held: Callable[[], None]) -> dict[str, Any]:
        """Wait for them; return what the event that ends staging keeps.

        Raises what `require_held` raises once the run is no longer this driver's, WriteForbidden.
        """
        if self._computed is None:
            return {}
        while not self._computed.done():
            require_held()
            wait([self._computed], _LOOK_S)
        require_held()
        try:
            found = self._computed.result()
        except WriteForbidden:
            raise
        except BackfillError as error:
            journal = self._context.journal.bind(**self._plan.labels)
            journal.log("edges left to validation", problem=error.problem)
            return {}
        labels = resolve.all_labels(self._around)
        return {EDGES_DETAIL: {label: _checksum_text(found.get(label)) for label in labels}}


def _kept_edges(events: Iterable[Event]) -> KeptEdges:
    """Return what the newest staging computed beyond the edges; empty where it computed nothing."""
    ended = [event for event in events if event.verb == "finish staging"]
    kept: KeptEdges = ended[-1].detail.get(EDGES_DETAIL, {}) if ended else {}
    return kept


def _checksum_text(checksum: Checksum | None) -> str | None:
    return checksum.text if checksum else None


#: Returns the checksums of accepted partitions; those without rows are left out.
AcceptedChecksums = Callable[[tuple[str, ...]], Mapping[str, Checksum]]


def probe_run_edges(
    context: Context, staging: Staging, plan: Plan, events: Iterable[Event]
) -> EdgeReport | None:
    """Compare what the run would compute beyond its edges with what is accepted there, if any.

    `events` are the run's log, which keeps what was computed while its chunks were.
    """
    target, field = plan.resolved.target, plan.resolved.scope.field
    if target.snapshot_id is None or publish_modes.why_no_edge_check(plan):
        return None

    def accepted(labels: tuple[str, ...]) -> dict[str, Checksum]:
        scope = Scope(field=field, partitions=labels)
        return fingerprints.partition_checksums(
            context, target.table, target.snapshot_id, scope, plan.run_id
        )

    paced = PacedEdges(context, staging)
    # Checksums are equal only where the run computes all rows, under the current columns.
    if not stages.computes_all_rows(plan):
        return probe_edges(paced, plan)
    return probe_edges(paced, plan, accepted, _kept_edges(events))


def probe_edges(
    staging: ComputesEdges,
    plan: Plan,
    accepted: AcceptedChecksums | None = None,
    kept: KeptEdges | None = None,
) -> EdgeReport:
    """Probe all edges together; where the outermost partition differs, probe further out.

    With `accepted`, partitions are compared by checksums first, and only those that differ by key.
    Those that are `kept` are not computed again.
    """
    scope, validation = plan.resolved.scope, plan.resolved.manifest.validation
    around = resolve.edge_labels(scope, validation.edge_partitions)
    edges: list[EdgePartition] = []
    seen: dict[EdgeSide, tuple[str, ...]] = {}
    while any(around.values()):
        probed = _probe_labels(staging, plan, around, accepted, kept or {})
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
    staging: ComputesEdges,
    plan: Plan,
    around: LabelsBySide,
    accepted: AcceptedChecksums | None,
    kept: KeptEdges,
) -> tuple[EdgePartition, ...]:
    if accepted is None:
        return staging.edges(plan, around)
    labels = resolve.all_labels(around)
    if not labels:
        return ()
    # Accepted checksums are usually known, so they are available before the computed ones.
    with ThreadPoolExecutor(1, thread_name_prefix="edges") as pool:
        accepted_future = pool.submit(accepted, labels)
        computed = kept
        if not all(label in kept for label in labels):
            sums = staging.edge_checksums(plan, around)
            computed = {label: checksum.text for label, checksum in sums.items()}
        old = accepted_future.result()
    differing = {label for label in labels if _checksum_text(old.get(label)) != computed.get(label)}
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
        return all(range_covers_scope(pin, scope) for pin in plan.resolved.sources)

    return tuple(takewhile(is_covered, labels))
