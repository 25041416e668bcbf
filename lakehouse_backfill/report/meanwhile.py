"""What live data did while the run was open, and what was left out because somebody deleted it."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import CatchUp, Erasure, TombstonePin
from lakehouse_backfill.domain.scope import Chunk
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import Markup, format_moment, html_tag, join
from lakehouse_backfill.report.parts import TableColumn, code_text, page_table


def live_commits_section(dossier: Dossier) -> Markup:
    """Draw what came and what each partition was computed from; nothing where nothing came."""
    resolved, parts = dossier.plan.resolved, list[Markup]()
    if resolved.catch_up is not None:
        parts += [
            _catch_up_summary(resolved.catch_up),
            _live_commit_table(resolved.catch_up),
            _chunk_origin_table(dossier),
        ]
    if resolved.tombstones or (resolved.catch_up and resolved.catch_up.erasures):
        parts.append(_deletion_table(dossier))
    return join(parts)


def _catch_up_summary(catch_up: CatchUp) -> Markup:
    kept = sum(1 for _ in catch_up.carried)
    return html_tag(
        "p",
        "This run caught up with live commits for ", code_text(catch_up.of),
        f" (attempt {catch_up.attempt}): {partitions.describe_labels(catch_up.drifted)} were made again, "
        f"{kept} chunks were taken over as they were accepted.",
    )  # fmt: skip


def _live_commit_table(catch_up: CatchUp) -> Markup:
    heads = (
        TableColumn("Live commit", is_wide=True), TableColumn("Operation", is_word=True),
        TableColumn("Writer", is_wide=True), TableColumn("At"), TableColumn("Partitions", is_wide=True),
    )  # fmt: skip
    rows = [
        (
            code_text(drift.snapshot_id), drift.operation, drift.writer, format_moment(drift.at),
            partitions.describe_labels(drift.partitions),
        )
        for drift in catch_up.drifts
    ]  # fmt: skip
    return page_table(heads, rows)


def _chunk_origin_table(dossier: Dossier) -> Markup:
    heads = (
        TableColumn("Partitions", is_wide=True), TableColumn("Computed by", is_wide=True),
        TableColumn("From input snapshots", is_wide=True),
    )  # fmt: skip
    return page_table(
        heads, [_chunk_origin_row(dossier, chunk) for chunk in dossier.plan.resolved.chunks]
    )


def _chunk_origin_row(dossier: Dossier, chunk: Chunk) -> tuple[Any, ...]:
    resolved = dossier.plan.resolved
    origin = resolved.catch_up and resolved.catch_up.origin(chunk.chunk_id)
    inputs = {pin.name: pin.snapshot_id for pin in resolved.sources}
    inputs = origin.inputs if origin else inputs
    run = origin.run_id if origin else dossier.plan.run_id
    shown = ", ".join(f"{name} {number}" for name, number in inputs.items())
    return partitions.describe_labels(chunk.partitions), code_text(run), code_text(shown)


def _deletion_table(dossier: Dossier) -> Markup:
    resolved = dossier.plan.resolved
    heads = (
        TableColumn("Left out because of", is_wide=True), TableColumn("Table", is_wide=True),
        TableColumn("Snapshots", is_wide=True), TableColumn("Partitions", is_wide=True),
    )  # fmt: skip
    erasures = resolved.catch_up.erasures if resolved.catch_up else ()
    rows = [*map(_tombstone_row, resolved.tombstones), *map(_deletion_row, erasures)]
    count = sum(chunk.left_out_rows or 0 for chunk in dossier.chunks)
    text = html_tag("p", f"{count:,} rows were left out because they had been deleted.")
    return join([text, page_table(heads, rows)])


def _tombstone_row(pin: TombstonePin) -> tuple[Any, ...]:
    named = ", ".join(pin.columns)
    return f"tombstones for {named}", code_text(pin.table), code_text(pin.snapshot_id), "all"


def _deletion_row(erasure: Erasure) -> tuple[Any, ...]:
    span = f"{erasure.before_snapshot_id} to {erasure.after_snapshot_id}"
    where = partitions.describe_labels(erasure.partitions)
    return "rows deleted live", code_text(erasure.table), code_text(span), where
