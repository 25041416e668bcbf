"""Any sequence of live appends, merge-on-read deletes, compactions, adoptions and rollbacks.

Against a model in memory; rows are told by PyIceberg's own scan.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import AdoptRequest, CommitResult, RevertRequest
from lakehouse_backfill.errors import TargetChanged
from tests.support.lakes.deletes import Granularity, hide, rewritten
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, Row, row

#: Number, ids of its rows, ids of those that delete files hide.
File = tuple[int, frozenset[int], frozenset[int]]
Files = dict[str, frozenset[File]]


@dataclass
class Model:
    """Per day the live files, each with a number of its own, its rows and those hidden."""

    days: Files = field(default_factory=lambda: dict.fromkeys(DAYS, frozenset()))
    #: Days that each commit changed; none for a compaction.
    log: list[set[str]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def change(self, new: Files, *, neutral: bool = False) -> None:
        self.days = {**self.days, **new}
        self.log.append(set() if neutral else set(new))

    def file(self, ids: set[int]) -> frozenset[File]:
        held = (next(self.numbers), frozenset(ids), frozenset[int]())
        return frozenset({held}) if ids else frozenset()

    def conflicts(self, then: Files, mark: int, scope: tuple[str, ...]) -> bool:
        same = all(then[day] == self.days[day] for day in scope)
        return not same and any(set(scope) & touched for touched in self.log[mark:])

    @property
    def ids(self) -> list[int]:
        return sorted(key for files in self.days.values() for key in seen(files))

    @property
    def rows(self) -> int:
        return sum(len(ids) for files in self.days.values() for _, ids, _ in files)


def seen(files: frozenset[File]) -> set[int]:
    """Give the ids of the rows that readers see."""
    return {key for _, ids, hidden in files for key in ids - hidden}


@dataclass
class Staged:
    request: AdoptRequest
    then: Files
    mark: int
    new: Files


@dataclass
class Done:
    swap: CommitResult
    scope: Scope
    before: Files
    after: Files
    mark: int


class Play:
    """Plays steps on a lake and on the model."""

    def __init__(self, root: Path, version: int) -> None:
        self.kit = Kit(root)
        self.version = version
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
        merged = {d: seen(self.model.days[d]) for d in scope}
        self.model.change({d: self.model.file(ids) for d, ids in merged.items()}, neutral=True)

    def hide(self, scope: tuple[str, ...], by: Granularity) -> None:
        """Delete the newest row of each day merge-on-read."""
        days = self.model.days
        gone = {max(seen(days[day])) for day in scope if seen(days[day])}
        if not gone or self.version == 1:
            return
        hide(self.kit, *gone, by=by)
        self.model.change(
            {
                day: frozenset((n, ids, old | (ids & gone)) for n, ids, old in days[day])
                for day in scope
                if seen(days[day]) & gone
            }
        )

    def erase(self, scope: tuple[str, ...]) -> None:
        self.hide(scope, "file")

    def erase_together(self, scope: tuple[str, ...]) -> None:
        self.hide(scope, "partition")

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
        anew = self.rewritten(request)
        back = {day: done.before[day] for day in done.scope.partitions}
        assert {day for day, files in back.items() if any(f[2] for f in files)} <= set(anew)
        if anew:
            request = rewritten(self.kit, request, anew, f"shadow.{run}")
            back |= {day: self.model.file(seen(back[day])) for day in anew}
        if self.model.conflicts(done.after, done.mark, done.scope.partitions):
            with pytest.raises(TargetChanged):
                self.kit.publisher.revert(request)
            return
        self.kit.publisher.revert(request)
        self.model.change(back)

    def rewritten(self, request: RevertRequest) -> dict[str, list[Row]]:
        """Read what has to be rewritten, as its readers did then."""
        found = self.kit.publisher.rewrites(TARGET, DAY, request.restores)
        then = request.restores[0].restore_snapshot_id
        if not found or then is None:
            return {}
        held = self.kit.live.load_table(TARGET).scan(snapshot_id=then).to_arrow().to_pylist()
        return {
            day: [each for each in held if str(each["d"]) == day]
            for item in found
            for day in item.partitions
        }

    def check(self) -> None:
        assert [found[0] for found in sorted(self.kit.rows())] == self.model.ids
        assert self.kit.total_rows() == self.model.rows
        files = self.kit.tables.files(TARGET, self.kit.head(), DAY)
        assert {day: sum(f.partition == day for f in files) for day in DAYS} == {
            day: len(found) for day, found in self.model.days.items()
        }


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "stage", "adopt", "adopt", "revert", "compact", "erase", "erase_together"]
        ),
        st.sets(st.sampled_from(DAYS), min_size=1, max_size=2).map(
            lambda days: tuple(sorted(days))
        ),
    ),
    min_size=3,
    max_size=10,
)


@pytest.mark.req("T8", "U1", "U11", "U12", "E3")
@settings(
    max_examples=25,
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
