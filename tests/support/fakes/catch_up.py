"""Carrying and Erasing over the in-memory lake: a file is a row, its key what stands before `@`."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.catch_up import (
    CarryRequest,
    DeletedRows,
    ExcludedRows,
    TableState,
    TombstonedRows,
)
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import ChunkCommit
from tests.support.fakes.lake import FakeLake


def key_of(file: str) -> str:
    """`k1@new` and `k1@old` are two states of the row `k1`."""
    return file.partition("@")[0]


@dataclass
class FakeCarrying:
    """Moves partitions between shadows; `carried` lists what was."""

    lake: FakeLake
    carried: list[str] = field(default_factory=list)

    def carry(self, request: CarryRequest) -> ChunkCommit:
        shadow = self.lake.tables[request.shadow]
        held = int(shadow.properties.get("epoch", "0"))
        event_log.require_current_epoch(request.shadow, request.epoch, held)
        for commit in self.lake.chunks(request.shadow):
            if commit.chunk_id == request.chunk_id:
                return commit
        source = self.lake.tables[request.source].content(request.source_snapshot_id)
        content = dict(shadow.content(shadow.head))
        for label in request.scope.partitions:
            content[label] = source.get(label, frozenset())
        shadow.commit(content, chunk=request.chunk_id)
        self.carried.append(request.chunk_id)
        return self.lake.chunks(request.shadow)[-1]


@dataclass
class FakeErasing:
    """Looks for keys that are gone, and for keys that tombstone tables hold."""

    lake: FakeLake

    def gone(
        self, old: TableState, new: TableState, scope: Scope, key: tuple[str, ...]
    ) -> DeletedRows:
        before, after = self._files(old, scope.partitions), self._files(new, scope.partitions)
        lost = sorted({key_of(file) for file in before} - {key_of(file) for file in after})
        return DeletedRows(
            rows=len(lost), partitions=scope.partitions if lost else (),
            samples=tuple({"id": name} for name in lost[:3]), is_only_deletion=after <= before,
        )  # fmt: skip

    def named(
        self, state: TableState, partitions: tuple[str, ...], left_out: ExcludedRows
    ) -> TombstonedRows:
        names = self.names(left_out)
        hits = {
            label: [file for file in self._files(state, (label,)) if key_of(file) in names]
            for label in partitions
        }
        return TombstonedRows(
            rows=10 * sum(map(len, hits.values())),
            partitions=tuple(label for label, files in hits.items() if files),
        )

    def names(self, left_out: ExcludedRows) -> set[str]:
        found: set[str] = set()
        for pin in left_out.tombstones:
            content = self.lake.tables[pin.table].content(pin.snapshot_id)
            found |= {key_of(file) for files in content.values() for file in files}
        for one in left_out.erasures:
            sides = [
                {key_of(file) for file in self._files(state, one.partitions)}
                for state in (
                    TableState(table=one.table, snapshot_id=one.before_snapshot_id),
                    TableState(table=one.table, snapshot_id=one.after_snapshot_id),
                )
            ]
            found |= sides[0] - sides[1]
        return found

    def _files(self, state: TableState, partitions: tuple[str, ...]) -> frozenset[str]:
        content = self.lake.tables[state.table].content(state.snapshot_id)
        return frozenset().union(*(content.get(label, frozenset()) for label in partitions))
