"""Overtaken drivers, and `maintain` that is killed, where runs write to branches (X12).

`test_kills.py` and its neighbours kill all other verbs there.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow
from tests.chaos.faults import Both, Kill, Skewed, Stop
from tests.chaos.lab import BY, SCOPE, TARGET, Lab
from tests.chaos.oracle import facts
from tests.support.oracles.reached import reached

pytestmark = pytest.mark.req("X12")
_STAGE, _PUBLISH = ("stage", "RUN"), ("publish", "RUN")
_BACK = ("rollback", TARGET, "--to", "0", "--reason", "wrong")
_MAINTAIN = ("maintain",)
#: By then the lease of every run of these tests is over.
_LATER = Skewed(timedelta(days=400))


@pytest.fixture
def saved(branch_labs: list[Lab]) -> Lab:
    return branch_labs[0]


def finish(lab: Lab) -> None:
    """Go on to the end, whatever was reached."""
    state = lab.must("status", lab.run).data["runs"][0]["state"]
    if state in ("approved", "staging", "failed"):
        lab.must("stage", lab.run, *BY)
    if state not in ("accepted", "publishing", "published"):
        lab.must("validate", lab.run, *BY)
        lab.must("accept", lab.run, *BY)
    if state != "published":
        lab.must("publish", lab.run, *BY)


def _refs(lab: Lab) -> dict[str, int]:
    """Give the references of the target."""
    return {name: ref.snapshot_id for name, ref in lab.oracle.table(TARGET).refs().items()}


def require_published(lab: Lab) -> None:
    """Look at what readers see, and that there is one version and each chunk once."""
    found: dict[str, Any] = facts(lab.oracle, TARGET, lab.run)
    assert found["runs"] == {"RUN": "published"}
    assert found["versions"] == [[0, "baseline"], [1, "publish"]]
    assert len(found["ledger"]) == len(SCOPE)
    factors = {day: {v // k for d, k, v in lab.oracle.rows(TARGET) if d == day} for day in SCOPE}
    assert factors == {day: {10} for day in SCOPE}
    others = {v // k for d, k, v in lab.oracle.rows(TARGET) if d not in SCOPE}
    assert others == {100}
    assert lab.must("recover", "--all", *BY).data["actions"] == []


@pytest.mark.req("X9")
@pytest.mark.parametrize(
    ("state", "command", "point", "nth"),
    [
        ("approved", _STAGE, "Shadows.register:committing", 1),
        ("approved", _STAGE, "Shadows.fence:committing", 1),
        ("approved", _STAGE, "Spark.overwrite:committing", 2),
        ("approved", _STAGE, "Spark.overwrite:committed", 3),
        ("accepted", _PUBLISH, "Publisher.swap:committing", 1),
    ],
)  # fmt: skip
def test_a_stopped_driver_that_was_overtaken_changes_nothing_that_anybody_reads(
    saved: Lab, state: str, command: tuple[str, ...], point: str, nth: int
) -> None:
    saved.restore(state)
    zombie = saved.start(*saved.typed(command), hook=Stop(point, nth))
    zombie.wait_until_stopped()
    finish(saved)
    require_published(saved)
    before = _what_is_read(saved)
    zombie.go_on()
    ended = zombie.end()
    assert ended.code in (0, 4), ended
    assert _what_is_read(saved) == before
    require_published(saved)


def _what_is_read(lab: Lab) -> tuple[Any, ...]:
    """Give all references but those of epochs that are over, the control tables and the rows."""
    shadow = branch_shadow(TARGET, lab.run)
    epochs = sorted(at for name in _refs(lab) if (at := shadow.epoch_of(name)) is not None)
    over = {shadow.branch(epoch) for epoch in epochs[:-1]}
    control = [one for one in lab.oracle.catalog() if one[1] != "silver"]
    refs = {name: at for name, at in _refs(lab).items() if name not in over}
    return refs, control, lab.oracle.rows(TARGET)


@pytest.mark.req("U12", "U15")
def test_it_is_rolled_back_and_its_branches_are_dropped_when_its_lease_ends(
    saved: Lab,
) -> None:
    saved.restore("accepted")
    wrong = saved.oracle.rows(TARGET)
    saved.must("publish", saved.run, *BY)
    saved.must("verify", saved.run)
    saved.must(*_BACK, *BY)
    assert saved.oracle.rows(TARGET) == wrong
    kept = saved.must("maintain", "--dry-run", *BY).data["kept"]
    shadow = f"{TARGET}.branch_lhb_{saved.run.replace('-', '_')}"
    assert [one["run_id"] for one in kept if one["name"] == shadow] == [saved.run]


def _require_rolled_back(lab: Lab) -> None:
    """Look at what readers see, and that there is one publication and one rollback of it."""
    found: dict[str, Any] = facts(lab.oracle, TARGET, lab.run)
    assert found["runs"] == {"RUN": "rolled_back"}
    assert found["versions"] == [[0, "baseline"], [1, "publish"], [0, "rollback"]]
    assert found["tokens are used once"]
    assert not found["reserved"]
    assert {v // k for _, k, v in lab.oracle.rows(TARGET)} == {100}
    assert len(lab.oracle.rows(TARGET)) == 24
    assert lab.must("recover", "--all", *BY).data["actions"] == []


def _branches(lab: Lab) -> set[str]:
    refs = lab.oracle.table(TARGET).refs().items()
    return {name for name, ref in refs if ref.snapshot_ref_type == "branch"} - {"main"}


def _marks(lab: Lab) -> dict[str, str]:
    """Give what the target says of shadows on branches of it."""
    found = lab.oracle.table(TARGET).properties.items()
    return {key: text for key, text in found if key.startswith("lakehouse-backfill.branch")}


def _go_back(lab: Lab) -> None:
    """Roll back, or hear that nothing is left to do but what recovery does."""
    ended = lab.do(*_BACK, *BY)
    if ended.code != 0:
        assert f"{TARGET} is at version 0 already" in ended.error["problem"], ended
        lab.must("recover", "--all", *BY)


@pytest.mark.req("X9", "U12")
@pytest.mark.parametrize("point", ["Spark.overwrite:committing", "Shadows.drop:committing"])
def test_a_stopped_rollback_that_was_overtaken_changes_nothing_that_anybody_reads(
    saved: Lab, point: str
) -> None:
    saved.restore("published without tags")
    zombie = saved.start(*_BACK, *BY, hook=Stop(point))
    zombie.wait_until_stopped()
    _go_back(saved)
    _require_rolled_back(saved)
    before = _what_is_read(saved)
    zombie.go_on()
    ended = zombie.end()
    assert ended.code in (0, 4), ended
    assert _what_is_read(saved) == before
    _require_rolled_back(saved)


#: Where `maintain` may die that drops a branch, its pins and their snapshots.
_ENDS = [
    "Shadows.drop:committing", "Shadows.drop:committed", "Pins.expire:committed",
    "ControlLog.pin_lease:committing",
]  # fmt: skip


@pytest.mark.req("T3")
@pytest.mark.parametrize("point", _ENDS)
def test_a_maintain_that_was_killed_is_finished_by_the_next_and_readers_see_the_same(
    saved: Lab, point: str
) -> None:
    saved.restore("published")
    saved.killed(*_MAINTAIN, *BY, hook=Both(_LATER, Kill(point)))
    before = saved.oracle.rows(TARGET)
    assert saved.do(*_MAINTAIN, *BY, hook=_LATER).code == 0
    assert saved.oracle.rows(TARGET) == before
    assert (_branches(saved), _marks(saved)) == (set(), {})
    assert not any(name.startswith("lhb-pin") for name in _refs(saved))
    saved.must("verify", saved.run)
    with saved.opened() as catalog:
        assert all(Path(path).exists() for path in reached(catalog))
    _go_back(saved)
    _require_rolled_back(saved)


@pytest.mark.req("X9")
def test_a_stopped_driver_whose_branches_were_dropped_meanwhile_writes_nothing(
    saved: Lab,
) -> None:
    saved.restore("approved")
    zombie = saved.start(*saved.typed(_STAGE), hook=Stop("Spark.overwrite:committing", 2))
    zombie.wait_until_stopped()
    finish(saved)
    saved.do(*_MAINTAIN, *BY, hook=_LATER)
    assert _branches(saved) == set()
    before = saved.oracle.state()
    zombie.go_on()
    assert zombie.end().code == 4
    assert saved.oracle.catalog() == before[0]
    require_published(saved)
