"""Appending history (U3): only to partitions that hold nothing, in a snapshot that only adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.domain.tables.commits import AdoptRequest
from lakehouse_backfill.errors import TargetChanged
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row


def staged(kit: Kit, version: int = 2) -> AdoptRequest:
    """A table with one day, and a shadow that holds rows of two others."""
    kit.create(("d", "identity"), version=version)
    kit.append(row(0, DAYS[0]))
    request = kit.stage(DAY, {day: [row(n, day, "new")] for n, day in enumerate(DAYS[1:], 1)})
    return request.model_copy(update={"operation": "append"})


def operation(kit: Kit) -> str:
    snapshot = kit.live.load_table(TARGET).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return str(snapshot.summary.operation.value)


@pytest.mark.req("U3")
@pytest.mark.parametrize("version", [1, 2])
def test_an_append_only_adds_and_says_so(tmp_path: Path, version: int) -> None:
    kit = Kit(tmp_path)
    request = staged(kit, version)
    swap = kit.publisher.adopt(request)
    assert (swap.files_added, swap.files_removed, swap.rows_added) == (2, 0, 2)
    assert operation(kit) == "append"
    assert kit.total_rows() == 3
    assert kit.rows() == [
        (0, DAYS[0], "EU", "old"), (1, DAYS[1], "EU", "new"), (2, DAYS[2], "EU", "new"),
    ]  # fmt: skip
    # The same again finds it, and adds nothing.
    assert kit.publisher.adopt(request).snapshot_id == swap.snapshot_id
    kit.publisher.revert(kit.revert_request(swap, request.scope))
    assert (kit.rows(), operation(kit)) == ([(0, DAYS[0], "EU", "old")], "overwrite")


@pytest.mark.req("U3", "U11")
@pytest.mark.parametrize("when", ["before the publication", "between inspection and commit"])
def test_a_row_that_came_to_the_partitions_is_a_named_conflict(tmp_path: Path, when: str) -> None:
    kit = Kit(tmp_path)
    request = staged(kit)

    def live() -> None:
        kit.append(row(9, DAYS[1]), **{"engine-name": "live"})

    if when == "before the publication":
        live()
    else:
        kit.before_commit(live)
    with pytest.raises(TargetChanged, match=r"append by live .* changed 2013-02-02"):
        kit.publisher.adopt(request)
    assert kit.rows() == [(0, DAYS[0], "EU", "old"), (9, DAYS[1], "EU", "old")]


@pytest.mark.req("U3", "U11")
def test_rows_that_came_to_other_partitions_stay(kit: Kit) -> None:
    request = staged(kit)
    kit.before_commit(lambda: kit.append(row(9, DAYS[0])))
    kit.publisher.adopt(request)
    assert [found[0] for found in kit.rows()] == [0, 1, 2, 9]
    assert operation(kit) == "append"


@pytest.mark.req("U3")
def test_what_is_no_append_is_never_called_one(tmp_path: Path) -> None:
    """Whoever asks for an append of partitions that held rows at the base is refused too."""
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    kit.append(row(0, DAYS[0]))
    request = kit.stage(DAY, {DAYS[0]: [row(1, DAYS[0], "new")]})
    with pytest.raises(TargetChanged, match=r"hold 1 files, e\.g\. .*, but the run only appends"):
        kit.publisher.adopt(request.model_copy(update={"operation": "append"}))
    assert kit.rows() == [(0, DAYS[0], "EU", "old")]
