"""Eight processes publish to four products while four others append live rows."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from tests.chaos.crowd import PRODUCTS, Beside, ManyLab, append_rows
from tests.chaos.faults import Meet
from tests.chaos.lab import BY, DAYS, Ended, _arrow, shared_barrier
from tests.chaos.oracle import MARK

ROUNDS = 3
#: Each has looked at run, decisions, shadow and pointer, and none has written to its product.
LOOKED = "Versions.move:before"
#: Days that no run restates: live rows go there.
FREE = (DAYS[0], *DAYS[6:])


@dataclass(frozen=True)
class Attempt:
    """A run that a process publishes: of which product and days."""

    run: str
    product: str
    days: tuple[str, ...]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[ManyLab, list[Attempt]]:
    lab = ManyLab(tmp_path_factory.mktemp("crowd"))
    lab.make()
    attempts = []

    def add(product: str, first: int, stop: int) -> str:
        run = lab.accepted_run(product, DAYS[first], DAYS[stop])
        attempts.append(Attempt(run, product, DAYS[first:stop]))
        return run

    # Two runs of one product may only overlap when one was published before, and rolled back.
    overlapping = add(PRODUCTS[0], 1, 4)
    lab.must("publish", overlapping, *BY)
    lab.must("rollback", PRODUCTS[0], "--to", "0", "--reason", "wrong", *BY)
    add(PRODUCTS[0], 2, 5)
    for product in PRODUCTS[1:]:
        add(product, 1, 3)
        add(product, 3, 6)
    # A live row that nobody knew of when the run was planned.
    lab.catalog().load_table(PRODUCTS[3]).append(_arrow([(date.fromisoformat(DAYS[1]), 99, 99)]))
    lab.save("crowd")
    return lab, attempts


def publish_all(lab: ManyLab, attempts: list[Attempt]) -> list[Ended]:
    """Eight processes at once; they meet before any of them reserves a version."""
    barrier = shared_barrier(len(attempts))
    hooks = [Meet(LOOKED, barrier=barrier) for _ in attempts]
    children = [
        lab.start("publish", one.run, *BY, hook=hook)
        for one, hook in zip(attempts, hooks, strict=True)
    ]
    return [child.end() for child in children]


@pytest.mark.timeout(900)
@pytest.mark.req("T8", "U11")
def test_no_row_and_no_pointer_move_is_lost_and_every_loser_is_told_why(
    crowd: tuple[ManyLab, list[Attempt]], tmp_path: Path
) -> None:
    lab, attempts = crowd
    for number in range(ROUNDS):
        lab.restore("crowd")
        before = {product: versions(lab, product) for product in PRODUCTS}
        writers = [
            Beside(lab.folder, tmp_path / f"{number}-{product}", append_rows, (product, FREE, n))
            for n, product in enumerate(PRODUCTS)
        ]
        with ExitStack() as stack:
            for writer in writers:
                stack.enter_context(writer)
            ended = publish_all(lab, attempts)
        landed = [one for one, end in zip(attempts, ended, strict=True) if end.code == 0]
        lost = [(one, end) for one, end in zip(attempts, ended, strict=True) if end.code != 0]

        assert len(landed) == 6, (number, ended)
        assert Counter(one.product for one, _ in lost) == {PRODUCTS[0]: 1, PRODUCTS[3]: 1}
        for one, end in lost:
            assert (end.code, end.error["code"]) == (4, "target-changed"), (number, end)
            winner = next(w for w in landed if w.product == one.product)
            named = winner.run if one.product == PRODUCTS[0] else DAYS[1]
            assert named in end.error["problem"], (number, end)
            assert state(lab, one.run) == "accepted"
        for n, product in enumerate(PRODUCTS):
            mine = [one for one in landed if one.product == product]
            moved = versions(lab, product)[len(before[product]) :]
            assert sorted(run for _, run in moved) == sorted(one.run for one in mine), number
            assert len({version for version, _ in moved}) == len(moved)
            assert swaps(lab, product)[-len(mine) :] == [run for _, run in moved]
            appended = [tuple(row) for row in writers[n].said]
            assert appended, product
            assert lab.oracle.rows(product) == expected(product, mine, appended), number


def expected(
    product: str, landed: list[Attempt], appended: list[tuple[str, int, int]]
) -> list[tuple[str, int, int]]:
    restated = {day for one in landed for day in one.days}
    rows = [(day, k, k * (10 if day in restated else 100)) for day in DAYS for k in (1, 2, 3)]
    late = [(DAYS[1], 99, 99)] if product == PRODUCTS[3] else []
    return sorted([*rows, *late, *appended])


def versions(lab: ManyLab, product: str) -> list[tuple[int, str]]:
    """(version, run) of every act on the product's pointer that was accepted, in order."""
    log = lab.oracle.log(
        "accepted_output_version", "data_product", "output_version", "action", "run_id"
    )
    return [
        (row["output_version"], row["run_id"])
        for row in log
        if row["data_product"] == product and row["action"] == "publish"
    ]


def swaps(lab: ManyLab, product: str) -> list[str]:
    found = lab.oracle.summaries(product)
    return [one[f"{MARK}run-id"] for one in found if f"{MARK}output-version" in one]


def state(lab: ManyLab, run: str) -> str:
    log = lab.oracle.log("run_event", "run_id", "to_state")
    return [row["to_state"] for row in log if row["run_id"] == run][-1]
