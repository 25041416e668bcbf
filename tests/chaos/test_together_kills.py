"""SIGKILL while two pinned products become visible, or go back, together: both, or neither.

Publishing goes on by the same command, every second time after `recover`; going back by `recover`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from lakehouse_backfill.project import Project
from tests.chaos.crowd import PRODUCTS, ManyLab
from tests.chaos.faults import Kill, Record
from tests.chaos.lab import BY, CONTRACT, DAYS
from tests.chaos.oracle import ACCEPTING
from tests.chaos.scenarios import moments

PAIR = PRODUCTS[:2]
DAY = DAYS[1]
OLD, NEW = [100, 200, 300], [10, 20, 30]
#: The moments are killed at in so many tests: none takes long.
SHARES = 6
#: verb -> (the saved state it begins from, what readers see then)
BEGINS = {"publish": ("accepted", OLD), "rollback": ("published", NEW)}


@dataclass(frozen=True)
class Pair:
    """Two pinned products in a lab, and the run of each."""

    lab: ManyLab
    runs: tuple[str, ...]

    def typed(self, verb: str) -> tuple[str, ...]:
        if verb == "publish":
            return (verb, *self.runs, *BY)
        return (verb, *PAIR, "--reason", "wrong", *BY)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Saved as `accepted`, when readers see the old versions, and as `published`."""
    lab = ManyLab(tmp_path_factory.mktemp("pair"))
    lab.make()
    for product in PAIR:
        text = CONTRACT.replace("silver.t", product)
        text = text.replace("owner: ana\n", "owner: ana\npublication: pinned\n")
        path = lab.folder / "catalog" / "contracts" / f"{product}.yaml"
        path.write_text(text, encoding="utf-8")
    mode = "  publish_mode: pointer_swap\n"
    found = Pair(lab, tuple(lab.accepted_run(product, DAY, DAYS[2], mode) for product in PAIR))
    lab.must(*found.typed("publish"))
    lab.save("published")
    lab.must(*found.typed("rollback"))
    lab.save("accepted")
    return found


def _seen(lab: ManyLab) -> list[list[int]]:
    """What readers get for the restated day, of each product, from one load of the pointers."""
    found = Project.open(lab.folder).accepted_together(PAIR)
    day = date.fromisoformat(DAY)
    tables = [found[product].to_pylist() for product in PAIR]
    return [sorted(row["v"] for row in rows if row["d"] == day) for rows in tables]


def _facts(lab: ManyLab) -> dict[str, Any]:
    """What must be the same, whatever was killed on the way."""
    oracle = lab.oracle
    states: dict[str, str] = {}
    for event in oracle.log("run_event", "run_id", "to_state"):
        states[event["run_id"]] = event["to_state"]
    moves = oracle.log("accepted_output_version", "data_product", "output_version", "action")
    return {
        "seen": _seen(lab),
        "targets": [oracle.rows(product) for product in PAIR],
        "states": states,
        "moves": sorted(tuple(row.values()) for row in moves if row["action"] in ACCEPTING),
        "evidence": sorted({row["kind"] for row in oracle.log("evidence", "kind")}),
    }


@dataclass(frozen=True)
class Undisturbed:
    """What a verb passes, and what is so after it."""

    points: list[str]
    facts: dict[str, Any]


@pytest.fixture(scope="module", params=BEGINS)
def verb(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(pair: Pair, verb: str, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    points = tmp_path_factory.mktemp(verb) / "points"
    pair.lab.restore(BEGINS[verb][0])
    assert pair.lab.do(*pair.typed(verb), hook=Record(points)).code == 0
    return Undisturbed(points.read_text(encoding="utf-8").split(), _facts(pair.lab))


@pytest.mark.req("U2")
def test_both_move_by_one_commit(undisturbed: Undisturbed, verb: str) -> None:
    assert undisturbed.points.count("Versions.move_all:before") == 1
    new = OLD if verb == "rollback" else NEW
    assert undisturbed.facts["seen"] == [new, new]


@pytest.mark.req("U2", "U10", "T3")
@pytest.mark.parametrize("share", range(SHARES))
def test_readers_of_both_see_all_or_nothing_wherever_it_is_killed(
    pair: Pair, verb: str, undisturbed: Undisturbed, share: int
) -> None:
    lab, (state, old) = pair.lab, BEGINS[verb]
    new = undisturbed.facts["seen"][0]
    for number, (point, nth) in list(enumerate(moments(undisturbed.points)))[share::SHARES]:
        lab.restore(state)
        lab.killed(*pair.typed(verb), hook=Kill(point, nth))
        assert _seen(lab) in ([old, old], [new, new]), (point, nth)
        if verb == "rollback" or (number + number // SHARES) % 2:
            lab.must("recover", "--all", *BY)
            assert _seen(lab) in ([old, old], [new, new]), (point, nth)
        if verb == "publish" or _seen(lab) == [old, old]:
            lab.must(*pair.typed(verb))
        assert _facts(lab) == undisturbed.facts, (point, nth)
        assert lab.must("recover", "--all", *BY).data["actions"] == [], (point, nth)
