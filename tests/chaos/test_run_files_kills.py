"""SIGKILL while files of a cancelled run are deleted, then maintain again: all are gone, no other.

An erasure ends the lease at once, so no clock has to be moved.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults import Kill, Record
from tests.chaos.lab import BY, TARGET, Lab
from tests.support.oracles.reached import reached

ERASE = ("maintain", "--erasure", TARGET, "--reason", "request 4711", *BY)
#: Each file is deleted in a commit of its own: the first and the last are killed; others are
#: in tests/contract/test_run_files.py.
CASES = [
    *((f"Runs.append:{when}", nth) for nth in (1, 2, 3) for when in ("before", "after")),
    *((f"Shadows.retire:{when}", 1) for when in ("before", "after")),
    *((f"RunFiles.delete:{when}", nth) for nth in (1, 8) for when in ("committing", "committed")),
]


def shadow_files(lab: Lab) -> set[str]:
    """What lies in the folders of shadows."""
    folder = lab.folder / "lake" / "warehouse" / "lakehouse_backfill_shadow"
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def _cancelled(labs: list[Lab]) -> None:
    """Save a run that was cancelled when it was staged."""
    lab = labs[0]
    lab.restore("staged")
    lab.must("cancel", lab.run, *BY, "--reason", "no")
    lab.save("cancelled")


@pytest.fixture
def lab(labs: list[Lab], _cancelled: None) -> Lab:
    labs[0].restore("cancelled")
    return labs[0]


@pytest.mark.req("T3")
@pytest.mark.parametrize(("point", "nth"), CASES)
def test_a_deletion_that_is_killed_is_completed_by_the_next_maintain(
    lab: Lab, point: str, nth: int
) -> None:
    assert shadow_files(lab)
    rows = lab.oracle.rows(TARGET)
    lab.killed(*ERASE, hook=Kill(point, nth))
    lab.must("maintain", *BY)
    lab.must(*ERASE)
    assert shadow_files(lab) == set()
    assert lab.oracle.rows(TARGET) == rows
    with lab.opened() as catalog:
        assert all(Path(path).exists() for path in reached(catalog))
    verbs = [event["verb"] for event in lab.must("log", lab.run).data["events"]]
    for verb in ("retire", "begin deleting files", "delete files"):
        assert verbs.count(verb) == 1
    assert lab.must("audit", "verify").data["intact"]


@pytest.mark.req("T3")
def test_the_points_that_are_killed_are_passed(lab: Lab, tmp_path: Path) -> None:
    lab.do(*ERASE, hook=Record(tmp_path / "points"))
    passed = (tmp_path / "points").read_text().split()
    assert all(passed.count(point) >= nth for point, nth in CASES)
