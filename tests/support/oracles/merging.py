"""What a keyed merge must give, row by row in plain Python: the model that Spark is held to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakehouse_backfill.domain.run import ChunkCounts

Row = dict[str, Any]


class Clash(Exception):
    """Keys whose rows of one version differ."""

    def __init__(self, keys: set[tuple[Any, ...]]) -> None:
        super().__init__(f"{len(keys)} keys")
        self.keys = keys


@dataclass
class _Found:
    rows: list[Row] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("carried_rows", "inserted_rows", "updated_rows", "deleted_rows", "ignored_rows"), 0
        )
    )
    clashes: set[tuple[Any, ...]] = field(default_factory=set)


def merge(
    base: Iterable[Row],
    changes: Iterable[Row],
    key: Sequence[str],
    version: str,
    deleted: str | None = None,
) -> tuple[list[Row], ChunkCounts]:
    """Merge changes into rows with unique keys; raises Clash, with every key that has one."""
    held = {_of(row, key): row for row in base}
    asked: dict[tuple[Any, ...], list[Row]] = {}
    for change in changes:
        asked.setdefault(_of(change, key), []).append(change)
    found = _Found()
    for name in held.keys() | asked.keys():
        _one(found, name, held.get(name), asked.get(name, []), version, deleted)
    if found.clashes:
        raise Clash(found.clashes)
    return found.rows, ChunkCounts(**found.counts)


def _one(
    found: _Found,
    name: tuple[Any, ...],
    old: Row | None,
    changes: list[Row],
    version: str,
    deleted: str | None,
) -> None:
    top = max((change[version] for change in changes), default=None)
    newest = [change for change in changes if change[version] == top]
    rivals = newest if old is None or old[version] != top else [*newest, old]
    if old is not None and (top is None or (old[version] or top) > top):
        _stay(found, old, changes)
    elif len({_says(row, deleted) for row in rivals}) > 1:
        found.clashes.add(name)
    elif old is not None and old[version] == top:
        _stay(found, old, changes)
    elif newest:
        found.counts["ignored_rows"] += len(changes) - 1
        _take(found, old, newest[0], deleted)


def _stay(found: _Found, old: Row, changes: list[Row]) -> None:
    found.rows.append(old)
    found.counts["carried_rows"] += 1
    found.counts["ignored_rows"] += len(changes)


def _take(found: _Found, old: Row | None, winner: Row, deleted: str | None) -> None:
    if deleted is not None and winner[deleted]:
        found.counts["ignored_rows" if old is None else "deleted_rows"] += 1
        return
    found.counts["inserted_rows" if old is None else "updated_rows"] += 1
    found.rows.append({column: value for column, value in winner.items() if column != deleted})


def _of(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in key)


def _says(row: Row, deleted: str | None) -> Any:
    """What a row says; of a deletion only that it is one."""
    if deleted is not None and row.get(deleted):
        return "gone"
    return tuple(sorted((name, row[name]) for name in row if name != deleted))
