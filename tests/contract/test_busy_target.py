"""A publication beside a live writer that never stops, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.lakes.tables import DAY, Kit, row

DAYS = ("2013-02-01", "2013-02-02")


@contextmanager
def _writing(root: Path, per_second: float) -> Iterator[list[int]]:
    """Let a live job append to the other day; gives how many rows it did in the end."""
    command = [sys.executable, "-m", "tests.support.lakes.live_writer", str(root), DAYS[1]]
    writer = subprocess.Popen(
        [*command, str(per_second)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    done: list[int] = []
    try:
        assert writer.stdout.readline() == "ready\n"
        yield done
    finally:
        told, _ = writer.communicate("stop\n", timeout=60)
        done.append(int(told.split()[-1]))


@pytest.mark.req("U11")
@pytest.mark.parametrize("per_second", [1, 5])
def test_a_publication_lands_beside_a_writer_of_other_partitions(
    days: Kit, per_second: float
) -> None:
    request = days.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    with _writing(days.root, per_second) as done:
        time.sleep(1.0)
        started = time.monotonic()
        swap = days.publisher.adopt(request)
        seconds = time.monotonic() - started
        time.sleep(0.5)
    rows = days.rows()
    assert rows[0] == (0, DAYS[0], "EU", "new")
    assert sum(1 for one in rows if one[3] == "live") == done[0]
    assert seconds < 10, f"{swap.attempts} attempts"
