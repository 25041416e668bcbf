"""The story of a partition: who changed it last, why, from what, with which checks, and since then.

Also of a whole product: then of its newest publication.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.inputs.changes import InputReader
from lakehouse_backfill.core.evidence.lineage import (
    LineageEdge,
    PartitionOrigins,
    upstream_edges,
)
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.tables.table import first_scope_column
from lakehouse_backfill.errors import ConfigError, NotFound, Tampered, TargetChanged, Unsupported

_ROW_COUNTS = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")


@dataclass(frozen=True)
class PartitionStory:
    """What made the rows that readers see; without a run, the commits that wrote them.

    `acts` are the publications and rollbacks that touched it, newest first. `written_since` are
    commits of others after the newest of them. `rows` counts old, new and changed rows.
    """

    product: str
    table: str
    partition: str | None
    acts: tuple[Publication, ...]
    written_since: tuple[str, ...]
    plan: Plan | None = None
    publication: Publication | None = None
    inputs: tuple[LineageEdge, ...] = ()
    rows: dict[str, int] | None = None
    checks: str = ""
    not_passed: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def tell_story(context: Context, contract: Contract, partition: str | None) -> PartitionStory:
    """Return the story of a partition, or of the newest publication; nothing is changed.

    It is empty when nothing is known of the partition. Raises ConfigError for a text that is no
    partition, and NotFound when no run of the product is published.
    """
    origins = PartitionOrigins(context, contract.product)
    if partition is not None:
        _require_label(_partition_field(context, contract, origins), partition)
    acts = tuple(
        row
        for row in origins.history
        if row.action != "baseline"
        and (partition is None or (row.scope is not None and partition in row.scope.partitions))
    )
    since, notes = _written_since(context, contract, origins, acts, partition)
    run_id = _making_run(origins, acts, partition)
    if run_id is None:
        if not acts and partition is None:
            raise no_story_error(context, contract.product, None)
        return PartitionStory(contract.product, contract.table, partition, acts, since, notes=notes)
    plan = origins.plan(run_id)
    story = PartitionStory(
        contract.product, contract.table, partition, acts, since, plan,
        next(row for row in origins.history if (row.action, row.run_id) == ("publish", run_id)),
        _inputs(context, origins, plan, partition), notes=notes,
    )  # fmt: skip
    return _with_evidence(context, story, plan)


def _making_run(
    origins: PartitionOrigins, acts: tuple[Publication, ...], partition: str | None
) -> str | None:
    """Return the run whose rows readers see; for a product, the newest of them."""
    if partition is not None:
        return next(iter(reversed(origins.made_by.get(partition, ()))), None)
    seen = {run for runs in origins.made_by.values() for run in runs}
    published = (row.run_id for row in acts if row.action == "publish")
    return next((run for run in published if run in seen), None)


def _inputs(
    context: Context, origins: PartitionOrigins, plan: Plan, partition: str | None
) -> tuple[LineageEdge, ...]:
    labels = plan.resolved.scope.partitions if partition is None else (partition,)
    return upstream_edges(origins, InputReader(context), labels)


def _with_evidence(context: Context, story: PartitionStory, plan: Plan) -> PartitionStory:
    """Add rows, checks and side effects, as the run's evidence has them."""
    run_id, notes = plan.run_id, story.notes
    events = context.runs.events(run_id)
    try:
        found = decisions.logged_validation_document(context, events, run_id)
    except Tampered as error:
        found, notes = None, (*notes, error.problem)
    effects = effect_log.effect_records(context, run_id)
    texts = effect_log.describe_attempts(effects.get("attempts", ()))
    texts += [f"{one['outcome']}: message to {one['sink']}" for one in effects.get("messages", ())]
    story = replace(story, side_effects=tuple(texts), notes=notes)
    if found is None:
        return story
    checks = [CheckResult.model_validate(check) for check in found[1]["checks"]]
    waived = {waiver.gate for waiver in decisions.waivers_in_force(events)}
    verdicts = [
        gate_registry.find_verdict(check, is_waived=check.name in waived) for check in checks
    ]
    not_passed = tuple(
        f"{gate_registry.gate_question(check.name, check.group)} {verdict}: {check.detail}"
        for check, verdict in zip(checks, verdicts, strict=True)
        if not check.passed
    )
    diff = found[1]["diff"]
    counted = [one for one in diff["partitions"] if one["partition"] == story.partition]
    rows = counted[0] if counted else diff["summary"]
    return replace(
        story,
        checks=gate_registry.count_verdicts(verdicts, "the result"),
        not_passed=not_passed,
        rows={name: rows[name] for name in _ROW_COUNTS},
    )


def _written_since(
    context: Context,
    contract: Contract,
    origins: PartitionOrigins,
    acts: tuple[Publication, ...],
    partition: str | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return commits of others on the partition since its newest act, and what is not known.

    Only of a table that live jobs write to; without an act, all commits that wrote it.
    """
    if partition is None or contract.publication == "pinned":
        return (), ()
    by = _partition_field(context, contract, origins)
    if by is None:
        return (), ()
    try:
        scope = Scope(field=by, partitions=(partition,))
        since = acts[0].snapshot_id if acts and acts[0].table == contract.table else None
        drifts = context.publisher.drifts(contract.table, scope, since)
    except (NotFound, TargetChanged, Unsupported) as error:
        return (), (f"commits of others are not known: {error.problem}",)
    return tuple(map(str, drifts)), ()


def _partition_field(
    context: Context, contract: Contract, origins: PartitionOrigins
) -> ScopeField | None:
    """Return what the product's partitions are by; None where its table does not tell."""
    newest = origins.newest_plan()
    if newest is not None:
        return newest.resolved.scope.field.whole
    info = context.tables.describe(contract.table)
    if info is None:
        return None
    with suppress(NotFound, Unsupported):
        return context.tables.scope_field(info, first_scope_column(contract))
    return None


def _require_label(field: ScopeField | None, text: str) -> None:
    """Raise ConfigError unless a text is written as the labels of the product's partitions are."""
    if field is None or field.type == "string" or text == partitions.NULL_LABEL:
        return
    label = partitions.whole_partition_label(field, text)
    if label != text:
        raise ConfigError(
            f"{text} is not written as partitions of {field.transform}({field.column}) are",
            fix=f"--partition {label}",
        )


def require_no_input(context: Context, contracts: Sequence[Contract], table: str) -> None:
    """Raise NotFound, with the fix, for an input of published runs: lineage tells who read it."""
    for one in contracts:
        origins = PartitionOrigins(context, one.product)
        runs = {run for made_by in origins.made_by.values() for run in made_by}
        pins = (pin for run in runs for pin in origins.plan(run).resolved.sources)
        if any(table in (pin.table, pin.product_table) for pin in pins):
            raise NotFound(
                f"{table} is an input of {one.product}, and no product: no run made its rows",
                fix=command_line("lineage", table),
            )


def no_story_error(context: Context, product: str, partition: str | None) -> NotFound:
    """Return the error for what no published or open run has, and that holds no rows."""
    is_published = pointer.newest_published_run(context.versions.history(product)) is not None
    if not is_published or partition is None:
        return NotFound(
            f"no run of {product} is published: what its rows were computed from is not recorded",
            fix=command_line("list", "--product", product),
        )
    return NotFound(
        f"{product} has no rows in partition {partition}, and no published or open run has it",
        fix=f"{command_line('lineage', product)}  # lists the partitions that runs made",
    )
