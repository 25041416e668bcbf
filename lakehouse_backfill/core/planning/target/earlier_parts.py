"""What other runs changed in part of a run's partitions, which whole rows would take back (P9)."""

from __future__ import annotations

from lakehouse_backfill.core.planning.target.column_scope import describe_columns
from lakehouse_backfill.core.planning.target.row_changes import is_partial_target
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.manifest import RunManifest, unplannable
from lakehouse_backfill.domain.partitions import ScopeField, describe_labels
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.errors import NotFound, Tampered


def require_one_kind_of_scope(context: Context, product: str, field: ScopeField) -> None:
    """Raise Unsupported when a whole table is restated after partitions, or the reverse.

    Labels would not tell any more which run made the rows of a partition.
    """
    for row in pointer.accepted_rows(context.versions.history(product)):
        if row.scope is None or row.scope.field.is_whole_table == field.is_whole_table:
            continue
        whole = row.scope.field.is_whole_table
        raise unplannable(
            f"version {row.version} of {product} restated {row.scope.field}, and this run restates "
            f"{field}: who made which rows could not be told any more",
            fix="write target.partitions: {whole_table: true}"
            if whole
            else f"name partitions of {row.scope.field.column} in target.partitions",
            field="target.partitions",
        )


def earlier_part_warnings(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Name the runs whose restated columns or rows a run of whole rows would write over.

    Readers see them in the run's partitions. A run of the same transform and version is none.
    """
    if is_partial_target(resolved.manifest.target):
        return ()
    wanted = set(resolved.scope.partitions)
    history = context.versions.history(resolved.contract.product)
    near = {row.run_id for row in history if row.scope and wanted & {*row.scope.partitions}}
    plans: dict[str, Plan | None] = {}

    def is_partial(run_id: str) -> bool:
        if run_id not in near:
            return False
        if run_id not in plans:
            plans[run_id] = _known_plan(context, run_id)
        plan = plans[run_id]
        return plan is not None and is_partial_target(plan.resolved.manifest.target)

    labels: dict[str, list[str]] = {}
    for label, run_ids in pointer.runs_by_partition(history, is_partial).items():
        for run_id in run_ids if label in wanted else ():
            labels.setdefault(run_id, []).append(label)
    return tuple(
        f"{run_id} changed {_part(plan.resolved.manifest)} of {describe_labels(tuple(some))} by "
        f"other code ({_code(plan.resolved.manifest)}): this run writes whole rows over that"
        for run_id, some in labels.items()
        if is_partial(run_id)
        and (plan := plans[run_id]) is not None
        and _code(plan.resolved.manifest) != _code(resolved.manifest)
    )


def _known_plan(context: Context, run_id: str) -> Plan | None:
    try:
        return context.runs.plan(run_id)
    except (NotFound, Tampered):  # `audit verify` names what is wrong; a plan needs none of it
        return None


def _part(manifest: RunManifest) -> str:
    columns = describe_columns(manifest.target)
    return f"only columns {columns}" if columns else "only some rows"


def _code(manifest: RunManifest) -> str:
    return f"{manifest.transform.name} {manifest.transform.version}"
