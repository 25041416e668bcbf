"""What live data did while the run was open, and what was left out because somebody deleted it."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import CatchUp, Erasure, TombstonePin
from lakehouse_backfill.domain.scope import Chunk
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import Markup, join, moment, tag
from lakehouse_backfill.report.parts import Column, code, table


def meanwhile(dossier: Dossier) -> Markup:
    """Draw what came and what each partition was computed from; nothing where nothing came."""
    resolved, parts = dossier.plan.resolved, list[Markup]()
    if resolved.catch_up is not None:
        parts += [_why(resolved.catch_up), _commits(resolved.catch_up), _origins(dossier)]
    if resolved.tombstones or (resolved.catch_up and resolved.catch_up.erasures):
        parts.append(_erasures(dossier))
    return join(parts)


def _why(catch_up: CatchUp) -> Markup:
    kept = sum(1 for _ in catch_up.carried)
    return tag(
        "p",
        "This run caught up with live commits for ", code(catch_up.of),
        f" (attempt {catch_up.attempt}): {partitions.describe(catch_up.drifted)} were made again, "
        f"{kept} chunks were taken over as they were accepted.",
    )  # fmt: skip


def _commits(catch_up: CatchUp) -> Markup:
    heads = (
        Column("Live commit", is_wide=True), Column("Operation", is_word=True),
        Column("Writer", is_wide=True), Column("At"), Column("Partitions", is_wide=True),
    )  # fmt: skip
    rows = [
        (
            code(drift.snapshot_id), drift.operation, drift.writer, moment(drift.at),
            partitions.describe(drift.partitions),
        )
        for drift in catch_up.drifts
    ]  # fmt: skip
    return table(heads, rows)


def _origins(dossier: Dossier) -> Markup:
    heads = (
        Column("Partitions", is_wide=True), Column("Computed by", is_wide=True),
        Column("From input snapshots", is_wide=True),
    )  # fmt: skip
    return table(heads, [_origin(dossier, chunk) for chunk in dossier.plan.resolved.chunks])


def _origin(dossier: Dossier, chunk: Chunk) -> tuple[Any, ...]:
    resolved = dossier.plan.resolved
    origin = resolved.catch_up and resolved.catch_up.origin(chunk.chunk_id)
    inputs = {pin.name: pin.snapshot_id for pin in resolved.sources}
    inputs = origin.inputs if origin else inputs
    run = origin.run_id if origin else dossier.plan.run_id
    shown = ", ".join(f"{name} {number}" for name, number in inputs.items())
    return partitions.describe(chunk.partitions), code(run), code(shown)


def _erasures(dossier: Dossier) -> Markup:
    resolved = dossier.plan.resolved
    heads = (
        Column("Left out because of", is_wide=True), Column("Table", is_wide=True),
        Column("Snapshots", is_wide=True), Column("Partitions", is_wide=True),
    )  # fmt: skip
    erasures = resolved.catch_up.erasures if resolved.catch_up else ()
    rows = [*map(_tombstones, resolved.tombstones), *map(_deletion, erasures)]
    count = sum(chunk.left_out_rows or 0 for chunk in dossier.chunks)
    text = tag("p", f"{count:,} rows were left out because they had been deleted.")
    return join([text, table(heads, rows)])


def _tombstones(pin: TombstonePin) -> tuple[Any, ...]:
    named = ", ".join(pin.columns)
    return f"tombstones for {named}", code(pin.table), code(pin.snapshot_id), "all"


def _deletion(erasure: Erasure) -> tuple[Any, ...]:
    span = f"{erasure.before_snapshot_id} to {erasure.after_snapshot_id}"
    where = partitions.describe(erasure.partitions)
    return "rows deleted live", code(erasure.table), code(span), where
