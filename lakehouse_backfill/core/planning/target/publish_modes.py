"""Run kinds and publish modes: what fits which product; external writers; the adopt request.

`append` adds to empty partitions only (U3). The shadow of a run may be written by another engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunKind, RunManifest, unplannable
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, declared_schema_change
from lakehouse_backfill.domain.tables.commits import AdoptRequest
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import Blocked, ConfigError, Conflict, Unsupported


def require_empty_partitions(resolved: ResolvedManifest, files: Iterable[LiveFile]) -> None:
    """Raise Conflict, naming the partitions, when a run that only appends would find rows there."""
    if resolved.manifest.target.publish_mode != "append":
        return
    found = [file for file in files if file.partition in resolved.scope.partitions]
    if not found:
        return
    held = {file.partition for file in found}
    labels = tuple(label for label in resolved.scope.partitions if label in held)
    raise Conflict(
        "publish mode append adds to empty partitions only, but "
        f"{partitions.describe_labels(labels)} of "
        f"{resolved.target.table} hold {sum(file.rows for file in found)} rows in snapshot "
        f"{resolved.target.snapshot_id}",
        state=NOTHING_PLANNED,
        fix="leave them out with target.partitions.except, or write target.publish_mode: "
        "replace_partitions to replace their rows",
        field="target.partitions",
    )


def is_externally_written(plan: Plan) -> bool:
    """Return whether another engine writes the shadow."""
    return plan.resolved.manifest.transform.writer == "external"


def require_external_writer(plan: Plan) -> None:
    """Raise Blocked for a run whose shadow its job writes."""
    if not is_externally_written(plan):
        raise Blocked(
            f"the job of {plan.run_id} writes its shadow, nobody else",
            fix=f"lakehouse-backfill stage {plan.run_id}; for another engine, write "
            "transform.writer: external and plan again",
        )


def require_job_writer(plan: Plan) -> None:
    """Raise Blocked for a run that has no job which could be run."""
    if is_externally_written(plan):
        raise Blocked(
            f"another engine writes the shadow of {plan.run_id}: there is no job to run",
            fix=f"lakehouse-backfill shadow open {plan.run_id}, write it, then shadow close",
        )


def expected_lineage(plan: Plan) -> dict[str, str | int | None]:
    """Return what the lineage columns of every row of the run hold; empty without lineage.

    Left out is what differs from row to row: the input range, the reference data, and the time at
    which the engine writes.
    """
    if not plan.resolved.contract.lineage_columns:
        return {}
    manifest = plan.resolved.manifest
    sources = [pin.snapshot_id for pin in plan.resolved.sources if pin.role == "source"]
    return {
        "produced_by_run_id": plan.run_id,
        "produced_by_transform": manifest.transform.name,
        "transform_version": manifest.transform.version,
        "input_snapshot_id": sources[0] if sources else None,
        "processing_mode": manifest.run.mode,
        "restatement_reason": manifest.run.reason,
    }


def require_no_edge_check(manifest: RunManifest) -> None:
    """Raise ConfigError when edges are to be computed, but nobody here can compute.

    So that a run without the edge check says so in its manifest, which is approved.
    """
    if manifest.transform.writer == "external" and manifest.validation.edge_partitions:
        raise ConfigError(
            "the edges of a shadow that another engine writes cannot be computed",
            fix="write validation.edge_partitions: 0, and see to it that no row moves between "
            "partitions at the edges of the range",
            field="validation.edge_partitions",
        )


#: publish mode -> the kind of product that it fits; `shadow_only` is never published
PUBLICATION_BY_MODE = {
    "replace_partitions": "follow",
    "append": "follow",
    "merge": "follow",
    "correction_events": "follow",
    "pointer_swap": "pinned",
    "versioned": "pinned",
}


#: publish mode -> what it does, for people who read a plan
MODE_MEANINGS: dict[str, str] = {
    "replace_partitions": "the run's partitions get the new rows in place of their own, in one "
    "commit of metadata; later live commits to other partitions stay",
    "append": "the partitions are empty and get their first rows, in one commit that only adds: "
    "streaming readers go on; a row in them before that is a conflict",
    "merge": "by key: newer versions replace, new keys come, deleted ones go, all other rows stay; "
    "published as a swap of the partitions' files",
    "correction_events": "the table stays as it is; each differing key becomes an event in a table "
    "of corrections, by one append",
    "pointer_swap": "the pointer moves to the whole new table; nothing is committed on any other",
    "versioned": "the whole new table gets a name of its own, then the pointer moves to it; every "
    "version stays readable by name",
    "shadow_only": "never published: the result stays in the shadow table, to look at",
}


def fitting_modes(publication: str) -> tuple[str, ...]:
    """Name the modes that fit a kind of product, the usual one first."""
    return tuple(mode for mode, kind in PUBLICATION_BY_MODE.items() if kind == publication)


def is_merge(plan: Plan) -> bool:
    """Return whether the job gives change rows, not the rows of partitions."""
    return plan.resolved.manifest.target.publish_mode == "merge"


def restates_columns(plan: Plan) -> bool:
    """Return whether the run restates some columns only; rows and other columns are the base's."""
    return bool(plan.resolved.manifest.target.columns)


def carries_base_rows(plan: Plan) -> bool:
    """Return whether rows of the base stay in the run's partitions, or values of their columns."""
    has_predicate = bool(plan.resolved.manifest.target.row_predicate)
    return is_merge(plan) or has_predicate or restates_columns(plan)


def version_table(table: str, version: int) -> str:
    """Name the table of an output version; nobody else's table is ever taken."""
    return names.with_suffix(table, f"_v{version}")


def why_no_edge_check(plan: Plan) -> str:
    """Describe why nothing is computed beyond the edges; empty when it is."""
    reason = "not looked at: change rows do not say what the partitions beyond would hold"
    if plan.resolved.manifest.stateful is not None:
        return "not looked at: no state is kept for the partitions before the first one"
    return reason if is_merge(plan) else ""


def is_pinned_product(plan: Plan) -> bool:
    """Return whether readers of the product resolve its pointer."""
    return plan.resolved.contract.publication == "pinned"


def is_never_published(plan: Plan) -> bool:
    """Return whether the result of the run stays in its shadow."""
    return stays_in_shadow(plan.resolved.manifest)


def stays_in_shadow(manifest: RunManifest) -> bool:
    """Return whether what a run manifest asks for is never published."""
    return manifest.run.mode == "dry_run" or manifest.target.publish_mode == "shadow_only"


def describe_publication(plan: Plan) -> str:
    """Describe what the publish mode does; of a dry run, that it never happens."""
    mode = "shadow_only" if is_never_published(plan) else None
    return MODE_MEANINGS[mode or plan.resolved.manifest.target.publish_mode]


def require_publishable_mode(plan: Plan) -> None:
    """Raise Blocked for a run that is never published, Unsupported when its mode does not fit."""
    contract, mode = plan.resolved.contract, plan.resolved.manifest.target.publish_mode
    if is_never_published(plan):
        is_dry = plan.resolved.manifest.run.mode == "dry_run"
        kind = "dry" if is_dry else mode
        raise Blocked(f"{plan.run_id} can never be published: it is a {kind} run")
    if PUBLICATION_BY_MODE.get(mode) != contract.publication:
        raise Unsupported(
            f"publish mode {mode} does not fit a product that is {contract.publication}",
            fix=f"use one of: {', '.join(fitting_modes(contract.publication))}",
        )


KIND_MEANINGS: dict[RunKind, str] = {
    "backfill": "computes partitions that were never computed",
    "reprocessing": "runs the same transform again, because its input or its run was broken",
    "restatement": "replaces accepted partitions, because their meaning or a number was wrong",
    "repair": "puts damaged partitions right without changing what they mean",
    "migration": "brings a product over from another table or layout",
    "bootstrap": "fills a product for the first time",
    "replay": "feeds recorded events through the live logic again",
    "reconciliation": "computes and compares only; nothing of it is ever published",
}


def check_publish_mode(manifest: RunManifest, contract: Contract) -> None:
    """Raise Unsupported when the publish mode does not fit the product."""
    mode = manifest.target.publish_mode
    fits = fitting_modes(contract.publication)
    if mode not in (*fits, "shadow_only"):
        raise unplannable(
            f"publish mode {mode} does not fit a product that is {contract.publication}",
            fix=f"write target.publish_mode: {', '.join(fits)}, or shadow_only for a run that is "
            "never published",
            field="target.publish_mode",
        )


def check_run_kind(manifest: RunManifest, target: str, rows_there: int | None) -> tuple[str, ...]:
    """Describe the run kind for this run; `rows_there`: the scope's rows now (None: no table).

    Raises ConfigError when kind, mode and publish mode contradict each other or the target.
    """
    kind, mode = manifest.run.kind, manifest.run.mode
    if kind == "reconciliation" and manifest.target.publish_mode != "shadow_only":
        raise ConfigError(
            "a reconciliation is never published",
            fix="write target.publish_mode: shadow_only, or another run.kind",
            field="target.publish_mode",
        )
    if kind == "bootstrap" and rows_there:
        raise ConfigError(
            f"a bootstrap fills an empty product, but the partitions hold {rows_there} rows",
            fix="write run.kind: restatement to replace them",
            field="run.kind",
        )
    if (kind == "replay") != (mode == "replay") and mode != "dry_run":
        raise ConfigError(
            f"run.mode {mode} does not fit a {kind}: a replay has both, run.kind and run.mode",
            fix="write run.mode: replay" if kind == "replay" else "write run.mode: backfill",
            field="run.mode",
        )
    if mode in ("live", "reconciliation") and mode != kind:
        raise ConfigError(
            f"run.mode {mode} does not fit a {kind}",
            fix="write run.mode: backfill or dry_run",
            field="run.mode",
        )
    _require_kind_of_change(manifest, target)
    notes = [f"{kind}: {KIND_MEANINGS[kind]}"]
    if kind == "backfill" and rows_there:
        notes.append(
            f"the partitions hold {rows_there} rows already: this backfill replaces them, as a "
            "restatement would"
        )
    return tuple(notes)


def _require_kind_of_change(manifest: RunManifest, table: str) -> None:
    """Raise ConfigError where what is declared is not what the kind of run means."""
    kind = manifest.run.kind
    if kind in ("repair", "reprocessing") and manifest.target.schema_change:
        raise ConfigError(
            f"a {kind} changes no columns: {KIND_MEANINGS[kind]}",
            fix="write run.kind: restatement, or remove target.schema_change",
            field="run.kind",
        )
    if kind == "migration" and {source.table for source in manifest.sources.values()} == {table}:
        raise ConfigError(
            "a migration reads another table or layout, but the only source is the product itself",
            fix="name the table to migrate from in `sources`, or write run.kind: restatement",
            field="run.kind",
        )


def adopt_request(
    plan: Plan,
    shadow_snapshot_id: int | None,
    token: str,
    tags: dict[Literal["before", "after"], str],
    properties: dict[str, str],
) -> AdoptRequest:
    """Ask for the run's partitions of the shadow, in place of the target's."""
    # Another engine knows nothing of chunks: what it wrote was measured when the shadow was closed.
    chunks = () if is_externally_written(plan) else plan.resolved.chunks
    mode = plan.resolved.manifest.target.publish_mode
    return AdoptRequest(
        target=plan.resolved.target.table,
        base_snapshot_id=plan.resolved.target.snapshot_id,
        shadow=plan.shadow_table,
        shadow_snapshot_id=shadow_snapshot_id,
        chunk_ids=tuple(chunk.chunk_id for chunk in chunks),
        scope=plan.resolved.scope,
        token=token,
        tags=tags,
        properties=properties,
        is_frozen=plan.resolved.manifest.safety.freeze,
        operation="append" if mode == "append" else "overwrite",
        schema_change=declared_schema_change(plan),
        base_schema_id=plan.resolved.target.schema_id,
    )
