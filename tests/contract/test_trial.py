"""try on a real lake: it changes nothing that anybody reads, also when it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.aging import register_aged
from tests.chaos.faults import Kill
from tests.chaos.lab import BY, TARGET, Lab, tables_of

DAY = "2024-01-06"
#: Where a trial is killed, and how many files stay then that no table lists.
POINTS = {
    ("Shadows.open:after", 1): 0,
    ("Shadows.fence:after", 1): 0,
    ("Staging.stage:after", 1): 0,
    ("RunFiles.delete:committed", 1): 0,
    ("RunFiles.delete:committed", 2): 0,
    ("RunFiles.delete:after", 1): 0,
    # The metadata file of the dropped table.
    ("Shadows.retire:after", 1): 1,
}


def tried(lab: Lab) -> tuple[str, ...]:
    """The command that tries another range than that of the published run."""
    return "try", lab.manifest("other.yaml", "2024-01-05", "2024-01-08"), "--partition", DAY, *BY


def scratch_tables(lab: Lab) -> list[str]:
    return [name for name in tables_of(lab) if "__try_" in name]


def files_of_trials(lab: Lab) -> list[Path]:
    folder = lab.folder / "lake" / "warehouse"
    return [path for path in folder.rglob("*") if "__try_" in str(path) and path.is_file()]


def reachable(lab: Lab) -> dict[str, str]:
    """What commands read: the newest metadata of the product, its inputs, and all control tables.

    Pins and leases are in it; only scratch tables of trials are not.
    """
    names = [name for name in tables_of(lab) if "__try_" not in name]
    with lab.opened() as catalog:
        return {name: catalog.load_table(name).metadata_location for name in names}


def test_one_partition_is_computed_judged_and_compared_before_any_approval(lab: Lab) -> None:
    before = reachable(lab)
    data = lab.must(*tried(lab)).data
    assert (data["product"], data["partition"], data["output_rows"]) == (TARGET, DAY, 3)
    assert data["diff"]["summary"] | {"changed": 3, "old_rows": 3} == data["diff"]["summary"]
    assert data["passed"]
    names = {check["name"] for check in data["checks"]}
    assert names > {"keys are unique", "diff and counts agree"}
    assert reachable(lab) == before
    assert (scratch_tables(lab), files_of_trials(lab)) == ([], [])


def test_no_command_can_publish_what_a_trial_computed(lab: Lab) -> None:
    lab.killed(*tried(lab), hook=Kill("Shadows.retire:before"))
    (left,) = scratch_tables(lab)
    before, name = reachable(lab), left.rpartition("__try_")[0].rpartition("__")[2]
    for run in (left, name, name.replace("_", "-"), name.replace("bf_", "try-")):
        for verb in ("publish", "accept", "approve", "run", "validate"):
            assert lab.do(verb, run, *BY).code == 2, (verb, run)
    assert lab.do("recover", "--all", *BY).data["actions"] == []
    assert reachable(lab) == before


@pytest.mark.in_turn
@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_what_a_killed_trial_leaves_is_removed_by_the_next(lab: Lab, point: str, nth: int) -> None:
    before = reachable(lab)
    lab.killed(*tried(lab), hook=Kill(point, nth))
    assert reachable(lab) == before
    data = lab.must(*tried(lab)).data
    assert data["passed"]
    assert (reachable(lab), scratch_tables(lab)) == (before, [])
    left = files_of_trials(lab)
    assert [path.suffix for path in left] == [".json"] * POINTS[point, nth]


def test_maintain_removes_what_a_killed_trial_left_a_day_ago(lab: Lab) -> None:
    lab.killed(*tried(lab), hook=Kill("Staging.stage:after"))
    (left,), files = scratch_tables(lab), files_of_trials(lab)
    young = "lakehouse_backfill_shadow.t__bf_9__try_4567abcd"
    with lab.opened() as catalog:
        register_aged(catalog, left, young, days=0)
        register_aged(catalog, left, left, days=1)
    retired = lab.must("maintain", *BY).data["retired"]
    because = "a scratch table of a try, left behind by a command that was cut off"
    assert [(one["name"], one["because"]) for one in retired] == [(left, because)]
    assert scratch_tables(lab) == [young]
    assert {path.suffix for path in files} == {".json", ".avro", ".parquet"}
    assert {path.suffix for path in files if path.exists()} == {".json"}
