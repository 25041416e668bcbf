"""Any sequence of verbs, live writes, compaction, expiry and crashes, compared after each step."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.chaos.lab import SOURCE, TARGET
from tests.model import verbs
from tests.model.checks import check, check_tags
from tests.model.lake import Ground, Look
from tests.model.outside import Outside
from tests.model.product import Product
from tests.model.verbs import Steps
from tests.model.world import DAYS, OPEN, Commit, Days, Run, World

#: How many fault points a verb passes at most: a crash is somewhere in it.
LENGTHS = {
    "plan": 20, "approve": 4, "stage": 24, "validate": 12, "accept": 4, "cancel": 4,
    "publish": 28, "rollback": 22, "recover": 24,
}  # fmt: skip
SCOPES = [DAYS[a:b] for a in range(len(DAYS)) for b in range(a + 1, len(DAYS) + 1)]
NEXT = {
    "planned": "approve", "approved": "stage", "staging": "stage", "failed": "stage",
    "staged": "validate", "validated": "accept", "accepted": "publish",
    "publishing": "publish",
}  # fmt: skip
scopes = st.sampled_from(SCOPES)
places = st.integers(0, 7)
#: Of eight places so many go for what is most useful.
OFTEN = 6
VERBS = (
    "approve", "stage", "validate", "accept", "publish", "publish", "plan", "cancel",
    "rollback_last", "rollback_to", "rollback_some", "recover",
)  # fmt: skip
ROLLBACKS = ("rollback_last", "rollback_to", "rollback_some")
OTHERS = ("append", "delete", "compact", "expire_metadata", "expire_files", "land")
ACTIONS = (*dict.fromkeys(VERBS), *OTHERS)
#: How far into a verb its process is killed, if it is.
parts = st.sampled_from([part / 9 for part in range(9)])
kills = st.sampled_from([None, *(part / 9 for part in range(9)), None])
BEGINNINGS = (
    "new", "approved", "staged", "validated", "accepted", "published", "second planned",
    "second staged", "second accepted", "second published", "rolled back",
)  # fmt: skip
Saved = tuple[World, dict[int, str], set[int]]


class Counts:
    """What was done how often, over all sequences of a process."""

    def __init__(self) -> None:
        self.sequences = 0
        self.last_code = ""
        self.steps = 0
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.crashed: Counter[str] = Counter()
        #: Sequences in which the action came right after a crash.
        self.after_crash: Counter[str] = Counter()


class Machine(RuleBasedStateMachine):
    """The product on a real catalog beside the world that it must equal."""

    ground: ClassVar[Ground]
    look: ClassVar[Look]
    counts: ClassVar[Counts]

    def __init__(self) -> None:
        super().__init__()
        self.is_fresh = False
        self.followed: set[str] = set()

    def start(self, saved: Saved) -> None:
        """Go on from a saved state: the lake lies in its folder already."""
        self.world, self.paths, self.read = copy.deepcopy(saved)
        self.outside = Outside(self.ground.folder)
        self.product = Product(self.ground.folder)
        self.look.refresh()

    @classmethod
    def prepare(cls, root: Path) -> None:
        """Make the lake and save states of it on the way through two restatements."""
        cls.ground, cls.counts = Ground(root), Counts()
        cls.look = Look(cls.ground.folder)
        self = cls()
        self.start(cls.ground.restore("new"))
        cls.look.refresh()
        found, source = self.look.data(TARGET), self.look.data(SOURCE)
        self.world.commit({day: self._files(found.get(day, {})) for day in found})
        self.world.source = {day: [r for f in source[day].values() for r in f] for day in DAYS}
        self._settle()
        self.check()
        self._save("new")
        for scope, prefix in ((DAYS[:2], ""), (DAYS[1:3], "second ")):
            run = self._plan(scope, None)
            self._save(prefix + run.state)
            while run.state != "published":
                self._act_on(run, NEXT[run.state], None)
                self._save(prefix + run.state)
            self._append(DAYS[2:], 0)
        self._rollback("rollback_to", 0, (), None)
        self._save("rolled back")
        self.outside.close()
        self.product.close()
        cls.counts = Counts()

    def _save(self, name: str) -> None:
        self.ground.save(name, copy.deepcopy((self.world, self.paths, self.read)))

    @initialize(
        name=st.sampled_from(BEGINNINGS), verb=st.sampled_from(VERBS), part=parts, place=places
    )
    def begin(self, name: str, verb: str, part: float, place: int) -> None:
        """Two restatements have come some way, and then a process is killed."""
        self.start(self.ground.restore(name))
        self._act(verb, DAYS[2:], place, part)

    @rule(action=st.sampled_from(ACTIONS), days=scopes, place=places, kill=kills)
    def step(self, action: str, days: Days, place: int, kill: float | None) -> None:
        """Do something: a verb, killed so far into it (None: not at all), or what others do."""
        self._act(action, days, place, kill)

    @rule(days=scopes, place=places, kill=kills)
    def restate(self, days: Days, place: int, kill: float | None) -> None:
        """Type what a person would type next, up to three times; the last may be killed."""
        run = self._waiting(days)
        often = 1 + place % 3
        for number in range(1, often + 1):
            verb = NEXT.get(run.state)
            if verb is None or self.counts.last_code:
                return
            self._act_on(run, verb, kill if number == often else None)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        check_tags(self)
        self.outside.close()
        self.product.close()
        self.counts.sequences += 1
        self.counts.after_crash.update(self.followed)

    # -- the verbs

    def _act(self, action: str, days: Days, place: int, kill: float | None) -> None:
        if action in OTHERS:
            getattr(self, f"_{action}")(days, place)
        elif action == "plan":
            self._plan(days, kill)
        elif action == "recover":
            steps = verbs.recover(self.world, self.product.order())
            self._do("recover", steps, self.product.recover, kill)
        elif action in ROLLBACKS:
            self._rollback(action, *self._return(action, place), kill)
        elif self.world.runs:
            self._act_on(self._run(action, place), action, kill)

    def _run(self, verb: str, place: int) -> Run:
        """Mostly a run for which the verb is next, the newest first."""
        runs = [*reversed(self.world.runs.values())]
        if place < OFTEN:
            runs.sort(key=lambda run: NEXT.get(run.state) != verb)
        return runs[place % OFTEN % len(runs)]

    def _waiting(self, days: Days) -> Run:
        """A run that waits for its next verb, or a new one beside those that are open."""
        open_runs = [run for run in self.world.runs.values() if run.state in OPEN]
        run = open_runs[-1] if open_runs else self._plan(days, None)
        self.counts.last_code = ""
        return run

    def _return(self, action: str, place: int) -> tuple[int | None, Days]:
        """Where a rollback leads, and for which days only."""
        if action == "rollback_to":
            return place % (self.world.last_number + 2), ()
        if action == "rollback_last":
            return None, ()
        to = None if place < OFTEN else 0
        way = self.world.way_back(to, ())
        days = DAYS if isinstance(way, str) else way.scope
        return to, (days[place % len(days)],)

    def _plan(self, scope: Days, kill: float | None) -> Any:
        world = self.world
        planned = self.product.make_plan(scope)
        key = (scope, world.source_head, world.head)
        known = [r for r in world.runs.values() if r.key == key and r.state in verbs.OPEN]
        assert (planned.run_id in world.runs) == bool(known), (planned.run_id, known)

        def make() -> Run:
            rows = {d: [(k, v * 10) for k, v in world.source[d]] for d in scope}
            files = {day: world.file(rows[day]) for day in scope}
            return Run(planned.run_id, key, world.head, files)

        steps = verbs.nothing("") if known else verbs.plan(world, make)
        self._do("plan", steps, lambda: self.product.register(planned), kill)
        return world.runs.get(planned.run_id)

    # -- others

    def _append(self, days: Days, _: int) -> None:
        world = self.world
        rows = {day: (world.next(), 7) for day in days}
        self._other("append", lambda: self.outside.append([*rows.items()]))
        self._changed({day: world.files[day] | world.file([rows[day]]) for day in days})

    def _delete(self, days: Days, place: int) -> None:
        day = days[0]
        files = sorted(self.world.files[day])
        rows = [(file, row) for file in files for row in file[1]]
        if not rows:
            return
        file, row = rows[place % len(rows)]
        self._other("delete", lambda: self.outside.delete(day, row[0]))
        left = [other for other in file[1] if other != row]
        self._changed({day: (self.world.files[day] - {file}) | self.world.file(left)})

    def _compact(self, days: Days, _: int) -> None:
        files = self.world.files
        days = tuple(day for day in days if files[day])
        if not days:
            return
        self._other("compact", lambda: self.outside.compact(days))
        rows = {day: [row for file in files[day] for row in file[1]] for day in days}
        self._changed({d: self.world.file(r) for d, r in rows.items()}, is_neutral=True)

    def _expire_metadata(self, _days: Days, _place: int) -> None:
        self._expire("metadata")

    def _expire_files(self, _days: Days, _place: int) -> None:
        self._expire("files")

    def _expire(self, way: str) -> None:
        self._other(f"expire_{way}", lambda: self.outside.expire(way))
        self.look.refresh()
        left = {s["snapshot-id"] for s in (self.look.metadata(TARGET) or {})["snapshots"]}
        for number, commit in enumerate(self.world.commits):
            commit.is_gone = commit.snapshot_id not in left
            assert not (commit.is_gone and number in {*self.world.kept, self.world.head}), number
        self.check()
        check_tags(self)

    def _land(self, days: Days, _: int) -> None:
        day, row = days[0], (self.world.next(), 5)
        self._other("land", lambda: self.outside.land(day, row))
        self.world.source[day].append(row)
        self.world.source_head += 1
        self.check()

    # -- how

    def _act_on(self, run: Run, verb: str, kill: float | None) -> None:
        steps: Callable[[World, Run], Steps] = getattr(verbs, verb)
        self._do(verb, steps(self.world, run), lambda: self.product.do(verb, run.run_id), kill)

    def _rollback(self, name: str, to: int | None, only: Days, kill: float | None) -> None:
        steps = verbs.rollback(self.world, to, only)
        self._do(name, steps, lambda: self.product.rollback(to, only), kill)

    def _do(self, name: str, steps: Steps, act: Callable[[], Any], kill: float | None) -> None:
        """Do a verb, killed so far into it, and take the same steps in the world."""
        counts, before = self.counts, self.look.catalog()
        self._follow(name)
        length = LENGTHS[name.split("_")[0]]
        done = self.product.watched(act, None if kill is None else 1 + int(kill * length))
        if currently_in_test_context():
            note(f"{name}: {done.code or 'done'} {done.landed}")
        counts.last_code = done.code
        if done.is_killed:
            self.is_fresh = True
            counts.crashed[name] += 1
        landed = list(done.landed)
        code = self._take(steps, landed, is_killed=done.is_killed)
        assert landed == [], (name, done, landed)
        if not done.is_killed:
            assert done.code == code, (name, code, done)
            (counts.refused if code else counts.done)[name] += 1
            if not done.landed and done.points == 0:
                assert self.look.catalog() == before, (name, done)
        self._settle()
        self.check()

    def _take(self, steps: Steps, landed: list[str], *, is_killed: bool) -> str:
        try:
            wanted = next(steps)
            while landed and landed[0] == wanted:
                landed.pop(0)
                wanted = next(steps)
        except StopIteration as end:
            return str(end.value)
        assert is_killed, f"{wanted} was expected to land, then: {landed}"
        return "killed"

    def _other(self, name: str, act: Callable[[], None]) -> None:
        self._follow(name)
        act()
        self.counts.done[name] += 1

    def _follow(self, name: str) -> None:
        self.counts.steps += 1
        if self.is_fresh:
            self.followed.add(name)
        self.is_fresh = False

    def _changed(self, files: dict[str, Any], *, is_neutral: bool = False) -> None:
        self.world.commit(files, is_neutral=is_neutral)
        self._settle()
        self.check()

    # -- what must be so

    def _files(self, found: dict[str, list[Any]]) -> frozenset[Any]:
        made = []
        for path, rows in found.items():
            [file] = self.world.file(rows)
            self.paths[file[0]] = path
            made.append(file)
        return frozenset(made)

    def _settle(self) -> None:
        """Give the world's newest commits the ids that the lake gave them."""
        self.look.refresh()
        metadata = self.look.metadata(TARGET) or {}
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
        head = metadata["current-snapshot-id"]
        commit = self.world.commits[self.world.head]
        if commit.snapshot_id in (0, head):
            commit.snapshot_id = head
        assert head == commit.snapshot_id, "a commit that nobody knows of"
        parent = parents[head]
        before = None if commit.parent is None else self.world.commits[commit.parent]
        if before and parent in parents and parent != before.snapshot_id:
            # PyIceberg deletes whole files and rewrites others in two commits.
            between = Commit(commit.parent, before.files, commit.touched, parent)
            self.world.commits.append(between)
            commit.parent = len(self.world.commits) - 1

    def check(self) -> None:
        check(self)
