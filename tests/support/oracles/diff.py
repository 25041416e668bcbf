"""What a diff must say, worked out row by row from the lists that filled the tables."""

from __future__ import annotations

import base64
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from lakehouse_backfill.domain.comparison.diff import Diff

Row = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """What is compared; partitions: (old, new, added, removed, changed, unchanged)."""

    partitions: dict[str | None, tuple[int, ...]]
    changed: dict[str, int]
    cells: dict[tuple[str | None, str], int]
    samples: Counter[str]
    duplicate_keys: int
    files: tuple[int, int, int] | None = None


@dataclass
class Question:
    """Two lists of rows and how they are compared."""

    old: Sequence[Row]
    new: Sequence[Row]
    columns: tuple[str, ...]
    key: tuple[str, ...]
    label: Callable[[Row], str | None] = lambda _: None
    ignore: tuple[str, ...] = ()
    keeps: Callable[[Row], bool] = lambda _: True
    shapes: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    #: By column: whether two numbers are near enough to be equal.
    near: dict[str, Callable[[Any, Any], bool]] = field(default_factory=dict)
    #: Partitions that are read, so that their duplicate keys are seen; None: all.
    duplicates_in: set[str] | None = None


def answer(question: Question) -> Expected:
    """Compare the rows of each partition by key, one at a time."""
    values = tuple(
        name
        for name in question.columns
        if name not in question.key and name not in question.ignore
    )
    partitions: dict[str | None, tuple[int, ...]] = {}
    cells: dict[tuple[str | None, str], int] = {}
    samples: Counter[str] = Counter()
    duplicates = 0
    old, new = (_by_label(question, rows) for rows in (question.old, question.new))
    for label in {*old, *new}:
        one = _Partition(question.key, values, old[label], new[label], question.near)
        partitions[label] = one.counts
        cells |= {(label, name): count for name, count in one.changed.items()}
        samples.update(one.samples)
        if question.duplicates_in is None or label in question.duplicates_in:
            duplicates += one.duplicates
    changed = {
        name: sum(count for (_, column), count in cells.items() if column == name)
        for name in values
    }
    return Expected(partitions, changed, cells, samples, duplicates)


def seen(diff: Diff) -> Expected:
    """Take the comparable part out of a diff, after checking that its sums add up."""
    parts = {
        each.partition: (
            each.old_rows, each.new_rows, each.added, each.removed, each.changed, each.unchanged
        )
        for each in diff.partitions
    }  # fmt: skip
    total = diff.summary
    sums = tuple(map(sum, zip(*parts.values(), strict=True))) if parts else (0,) * 6
    assert sums == (
        total.old_rows, total.new_rows, total.added, total.removed, total.changed, total.unchanged
    )  # fmt: skip
    assert total.new_rows == total.unchanged + total.changed + total.added
    samples = Counter(show((each.kind, each.key, each.old, each.new)) for each in diff.samples)
    files = (diff.files.shared, diff.files.old_only, diff.files.new_only)
    changed = {column.name: column.changed for column in diff.columns}
    cells = {(cell.partition, cell.column): cell.changed for cell in diff.cells}
    ordered = [(label, name) for label in parts for name in changed if (label, name) in cells]
    assert [(cell.partition, cell.column) for cell in diff.cells] == ordered
    return Expected(parts, changed, cells, samples, diff.duplicate_keys, files)


class _Partition:
    def __init__(
        self,
        key: tuple[str, ...],
        values: tuple[str, ...],
        old: list[Row],
        new: list[Row],
        near: dict[str, Callable[[Any, Any], bool]],
    ) -> None:
        self._near = near
        self.changed: Counter[str] = Counter()
        self.samples: Counter[str] = Counter()
        self.duplicates = 0
        self._key, self._values = key, values
        self._added = self._removed = self._changed = 0
        olds, news = self._by_key(old), self._by_key(new)
        for each in {*olds, *news}:
            self._compare(olds[each], news[each])
        same = len(old) - self._removed - self._changed
        self.counts = (len(old), len(new), self._added, self._removed, self._changed, same)

    def _by_key(self, rows: list[Row]) -> defaultdict[Any, list[Row]]:
        found: defaultdict[Any, list[Row]] = defaultdict(list)
        for row in rows:
            found[tuple(norm(row.get(name)) for name in self._key)].append(row)
        return found

    def _compare(self, old: list[Row], new: list[Row]) -> None:
        if self._key and len(old) == 1 and len(new) == 1:
            self._compare_one(old[0], new[0])
            return
        self.duplicates += bool(self._key) and (len(old) > 1 or len(new) > 1)
        left = list(old)
        for row in new:
            twin = next((each for each in left if self._same(each, row)), None)
            if twin is not None:
                left.remove(twin)
            else:
                self._added += 1
                self._sample("added", row, None, self._part(row, self._values))
        for row in left:
            self._removed += 1
            self._sample("removed", row, self._part(row, self._values), None)

    def _compare_one(self, old: Row, new: Row) -> None:
        names = [n for n in self._values if self._differs(n, old.get(n), new.get(n))]
        self.changed.update(names)
        if names:
            self._changed += 1
            self._sample("changed", new, self._part(old, names), self._part(new, names))

    def _differs(self, name: str, one: Any, other: Any) -> bool:
        if norm(one) == norm(other):
            return False
        near = self._near.get(name)
        return near is None or one is None or other is None or not near(one, other)

    def _same(self, one: Row, other: Row) -> bool:
        return all(norm(one.get(name)) == norm(other.get(name)) for name in self._values)

    def _part(self, row: Row, names: Sequence[str]) -> Row:
        return {name: plain(row.get(name)) for name in names}

    def _sample(self, kind: str, row: Row, old: Row | None, new: Row | None) -> None:
        self.samples[show((kind, self._part(row, self._key), old, new))] += 1


def _by_label(question: Question, rows: Sequence[Row]) -> defaultdict[str | None, list[Row]]:
    found: defaultdict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if question.keeps(row):
            shaped = {
                name: question.shapes.get(name, lambda value: value)(value)
                for name, value in row.items()
            }
            found[question.label(row)].append(shaped)
    return found


@dataclass(frozen=True)
class Map:
    """A map's entries; their order means nothing."""

    entries: tuple[tuple[Any, Any], ...]


def norm(value: Any) -> Any:
    """Give a hashable value that is equal exactly when the diff must call two values equal."""
    if isinstance(value, bool):
        return ("flag", value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, Map):
        return frozenset((norm(key), norm(each)) for key, each in value.entries)
    if isinstance(value, list):
        return tuple(norm(each) for each in value)
    if isinstance(value, dict):
        present = ((name, norm(each)) for name, each in value.items() if each is not None)
        return frozenset(present)
    return value


def plain(value: Any) -> Any:
    """Give the value as a sample shows it."""
    if isinstance(value, float):
        odd = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return odd.get(str(value), value + 0.0)
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Map):
        entries = sorted(value.entries)
        return [{"key": plain(key), "value": plain(each)} for key, each in entries]
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def show(value: Any) -> str:
    """Give a text that does not depend on the order of dicts."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {show(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show(each) for each in value) + "]"
    return repr(value)
