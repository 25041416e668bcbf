"""What the lake must hold, in memory: files with their rows, commits, versions, runs.

Nothing of the product is used here. Each verb is a generator in `verbs.py` that changes the world
step by step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Row = tuple[int, int]
#: A data file: a number of its own, and its rows.
File = tuple[int, tuple[Row, ...]]
#: The live files of each day.
Files = dict[str, frozenset[File]]
Days = tuple[str, ...]

DAYS: Days = tuple(f"2024-01-0{number}" for number in range(1, 5))
OPEN = frozenset(
    (
        "planned", "approved", "staging", "staged", "validated", "accepted", "publishing",
        "failed", "halted",
    )
)  # fmt: skip
ACCEPTING = ("baseline", "publish", "rollback")


@dataclass
class Commit:
    """A snapshot of the target: its files, and the days whose rows it changed."""

    parent: int | None
    files: Files
    touched: frozenset[str]
    snapshot_id: int = 0
    is_gone: bool = False


@dataclass
class Run:
    """A restatement: where it stands, and what it will publish."""

    run_id: str
    key: tuple[Days, int, int]
    base: int
    files: Files
    state: str = "planned"
    is_approved: bool = False

    @property
    def scope(self) -> Days:
        return tuple(sorted(self.files))


@dataclass(frozen=True)
class Version:
    """An act that was accepted; `before` and `commit` are the target's heads around it."""

    number: int
    action: str
    run_id: str | None
    scope: Days
    before: int
    commit: int
    supersedes: int | None


@dataclass
class Pending:
    """An act that has a version reserved; `way` is None for a publication."""

    number: int
    run_id: str | None = None
    way: Way | None = None
    landed: int | None = None


@dataclass(frozen=True)
class Way:
    """A way back: to which version, for which days, from which commits."""

    to: int
    scope: Days
    is_partial: bool
    newest: Version
    #: Day -> (commit to restore, commit since which nothing may have changed it).
    restores: tuple[tuple[str, int, int], ...]
    leaving: tuple[str, ...]
    returning: tuple[str, ...]


@dataclass
class World:
    """Target, source, runs and pointer of one product."""

    commits: list[Commit] = field(default_factory=list)
    head: int = 0
    source: dict[str, list[Row]] = field(default_factory=dict)
    source_head: int = 0
    runs: dict[str, Run] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    pending: Pending | None = None
    last_number: int = 0
    kept: set[int] = field(default_factory=set)
    #: The number that was given out last, to a file or to a row.
    number: int = 100

    @property
    def files(self) -> Files:
        return self.commits[self.head].files

    def file(self, rows: Iterable[Row]) -> frozenset[File]:
        found = tuple(sorted(rows))
        return frozenset({(self.next(), found)}) if found else frozenset()

    def next(self) -> int:
        self.number += 1
        return self.number

    def commit(self, new: Files, *, is_neutral: bool = False) -> int:
        """Replace days by one commit on the head."""
        files = {**self.files, **new} if self.commits else dict(new)
        changed = {day for day in new if self.commits and new[day] != self.files[day]}
        touched = frozenset() if is_neutral else frozenset(changed)
        self.commits.append(Commit(self.head if self.commits else None, files, touched))
        self.head = len(self.commits) - 1
        return self.head

    def conflicts(self, since: int, scope: Iterable[str]) -> bool:
        """Tell whether others changed rows of the days since a commit, as far as can be seen."""
        days = set(scope)
        then = self.commits[since].files
        if all(then[day] == self.files[day] for day in days):
            return False
        line: list[int] = []
        place: int | None = self._since_undone(since, days)
        while place is not None and place != since and not self.commits[place].is_gone:
            line.append(place)
            place = self.commits[place].parent
        return place != since or any(self.commits[one].touched & days for one in line)

    def _since_undone(self, since: int, days: set[str]) -> int:
        """Give the head, or the commit before the first act of ours since then that was undone."""
        ours = {version.commit for version in self.versions}
        found, place = self.head, self.head
        while place != since and not self.commits[place].is_gone:
            before = self.commits[place].parent
            if before is None:
                break
            then = self.commits[before]
            is_same = all(then.files[day] == self.files[day] for day in days)
            if place in ours and not then.is_gone and is_same:
                found = before
            place = before
        return found

    def _keys(self, place: int, day: str) -> set[int]:
        return {row[0] for _, rows in self.commits[place].files[day] for row in rows}

    def brings_back(self, way: Way) -> bool:
        """Tell whether rows that were deleted live between the acts, or since, would come back.

        The contract says `deletions: block`: then a way back is refused, and also when the newest
        of what happened is a deletion.
        """
        undone = self.versions[self.versions.index(way.newest) :: -1]
        undone = undone[: next(n for n, row in enumerate(undone) if row.number == way.to)][::-1]
        for day, to, _ in way.restores:
            acts = [row for row in undone if day in row.scope]
            ends = [*(row.before for row in acts[1:]), self.head]
            lost = [
                self._keys(act.commit, day) - self._keys(end, day)
                for act, end in zip(acts, ends, strict=True)
            ]
            if lost[-1] or set().union(*lost) & self._keys(to, day):
                return True
        return False

    def takes_live_rows(self, way: Way) -> bool:
        """Tell whether live rows would go that came between two acts, the later of them undone.

        Such rows are seen again since the later act was undone: the head alone does not tell.
        """
        undone = self.versions[self.versions.index(way.newest) :: -1]
        undone = undone[: next(n for n, row in enumerate(undone) if row.number == way.to)][::-1]
        for day, *_ in way.restores:
            acts = [row for row in undone if day in row.scope]
            is_live, found = False, []
            for place, act in enumerate(acts):
                came = place and self._rows(act.before, day) - self._rows(
                    acts[place - 1].commit, day
                )
                is_live = is_live or bool(came)
                found.append(is_live)
                after = self.commits[act.commit].files[day]
                same = (n for n in range(place) if self.commits[acts[n].before].files[day] == after)
                is_live = act.action == "rollback" and found[next(same, 0)]
            if is_live:
                return True
        return False

    def _rows(self, place: int, day: str) -> set[tuple[int, int]]:
        return {row for _, rows in self.commits[place].files[day] for row in rows}

    def open_overlap(self, run: Run) -> bool:
        others = (one for one in self.runs.values() if one is not run and one.state in OPEN)
        return any(set(one.scope) & set(run.scope) for one in others)

    @property
    def accepted(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def seen(self) -> list[frozenset[str]]:
        """The runs that readers see at each act."""
        found: dict[int, frozenset[str]] = {}
        now: frozenset[str] = frozenset()
        rows = []
        for row in self.versions:
            if row.action == "publish" and row.run_id:
                now |= {row.run_id}
            elif row.action == "rollback":
                now = found.get(row.number, now)
            found[row.number] = now
            rows.append(now)
        return rows

    def is_visible(self, run_id: str) -> bool:
        return bool(self.versions) and run_id in self.seen()[-1]

    def can_return(self, to: int | None, only: Days) -> bool:
        """Tell whether the way back would get through now."""
        way = self.way_back(to, only)
        if isinstance(way, str) or (self.pending is not None and self.pending.way != way):
            return False
        if self.pending is not None and self.pending.landed is not None:
            return True
        changed = any(self.conflicts(since, (day,)) for day, _, since in way.restores)
        return not (changed or self.brings_back(way) or self.takes_live_rows(way))

    def way_back(self, to: int | None, only: Days) -> Way | str:
        """The way back to a version, or the code of the refusal."""
        if not self.versions:
            return "not-found"
        now = self.versions[-1]
        if to is None:
            to = next(row for row in self.versions if row.number == now.number).supersedes
            if to is None:
                return "blocked"
        if to == now.number:
            return "blocked"
        places = [place for place, row in enumerate(self.versions) if row.number == to]
        if not places:
            return "not-found"
        undone = self.versions[places[-1] + 1 :]
        every = {day for row in undone for day in row.scope}
        if set(only) - every:
            return "not-found"
        wanted = sorted(every & set(only) if only else every)
        restores = []
        for day in wanted:
            touching = [row for row in undone if day in row.scope]
            restores.append((day, touching[0].before, touching[-1].commit))
        seen = self.seen()
        before, after = seen[-1], seen[places[-1]]
        is_partial = set(wanted) != every
        return Way(
            to=to,
            scope=tuple(wanted),
            is_partial=is_partial,
            newest=now,
            restores=tuple(restores),
            leaving=() if is_partial else tuple(sorted(before - after)),
            returning=() if is_partial else tuple(sorted(after - before)),
        )
