"""The loop that lands a swap on a busy table: load, check, write, commit, again."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill.adapters.iceberg.catalog import load, translated
from lakehouse_backfill.adapters.iceberg.commit.conflicts import Window, refuse_changes
from lakehouse_backfill.adapters.iceberg.commit.existence import FilesExist
from lakehouse_backfill.adapters.iceberg.commit.freezing import refuse_foreign, respecified
from lakehouse_backfill.adapters.iceberg.commit.intents import Intent, Part
from lakehouse_backfill.adapters.iceberg.commit.landing import Lander, Marks, lander
from lakehouse_backfill.adapters.iceberg.commit.producer import Change
from lakehouse_backfill.adapters.iceberg.content import Content, Live, Swapped, swapped_in
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import column_ids, landed, snapshot_in, summary_of
from lakehouse_backfill.adapters.iceberg.names import ATTEMPTS, PUBLICATION
from lakehouse_backfill.adapters.iceberg.patience import attempts, lost_race
from lakehouse_backfill.domain.partitions import ranges
from lakehouse_backfill.domain.publication import Swap
from lakehouse_backfill.errors import (
    BackfillError,
    Conflict,
    OutcomeUnknown,
    TargetChanged,
    TooBusy,
    Unsupported,
)
from lakehouse_backfill.ports.table_commits import SwapCommits


@dataclass
class _State:
    """What is kept over attempts."""

    intent: Intent
    cache: ManifestCache
    lander: Lander
    files: FilesExist


class Swapper:
    """Lands swaps on the tables of one catalog."""

    def __init__(
        self, catalog: Catalog, budget_s: float, commits: SwapCommits | None = None
    ) -> None:
        """`commits` writes them where PyIceberg cannot."""
        self._catalog = catalog
        self._budget_s = budget_s
        self._commits = commits

    def run(self, intent: Intent, cache: ManifestCache) -> Snapshot:
        """Commit the intent once, whatever else is committed meanwhile; give what it made.

        Raises TargetChanged, TooBusy, OutcomeUnknown, Unsupported; files are never deleted, as a
        commit that was reported as failed may still have landed.
        """
        way = lander(self._catalog, cache, self._commits)
        state = _State(intent, cache, way, FilesExist(intent.verb))
        for number in attempts(self._budget_s):
            done = self._attempt(state, number)
            if done is not None:
                return done
        raise TooBusy(
            f"other writers kept winning on {intent.target} for {self._budget_s:.0f} s",
            state=intent.verb.state,
            fix="try again, pause the live writer, or use a quiet window",
        )

    def _attempt(self, state: _State, number: int) -> Snapshot | None:
        """Try once; None when another writer was faster."""
        intent = state.intent
        table = load(self._catalog, intent.target)
        done = landed(table.metadata, intent.token)
        if done is not None:
            return done
        with translated():
            _refuse_moved(intent, table)
            change = _change(state, table)
            marks = _marks(intent, _tags(intent, table, change.head), number)
            try:
                land = state.lander.prepare(table, change, marks)
            except TooBusy:
                return None
        try:
            return land()
        except Exception as error:  # noqa: BLE001 (whatever it was, the commit may have landed)
            if lost_race(error):
                return None
            return self._look(intent, error)

    def _look(self, intent: Intent, cause: Exception) -> Snapshot:
        """Look whether a commit of unknown outcome landed; everything is kept if it cannot tell."""
        try:
            done = landed(load(self._catalog, intent.target).metadata, intent.token)
        except BackfillError:
            done = None
        if done is not None:
            return done
        raise OutcomeUnknown(
            f"the commit on {intent.target} may or may not have landed: "
            f"{type(cause).__name__}: {cause}",
            state=f"{intent.target} is either as before or fully swapped, never in between; "
            "no file was deleted",
            fix="repeat the same command: it looks at the table first",
        ) from cause


def swap_of(target: str, snapshot: Snapshot, seconds: float) -> Swap:
    """Read from its snapshot what a swap did."""
    summary = summary_of(snapshot)

    def count(name: str) -> int:
        return int(summary.get(name, "0"))

    return Swap(
        table=target,
        snapshot_id=snapshot.snapshot_id,
        before_snapshot_id=snapshot.parent_snapshot_id,
        files_added=count("added-data-files"),
        files_removed=count("deleted-data-files"),
        rows_added=count("added-records"),
        rows_removed=count("deleted-records"),
        attempts=count(ATTEMPTS),
        seconds=seconds,
    )


def _refuse_moved(intent: Intent, table: Table) -> None:
    """Refuse a table that is another one by now, or whose columns moved."""
    problem = ""
    if str(table.metadata.table_uuid) != intent.uuid:
        problem = "it was dropped and made again"
    elif intent.columns is not None and (found := column_ids(table.schema())) != intent.columns:
        # Files are read by column id: a column added meanwhile would show another one's values.
        names = sorted(
            {column[0] for _, column in found.items() ^ intent.columns.items()},
        )
        problem = f"its columns changed: {', '.join(names)}"
    if not problem and intent.evolved is not None:
        problem = intent.evolved.taken(table.metadata)
    problem = problem or respecified(table, intent.spec_id)
    if problem:
        raise TargetChanged(
            f"{intent.target} cannot be {intent.verb.name}: {problem}",
            state=intent.verb.state,
            fix=intent.verb.fix,
        )


def _change(state: _State, table: Table) -> Change:
    """Decide which files go and come, against the head as it is now."""
    head = _head(table)
    manifests: list[ManifestFile] = [] if head is None else head.manifests(table.io)
    removed: dict[str, ManifestEntry] = {}
    added: dict[str, ManifestEntry] = {}
    for part in state.intent.parts:
        reader = ScopedReader(table, part.scope, state.cache)
        now = reader.in_scope_of(manifests)
        _refuse_conflict(state, table, part, reader, now)
        swapped = swapped_in(now, part.wanted)
        _refuse_ambiguous(state.intent, swapped)
        removed.update(swapped.removed)
        added.update(swapped.added)
    _refuse_held(state.intent, removed)
    state.files.check(table.io, added)
    after = state.intent.evolved.after if state.intent.evolved else None
    return Change(head, tuple(manifests), removed, added, state.intent.operation, after)


def _refuse_conflict(
    state: _State, table: Table, part: Part, reader: ScopedReader, now: Content
) -> None:
    head = _head(table)
    window = Window(state.intent.target, table.metadata, part.since_id, head)
    if state.intent.is_frozen:
        refuse_foreign(window, state.intent.verb)
    if part.since_id is None:
        then = Content()
    elif head is not None and head.snapshot_id == part.since_id:
        return
    else:
        since = snapshot_in(table.metadata, part.since_id, state.intent.target)
        then = reader.in_scope(since)
    refuse_changes(window, reader, then, now, state.intent.verb)


def _refuse_held(intent: Intent, removed: Live) -> None:
    """An append takes nothing away: a streaming reader would not hear of it."""
    if intent.operation == Operation.APPEND and removed:
        raise TargetChanged(
            f"{intent.target} cannot be {intent.verb.name}: its partitions hold {len(removed)} "
            f"files, e.g. {min(removed)}, but the run only appends",
            state=intent.verb.state,
            fix=intent.verb.fix,
        )


def _refuse_ambiguous(intent: Intent, swapped: Swapped) -> None:
    """Never commit a file that comes back beside delete files that may name it."""
    if swapped.ambiguous:
        path, deletes = next(iter(swapped.ambiguous.items()))
        raise Unsupported(
            f"{intent.target} cannot be {intent.verb.name} by adding files again: live delete file "
            f"{min(deletes)} may hide rows of {path}",
            state=intent.verb.state,
            fix="repeat the command: partitions with delete files are rewritten",
        )


def _head(table: Table) -> Snapshot | None:
    return table.metadata.snapshot_by_name(MAIN_BRANCH)


def _tags(intent: Intent, table: Table, head: Snapshot | None) -> dict[str, int]:
    """Give the tag of the state before; raises Conflict when a name is taken."""
    refs = table.metadata.refs
    before = intent.tags.get("before")
    wanted = {before: head.snapshot_id} if before and head else {}
    for name in intent.tags.values():
        ref = refs.get(name)
        if ref is None:
            continue
        if ref.snapshot_ref_type != SnapshotRefType.TAG or wanted.get(name) != ref.snapshot_id:
            raise Conflict(
                f"{intent.target}: {name} already names snapshot {ref.snapshot_id}",
                state=intent.verb.state,
                fix="use a new publication token",
            )
    return wanted


def _marks(intent: Intent, before: dict[str, int], attempt: int) -> Marks:
    return Marks(
        target=intent.target,
        token=intent.token,
        before=before,
        after=intent.tags.get("after"),
        summary={**intent.properties, PUBLICATION: intent.token, ATTEMPTS: str(attempt)},
        attempt=attempt,
        sources=intent.sources,
        ranges=tuple(one for part in intent.parts for one in ranges(part.scope)),
        contents=tuple(part.rows for part in intent.parts),
    )
