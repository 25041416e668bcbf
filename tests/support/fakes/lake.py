"""An in-memory lake: tables are lists of snapshots, which map labels to sets of file names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import Any

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.catch_up import CarryRequest, Drift
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.identity.statement import BOUND_PROPERTY
from lakehouse_backfill.domain.labels import key_ranges
from lakehouse_backfill.domain.labels.key_ranges import KeyBounds, KeyRanges
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.retention import ExpirationResult
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.domain.tables.commits import (
    AdoptRequest,
    ChunkCommit,
    CommitResult,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
)
from lakehouse_backfill.domain.tables.files import (
    ColumnSpan,
    LiveFile,
    ScanEstimate,
    ScopedFiles,
    SpecPartitions,
)
from lakehouse_backfill.domain.tables.schema_change import SchemaChange, describe_schema_step
from lakehouse_backfill.domain.tables.table import (
    CatalogMovements,
    Column,
    PartitionField,
    Snapshot,
    TableInfo,
    TableMovement,
    TableRef,
)
from lakehouse_backfill.errors import Conflict, NotFound, TargetChanged, Unsupported, WriteForbidden

DAY = ScopeField(column="day", transform="identity", type="date")
COLUMNS = (
    Column(field_id=1, name="day", type="date"),
    Column(field_id=2, name="id", type="long"),
    Column(field_id=3, name="amount", type="long"),
)
Content = dict[str, frozenset[str]]


@dataclass
class FakeTable:
    """Snapshots oldest first; ids are 1, 2, 3 …; summaries beside them."""

    contents: list[Content] = field(default_factory=list)
    summaries: list[dict[str, str]] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    refs: dict[str, int] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> int | None:
        return len(self.contents) or None

    def named(self) -> dict[str, int]:
        """Return the snapshots with a name: the head of `main`, and the pins."""
        return dict(self.refs) if self.head is None else {"main": self.head, **self.refs}

    def content(self, snapshot_id: int | None) -> Content:
        if snapshot_id is None:
            return {}
        if not 0 < snapshot_id <= len(self.contents):
            raise NotFound(f"there is no snapshot {snapshot_id}")
        return self.contents[snapshot_id - 1]

    def commit(self, content: Content, **summary: str) -> int:
        self.contents.append({label: files for label, files in content.items() if files})
        self.summaries.append(summary)
        self.times.append(datetime.now(timezone.utc))
        return len(self.contents)


@dataclass
class FakeLake:
    """Tables, Pins, Shadows and Publisher of the ports in one."""

    tables: dict[str, FakeTable] = field(default_factory=dict)
    #: partitions that cannot go back by their own files
    must_rewrite: set[str] = field(default_factory=set)
    #: Why no commit changes several tables; empty: one does.
    not_together: str = ""
    calls: list[str] = field(default_factory=list)
    #: chunks that were carried from one shadow to another
    carried: list[str] = field(default_factory=list)
    #: what `doctor` found of the catalog
    found: Capabilities | None = None

    def add(self, name: str, **content: str) -> FakeTable:
        """Make a table with one snapshot: label=file name."""
        table = self.tables[name] = FakeTable()
        if content:
            table.commit({key: frozenset({value}) for key, value in content.items()})
        return table

    def write(self, name: str, label: str, *files: str, **summary: str) -> int:
        """Do what a live writer does: give one partition other files."""
        table = self.tables[name]
        content = {**table.content(table.head), label: frozenset(files)}
        return table.commit(content, writer="live", **summary)

    # Tables
    def describe(self, table: str) -> TableInfo | None:
        found = self.tables.get(table)
        if found is None:
            return None
        return TableInfo(
            table=table, uuid=f"uuid-{table}", location=f"mem:/{table}", format_version=2,
            snapshot_id=found.head, schema_id=0, spec_id=0, columns=COLUMNS,
            partitioning=(PartitionField(name="day", column="day", transform="identity"),),
            spec_count=1, properties=found.properties, refs=found.named(),
        )  # fmt: skip

    def _described(self, table: str) -> TableInfo:
        found = self.describe(table)
        assert found is not None
        return found

    def committed_at(self, table: str) -> datetime | None:
        return None

    def positions(self, table: str) -> dict[str, str]:
        return {}

    def marks(self, table: str) -> frozenset[str]:
        found = self.tables.get(table)
        summaries = found.summaries if found else ()
        return frozenset(one[BOUND_PROPERTY] for one in summaries if BOUND_PROPERTY in one)

    def movements(
        self, since: datetime, first: Collection[str], skip: Collection[str], limit: int
    ) -> CatalogMovements:
        others = [name for name in self.tables if name.rpartition(".")[0] not in skip]
        names = [*first, *(name for name in others if name not in first)]
        return CatalogMovements(
            looked_at=min(limit, len(names)), unreadable=(), is_whole=len(names) <= limit,
            moved=tuple(one for name in names[:limit] for one in self._movements(name, since)),
        )  # fmt: skip

    def _movements(self, name: str, since: datetime) -> list[TableMovement]:
        table = self.tables[name]
        ids = [number for number, at in enumerate(table.times, start=1) if at >= since]
        writers = {number: _writer(table.summaries[number - 1]) for number in ids}
        return [
            TableMovement(
                table=name,
                writer=writer[0],
                application=writer[1],
                made_for=writer[2],
                commits=len(mine),
                operations=("append",),
                last_snapshot_id=mine[-1],
            )
            for writer in dict.fromkeys(writers.values())
            for mine in [[number for number in ids if writers[number] == writer]]
        ]

    def resolve(self, ref: TableRef) -> Snapshot:
        found = self.tables.get(ref.table)
        if found is None or found.head is None:
            raise NotFound(f"{ref} does not exist")
        ids = {str(number): number for number in range(1, len(found.contents) + 1)}
        snapshot_id = (ids | found.named()).get("main" if ref.at is None else ref.at)
        if snapshot_id is None and ref.at is not None and ref.at[:2] == "20":
            moment = datetime.fromisoformat(ref.at)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            earlier = [number for number, at in enumerate(found.times, start=1) if at <= moment]
            snapshot_id = earlier[-1] if earlier else None
        if snapshot_id is None:
            raise NotFound(f"{ref} does not exist")
        return Snapshot(
            snapshot_id=snapshot_id, parent_id=None, sequence_number=snapshot_id,
            committed_at_ms=0, operation="append",
            summary=dict(found.summaries[snapshot_id - 1]), columns=COLUMNS,
        )  # fmt: skip

    def files(
        self, table: str, snapshot_id: int | None, field: ScopeField, counting: Any = ()
    ) -> list[LiveFile]:
        content = self.tables[table].content(snapshot_id)
        return [
            LiveFile(path=path, spec_id=0, partition=label, rows=10, size_bytes=100)
            for label, paths in content.items()
            for path in sorted(paths)
        ]

    def column_spans(
        self,
        table: str,
        snapshot_id: int | None,
        column: str,
        appended_since: int | None = None,
    ) -> tuple[ColumnSpan, ...]:
        content = self.tables[table].content(snapshot_id)
        known = {x for paths in self.tables[table].content(appended_since).values() for x in paths}
        return tuple(
            ColumnSpan(
                path=path, first=date.fromisoformat(label), last=date.fromisoformat(label),
                least_rows=10, most_rows=10, is_exact=True,
            )
            for label, paths in content.items()
            for path in sorted(paths - known)
        )  # fmt: skip

    def key_bounds(self, table: str, snapshot_id: int, wanted: KeyRanges) -> KeyBounds:
        """Each file has ten rows with the day of its partition as the only value."""
        spans = self.column_spans(table, snapshot_id, wanted.column)
        rows = sorted(span.first for span in spans for _ in range(10) if span.first is not None)
        places = key_ranges.quantile_places(len(rows), wanted.count_of(len(rows)))
        firsts = [rows[at] for at in places]
        return KeyBounds(key_ranges.bounds_of_firsts(firsts), len(rows), "column")

    def scoped(self, table: str, snapshot_id: int | None, scope: Scope) -> ScopedFiles:
        held = self.tables[table].content(snapshot_id)
        files = self.files(table, snapshot_id, scope.field)
        found = tuple(f"day={label}" for label in scope.partitions if label in held)
        return ScopedFiles(
            tuple(file for file in files if file.partition in scope.partitions),
            (SpecPartitions(spec_id=0, spec="identity as day", partitions=found),) if found else (),
        )

    def estimate(
        self, table: str, snapshot_id: int | None, ranges: tuple[RowRange, ...]
    ) -> ScanEstimate:
        labels = self.tables[table].content(snapshot_id)
        count = sum(
            len(files)
            for label, files in labels.items()
            if not ranges or any(_holds(one, label) for one in ranges)
        )
        return ScanEstimate(files=count, rows=10 * count, size_bytes=100 * count)

    def scope_field(self, info: TableInfo, column: str) -> ScopeField:
        return DAY

    def create(self, contract: Contract) -> TableInfo:
        self.tables.setdefault(contract.table, FakeTable())
        return self._described(contract.table)

    # Pins
    def pin(self, table: str, snapshot_id: int, name: str) -> None:
        self.calls.append(f"pin {table}")
        found = self.tables[table]
        if not 0 < snapshot_id <= len(found.contents):
            raise NotFound(f"{table} has no snapshot {snapshot_id}")
        if found.refs.setdefault(name, snapshot_id) != snapshot_id:
            raise Conflict(f"{name} already names snapshot {found.refs[name]}")

    def unpin(self, table: str, name: str) -> None:
        self.tables[table].refs.pop(name, None)

    def pinned(self, table: str, name: str) -> int | None:
        return self.tables[table].refs.get(name)

    def tags(self, table: str) -> dict[str, int] | None:
        found = self.tables.get(table)
        if found is None:
            return None
        return {name: held for name, held in found.refs.items() if name.startswith("lhb-")}

    def preview_expiry(
        self, table: str, tags: Mapping[str, int], now: datetime, *, at_once: bool = False
    ) -> ExpirationResult:
        held = self.tags(table) or {}
        return ExpirationResult(tags=tuple(name for name in tags if held.get(name) == tags[name]))

    def expire(
        self, table: str, tags: Mapping[str, int], now: datetime, *, at_once: bool = False
    ) -> ExpirationResult:
        done = self.preview_expiry(table, tags, now, at_once=at_once)
        if done.tags:
            self.calls.append(f"let go {table}")
        for name in done.tags:
            del self.tables[table].refs[name]
        return done

    def unsafe_expiries(self, table: str) -> dict[int, str]:
        return {}

    # Shadows
    def capabilities(self) -> Capabilities | None:
        return self.found

    def list(self, targets: Any = ()) -> tuple[str, ...]:
        mark = "lakehouse-backfill.base-snapshot-id"
        return tuple(name for name, table in self.tables.items() if mark in table.properties)

    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        self.calls.append("open shadow")
        marks = {**properties, "lakehouse-backfill.base-snapshot-id": str(snapshot_id)}
        if shadow not in self.tables:
            clone = self.tables[shadow] = FakeTable(properties=dict(marks))
            if snapshot_id is not None:
                clone.commit(self.tables[target].content(snapshot_id), base="yes")
        held = self.tables[shadow].properties
        if wrong := [name for name in marks if held.get(name) != marks[name]]:
            raise Conflict(f"{shadow} is another's: its {wrong[0]} is {held.get(wrong[0])}")
        return self._described(shadow)

    def fence(self, shadow: str, epoch: int) -> None:
        held = int(self.tables[shadow].properties.get("epoch", "0"))
        event_log.require_current_epoch(shadow, epoch, held)
        self.tables[shadow].properties["epoch"] = str(epoch)

    def evolve(self, shadow: str, base_schema_id: int, change: SchemaChange) -> None:
        self.tables[shadow].properties["columns"] = ", ".join(map(describe_schema_step, change))

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        found = self.tables[shadow].summaries
        return tuple(
            ChunkCommit(chunk_id=item["chunk"], snapshot_id=number, added_rows=10, properties={})
            for number, item in enumerate(found, start=1)
            if "chunk" in item
        )

    def keep(
        self, shadow: str, snapshot_id: int, name: str, properties: dict[str, str]
    ) -> TableInfo:
        self.calls.append(f"keep {name}")
        if name not in self.tables:
            kept = self.tables[name] = FakeTable(properties=dict(properties))
            # Snapshots keep their ids in a clone.
            source = self.tables[shadow]
            kept.contents = source.contents[:snapshot_id]
            kept.summaries = source.summaries[:snapshot_id]
            kept.times = source.times[:snapshot_id]
        elif self.tables[name].properties != properties:
            raise Conflict(f"{name} is already there, for something else")
        return self._described(name)

    def retire(self, shadow: str) -> None:
        self.tables.pop(shadow, None)

    # Publisher
    def adopt(self, request: AdoptRequest) -> CommitResult:
        self.calls.append("adopt")
        known = self.find(request.target, request.token)
        if known is not None:
            return known
        self.preview(request)
        table = self.tables[request.target]
        new = self.tables[request.shadow].content(request.shadow_snapshot_id)
        content = dict(table.content(table.head))
        for label in request.scope.partitions:
            content[label] = new.get(label, frozenset())
        swap = self._swap(request.target, content, request.token, request.tags)
        table.summaries[-1].update(request.properties, operation=request.operation)
        return swap

    def adopt_together(self, requests: tuple[AdoptRequest, ...]) -> tuple[CommitResult, ...]:
        self.require_one_commit(tuple((one.target, one.scope) for one in requests))
        left = [one for one in requests if self.find(one.target, one.token) is None]
        for request in left:
            self.preview(request)
        self.calls.append("adopt together")
        return tuple(self.adopt(request) for request in requests)

    def revert_together(self, requests: tuple[RevertRequest, ...]) -> tuple[CommitResult, ...]:
        self.require_one_commit(tuple((one.target, one.scope) for one in requests))
        for request in requests:
            if self.find(request.target, request.token) is None:
                self.preview(request)
        self.calls.append("revert together")
        return tuple(self.revert(request) for request in requests)

    def require_one_commit(self, targets: tuple[tuple[str, Scope], ...]) -> None:
        if self.not_together:
            raise Unsupported(f"{targets[0][0]} cannot go together: {self.not_together}")

    def carry(self, request: CarryRequest) -> ChunkCommit:
        shadow = self.tables[request.shadow]
        held = int(shadow.properties.get("epoch", "0"))
        event_log.require_current_epoch(request.shadow, request.epoch, held)
        for commit in self.chunks(request.shadow):
            if commit.chunk_id == request.chunk_id:
                return commit
        source = self.tables[request.source].content(request.source_snapshot_id)
        content = dict(shadow.content(shadow.head))
        for label in request.scope.partitions:
            content[label] = source.get(label, frozenset())
        shadow.commit(content, chunk=request.chunk_id)
        self.carried.append(request.chunk_id)
        return self.chunks(request.shadow)[-1]

    def prove(self, request: AdoptRequest) -> None:
        self.calls.append("prove")
        base = self.tables[request.target].content(request.base_snapshot_id)
        new = self.tables[request.shadow].content(request.shadow_snapshot_id)
        changed = {label for label in base.keys() | new.keys() if base.get(label) != new.get(label)}
        if outside := sorted(changed - set(request.scope.partitions)):
            raise WriteForbidden(f"{request.shadow} changed {outside[0]}")

    def preview(self, request: AdoptRequest | RevertRequest) -> None:
        table = self.tables[request.target]
        if isinstance(request, RevertRequest):
            self._reverted(request)
            return
        now, base = table.content(table.head), table.content(request.base_snapshot_id)
        for label in request.scope.partitions:
            if now.get(label) != base.get(label):
                raise TargetChanged(f"{label} was changed by a live writer")
        if request.operation == "append" and any(map(now.get, request.scope.partitions)):
            raise TargetChanged("the run only appends, but its partitions hold rows")

    def revert(self, request: RevertRequest) -> CommitResult:
        self.calls.append("revert")
        known = self.find(request.target, request.token)
        if known is not None:
            return known
        content = self._reverted(request)
        swap = self._swap(request.target, content, request.token, request.tags)
        self.tables[request.target].summaries[-1].update(request.properties)
        return swap

    def _reverted(self, request: RevertRequest) -> dict[str, frozenset[str]]:
        table = self.tables[request.target]
        content = dict(table.content(table.head))
        for restore in request.restores:
            since = table.content(restore.since_snapshot_id)
            for label in restore.partitions:
                if content.get(label) != since.get(label):
                    raise TargetChanged(f"{label} was changed by a live writer")
                content[label] = self._earlier(request, restore, label)
        return content

    def _earlier(
        self, request: RevertRequest, restore: PartitionRestore, label: str
    ) -> frozenset[str]:
        rewritten = request.rewritten
        if rewritten is not None and label in rewritten.partitions:
            shadow = self.tables[rewritten.shadow]
            return shadow.content(rewritten.shadow_snapshot_id).get(label, frozenset())
        if label in self.must_rewrite:
            raise Unsupported(f"{label} has to be rewritten")
        old = self.tables[request.target].content(restore.restore_snapshot_id)
        return old.get(label, frozenset())

    def rewrites(
        self, target: str, field: ScopeField, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        labels = tuple(x for item in restores for x in item.partitions if x in self.must_rewrite)
        return (RequiredRewrite(partitions=labels, because="a test says so"),) if labels else ()

    def changes(self, target: str, scope: Scope, since_snapshot_id: int | None) -> str | None:
        table = self.tables[target]
        then, now = table.content(since_snapshot_id), table.content(table.head)
        changed = [label for label in scope.partitions if then.get(label) != now.get(label)]
        return f"a live writer changed {changed[0]}" if changed else None

    def drifts(
        self,
        target: str,
        scope: Scope | None,
        since_snapshot_id: int | None,
        until_snapshot_id: int | None = None,
    ) -> tuple[Drift, ...]:
        table = self.tables[target]
        until = until_snapshot_id or len(table.contents)
        if scope is None:
            every = Scope(field=DAY, partitions=tuple({x for one in table.contents for x in one}))
            found = self.drifts(target, every, since_snapshot_id, until_snapshot_id)
            return tuple(drift.model_copy(update={"partitions": ()}) for drift in found)
        then, now = table.content(since_snapshot_id), table.content(until_snapshot_id or table.head)
        if all(then.get(label) == now.get(label) for label in scope.partitions):
            return ()
        later = range((since_snapshot_id or 0) + 1, until + 1)
        drifts = (_drift(table, scope, number) for number in later)
        return tuple(drift for drift in drifts if drift is not None)

    def find(self, target: str, token: str, *, finalise: bool = True) -> CommitResult | None:
        del finalise  # nothing is by rows here
        for number, summary in enumerate(self.tables[target].summaries, start=1):
            if summary.get("token") == token:
                return _swap(target, number)
        return None

    def _swap(
        self, target: str, content: Content, token: str, tags: dict[str, str]
    ) -> CommitResult:
        table = self.tables[target]
        if table.head is not None:
            table.refs[tags["before"]] = table.head
        number = table.commit(content, token=token)
        table.refs[tags["after"]] = number
        return _swap(target, number)


def _writer(summary: dict[str, str]) -> tuple[str, str, str]:
    run, application = summary.get("lakehouse-backfill.run-id"), summary.get("spark.app.id", "")
    if run:
        return f"run {run}", application, run
    return (f"spark {application}" if application else "an unnamed writer"), application, ""


def _holds(wanted: RowRange, label: str) -> bool:
    if wanted.is_null or label == "null":
        return wanted.is_null and label == "null"
    if wanted.equals is not None:
        return str(wanted.equals) == label
    above = wanted.lower is None or str(wanted.lower) <= label
    return above and (wanted.upper is None or label < str(wanted.upper))


def _drift(table: FakeTable, scope: Scope, number: int) -> Drift | None:
    nothing: frozenset[str] = frozenset()
    old, new = table.content(number - 1 or None), table.content(number)
    changed = tuple(x for x in scope.partitions if old.get(x) != new.get(x))
    if not changed:
        return None
    return Drift(
        snapshot_id=number,
        operation="overwrite",
        writer=table.summaries[number - 1].get("writer", "an unnamed writer"),
        at=table.times[number - 1],
        partitions=changed,
        only_deletes=all(new.get(x, nothing) < old.get(x, nothing) for x in changed),
    )


def _swap(target: str, number: int) -> CommitResult:
    return CommitResult(
        table=target, snapshot_id=number, before_snapshot_id=number - 1 or None, files_added=1,
        files_removed=1, rows_added=10, rows_removed=10, attempts=1, seconds=0.0,
    )  # fmt: skip


class FixedClock:
    """A clock that stands still."""

    def now(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def sleep(self, seconds: float) -> None:
        """Waiting is over at once."""
