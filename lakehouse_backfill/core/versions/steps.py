"""Decisions about publishing in steps: the partitions of each step, and those that are visible.

Histories are tuples of publications, the newest first.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.grains import contract_grain, group_by_grain
from lakehouse_backfill.domain.manifest import RunManifest, unplannable
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.rollout import Progressive
from lakehouse_backfill.errors import ChecksFailed, ConfigError, attach_error_field

#: Publish modes whose commits can be split by partition.
STEPWISE_MODES = ("replace_partitions", "append")
_FIELD = "target.progressive"


@dataclass(frozen=True)
class PublishStep:
    """One publication of several: its number from 1, the number of steps, its partitions."""

    number: int
    count: int
    scope: Scope

    def __str__(self) -> str:
        return (
            f"step {self.number} of {self.count}, "
            f"{partitions.describe_labels(self.scope.partitions)}"
        )


def is_stepwise(plan: Plan) -> bool:
    """Return whether the run is published in steps."""
    return plan.resolved.manifest.target.progressive is not None


def publish_steps(plan: Plan) -> tuple[PublishStep, ...]:
    """Return the steps of a run in order; a run that is not published in steps has one."""
    declared, scope = plan.resolved.manifest.target.progressive, plan.resolved.scope
    if declared is None:
        return (PublishStep(1, 1, scope),)
    groups = _step_groups(declared, plan.resolved.contract, scope)
    key = partitions.label_sort_key(scope.field)
    return tuple(
        PublishStep(
            number, len(groups), Scope(field=scope.field, partitions=tuple(sorted(g, key=key)))
        )
        for number, g in enumerate(groups, start=1)
    )


def check_progressive(manifest: RunManifest, contract: Contract, scope: Scope) -> tuple[str, ...]:
    """Return the note on the number of steps, for the plan; empty without steps.

    Raises Unsupported where steps are not possible, ConfigError when they do not fit the scope.
    """
    declared, mode = manifest.target.progressive, manifest.target.publish_mode
    if declared is None:
        return ()
    if contract.publication != "follow" or mode not in STEPWISE_MODES:
        reason = (
            "it becomes visible by one pointer move" if mode == "pointer_swap" else "as a whole"
        )
        if contract.publication == "follow":
            reason = f"publish_mode {mode} is not cut by partition"
        raise unplannable(
            f"{_FIELD}: a product that is {contract.publication} is not published in steps with "
            f"{mode}: {reason}",
            fix=f"remove target.progressive, or use {' or '.join(STEPWISE_MODES)} on a product "
            "that is follow",
            field=_FIELD,
        )
    _require_scope_column(declared, scope)
    _require_measures(declared, contract)
    count = len(_step_groups(declared, contract, scope))
    return (
        f"published in {count} steps of at most {declared.partitions_per_step} partitions of "
        f"{scope.field.column}, each a version of its own that is checked before the next",
    )


def _step_groups(declared: Progressive, contract: Contract, scope: Scope) -> list[tuple[str, ...]]:
    """Return the partitions of each step: no grain of the contract is in two of them.

    Raises ConfigError for a grain with more partitions than a step may have.
    """
    size, grain = declared.partitions_per_step, contract_grain(contract, scope.field)
    steps: list[tuple[str, ...]] = []
    for unit in group_by_grain(scope.field, grain, _ordered_partitions(declared, scope)):
        if len(unit) > size:
            raise ConfigError(
                f"{_FIELD}: {partitions.describe_labels(unit)} become visible together, as "
                f"{contract.product} aggregates over them, and a step has at most {size}",
                fix=f"write target.progressive.partitions_per_step: {len(unit)} or more",
                field=f"{_FIELD}.partitions_per_step",
            )
        if steps and len(steps[-1]) + len(unit) <= size:
            steps[-1] += unit
        else:
            steps.append(unit)
    return steps


def _require_scope_column(declared: Progressive, scope: Scope) -> None:
    if declared.by in (None, scope.field.column):
        return
    raise unplannable(
        f"{_FIELD}.by: steps by {declared.by} are not possible: the run is scoped by "
        f"{scope.field.transform}({scope.field.column}), and a step is made of whole partitions",
        fix=f"write target.partitions.column: {declared.by} if the table is partitioned by it, or "
        f"take steps by {scope.field.column}",
        field=f"{_FIELD}.by",
    )


def _require_measures(declared: Progressive, contract: Contract) -> None:
    known = [measure.name for measure in contract.measures]
    for number, threshold in enumerate(declared.thresholds):
        if threshold.measure not in known:
            raise ConfigError(
                f"{_FIELD}.thresholds: {threshold.measure} is no measure of {contract.product}",
                fix=f"use one of: {', '.join(known) or 'none: add measures to the contract'}",
                field=f"{_FIELD}.thresholds[{number}].measure",
            )


def _ordered_partitions(declared: Progressive, scope: Scope) -> list[str]:
    """Put the named partitions first; raises ConfigError for one outside the scope, or twice."""
    if declared.order == "ascending":
        return list(scope.partitions)
    first: list[str] = []
    for number, value in enumerate(declared.order):
        with attach_error_field(f"{_FIELD}.order[{number}]"):
            label = partitions.whole_partition_label(scope.field, value)
        if label not in scope.partitions or label in first:
            problem = "is named twice" if label in first else "is not one of the run's partitions"
            raise ConfigError(
                f"{_FIELD}.order: {label} {problem}",
                fix=f"name each of {partitions.describe_labels(scope.partitions)} at most once",
                field=f"{_FIELD}.order[{number}]",
            )
        first.append(label)
    return first + [label for label in scope.partitions if label not in first]


def visible_partitions(history: tuple[Publication, ...], run_id: str) -> frozenset[str]:
    """Return the run's partitions that it published and that were not rolled back since."""
    return pointer.run_visibility(history, run_id).visible


def preview_steps(plan: Plan) -> list[list[str]]:
    """List the partitions of each step, as results show them."""
    return (
        [list(step.scope.partitions) for step in publish_steps(plan)] if is_stepwise(plan) else []
    )


def newest_step_publication(
    history: tuple[Publication, ...], run_id: str, step: PublishStep
) -> Publication:
    """Return the newest publication by which readers see a part of the step.

    Raises ChecksFailed when there is none.
    """
    labels = set(step.scope.partitions)
    for row in pointer.published_rows(history, run_id):
        if row.scope is not None and labels & set(row.scope.partitions):
            return row
    raise ChecksFailed(
        f"{run_id}: {step} is not visible: it was rolled back meanwhile",
        state="other steps are as the versions say",
        fix=f"lakehouse-backfill status {run_id}",
    )


def version_before_run(history: tuple[Publication, ...], run_id: str) -> int:
    """Return the version that was accepted right before the run's first visible step."""
    version = 0
    for number, row in enumerate(history):
        if row.action == "publish" and row.run_id == run_id:
            version = row.supersedes or 0
            if not visible_partitions(history[number + 1 :], run_id):
                break
    return version


def describe_visible_partitions(history: tuple[Publication, ...], plan: Plan) -> str:
    """Describe which of the run's partitions readers see, and which not."""
    seen, everything = visible_partitions(history, plan.run_id), plan.resolved.scope.partitions
    new = tuple(label for label in everything if label in seen)
    old = tuple(label for label in everything if label not in seen)
    if not new:
        return "readers see the accepted version as before; nothing of this run"
    text = f"readers see {partitions.describe_labels(new)} of this run"
    return (
        f"{text}, and {partitions.describe_labels(old)} as before" if old else f"{text}: all of it"
    )
