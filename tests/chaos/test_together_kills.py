"""SIGKILL while two products become visible, or go back, together: both, or neither.

Publishing goes on by the same command, every second time after `recover`; going back by `recover`.
Followed products change by one commit of the catalog, pinned ones by one of the pointer table. Of
followed ones whose runs wrote to branches that one commit is killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
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
#: What commits differently by kind of product.
OWN = ("ControlLog.accepted_output_version", "Versions.move", "Publisher.")
#: The saved state that a verb begins from, what readers see then, and the point of its commit.
BEGINS = {
    ("pinned", "publish"): ("accepted", OLD, "Versions.move_all:before"),
    ("pinned", "rollback"): ("published", NEW, "Versions.move_all:before"),
    ("follow", "publish"): ("accepted", OLD, "Publisher.swap_together:committing"),
    ("follow", "rollback"): ("published", NEW, "Publisher.swap_together:committing"),
    ("branch", "publish"): ("accepted", OLD, "Publisher.swap_together:committing"),
    ("branch", "rollback"): ("published", NEW, "Publisher.swap_together:committing"),
}


@dataclass(frozen=True)
class Pair:
    """Two products in a lab, pinned or followed, and the run of each."""

    lab: ManyLab
    kind: str
    runs: tuple[str, ...]

    def typed(self, verb: str) -> tuple[str, ...]:
        if verb == "publish":
            return (verb, *self.runs, *BY)
        return (verb, *PAIR, "--reason", "wrong", *BY)

    def seen(self) -> list[list[int]]:
        """What readers get for the restated day, of each product, as of one moment."""
        day = date.fromisoformat(DAY)
        if self.kind != "pinned":
            rows = [self.lab.oracle.rows(product) for product in PAIR]
            return [sorted(v for d, _, v in found if str(d) == DAY) for found in rows]
        found = Project.open(self.lab.folder).accepted_together(PAIR)
        tables = [found[product].to_pylist() for product in PAIR]
        return [sorted(row["v"] for row in rows if row["d"] == day) for rows in tables]


@pytest.fixture(scope="module", params=BEGINS, ids=" ".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    kind, verb = request.param
    return kind, verb


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Saved as `accepted`, when readers see the old versions, and pinned ones as `published`."""
    return {
        kind: _pair(tmp_path_factory.mktemp(kind), kind) for kind in ("pinned", "follow", "branch")
    }


def _pair(folder: Path, kind: str) -> Pair:
    lab = ManyLab(folder, "branch" if kind == "branch" else "clone")
    lab.make()
    publication = "pinned" if kind == "pinned" else "follow"
    for product in PAIR:
        text = CONTRACT.replace("silver.t", product)
        text = text.replace("owner: ana\n", f"owner: ana\npublication: {publication}\n")
        path = lab.folder / "catalog" / "contracts" / f"{product}.yaml"
        path.write_text(text, encoding="utf-8")
    mode = "  publish_mode: pointer_swap\n" if kind == "pinned" else ""
    runs = tuple(lab.accepted_run(product, DAY, DAYS[2], mode) for product in PAIR)
    found = Pair(lab, kind, runs)
    lab.must(*found.typed("publish"))
    lab.save("published")
    lab.must(*found.typed("rollback"))
    lab.save("accepted")
    return found


def _facts(pair: Pair) -> dict[str, Any]:
    """What must be the same, whatever was killed on the way."""
    oracle = pair.lab.oracle
    states: dict[str, str] = {}
    for event in oracle.log("run_event", "run_id", "to_state"):
        states[event["run_id"]] = event["to_state"]
    moves = oracle.log("accepted_output_version", "data_product", "output_version", "action")
    return {
        "seen": pair.seen(),
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


@pytest.fixture(scope="module")
def undisturbed(
    pairs: dict[str, Pair], case: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    kind, verb = case
    pair, points = pairs[kind], tmp_path_factory.mktemp(verb) / "points"
    pair.lab.restore(BEGINS[case][0])
    assert pair.lab.do(*pair.typed(verb), hook=Record(points)).code == 0
    return Undisturbed(points.read_text(encoding="utf-8").split(), _facts(pair))


@pytest.mark.req("U2")
def test_both_move_by_one_commit(undisturbed: Undisturbed, case: tuple[str, str]) -> None:
    assert undisturbed.points.count(BEGINS[case][2]) == 1
    new = OLD if case[1] == "rollback" else NEW
    assert undisturbed.facts["seen"] == [new, new]


@pytest.mark.req("U2", "U10", "T3", "X12")
@pytest.mark.parametrize("share", range(SHARES))
def test_readers_of_both_see_all_or_nothing_wherever_it_is_killed(
    pairs: dict[str, Pair], case: tuple[str, str], undisturbed: Undisturbed, share: int
) -> None:
    (kind, verb), (state, old, _) = case, BEGINS[case]
    pair, new = pairs[kind], undisturbed.facts["seen"][0]
    lab = pair.lab
    for number, (point, nth) in list(enumerate(_cases(kind, undisturbed.points)))[share::SHARES]:
        lab.restore(state)
        lab.killed(*pair.typed(verb), hook=Kill(point, nth))
        assert pair.seen() in ([old, old], [new, new]), (point, nth)
        if verb == "rollback" or (number + number // SHARES) % 2:
            lab.must("recover", "--all", *BY)
            assert pair.seen() in ([old, old], [new, new]), (point, nth)
        if verb == "publish" or pair.seen() == [old, old]:
            lab.must(*pair.typed(verb))
        assert _facts(pair) == undisturbed.facts, (point, nth)
        assert lab.must("recover", "--all", *BY).data["actions"] == [], (point, nth)


def _cases(kind: str, passed: list[str]) -> list[tuple[str, int]]:
    """Name the moments of a kind of product: at least one in each state of the lake.

    Right after a commit and right before the next one the lake is the same. Where the kinds differ,
    both moments are killed at; else the first one of pinned products, the second one of followed.
    """
    if kind == "branch":
        found = [case for case in moments(passed) if case[0].startswith("Publisher.")]
    else:
        ends = (":committed", ":after") if kind == "pinned" else (":committing", ":before")
        found = [
            case for case in moments(passed) if case[0].startswith(OWN) or case[0].endswith(ends)
        ]
    assert found
    return found
