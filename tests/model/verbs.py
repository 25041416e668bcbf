"""What each verb does to the world, one commit after the other.

A generator yields the kind of commit that it waits for before it lets it count: EVENT on the runs'
log, POINTER, or SWAP on the target. Of a verb that was killed only the commits that landed count.
It returns the code of the error that the verb must raise, or an empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from tests.model.world import OPEN, Days, Pending, Run, Version, Way, World

EVENT, POINTER, SWAP = "run_event", "accepted_output_version", "Publisher.swap"
Steps = Generator[str, None, str]

ILLEGAL, UNAPPROVED = "illegal-move", "approval-missing"
STAGEABLE = {"approved", "staging", "failed", "halted", "staged", "validated", "accepted"}
VALIDATABLE = {"staged", "validated", "accepted"}
CANCELLABLE = OPEN - {"publishing"}


def plan(world: World, make: Callable[[], Run]) -> Steps:
    """`make` gives the run that the commit registers."""
    yield EVENT
    run = make()
    world.runs[run.run_id] = run
    world.kept.add(run.base)
    return ""


def nothing(code: str) -> Steps:
    """A verb that is refused before it changes anything, or has nothing to do."""
    yield from ()
    return code


def approve(world: World, run: Run) -> Steps:
    if run.state != "planned":
        return ILLEGAL
    if world.open_overlap(run):
        return "conflict"
    yield EVENT
    run.state, run.is_approved = "approved", True
    return ""


def stage(world: World, run: Run) -> Steps:
    if not run.is_approved:
        return UNAPPROVED
    if run.state not in STAGEABLE:
        return ILLEGAL
    yield EVENT
    run.state = "staging"
    yield EVENT
    run.state = "staged"
    return ""


def validate(world: World, run: Run) -> Steps:
    if run.state not in VALIDATABLE:
        return ILLEGAL
    yield EVENT
    yield EVENT
    run.state = "validated"
    return ""


def accept(world: World, run: Run) -> Steps:
    if run.state != "validated":
        return ILLEGAL
    yield EVENT
    run.state = "accepted"
    return ""


def cancel(world: World, run: Run) -> Steps:
    if run.state not in CANCELLABLE:
        return ILLEGAL
    yield EVENT
    run.state = "cancelled"
    return ""


def publish(world: World, run: Run) -> Steps:
    if run.state == "publishing":
        return (yield from _resume(world, run))
    if run.state == "published":
        if world.is_visible(run.run_id):
            return ""
        yield EVENT
        run.state = "rolled_back"
    if run.state not in ("accepted", "rolled_back"):
        return ILLEGAL
    yield EVENT
    run.state = "publishing"
    return (yield from _publish(world, run))


def _resume(world: World, run: Run) -> Steps:
    yield EVENT
    pending = world.pending
    if world.is_visible(run.run_id):
        yield EVENT
        run.state = "published"
        return ""
    if pending and pending.run_id == run.run_id and pending.landed is not None:
        yield POINTER
        yield from _finalise(world, run)
        return ""
    return (yield from _publish(world, run))


def _publish(world: World, run: Run) -> Steps:
    pending = world.pending
    if pending is not None and pending.run_id != run.run_id:
        yield EVENT
        run.state = "accepted"
        return "pointer-moved"
    yield POINTER
    if pending is None:
        world.last_number += 1
        world.pending = Pending(world.last_number, run_id=run.run_id)
    if world.conflicts(run.base, run.scope):
        yield POINTER
        world.pending = None
        yield EVENT
        run.state = "accepted"
        return "target-changed"
    yield SWAP
    _land(world, dict(run.files))
    yield from _finalise(world, run)
    return ""


def _land(
    world: World, files: dict[str, frozenset[tuple[int, tuple[tuple[int, int], ...]]]]
) -> None:
    assert world.pending is not None
    world.kept.add(world.head)
    world.pending.landed = world.commit(files)
    world.kept.add(world.head)


def _move(world: World, action: str, scope: Days) -> None:
    """Let the pending act be what is accepted."""
    act = world.pending
    assert act is not None
    assert act.landed is not None
    before = world.commits[act.landed].parent
    assert before is not None
    if world.accepted is None:
        world.versions.append(Version(0, "baseline", None, scope, before, before, None))
    now = world.versions[-1].number
    world.versions.append(Version(act.number, action, act.run_id, scope, before, act.landed, now))
    world.pending = None


def _finalise(world: World, run: Run) -> Steps:
    yield POINTER
    _move(world, "publish", run.scope)
    yield EVENT
    run.state = "published"
    return ""


def rollback(world: World, to: int | None, only: Days) -> Steps:
    way = world.way_back(to, only)
    if isinstance(way, str):
        return way
    return (yield from _go_back(world, way))


def _go_back(world: World, way: Way) -> Steps:
    pending = world.pending
    if pending is not None and pending.way != way:
        return "pointer-moved"
    if pending is None:
        yield POINTER
        number = world.last_number + 1 if way.is_partial else way.to
        world.last_number = max(world.last_number, number)
        pending = world.pending = Pending(number, way=way)
    if pending.landed is None:
        parts: dict[tuple[int, int], list[str]] = {}
        for day, *ends in way.restores:
            parts.setdefault((ends[0], ends[1]), []).append(day)
        changed = any(world.conflicts(since, days) for (_, since), days in parts.items())
        if changed or world.brings_back(way) or world.takes_live_rows(way):
            yield POINTER
            world.pending = None
            return "target-changed"
        yield SWAP
        _land(world, {day: world.commits[to].files[day] for day, to, _ in way.restores})
    yield POINTER
    _move(world, "rollback", way.scope)
    yield from _tell(world, way.leaving, way.returning)
    return ""


def _tell(world: World, leaving: Iterable[str], returning: Iterable[str]) -> Steps:
    for run in (world.runs[name] for name in returning):
        if run.state in ("rolled_back", "accepted") and world.is_visible(run.run_id):
            yield EVENT
            run.state = "published"
    for run in (world.runs[name] for name in leaving):
        for state, after in (("publishing", "published"), ("published", "rolled_back")):
            if run.state == state and not world.is_visible(run.run_id):
                yield EVENT
                run.state = after
    return ""


def recover(world: World, order: list[str]) -> Steps:
    """Everything that stopped half way; `order` is in which runs are looked at."""
    for run in [world.runs[name] for name in order]:
        if run.state == "staging":
            yield EVENT
            run.state = "failed"
        elif run.state == "publishing":
            yield from _resume(world, run)
    if world.pending is not None:
        assert world.pending.way is not None
        yield from _go_back(world, world.pending.way)
    made = {row.run_id for row in world.versions if row.action == "publish"}
    for name in made:
        yield from _tell(world, (), (str(name),))
        if world.runs[str(name)].state == "published":
            yield from _tell(world, (str(name),), ())
    return ""
