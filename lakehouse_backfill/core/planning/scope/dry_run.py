"""A dry run on a subset of the partitions: computed and checked alike, and never published."""

from __future__ import annotations

from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.manifest import PartitionRange
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.errors import ConfigError


def require_subset(labels: tuple[str, ...] | None, revise: str | None) -> None:
    """Raise ConfigError for a dry run on no partition, or one that would supersede another run."""
    if labels == ():
        raise ConfigError("the subset names no partition", fix="name at least one, or no subset")
    if labels and revise is not None:
        raise ConfigError(
            f"a dry run on a subset takes the place of no run, and so not of {revise}",
            state=f"nothing was registered; {revise} stays as it is",
            fix="name the manifest and the subset, without --revise",
        )


def restrict_to_dry_run(resolved: ResolvedManifest, labels: tuple[str, ...]) -> ResolvedManifest:
    """Return the intent of a dry run on some of its partitions; it can never be published.

    Raises ConfigError for a partition that the run does not have.
    """
    scope, manifest = resolved.scope, resolved.manifest
    if unknown := [label for label in labels if label not in scope.partitions]:
        raise ConfigError(
            f"the run has no partition {unknown[0]}; it has "
            f"{partitions.describe_labels(scope.partitions)}",
            fix="name partitions of the run manifest",
        )
    part = Scope(
        field=scope.field, partitions=tuple(one for one in scope.partitions if one in labels)
    )
    size = max(len(chunk.partitions) for chunk in resolved.chunks)
    values = manifest.target.partitions
    if not values.whole_table:
        values = PartitionRange(column=scope.field.column, values=part.partitions)
    intent = manifest.model_copy(
        update={
            "run": manifest.run.model_copy(update={"mode": "dry_run"}),
            "target": manifest.target.model_copy(update={"partitions": values}),
        }
    )
    is_by_key = resolved.chunks[0].keys is not None
    chunks = resolved.chunks if is_by_key else resolve.cut_chunks(part, size)
    update = {"manifest": intent, "scope": part, "chunks": chunks}
    return resolved.model_copy(update=update)
