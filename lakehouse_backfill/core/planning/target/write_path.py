"""The write path of a table: PyIceberg, Iceberg's Java API, or a rewrite by Spark.

Also: where staged files lie (they stay there for ever, as publication does not copy them), the
metadata of a clone, and what a publish mode requires of a plan.
"""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.planning.target import (
    column_scope,
    publish_modes,
    row_changes,
    schema_changes,
)
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import version_labels
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import (
    ChosenWritePath,
    JvmState,
    Plan,
    ResolvedManifest,
    TableFacts,
)
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow
from lakehouse_backfill.domain.tables.commits import CloneCommit
from lakehouse_backfill.domain.tables.table import Column, TableInfo
from lakehouse_backfill.errors import Unsupported

#: A clone's log of earlier metadata files would be the target's, which its commits would delete.
_NOT_CLONED = ("metadata-log", "snapshot-log", "statistics", "partition-statistics")


def clone_metadata(metadata: dict[str, Any], order: CloneCommit) -> dict[str, Any]:
    """Return the metadata of a table that shares one snapshot's files and nothing else."""
    snapshots = [s for s in metadata.get("snapshots", ()) if s["snapshot-id"] == order.snapshot_id]
    main = {"main": {"snapshot-id": order.snapshot_id, "type": "branch"}}
    return {
        **{key: value for key, value in metadata.items() if key not in _NOT_CLONED},
        "table-uuid": order.uuid,
        "location": order.location,
        "properties": order.properties,
        "snapshots": snapshots,
        "current-snapshot-id": order.snapshot_id if snapshots else -1,
        "refs": main if snapshots else {},
        "snapshot-log": [],
        "metadata-log": [],
    }


DATA_PATH_PROPERTY = "write.data.path"
#: Stores in which who may read is often cut by the beginning of a path.
_OBJECT_STORES = ("s3", "s3a", "gs", "abfs", "abfss", "wasb", "wasbs", "oss")


def staging_folder(target: TableInfo, run_id: str) -> str:
    """Return the folder of the run's files among the target's own."""
    own = target.properties.get(DATA_PATH_PROPERTY) or f"{target.location.rstrip('/')}/data"
    return f"{own.rstrip('/')}/{run_id}"


def staging_location_notes(choice: str, target: TableInfo | None) -> tuple[str, ...]:
    """Describe what the choice costs, where it costs something."""
    if target is None:
        return ()
    place = target.properties.get(DATA_PATH_PROPERTY) or target.location
    if choice == "under_target":
        return (
            f"staged files lie under {place}: remove_orphan_files on {target.table} deletes those "
            "older than its limit (3 days by default) until the run is published",
        )
    if place.partition("://")[0] in _OBJECT_STORES:
        return (
            f"staged files lie outside {place}: readers whose credentials end there cannot read "
            "them once published; compute.staging_location: under_target puts them inside",
        )
    return ()


#: PyIceberg writes formats 1 and 2, and only reads the next.
MAX_WRITTEN_FORMAT = 2
#: About 150 µs an entry in Python: so many take as long as a JVM takes to start.
HEAVY_ENTRIES = 60_000
#: With a JVM that runs anyway, from here on it is faster.
HEAVY_ENTRIES_JVM_RUNNING = 10_000

_BUILT = (
    "the catalog offers no register_table, so that its shadow is a table that is created and given "
    "the target's state by one commit"
)
_HIDDEN = "equality delete files may hide rows of the partitions"
_ROW_IDS = "row ids of the partitions change, as files that come in get new ones"


def choose_write_path(facts: TableFacts | None, engine: JvmState) -> ChosenWritePath:
    """Choose the way for a table; None: a table that does not exist yet.

    Without a JVM wherever that is safe and not slower.
    """
    if facts is None:
        return ChosenWritePath(
            way="pyiceberg", why="the table is made in format 2, which needs no JVM"
        )
    chosen = _required_write_path(facts, engine) or _faster_write_path(facts, engine)
    if facts.registers:
        return chosen
    return chosen.model_copy(update={"why": f"{chosen.why}; {_BUILT}"})


def way_to_shadow(chosen: ChosenWritePath, shadow: str) -> ChosenWritePath:
    """Return the way of a run: how a clone is made is not said of a branch."""
    if not parse_branch_shadow(shadow):
        return chosen
    return chosen.model_copy(update={"why": chosen.why.removesuffix(f"; {_BUILT}")})


def carry_warnings(
    resolved: ResolvedManifest, chosen: ChosenWritePath, shadow: str
) -> tuple[str, ...]:
    """Return that a run on a branch cannot catch up where equality deletes may hide rows."""
    may_carry = (
        resolved.manifest.safety.on_conflict == "catch_up"
        or resolved.contract.deletions == "reapply"
    )
    if not may_carry or not parse_branch_shadow(shadow) or _HIDDEN not in chosen.why:
        return ()
    return (
        f"{_HIDDEN}, and a branch takes over no chunks of such a table: if its partitions change "
        "before it is published, `publish` is refused. A run on a clone can catch up: use a "
        "profile with isolation: clone",
    )


def _required_write_path(facts: TableFacts, engine: JvmState) -> ChosenWritePath | None:
    """Return the way that a table's content asks for; None when PyIceberg may well write it."""
    if facts.format_version > MAX_WRITTEN_FORMAT:
        need = f"table format {facts.format_version} is read by PyIceberg, not written"
        if engine.is_connect:
            return ChosenWritePath(
                way="rewrite",
                why=f"{need}, and Iceberg's Java API is out of reach of Spark Connect: Spark "
                f"itself can write the rows into the target, once more; {_ROW_IDS}",
            )
        return ChosenWritePath(
            way="java", why=f"{need}: Iceberg's Java API commits through Spark; {_ROW_IDS}"
        )
    if not facts.equality_deletes:
        return None
    hidden = f"{facts.equality_deletes} {_HIDDEN}"
    if engine.is_connect:
        return ChosenWritePath(way="rewrite", why=f"{hidden}: Spark itself writes their rows anew")
    return ChosenWritePath(
        way="java", why=f"{hidden}, which Iceberg's Java API accounts for file by file"
    )


def _faster_write_path(facts: TableFacts, engine: JvmState) -> ChosenWritePath:
    limit = HEAVY_ENTRIES_JVM_RUNNING if engine.is_up else HEAVY_ENTRIES
    if facts.entries > limit and not engine.is_connect:
        return ChosenWritePath(
            way="java",
            why=f"{facts.entries} manifest entries have to be rewritten, which Iceberg's Java API "
            "does faster",
        )
    return ChosenWritePath(
        way="pyiceberg",
        why=f"format {facts.format_version}, {facts.entries} manifest entries to rewrite: "
        "PyIceberg needs no JVM",
    )


def require_fitting_write_path(manifest: RunManifest, table: str, chosen: ChosenWritePath) -> None:
    """Refuse what the way's commits cannot do; raises Unsupported.

    A change of columns goes by PyIceberg only. The commit of a swap by rows is
    Spark's own: it names no head that must still be there, and is an overwrite.
    """
    schema_changes.require_no_row_rewrite(manifest, table, chosen.way)
    if chosen.way != "rewrite":
        return
    if manifest.safety.freeze or manifest.target.publish_mode == "append":
        field = "safety.freeze" if manifest.safety.freeze else "target.publish_mode"
        raise Unsupported(
            f"{table} cannot be published with this {field}: {chosen.why}, by a commit that "
            "replaces rows, whatever is committed to other partitions",
            state="nothing was planned",
            fix=f"change {field}, or give the profile a Spark of its own: remove spark.remote",
            field=field,
        )


def fit_to_target(
    manifest: RunManifest, contract: Contract, base: TableInfo | None, scope: Scope
) -> Scope:
    """Return the scope, without the files that a row predicate excludes by their partition alone.

    Raises ConfigError or Unsupported when mode, merge, rows or columns do not fit the target.
    """
    scoped_by = scope.field.column
    columns = (
        tuple(
            Column(field_id=number, name=column.name, type=column.type, required=column.required)
            for number, column in enumerate(contract.columns, start=1)
        )
        if base is None
        else base.columns
    )
    row_changes.require_fitting_predicate(manifest, columns, scoped_by)
    row_changes.require_mergeable(manifest, contract, columns)
    row_changes.require_separate_partitions(manifest, contract, scoped_by)
    column_scope.require_fitting_columns(manifest, contract, base, scoped_by)
    return row_changes.narrow_scope(manifest, contract, base, scope)


def describe_scope(context: Context, resolved: ResolvedManifest) -> str:
    """Describe the partitions; of a whole table, how much one commit swaps."""
    scope, target = resolved.scope, resolved.target
    if scope.field.is_whole_table:
        size = "it is empty"
        if target.snapshot_id is not None:
            found = context.tables.estimate(target.table, target.snapshot_id, ())
            size = f"{found.files:,} files, {found.rows:,} rows, {found.size_bytes:,} bytes"
        return (
            f"the whole table, as declared: {size}, all of it {_staged_as(resolved)} and swapped "
            "by one commit; any live commit to it is a conflict"
        )
    return resolve.scope_note(scope)


def _staged_as(resolved: ResolvedManifest) -> str:
    count = len(resolved.chunks)
    return "staged as one chunk" if count == 1 else f"staged in {count:,} chunks"


def _named_rows_note(context: Context, resolved: ResolvedManifest) -> str:
    """Say what becomes of the other rows of the partitions, why, and how much that is."""
    manifest, target, scope = resolved.manifest, resolved.target, resolved.scope
    note = f"only rows with {row_changes.describe_row_predicate(manifest.target)}; all other rows"
    info = context.tables.describe(target.table)
    if info is None or target.snapshot_id is None:
        return f"{note} of the partitions are carried over and proven equal"
    found = context.tables.scoped(target.table, target.snapshot_id, scope)
    rows = f"{sum(file.rows for file in found.files):,} rows in {len(found.files):,} files"
    if not scope.field.only:
        why = row_changes.why_not_narrowed(manifest, resolved.contract, info, scope)
        return (
            f"{note} of the partitions are carried over and proven equal, so that {rows} are read "
            f"and written anew, as {why}; a live commit to any of them is a conflict"
        )
    decided = [one.field.column for one in scope.field.only]
    others = row_changes.carried_over_by(manifest.target, info, scope)
    carried = f"; in these, rows with other {', '.join(others)} are carried over" if others else ""
    tuples = sum(len(place.partitions) for place in found.places)
    return (
        f"{note} are told apart by partition ({', '.join(decided)}): {tuples:,} tuples of "
        f"partition values with {rows} are in the scope{carried}; files of other tuples are "
        "neither read nor written, and a live commit to them is no conflict"
    )


def publish_mode_notes(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe the publish mode for this run. Raises Conflict when an append is none."""
    manifest, target = resolved.manifest, resolved.target
    mode = manifest.target.publish_mode
    if mode == "append" and target.snapshot_id is not None:
        scoped = context.tables.scoped(target.table, target.snapshot_id, resolved.scope)
        publish_modes.require_empty_partitions(resolved, scoped.files)
    found = [f"{mode}: {publish_modes.MODE_MEANINGS[mode]}"]
    if manifest.target.row_predicate:
        found.append(_named_rows_note(context, resolved))
    if manifest.target.columns:
        found.append(column_scope.column_scope_note(manifest.target, resolved.contract))
    if merge := manifest.target.merge:
        contract, scoped_by = resolved.contract, resolved.scope.field.column
        deletes = f"{merge.deleted} = true removes a key" if merge.deleted else "no row is removed"
        found.append(f"{', '.join(contract.key)}: the highest {merge.version} wins; {deletes}")
        if not row_changes.key_stays_in_partition(contract, scoped_by):
            found.append(
                f"the key does not hold {scoped_by}: all partitions are one chunk, and keys of the "
                "whole table are read, so that a key that moves is found"
            )
    found += _versions_table_notes(context, resolved)
    if mode == "versioned":
        found.append(f"the version's table: {resolved.contract.table}_v and its number")
    return tuple(found)


def _versions_table_notes(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe what the table of versions gets; raises Unsupported where it cannot have it."""
    name, target = resolved.contract.versions_table, resolved.target
    if name is None:
        return ()
    if target.snapshot_id is not None:
        context.version_tables.require_fit(target.table, target.snapshot_id)
    version_labels.require_kept_fit(context, resolved.contract)
    return (
        f"{name} gets the run's rows with their output_version; output_status of the rows that "
        "they replace becomes superseded",
    )


def with_made_target(context: Context, plan: Plan) -> Plan:
    """Return the plan with the UUID of a target that staging has made.

    By it `maintain` knows whose files it deletes, of an intermediate result or of a state.
    """
    target = plan.resolved.target
    if target.uuid is not None or (made := context.tables.describe(target.table)) is None:
        return plan
    target = target.model_copy(update={"uuid": made.uuid})
    resolved = plan.resolved.model_copy(update={"target": target})
    return plan.model_copy(update={"resolved": resolved})
