"""Any sequence of live appends, compactions, adoptions and rollbacks, against a model in memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.errors import TargetChanged
from lakehouse_backfill.model.publication import AdoptRequest, Swap
from lakehouse_backfill.model.scope import Scope
from tests.contract.lake_kit import TARGET, Kit, field_of, row

DAY = field_of("d")
DAYS = ("2013-02-01", "2013-02-02", "2013-02-03")
Files = dict[str, frozenset[tuple[int, frozenset[int]]]]


@dataclass
class Model:
    """Per day the live files, each with a number of its own and the ids of its rows."""

    days: Files = field(default_factory=lambda: dict.fromkeys(DAYS, frozenset()))
    #: Days that each commit changed; none for a compaction.
    log: list[set[str]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def change(self, new: Files, *, neutral: bool = False) -> None:
        self.days = {**self.days, **new}
        self.log.append(set() if neutral else set(new))

    def file(self, ids: set[int]) -> frozenset[tuple[int, frozenset[int]]]:
        return frozenset({(next(self.numbers), frozenset(ids))}) if ids else frozenset()

    def conflicts(self, then: Files, mark: int, scope: tuple[str, ...]) -> bool:
        same = all(then[day] == self.days[day] for day in scope)
        return not same and any(set(scope) & touched for touched in self.log[mark:])

    @property
    def ids(self) -> list[int]:
        return sorted(i for files in self.days.values() for _, ids in files for i in ids)


@dataclass
class Staged:
    request: AdoptRequest
    then: Files
    mark: int
    new: Files


@dataclass
class Done:
    swap: Swap
    scope: Scope
    before: Files
    after: Files
    mark: int


class Play:
    """Plays steps on a lake and on the model."""

    def __init__(self, root: Path, version: int) -> None:
        self.kit = Kit(root)
        self.kit.create(("d", "identity"), version=version)
        self.model = Model()
        self.staged: list[Staged] = []
        self.done: list[Done] = []
        self.keys = itertools.count()

    def append(self, scope: tuple[str, ...]) -> None:
        ids = {day: next(self.keys) for day in scope}
        self.kit.append(*(row(key, day) for day, key in ids.items()))
        days = self.model.days
        self.model.change({d: days[d] | self.model.file({k}) for d, k in ids.items()})

    def compact(self, scope: tuple[str, ...]) -> None:
        if self.kit.head() is None:
            return
        self.kit.compact(Scope(field=DAY, partitions=scope))
        merged = {d: {i for _, ids in self.model.days[d] for i in ids} for d in scope}
        self.model.change({d: self.model.file(ids) for d, ids in merged.items()}, neutral=True)

    def stage(self, scope: tuple[str, ...]) -> None:
        # The first day becomes empty, the others get a row.
        ids = {day: {next(self.keys)} if n else set() for n, day in enumerate(scope)}
        rows = {day: [row(key, day) for key in keys] for day, keys in ids.items()}
        request = self.kit.stage(DAY, rows, run=f"r{next(self.keys)}")
        new = {day: self.model.file(keys) for day, keys in ids.items()}
        self.staged.append(Staged(request, self.model.days, len(self.model.log), new))

    def adopt(self, scope: tuple[str, ...]) -> None:
        if not self.staged:
            return
        staged = self.staged.pop(len(scope) % len(self.staged))
        request, before = staged.request, self.model.days
        if self.model.conflicts(staged.then, staged.mark, request.scope.partitions):
            with pytest.raises(TargetChanged):
                self.kit.publisher.adopt(request)
            return
        swap = self.kit.publisher.adopt(request)
        self.model.change(staged.new)
        mark = len(self.model.log)
        self.done.append(Done(swap, request.scope, before, self.model.days, mark))

    def revert(self, scope: tuple[str, ...]) -> None:
        if not self.done:
            return
        done = self.done[-(len(scope) % len(self.done)) - 1]
        run = f"b{next(self.keys)}"
        request = self.kit.revert_request(done.swap, done.scope, run=run)
        if self.model.conflicts(done.after, done.mark, done.scope.partitions):
            with pytest.raises(TargetChanged):
                self.kit.publisher.revert(request)
            return
        self.kit.publisher.revert(request)
        self.model.change({day: done.before[day] for day in done.scope.partitions})

    def check(self) -> None:
        assert [found[0] for found in sorted(self.kit.rows())] == self.model.ids
        assert self.kit.total_rows() == len(self.model.ids)
        files = self.kit.tables.files(TARGET, self.kit.head(), DAY)
        assert {day: sum(f.partition == day for f in files) for day in DAYS} == {
            day: len(found) for day, found in self.model.days.items()
        }


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "stage", "adopt", "adopt", "revert", "compact"]),
        st.sets(st.sampled_from(DAYS), min_size=1, max_size=2).map(
            lambda days: tuple(sorted(days))
        ),
    ),
    min_size=3,
    max_size=10,
)


@pytest.mark.req("T8", "U1", "U11", "U12")
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps=STEPS, version=st.sampled_from([1, 2]))
def test_the_lake_is_what_the_model_says(steps, version):
    with TemporaryDirectory() as root:
        play = Play(Path(root), version)
        for step, scope in [("append", DAYS[:2]), *steps]:
            getattr(play, step)(scope)
            play.check()
