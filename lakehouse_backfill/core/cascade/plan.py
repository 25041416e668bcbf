"""Plan a product and everything downstream of it: one run for each, on the candidates before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.cascade.graph import (
    CustomMapping,
    MappedProduct,
    ProductGraph,
    ReachedPartitions,
    graph_version,
    label_value,
    reached_partitions,
    require_covered_reads,
    require_declared_reads,
    unread_upstreams,
)
from lakehouse_backfill.core.cascade.inputs import candidate_pins
from lakehouse_backfill.core.cascade.reuse import REUSE_NOTE, may_reuse
from lakehouse_backfill.core.cascade.visibility import visibility_notes
from lakehouse_backfill.core.evidence.inputs.rows import labels_with_rows
from lakehouse_backfill.core.planning.plan import (
    DeclaredRun,
    make_plan,
    register_plan,
    target_of,
)
from lakehouse_backfill.core.planning.scope.whole_grain import widening_note
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.cascade.graph import (
    CascadeMembership,
    CascadeNode,
    Upstream,
    cascade_id_of,
)
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.grains import whole_grains_of
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, PartitionRange
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest


@dataclass(frozen=True)
class CascadeFiles:
    """What the files of a project say: contracts, templates by file, functions of mappings.

    Inside `locate(file)` an error that names a field gets file and line of that run manifest.
    """

    contracts: Mapping[str, Contract]
    locate: Callable[[str], AbstractContextManager[None]]
    declare: Callable[[str], DeclaredRun]
    custom: Callable[[Upstream], CustomMapping]


@dataclass(frozen=True)
class Cascade:
    """A cascade: its products in the order of the work, and the plans of those that it restates."""

    cascade_id: str
    graph_version: str
    nodes: tuple[CascadeNode, ...]
    plans: tuple[Plan, ...]
    notes: tuple[str, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs, in the order of the work."""
        return tuple(plan.run_id for plan in self.plans)


def load_cascade(context: Context, cascade_id: str) -> Cascade:
    """Load a registered cascade. Raises NotFound."""
    membership = CascadeMembership(cascade_id=cascade_id)
    try:
        first = context.runs.plan(membership.first_run_id)
    except errors.NotFound as error:
        raise _unknown_error(cascade_id) from error
    if first.cascade is None or first.cascade.cascade_id != cascade_id:
        raise _unknown_error(cascade_id)
    runs = [node.run_id for node in first.cascade.nodes if node.run_id]
    plans = tuple(first if run == first.run_id else context.runs.plan(run) for run in runs)
    return Cascade(cascade_id, first.resolved.cascade_graph, first.cascade.nodes, plans)


def _unknown_error(cascade_id: str) -> errors.NotFound:
    return errors.NotFound(
        f"there is no cascade {cascade_id}",
        fix=f"{command_line('status')}  # names the open ones",
    )


def make_cascade(context: Context, declared: DeclaredRun, files: CascadeFiles, by: str) -> Cascade:
    """Work out the runs of a product and of everything downstream, without changing anything.

    The same intent as an open cascade is that cascade, as it was planned. Raises what `make_plan`
    does; ConfigError (a cycle, a mapping that does not fit, a read that is not declared), Conflict
    (another open cascade changes the same partitions), Unsupported.
    """
    graph = ProductGraph({**files.contracts, declared.contract.product: declared.contract})
    product = declared.contract.product
    order = graph.order_from(product)
    if len(order) == 1:
        raise errors.ConfigError(
            f"no contract names {product} among its `upstreams`, so nothing is downstream of it",
            state=NOTHING_PLANNED,
            fix=f"{plan_command(declared.manifest_file)}, without --cascade",
        )
    templates, notes = _load_templates(graph, order[1:], files)
    require_declared_reads(graph, order, {**templates, product: declared})
    templates = {one: templates[one] for one in order if one in templates}
    runs = {**templates, product: declared}
    _require_published_runs(runs)
    version = graph_version(graph, order, runs, context.code_hash)
    with files.locate(declared.manifest_file):
        first = make_plan(context, declared, by, None, partial(_with_graph, version))
    if (known := _open_cascade(context, first)) is not None:
        return known
    _require_no_open_cascade(context, first)
    work = _Work(context, graph, files, declared, version, by)
    work.add_first(first)
    with context.progress.within("plan", len(order) - 1, "downstream products"):
        for one in order[1:]:
            work.add(one, templates.get(one))
            context.progress.advance()
    nodes = work.finished_nodes()
    require_one_commit(nodes)
    cascade_id = cascade_id_of(first.run_id)
    plans = tuple(
        plan.model_copy(
            update={
                "cascade": CascadeMembership(
                    cascade_id=cascade_id, nodes=nodes if plan.run_id == first.run_id else ()
                )
            }
        )
        for plan in work.plans.values()
    )
    notes = (*notes, *work.notes, *visibility_notes(context, nodes))
    return Cascade(cascade_id, version, nodes, plans, notes)


def register_cascade(context: Context, cascade: Cascade, by: str) -> Cascade:
    """Register the runs of a cascade; the same again changes nothing.

    The first run is registered last: a cascade that is seen is whole.
    """
    for plan in reversed(cascade.plans):
        register_plan(context, plan, by)
    return load_cascade(context, cascade.cascade_id)


def require_no_member(plan: Plan) -> None:
    """Raise ConfigError for a run of a cascade: it is planned again with all others."""
    if plan.cascade is not None:
        raise errors.ConfigError(
            f"{plan.run_id} belongs to {plan.cascade.cascade_id}, which is planned as a whole",
            state="nothing was changed",
            fix=f"{command_line('cancel', plan.cascade.cascade_id)}, then plan the cascade again",
        )


def require_one_commit(nodes: tuple[CascadeNode, ...]) -> None:
    """Raise Unsupported for a followed product between pinned ones.

    These become visible by one commit; it would have to be published before and after that.
    """
    by_name = {node.product: node for node in nodes if node.run_id}
    above: dict[str, set[str]] = {}
    for node in by_name.values():
        direct = [name for name in node.upstreams if name in by_name]
        above[node.product] = set(direct).union(*(above[name] for name in direct))
    for node in by_name.values():
        if node.publication != "pinned":
            continue
        for name in sorted(above[node.product]):
            pinned = [one for one in above[name] if by_name[one].publication == "pinned"]
            if by_name[name].publication == "follow" and pinned:
                raise errors.Unsupported(
                    f"{name} is followed, and lies between {pinned[0]} and {node.product}, which "
                    "are pinned and become visible by one commit",
                    state=NOTHING_PLANNED,
                    fix=f"write publication: pinned in catalog/contracts/{name}.yaml, or leave "
                    f"`cascade` of {node.product} out and restate it afterwards",
                )


def publication_steps(nodes: tuple[CascadeNode, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the products in the order in which they become visible; pinned ones are one step.

    A followed product comes after what it is computed from.
    """
    planned = [node for node in nodes if node.run_id]
    pinned = tuple(node.product for node in planned if node.publication == "pinned")
    late: set[str] = set(pinned)
    before: list[tuple[str, ...]] = []
    after: list[tuple[str, ...]] = []
    for node in planned:
        if node.publication == "pinned":
            continue
        is_late = bool(late.intersection(node.upstreams))
        if is_late:
            late.add(node.product)
        (after if is_late else before).append((node.product,))
    return (*before, *((pinned,) if pinned else ()), *after)


def _load_templates(
    graph: ProductGraph, wanted: tuple[str, ...], files: CascadeFiles
) -> tuple[dict[str, DeclaredRun], tuple[str, ...]]:
    """Load the run manifests of all products that have one; those of others may be wrong."""
    found: dict[str, DeclaredRun] = {}
    notes = []
    for product, contract in sorted(graph.contracts.items()):
        if contract.cascade is None:
            continue
        try:
            declared = files.declare(contract.cascade.manifest)
        except errors.BackfillError as error:
            if product in wanted:
                raise
            notes.append(
                f"what {product} reads is not known: {contract.cascade.manifest} is wrong "
                f"({error.problem})"
            )
            continue
        if declared.contract.product != product:
            raise errors.ConfigError(
                f"{contract.cascade.manifest} restates {declared.contract.product}, and the "
                f"contract of {product} names it as its own",
                state=NOTHING_PLANNED,
                fix=f"correct `cascade.manifest` in catalog/contracts/{product}.yaml",
                field="cascade.manifest",
            )
        found[product] = declared
    return found, tuple(notes)


def _require_published_runs(runs: Mapping[str, DeclaredRun]) -> None:
    """Raise Unsupported for a run that stays in its shadow: the others would wait for it for ever.

    Or readers would see what is followed, and not what is computed from it.
    """
    for product, run in runs.items():
        if publish_modes.stays_in_shadow(run.manifest):
            raise errors.Unsupported(
                f"{run.manifest_file} of {product} asks for a run that is never published, and a "
                "cascade is published as a whole",
                state=NOTHING_PLANNED,
                fix=f"correct run.mode or target.publish_mode there, or leave `cascade` of "
                f"{product} out; to look only: {plan_command(run.manifest_file)}",
            )


def _with_graph(version: str, resolved: ResolvedManifest) -> ResolvedManifest:
    return resolved.model_copy(update={"cascade_graph": version})


def _open_cascade(context: Context, first: Plan) -> Cascade | None:
    """Return the open cascade of exactly this intent."""
    with suppress(errors.NotFound):
        if context.runs.status(first.run_id).state in lifecycle.OPEN_STATES:
            return load_cascade(context, cascade_id_of(first.run_id))
    return None


def _require_no_open_cascade(context: Context, first: Plan) -> None:
    """Raise Conflict while another cascade changes the same partitions of the first product."""
    for conflict in first.conflicts:
        other = context.runs.plan(conflict.run_id)
        if other.cascade is None:
            continue
        is_same = other.resolved.cascade_graph == first.resolved.cascade_graph
        changed = (
            ""
            if is_same
            else ": it keeps the graph that it was planned with, and the contracts or the code of "
            "the products have changed since"
        )
        raise errors.Conflict(
            f"{other.cascade.cascade_id} is open and restates "
            f"{partitions.describe_labels(conflict.partitions)} of {first.product}{changed}",
            state=f"nothing was registered; {other.cascade.cascade_id} stays as it is",
            fix=f"finish it, or {command_line('cancel', other.cascade.cascade_id)}, then plan "
            "again",
        )


class _Work:
    """Plans the products of a cascade one after the other; nothing is written."""

    def __init__(
        self,
        context: Context,
        graph: ProductGraph,
        files: CascadeFiles,
        declared: DeclaredRun,
        version: str,
        by: str,
    ) -> None:
        self._context, self._graph, self._files = context, graph, files
        self._declared, self._version, self._by = declared, version, by
        self.plans: dict[str, Plan] = {}
        self.notes: list[str] = []
        self._nodes: list[CascadeNode] = []

    def finished_nodes(self) -> tuple[CascadeNode, ...]:
        """Return the nodes in the order of the work."""
        return tuple(self._nodes)

    def add_first(self, plan: Plan) -> None:
        """Take the run that the manifest asks for."""
        contract = self._declared.contract
        _, base = target_of(self._context, self._declared)
        held = self._held(self._declared)
        self.plans[plan.product] = plan
        self._nodes.append(
            CascadeNode(
                product=plan.product,
                decision="selected",
                run_id=plan.run_id,
                partitions=plan.resolved.scope.partitions,
                reused=len(held.held - set(plan.resolved.scope.partitions)) if base else 0,
                publication=contract.publication,
                critical=contract.critical,
                because=(f"{self._declared.manifest_file} restates it", *_blocked_by(plan)),
            )
        )

    def add(self, product: str, template: DeclaredRun | None) -> None:
        """Plan a product downstream, or say why it is left out."""
        contract = self._graph.contracts[product]
        changing = tuple(one for one in contract.upstreams if one.product in self.plans)
        if not changing:
            names = ", ".join(one.product for one in contract.upstreams)
            self._skip(contract, f"nothing that it reads is restated here ({names})")
            return
        if template is None:
            self._skip(
                contract,
                "its contract has no cascade.manifest: its rows stay, and are stale afterwards",
            )
            return
        mapped = self._held(template)
        reached = [self._reached(one, template, mapped) for one in changing]
        labels = frozenset[str]().union(*(one.partitions for one in reached))
        if not labels:
            self._skip(contract, "no partition of it reads what changes")
            return
        reasons = [_reasons(*one, mapped) for one in zip(changing, reached, strict=True)]
        whole = whole_grains_of(contract, mapped.field, labels)
        widened = widening_note(contract, mapped.field, tuple(labels), whole)
        labels = frozenset(whole)
        plan = self._plan(template, mapped, labels)
        because = [*chain.from_iterable(reasons), *([widened] if widened else ())]
        because += [REUSE_NOTE] if plan.resolved.may_reuse else ()
        self.plans[product] = plan
        self.notes += [
            f"{product} declares {name} as an upstream, and its run does not read it"
            for name in unread_upstreams(self._graph, template)
        ]
        self._nodes.append(
            CascadeNode(
                product=product,
                decision="widened"
                if widened or any(one.widened for one in reached)
                else "pulled in",
                run_id=plan.run_id,
                upstreams=tuple(one.product for one in changing),
                partitions=plan.resolved.scope.partitions,
                reused=len(mapped.held - labels),
                publication=contract.publication,
                critical=contract.critical,
                because=(*because, *_blocked_by(plan)),
            )
        )

    def _skip(self, contract: Contract, because: str) -> None:
        self._nodes.append(
            CascadeNode(
                product=contract.product,
                decision="skipped",
                upstreams=tuple(one.product for one in contract.upstreams),
                publication=contract.publication,
                critical=contract.critical,
                because=(because,),
            )
        )

    def _held(self, declared: DeclaredRun) -> MappedProduct:
        field, base = target_of(self._context, declared)
        held = frozenset[str]()
        if base is not None and base.snapshot_id is not None:
            held = labels_with_rows(self._context.tables.files(base.table, base.snapshot_id, field))
        return MappedProduct(declared.contract.product, field, held)

    def _reached(
        self, upstream: Upstream, template: DeclaredRun, mapped: MappedProduct
    ) -> ReachedPartitions:
        contract = self._graph.contracts[upstream.product]
        with self._files.locate(template.manifest_file):
            require_covered_reads(upstream, contract, template.manifest, mapped.field)
        scope = self.plans[upstream.product].resolved.scope
        custom = self._files.custom(upstream) if upstream.mapping == "custom" else None
        return reached_partitions(upstream, (scope.field, scope.partitions), mapped, custom)

    def _plan(self, template: DeclaredRun, mapped: MappedProduct, labels: frozenset[str]) -> Plan:
        manifest, asked = template.manifest, self._declared.manifest.run
        wanted = manifest.target.partitions
        if not wanted.whole_table:
            wanted = PartitionRange(
                column=wanted.column,
                values=tuple(label_value(mapped.field, label) for label in sorted(labels)),
            )
        reason = {
            name: getattr(asked, name)
            for name in ("requested_by", "reason", "reason_code", "deadline")
        }
        declared = replace(
            template,
            manifest=manifest.model_copy(
                update={
                    "run": manifest.run.model_copy(update=reason),
                    "target": manifest.target.model_copy(update={"partitions": wanted}),
                }
            ),
        )
        with self._files.locate(template.manifest_file):
            plan = make_plan(self._context, declared, self._by, None, self._amend)
        notes = (REUSE_NOTE,) if plan.resolved.may_reuse else ()
        return plan.model_copy(update={"notes": (*plan.notes, *notes)})

    def _amend(self, resolved: ResolvedManifest) -> ResolvedManifest:
        """Let the run read the candidates of this cascade, else what readers of inputs see."""
        pins = candidate_pins(self._context, self._graph, self.plans, resolved)
        amended = resolved.model_copy(update={"sources": pins, "cascade_graph": self._version})
        return amended.model_copy(update={"may_reuse": may_reuse(amended)})


def _blocked_by(plan: Plan) -> tuple[str, ...]:
    return tuple(
        f"blocked by open run {one.run_id} ({one.state}) in "
        f"{partitions.describe_labels(one.partitions)}"
        for one in plan.conflicts
    )


def _reasons(
    upstream: Upstream, reached: ReachedPartitions, mapped: MappedProduct
) -> tuple[str, ...]:
    """Return the sentences that say why partitions are restated, or are not."""
    key = partitions.label_sort_key(mapped.field)

    def shown(labels: frozenset[str]) -> str:
        return partitions.describe_labels(tuple(sorted(labels, key=key)))

    texts = [f"{upstream.product} reaches {shown(reached.partitions)} ({upstream.mapping})"]
    if reached.widened:
        texts.append(f"{shown(reached.widened)} restated whole: only a part changes upstream")
    if reached.absent:
        texts.append(f"{shown(reached.absent)} left out: not there yet")
    return tuple(texts)
