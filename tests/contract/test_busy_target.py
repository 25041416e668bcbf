"""A publication beside a live writer that never stops, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile

from lakehouse_backfill.adapters.iceberg.manifests.partition_labels import PartitionLabels
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
        days.publisher.adopt(request)
        time.sleep(0.5)
    rows = days.rows()
    assert rows[0] == (0, DAYS[0], "EU", "new")
    assert sum(1 for one in rows if one[3] == "live") == done[0]


class _LostRaces:
    """Live commits just before a publication's own; what each attempt after the first one needs."""

    def __init__(self, kit: Kit, races: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kit, self._is_counted = kit, False
        self.examined = 0
        self.opened: Counter[str] = Counter()
        open_input, span = PyArrowFileIO.new_input, PartitionLabels.labels_spanned

        def new_input(io: PyArrowFileIO, path: str) -> Any:
            if self._is_counted:
                self.opened[_kind(path)] += 1
            return open_input(io, path)

        def labels_spanned(labels: PartitionLabels, file: DataFile) -> frozenset[str]:
            self.examined += self._is_counted
            return span(labels, file)

        monkeypatch.setattr(PyArrowFileIO, "new_input", new_input)
        monkeypatch.setattr(PartitionLabels, "labels_spanned", labels_spanned)
        kit.before_commit(*[self._win] * races, self._stop)

    def _win(self) -> None:
        self._stop()
        self._kit.append(row(100, DAYS[1], "live"))
        self._is_counted = True

    def _stop(self) -> None:
        self._is_counted = False


@pytest.mark.req("U11", "T8")
@pytest.mark.parametrize("verb", ["adopt", "revert", "revert after a compaction"])
def test_an_attempt_after_a_lost_race_opens_only_new_metadata_and_its_manifest_list(
    days: Kit, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the same however many files the table has: so the window to lose again is short."""
    races, request = 6, days.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    if verb == "adopt":
        lost = _LostRaces(days, races, monkeypatch)
        done = days.publisher.adopt(request)
    else:
        back = days.revert_request(days.publisher.adopt(request), request.scope)
        if verb != "revert":
            days.compact(request.scope)
        lost = _LostRaces(days, races, monkeypatch)
        done = days.publisher.revert(back)
    assert done.attempts == 1 + races
    # The metadata of each attempt, and that which the lost commit compared it with.
    assert lost.opened == {"manifest list": races, "metadata": 2 * races}
    assert lost.examined == 0
    rows = days.rows()
    assert rows[0] == (0, DAYS[0], "EU", "new" if verb == "adopt" else "old")
    assert sorted(one[3] for one in rows[1:]) == [*["live"] * races, "old", "old"]


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.endswith(".metadata.json"):
        return "metadata"
    return "manifest list" if name.startswith("snap-") else "manifest or data"
