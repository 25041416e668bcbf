"""Adopting a part of a run: only its partitions, while the shadow holds all of the run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.errors import WriteForbidden
from lakehouse_backfill.model.scope import Scope
from tests.contract.lake_kit import Kit, field_of, row

pytestmark = pytest.mark.req("U6")
DAY = field_of("d")


def test_steps_bring_a_run_in_part_by_part_and_live_commits_elsewhere_survive(
    tmp_path: Path,
) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    kit.append(*(row(n, f"2024-01-0{n}") for n in (1, 2, 3)))
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
        (1, "new"), (2, "new"), (3, "old"), (10, "live"), (11, "live"),
    ]  # fmt: skip


def test_what_lies_outside_of_the_run_is_still_forbidden(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    kit.append(*(row(n, f"2024-01-0{n}") for n in (1, 2, 3)))
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
