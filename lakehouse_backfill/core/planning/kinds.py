"""The kinds of run, kept apart: what each is for, and what it must not do."""

from __future__ import annotations

from lakehouse_backfill.core.planning import modes
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunKind, RunManifest
from lakehouse_backfill.domain.unbuilt import NOTHING_PLANNED
from lakehouse_backfill.errors import ConfigError, Unsupported

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
    """Raise Unsupported when the product cannot be published in the way that is asked for."""
    mode = manifest.target.publish_mode
    fits = modes.fitting_modes(contract.publication)
    if mode not in (*fits, "shadow_only"):
        raise Unsupported(
            f"publish mode {mode} does not fit a product that is {contract.publication}",
            state=NOTHING_PLANNED,
            fix=f"write target.publish_mode: {', '.join(fits)}, or shadow_only for a run that is "
            "never published",
            field="target.publish_mode",
        )


def check_run_kind(manifest: RunManifest, rows_there: int | None) -> tuple[str, ...]:
    """Say what the kind means for this run; `rows_there` are the scope's rows now (None: no table).

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
    if mode in ("live", "reconciliation") and mode != kind:
        raise ConfigError(
            f"run.mode {mode} does not fit a {kind}",
            fix="write run.mode: backfill, replay or dry_run",
            field="run.mode",
        )
    notes = [f"{kind}: {KIND_MEANINGS[kind]}"]
    if kind == "backfill" and rows_there:
        notes.append(
            f"the partitions hold {rows_there} rows already: this backfill replaces them, as a "
            "restatement would"
        )
    return tuple(notes)
