"""Adopting a part of a run: only its partitions, while the shadow holds all of the run's."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.exceptions import ServiceUnavailableError

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.errors import WriteForbidden
from tests.support.lakes.tables import DAY, TARGET, Kit, row

pytestmark = pytest.mark.req("U6")


def test_steps_bring_a_run_in_part_by_part_and_live_commits_elsewhere_survive(kit: Kit) -> None:
    kit.create_days([f"2024-01-0{n}" for n in (1, 2, 3)])
    new = {f"2024-01-0{n}": [row(n, f"2024-01-0{n}", "new")] for n in (1, 2)}
    request = kit.stage(DAY, new)
    whole = request.scope
    for number, label in enumerate(("2024-01-02", "2024-01-01")):
        part = Scope(field=DAY, partitions=(label,))
        step = request.model_copy(
            update={
                "scope": part, "within": whole, "token": f"step-{number}",
                "tags": {"before": f"lhb-b-{number}", "after": f"lhb-a-{number}"},
            }
        )  # fmt: skip
        done = kit.publisher.adopt(step)
        assert (done.files_added, done.files_removed) == (1, 1)
        assert kit.publisher.adopt(step).snapshot_id == done.snapshot_id
        kit.append(row(10 + number, "2024-01-03", "live"))
    assert sorted((r[0], r[3]) for r in kit.rows()) == [
        (1, "new"), (2, "new"), (2, "old"), (10, "live"), (11, "live"),
    ]  # fmt: skip


def test_what_lies_outside_of_the_run_is_still_forbidden(kit: Kit) -> None:
    kit.create_days([f"2024-01-0{n}" for n in (1, 2, 3)])
    new = {f"2024-01-0{n}": [row(n, f"2024-01-0{n}", "new")] for n in (1, 2, 3)}
    request = kit.stage(DAY, new)
    step = request.model_copy(
        update={
            "scope": Scope(field=DAY, partitions=("2024-01-01",)),
            "within": Scope(field=DAY, partitions=("2024-01-01", "2024-01-02")),
        }
    )
    with pytest.raises(WriteForbidden, match="2024-01-03"):
        kit.publisher.adopt(step)


@pytest.mark.req("U10")
def test_a_swap_that_was_answered_is_not_looked_for_again(kit: Kit) -> None:
    """What is found out is paid for at every publication, and the catalog may be away by then."""
    kit.create_days(("2024-01-01", "2024-01-02"))
    request = kit.stage(DAY, {"2024-01-02": [row(1, "2024-01-02", "new")]})
    commit = kit.catalog.commit_table

    def last(*args: Any, **kwargs: Any) -> Any:
        answer = commit(*args, **kwargs)
        vars(kit.catalog)["load_table"] = away
        return answer

    def away(*_: Any) -> Any:
        raise ServiceUnavailableError("gone")

    vars(kit.catalog)["commit_table"] = last

    swap = kit.publisher.adopt(request)

    assert swap.snapshot_id == kit.live.load_table(TARGET).metadata.current_snapshot_id
