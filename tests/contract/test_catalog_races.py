"""Real processes that open the same new catalog at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.domain.profile import Profile
from tests.support.forks import FORKS

ROUNDS, PROCESSES = 4, 3


def open_new(folder: Path, start: Any, answers: Any) -> None:
    profile = Profile(
        catalog={
            "name": "lake",
            "type": "sql",
            "uri": "sqlite:///${project}/catalog.db",
            "warehouse": "file://${project}/warehouse",
        }
    )
    start.wait(60)
    answers.put(open_catalog(profile, folder).list_namespaces())


def test_processes_that_open_a_new_catalog_at_once_all_get_it(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        start, answers = FORKS.Barrier(PROCESSES), FORKS.Queue()
        work = (folder, start, answers)
        crowd = [FORKS.Process(target=open_new, args=work) for _ in range(PROCESSES)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join(60)
        assert [one.exitcode for one in crowd] == [0] * PROCESSES
        assert [answers.get(timeout=1) for _ in crowd] == [[]] * PROCESSES
