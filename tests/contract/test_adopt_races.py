"""Two real processes adopt at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse_backfill.domain.tables.commits import AdoptRequest
from tests.support.lakes.tables import DAY, Kit, row

DAYS = ("2013-02-01", "2013-02-02")


class Worker:
    """A process that adopts on demand, in the lake of any folder."""

    def __init__(self) -> None:
        repository = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.adopt_worker"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=repository,
            env={**os.environ, "PYTHONPATH": str(repository)},
        )  # fmt: skip

    def tell(self, root: Path, request: AdoptRequest) -> None:
        self.process.stdin.write(f"{root}\t{request.model_dump_json()}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    pair = (Worker(), Worker())
    assert [worker.hear() for worker in pair] == ["ready", "ready"]
    yield pair
    for worker in pair:
        worker.process.stdin.close()
        worker.process.wait(30)


OVERLAPPING = (DAYS[0], DAYS[0]), ["landed", "target-changed"]
DISJOINT = DAYS, ["landed", "landed"]


def race(kit: Kit, workers, days: tuple[str, ...], outcomes: list[str], rounds: int) -> None:
    """Let both adopt at the same time, so often; look at what landed."""
    for number in range(rounds):
        requests = [
            kit.stage(DAY, {day: [row(n, day, f"{number}-{n}")]}, run=f"r{days[1]}{number}_{n}")
            for n, day in enumerate(days)
        ]
        for worker, request in zip(workers, requests, strict=True):
            worker.tell(kit.root, request)
        heard = [worker.hear() for worker in workers]

        assert sorted(heard) == outcomes
        landed = {f"{number}-{n}" for n, outcome in enumerate(heard) if outcome == "landed"}
        now = {row[3] for row in kit.rows() if row[3].startswith(f"{number}-")}
        assert now == landed
        assert kit.total_rows() == len(kit.rows()) == len(DAYS)


@pytest.mark.long
@pytest.mark.req("U11", "T8")
def test_overlapping_scopes_have_one_winner_and_disjoint_ones_both_land(tmp_path, workers):
    kit = Kit(tmp_path)
    kit.create_days(DAYS)
    for days, outcomes in (OVERLAPPING, DISJOINT):
        race(kit, workers, days, outcomes, rounds=10)
