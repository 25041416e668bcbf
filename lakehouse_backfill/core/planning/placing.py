"""Which partition tuples a run's labels stand for, as its target is when it is planned."""

from __future__ import annotations

from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.partitions import describe_labels
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.table import SpecPartitions
from lakehouse_backfill.errors import Unsupported


def resolve_spec_partitions(
    bench: Context, resolved: ResolvedManifest
) -> tuple[SpecPartitions, ...]:
    """Resolve the scope to (spec, partition tuple) sets.

    Raises Unsupported when a file also holds rows beside the scope, or of two chunks: a part of a
    file cannot be replaced.
    """
    target = resolved.target
    if target.snapshot_id is None:
        return ()
    found = bench.tables.places(target.table, target.snapshot_id, resolved.scope)
    for place in found:
        for spanned in place.spans:
            _require_uncut_files(resolved, place, frozenset(spanned))
    return found


def partition_spec_notes(found: tuple[SpecPartitions, ...]) -> tuple[str, ...]:
    """Say what is replaced where more than one spec holds files of the scope."""
    if len(found) < 2:
        return ()
    texts = [f"{len(each.partitions)} of spec {each.spec_id} ({each.spec})" for each in found]
    return (f"files of several partition specs are replaced: {', '.join(texts)}",)


def _require_uncut_files(
    resolved: ResolvedManifest, place: SpecPartitions, spanned: frozenset[str]
) -> None:
    for chunk in resolved.chunks:
        mine = spanned & frozenset(chunk.partitions)
        if mine and mine != spanned:
            raise Unsupported(
                f"{resolved.target.table} has files of spec {place.spec_id} ({place.spec}) that "
                f"hold rows of several chunks: {describe_labels(tuple(sorted(spanned)))}",
                state="nothing was registered",
                fix=f"set limits.partitions_per_chunk so that one chunk holds them all (at least "
                f"{len(spanned)}), or rewrite the files: CALL system.rewrite_data_files",
                field="limits.partitions_per_chunk",
            )
