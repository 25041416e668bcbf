"""Processes that read all the time while others publish and roll back."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.errors import TargetChanged
from lakehouse_backfill.project import accepted
from tests.chaos.crowd import Beside, read_accepted, read_by_duckdb, read_by_pyiceberg
from tests.chaos.lab import BY, DAYS, SCOPE, TARGET, Lab, _arrow

ROUNDS = 5
READERS = (read_by_pyiceberg, read_by_duckdb, read_accepted)


def rows(factor: int) -> list[list[Any]]:
    """All rows, the run's days with this factor."""
    return [[d, k, k * (factor if d in SCOPE else 100)] for d in DAYS for k in (1, 2, 3)]


@pytest.mark.req("U13", "T8")
def test_who_reads_during_publications_and_rollbacks_sees_old_or_new_and_never_both(
    lab: Lab, tmp_path: Path
) -> None:
    lab.restore("accepted")
    old, new = rows(100), rows(10)
    with ExitStack() as stack:
        readers = [
            stack.enter_context(Beside(lab.folder, tmp_path / read.__name__, read, (TARGET,)))
            for read in READERS
        ]
        for _ in range(ROUNDS):
            lab.must("publish", lab.run, *BY)
            lab.must("rollback", TARGET, "--to", "0", "--reason", "again", *BY)
    for reader in readers:
        assert reader.said[0] == old, reader.work.__name__
        # Each state follows the other one: nothing in between was ever seen.
        assert reader.said == [(old, new)[n % 2] for n in range(len(reader.said))]
        assert len(reader.said) > 1, f"{reader.work.__name__} saw nothing new"


@pytest.mark.req("U13", "T8")
@pytest.mark.parametrize(
    ("state", "factor"), [("publishing cut off", 10), ("rollback cut off", 100)]
)
def test_between_the_swap_and_the_pointer_readers_get_the_rows_of_the_swap(
    lab: Lab, state: str, factor: int
) -> None:
    lab.restore(state)
    found = accepted(TARGET, "arrow", folder=lab.folder).to_pylist()
    assert sorted([str(row["d"]), row["k"], row["v"]] for row in found) == rows(factor)


@pytest.mark.req("U13")
def test_a_live_row_in_the_days_of_a_cut_off_publication_is_still_a_change(lab: Lab) -> None:
    lab.restore("publishing cut off")
    row = (date.fromisoformat(SCOPE[0]), 9, 9)
    lab.catalog().load_table(TARGET).append(_arrow([row]))
    with pytest.raises(TargetChanged, match=SCOPE[0]):
        accepted(TARGET, "arrow", folder=lab.folder)
