"""Lineage: which run computed each partition that readers see, and from which partitions of what.

Nothing is stored for it: publications name the run of a partition, and the run's plan names
snapshots and rows of its inputs. Which columns come from which is read from SQL alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.inputs.changes import (
    InputReader,
)
from lakehouse_backfill.core.evidence.origins import computing_run
from lakehouse_backfill.core.planning.inputs.read_windows import window_to_read
from lakehouse_backfill.core.planning.job_code import archived_code
from lakehouse_backfill.core.planning.target.row_changes import is_partial_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.errors import NotFound, Unsupported


class PartitionOrigins:
    """The runs that computed the partitions of a product, as its readers see it now."""

    def __init__(self, context: Context, product: str) -> None:
        self._context = context
        self._plans: dict[str, Plan] = {}
        self._listed: dict[tuple[str, int, str], bool] = {}
        self.product = product

    @cached_property
    def history(self) -> tuple[Publication, ...]:
        """The publications that made a version accepted, newest first."""
        return pointer.accepted_rows(self._context.versions.history(self.product))

    @cached_property
    def made_by(self) -> dict[str, tuple[str, ...]]:
        """The runs that published each partition, the newest last; several where one kept rows."""
        return pointer.runs_by_partition(self.history, lambda run: is_partial_plan(self.plan(run)))

    def plan(self, run_id: str) -> Plan:
        """Load a plan once."""
        if run_id not in self._plans:
            self._plans[run_id] = self._context.runs.plan(run_id)
        return self._plans[run_id]

    def computing_plans(self, label: str) -> tuple[Plan, ...]:
        """Return the plans of the runs that computed a partition: it may be carried over."""
        plans = map(self.plan, self.made_by.get(label, ()))
        found = (
            # Only a run that caught up with live commits carries chunks over.
            computing_run(self._context, plan, label) if plan.resolved.catch_up else plan
            for plan in plans
        )
        return tuple(self._plans.setdefault(plan.run_id, plan) for plan in found)

    def is_listed(self, inputs: InputReader, pin: SourcePin) -> bool:
        """Return whether the partitions of an input, as a run read it, are known."""
        key = pin.table, pin.snapshot_id, pin.range.column if pin.range else ""
        if key not in self._listed:
            found = inputs.source_field(pin, pin.range.column) if pin.range else None
            self._listed[key] = False
            if found is not None:
                with suppress(NotFound, Unsupported):
                    inputs.live_files(pin.table, pin.snapshot_id, found)
                    self._listed[key] = True
        return self._listed[key]

    def newest_plan(self) -> Plan | None:
        """Return the plan of the newest run that readers see rows of, of whole partitions first.

        None where they see none, as after a rollback to the state before all runs.
        """
        seen = {run for runs in self.made_by.values() for run in runs}
        runs = dict.fromkeys(row.run_id for row in self.history if row.run_id in seen)
        plans = [self.plan(run) for run in runs if run is not None]
        whole = [plan for plan in plans if not is_partial_plan(plan)]
        return next(iter(whole or plans), None)


@dataclass(frozen=True)
class LineageEdge:
    """What partitions of a product were computed from: rows of one input, by one run.

    `windows` are the half-open instants that were read, in order and apart; none where the input is
    read whole. `input_partitions` are those of the input that hold rows of them. None: they are not
    known, as the input is read whole, is not partitioned by the column of its range, or its
    snapshot is gone.
    """

    product: str
    partitions: tuple[str, ...]
    run_id: str
    input: str
    role: str
    table: str
    snapshot_id: int
    input_partitions: tuple[str, ...] | None = None
    windows: tuple[tuple[datetime, datetime], ...] = ()

    @property
    def first(self) -> datetime | None:
        """The first instant that was read; gaps may follow."""
        return self.windows[0][0] if self.windows else None

    @property
    def stop(self) -> datetime | None:
        """The end of the last instants that were read."""
        return self.windows[-1][1] if self.windows else None


def upstream_edges(
    origins: PartitionOrigins, inputs: InputReader, labels: Iterable[str]
) -> tuple[LineageEdge, ...]:
    """Return what the partitions were computed from, by run and input."""
    found: dict[tuple[str, str], list[LineageEdge]] = defaultdict(list)
    for label in labels:
        for plan in origins.computing_plans(label):
            for pin in plan.resolved.sources:
                edge = _edge(origins, inputs, plan, pin, label)
                found[plan.run_id, pin.name].append(edge)
    return tuple(_merged(edges) for edges in found.values())


def downstream_edges(
    origins: PartitionOrigins, inputs: InputReader, table: str, partition: str | None
) -> tuple[LineageEdge, ...]:
    """Return the product's partitions that were computed from a table, or from a partition of it.

    An input whose partitions are not known may have been read, so it is listed.
    """
    edges = upstream_edges_by_label(origins, inputs, table)
    found: dict[tuple[str, str], list[LineageEdge]] = defaultdict(list)
    for edge in edges:
        if partition is None or edge.input_partitions is None or partition in edge.input_partitions:
            found[edge.run_id, edge.input].append(edge)
    return tuple(_merged(some) for some in found.values())


def upstream_edges_by_label(
    origins: PartitionOrigins, inputs: InputReader, table: str
) -> tuple[LineageEdge, ...]:
    """Return an edge for each partition of the product that was computed from the table."""
    return tuple(
        _edge(origins, inputs, plan, pin, label)
        for label in origins.made_by
        for plan in origins.computing_plans(label)
        for pin in plan.resolved.sources
        if table in (pin.table, pin.product_table)
    )


def _edge(
    origins: PartitionOrigins, inputs: InputReader, plan: Plan, pin: SourcePin, label: str
) -> LineageEdge:
    edge = LineageEdge(
        plan.product, (label,), plan.run_id, pin.name, pin.role, pin.table, pin.snapshot_id
    )
    if pin.range is None:
        return edge
    window = window_to_read(pin, Scope(field=plan.resolved.scope.field, partitions=(label,)))
    labels = tuple(inputs.partitions_at_pin(pin).within(window)) or None
    if labels is None and origins.is_listed(inputs, pin):
        labels = ()
    return replace(edge, input_partitions=labels, windows=merged_windows((window,)))


def merged_windows(
    windows: Iterable[tuple[datetime, datetime]],
) -> tuple[tuple[datetime, datetime], ...]:
    """Return half-open instants as few windows in order; neighbours are one."""
    merged: list[tuple[datetime, datetime]] = []
    for first, stop in sorted(one for one in windows if one[0] < one[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((first, stop))
    return tuple(merged)


def _merged(edges: Sequence[LineageEdge]) -> LineageEdge:
    """Return one edge for several partitions of one run and input."""
    first = edges[0]
    read = [edge.input_partitions for edge in edges if edge.input_partitions is not None]
    labels = tuple(dict.fromkeys(label for some in read for label in some))
    return replace(
        first,
        partitions=tuple(dict.fromkeys(label for edge in edges for label in edge.partitions)),
        input_partitions=labels if len(read) == len(edges) else None,
        windows=merged_windows(window for edge in edges for window in edge.windows),
    )


@dataclass(frozen=True)
class Lineage:
    """What a table's partitions were computed from, and what was computed from them.

    `columns` names the columns of inputs that each column of a SQL transform is made of.
    """

    table: str
    partition: str | None
    upstream: tuple[LineageEdge, ...]
    downstream: tuple[LineageEdge, ...]
    columns: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def find_lineage(
    context: Context,
    contracts: Sequence[Contract],
    target: str,
    partition: str | None,
    broken: Sequence[str] = (),
) -> Lineage:
    """Return the lineage of a table or product, one step each way; nothing is changed.

    `broken` are products that are not looked at, as their contracts are wrong.
    Raises NotFound when no contract has the table, and no run read it, or has such a partition.
    """
    inputs = InputReader(context)
    if broken:
        inputs.add_note(_not_looked_at(broken))
    own = next((one for one in contracts if target in (one.product, one.table)), None)
    table = own.table if own else target
    upstream: tuple[LineageEdge, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = {}
    if own is not None:
        origins = PartitionOrigins(context, own.product)
        labels = [one for one in origins.made_by if partition in (None, one)]
        upstream = upstream_edges(origins, inputs, labels)
        newest = origins.newest_plan()
        columns = column_lineage(context, newest) if newest else {}
    downstream = tuple(
        edge
        for one in contracts
        for edge in downstream_edges(
            PartitionOrigins(context, one.product), inputs, table, partition
        )
    )
    if not upstream and not downstream and (own is None or partition is not None):
        known = _known_labels(context, contracts, inputs, own, table) if partition else ()
        raise _unknown_error(target, partition, broken, known)
    return Lineage(table, partition, upstream, downstream, columns, tuple(inputs.notes))


def _not_looked_at(broken: Sequence[str]) -> str:
    return f"not looked at, as their contracts are wrong: {', '.join(broken)}"


def _unknown_error(
    target: str, partition: str | None, broken: Sequence[str], known: tuple[str, ...]
) -> NotFound:
    """Return the error for what no run computed or read; `known` are partitions that one did."""
    problem = f"computed or read {f'partition {partition} of ' if partition else ''}{target}"
    if broken:
        return NotFound(
            f"no published run of a valid contract {problem}; {_not_looked_at(broken)}",
            fix=f"{command_line('why', broken[0])}  # says what is wrong in it",
        )
    if known:
        return NotFound(
            f"no published run {problem}; known of it: {partitions.describe_labels(known)}",
            fix=f"{command_line('lineage', target)}  # names them all",
        )
    return NotFound(
        f"no published run {problem}",
        fix="name a product, or an input table of one; lakehouse-backfill list",
    )


def _known_labels(
    context: Context,
    contracts: Sequence[Contract],
    inputs: InputReader,
    own: Contract | None,
    table: str,
) -> tuple[str, ...]:
    """Return the partitions of a table that published runs computed or read, in order."""
    found = set(PartitionOrigins(context, own.product).made_by) if own else set[str]()
    for one in contracts:
        for edge in upstream_edges_by_label(PartitionOrigins(context, one.product), inputs, table):
            found.update(edge.input_partitions or ())
    return tuple(sorted(found))


def column_lineage(context: Context, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the input columns that each output column of a SQL transform is made of.

    From the archived query; empty for other code. It informs, and proves nothing.
    """
    file = plan.resolved.manifest.transform.file
    texts = {one["file"]: one["text"] for one in archived_code(context, plan.run_id)}
    text = texts.get(file)
    if not file.endswith(".sql") or text is None:
        return {}
    # It loads a parser of SQL, which a rollback does not need.
    from lakehouse_backfill.core.guards.sql_columns import column_sources

    return column_sources(text, plan.resolved.sources)


@dataclass(frozen=True)
class LineageRun:
    """A published run with all that it read, for an export.

    `rows` counts the rows of its partitions as they were validated; None: no validation is stored.
    """

    plan: Plan
    publication: Publication
    edges: tuple[LineageEdge, ...]
    columns: Mapping[str, tuple[str, ...]]
    checks: tuple[CheckResult, ...] = ()
    rows: int | None = None


def runs_of_lineage(context: Context, found: Lineage) -> tuple[LineageRun, ...]:
    """Return the published runs of a lineage, oldest first, each with its whole scope.

    Raises Tampered when a stored validation is not what the run's log says.
    """
    inputs = InputReader(context)
    runs: dict[str, LineageRun] = {}
    for product in dict.fromkeys(edge.product for edge in (*found.upstream, *found.downstream)):
        origins = PartitionOrigins(context, product)
        for edge in (*found.upstream, *found.downstream):
            if edge.product == product and edge.run_id not in runs:
                runs[edge.run_id] = _lineage_run(context, origins, inputs, edge.run_id)
    return tuple(sorted(runs.values(), key=lambda one: one.publication.at))


def _lineage_run(
    context: Context, origins: PartitionOrigins, inputs: InputReader, run_id: str
) -> LineageRun:
    plan = origins.plan(run_id)
    labels = plan.resolved.scope.partitions
    edges = tuple(
        _merged([_edge(origins, inputs, plan, pin, label) for label in labels])
        for pin in plan.resolved.sources
    )
    publication = _publication_of(origins, run_id, labels)
    run = LineageRun(plan, publication, edges, column_lineage(context, plan))
    stored = decisions.logged_validation_document(context, context.runs.events(run_id), run_id)
    if stored is None:
        return run
    return replace(
        run,
        checks=tuple(CheckResult.model_validate(check) for check in stored[1]["checks"]),
        rows=stored[1]["diff"]["summary"]["new_rows"],
    )


def _publication_of(origins: PartitionOrigins, run_id: str, labels: Sequence[str]) -> Publication:
    """Return the publication of a run, or of the run that carried its partitions over."""
    own = [row for row in origins.history if row.run_id == run_id]
    makers = {run for label in labels for run in origins.made_by.get(label, ())}
    return next(iter(own or [row for row in origins.history if row.run_id in makers]))
