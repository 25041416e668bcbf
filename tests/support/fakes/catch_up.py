"""The RowReader port over the in-memory lake: a file is a row, its key what stands before `@`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lakehouse_backfill.domain.catch_up import (
    DeletedRows,
    ExcludedRows,
    TableState,
    TombstonedRows,
)
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.rollout import QueryAnswer, QueryComparison, ReaderQuery
from tests.support.fakes.lake import FakeLake


def key_of(file: str) -> str:
    """`k1@new` and `k1@old` are two states of the row `k1`."""
    return file.partition("@")[0]


@dataclass
class FakeRowReader:
    """Compares keys of files; a query's answer is the files that it would read."""

    lake: FakeLake
    asked: list[ReaderQuery] = field(default_factory=list)

    def golden(self, file: str) -> list[dict[str, str | None]]:
        return []

    def by_key(self, table: str, snapshot_id: int | None, keys: Any) -> list[dict[str, Any]]:
        return []

    def compare_query(
        self, query: ReaderQuery, old: TableState, new: TableState
    ) -> QueryComparison:
        self.asked.append(query)
        contents = [self.lake.tables[side.table].content(side.snapshot_id) for side in (old, new)]
        answers = [
            QueryAnswer(rows=len(one), digest=str(sorted(map(str, one)))) for one in contents
        ]
        return QueryComparison(
            reader=query.reader, sql=query.sql, tolerance=query.tolerance, old=old, new=new,
            columns=("n",), old_answer=answers[0], new_answer=answers[1],
            equal=contents[0] == contents[1],
        )  # fmt: skip

    def deleted_rows(
        self, old: TableState, new: TableState, scope: Scope, key: tuple[str, ...]
    ) -> DeletedRows:
        before, after = self._files(old, scope.partitions), self._files(new, scope.partitions)
        lost = sorted({key_of(file) for file in before} - {key_of(file) for file in after})
        return DeletedRows(
            rows=len(lost), partitions=scope.partitions if lost else (),
            samples=tuple({"id": name} for name in lost[:3]), is_only_deletion=after <= before,
        )  # fmt: skip

    def tombstoned_rows(
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
