"""Any sequence of verbs, live writes, compaction, expiry and crashes, compared after each step."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import currently_in_test_context, note
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.chaos.lab import SOURCE, TARGET
from tests.model import verbs
from tests.model.checks import check, check_tags
from tests.model.lake import Ground, Look
from tests.model.outside import Outside
from tests.model.picks import COMMON, OTHERS, ROLLBACKS, VERBS, Pick, first_picks, picks
from tests.model.product import Product
from tests.model.verbs import CANCELLABLE, Steps
from tests.model.world import DAYS, OPEN, Commit, Days, Run, World

#: How many fault points a verb passes at most: a crash is somewhere in it.
LENGTHS = {
    "plan": 20, "approve": 4, "stage": 24, "validate": 12, "accept": 4, "cancel": 4,
    "publish": 28, "rollback": 22, "recover": 24,
}  # fmt: skip
NEXT = {
    "planned": "approve", "approved": "stage", "staging": "stage", "failed": "stage",
    "staged": "validate", "validated": "accept", "accepted": "publish",
    "publishing": "publish",
}  # fmt: skip
#: Of eight places so many go for what is most useful.
OFTEN = 6
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
        self.look.forget()
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
            self._append(DAYS[3:], OFTEN)
        self._rollback("rollback_to", 0, (), None)
        assert cls.counts.done["rollback_to"] == 1
        self._save("rolled back")
        self.outside.close()
        self.product.close()
        cls.counts = Counts()

    def _save(self, name: str) -> None:
        self.ground.save(name, copy.deepcopy((self.world, self.paths, self.read)))

    @initialize(pick=first_picks)
    def begin(self, pick: Pick) -> None:
        """Two restatements have come some way, and then a process is killed."""
        self.start(self.ground.restore(pick.beginning))
        self._crash(pick)

    @rule(pick=picks)
    def step(self, pick: Pick) -> None:
        """After a crash any action, else mostly a verb that gets somewhere or is killed there."""
        if self.is_fresh:
            kill = pick.part if pick.is_killed_again else None
            self._act(pick.action, pick.days, pick.place, kill)
        elif pick.kind == "crash":
            self._crash(pick)
        elif pick.kind == "go on":
            self._go_on(pick)
        else:
            self._act(pick.action, pick.days, pick.place, None)

    def _crash(self, pick: Pick) -> None:
        """Kill a verb that would get somewhere."""
        possible = [verb for verb in VERBS if self._is_possible(verb)]
        rare = [verb for verb in possible if verb not in COMMON]
        verbs_now = possible if pick.may_be_common or not rare else rare
        verb = verbs_now[int(pick.victim * len(verbs_now))]
        self._act(verb, pick.days, 8 * pick.place, pick.part)

    def _go_on(self, pick: Pick) -> None:
        """Type what a person would type next, up to three times."""
        run = self._waiting(pick.days)
        for _ in range(1 + pick.place % 3):
            verb = NEXT.get(run.state)
            if verb is None or self.counts.last_code:
                return
            self._act_on(run, verb, None)

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

    def _suits(self, verb: str, run: Run) -> bool:
        """Tell whether the verb does something with the run."""
        if verb == "cancel":
            return run.state in CANCELLABLE
        if verb == "approve" and self.world.open_overlap(run):
            return False
        return NEXT.get(run.state) == verb

    def _is_possible(self, verb: str) -> bool:
        """Tell whether the verb would change something now."""
        world = self.world
        if verb == "plan":
            return True
        if verb == "recover":
            is_open = any(run.state in ("staging", "publishing") for run in world.runs.values())
            return world.pending is not None or is_open
        if verb in ROLLBACKS:
            return bool(self._ways(verb))
        return any(self._suits(verb, run) for run in world.runs.values())

    def _run(self, verb: str, place: int) -> Run:
        """Mostly a run with which the verb does something, the newest first."""
        runs = [*reversed(self.world.runs.values())]
        suited = [run for run in runs if self._suits(verb, run)]
        if suited and place % 8 < OFTEN:
            return suited[0]
        return runs[place % len(runs)]

    def _waiting(self, days: Days) -> Run:
        """A run that waits for its next verb, or a new one beside those that are open."""
        runs = [run for run in self.world.runs.values() if run.state in OPEN]
        waiting = [run for run in runs if self._suits(NEXT.get(run.state, ""), run)]
        run = waiting[-1] if waiting else self._plan(days, None)
        self.counts.last_code = ""
        return run

    def _ways(self, action: str) -> list[tuple[int | None, Days]]:
        """The rollbacks of this kind that would get through."""
        numbers = [None, *range(self.world.last_number + 1)]
        every: dict[str, list[tuple[int | None, Days]]] = {
            "rollback_last": [(None, ())],
            "rollback_to": [(to, ()) for to in numbers[1:]],
            "rollback_some": [(to, (day,)) for to in numbers for day in DAYS],
        }
        return [(to, only) for to, only in every[action] if self.world.can_return(to, only)]

    def _return(self, action: str, place: int) -> tuple[int | None, Days]:
        """Where a rollback leads, and for which days only: mostly one that gets through."""
        ways = self._ways(action)
        if ways and place % 8 < OFTEN:
            return ways[place // 8 % len(ways)]
        to = None if action == "rollback_last" else place % (self.world.last_number + 2)
        return to, (DAYS[place % len(DAYS)],) if action == "rollback_some" else ()

    def _plan(self, scope: Days, kill: float | None) -> Any:
        world = self.world
        planned = self.product.make_plan(scope)
        key = (scope, world.source_head, world.head)
        known = [r for r in world.runs.values() if r.key == key and r.state in OPEN]
        assert (planned.run_id in world.runs) == bool(known), (planned.run_id, known)

        def make() -> Run:
            rows = {d: [(k, v * 10) for k, v in world.source[d]] for d in scope}
            files = {day: world.file(rows[day]) for day in scope}
            return Run(planned.run_id, key, world.head, files)

        steps = verbs.nothing("") if known else verbs.plan(world, make)
        self._do("plan", steps, lambda: self.product.register(planned), kill)
        return world.runs.get(planned.run_id)

    # -- others

    def _append(self, days: Days, place: int) -> None:
        """Mostly to one day: what others change cannot be taken back any more."""
        world, days = self.world, days[-1:] if place % 8 < OFTEN else days
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
            ended = "killed" if done.is_killed else done.code or "done"
            note(f"{name}: {ended} {done.landed}")
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
