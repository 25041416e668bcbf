"""The dry run of a rollback says what would change, to whom it is allowed, and what stays."""

from __future__ import annotations

import dataclasses

import pytest

from lakehouse_backfill.core.publication.rollback import plan_rollback
from lakehouse_backfill.core.publication.rollback_preview import RollbackPreview, preview_rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.errors import NotAllowed
from lakehouse_backfill.results.publications import RollbackPreviewResult
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.steps import content_of, published_run, roll_back, world


def preview(
    found: Context, to: int, of: Contract | None = None, by: str = "ana"
) -> RollbackPreview:
    way = plan_rollback(found, PRODUCT, to, ())
    return preview_rollback(found, of or contract(), way, by)


def test_partitions_that_went_back_before_are_not_announced_as_changing() -> None:
    where, found = world()
    first = published_run(found)
    second = published_run(found, declared("2020-01-02", "2020-01-05"))
    roll_back(found, only=("2020-01-04",))
    seen = preview(found, 1)
    assert (seen.changed, seen.unchanged) == (("2020-01-02", "2020-01-03"), ("2020-01-04",))
    shown = RollbackPreviewResult.of(PRODUCT, seen)
    assert (shown.runs_undone, shown.runs_reinstated) == ((second,), ())
    before = content_of(where)
    roll_back(found, 1)
    after = content_of(where)
    assert tuple(sorted(day for day in after if after[day] != before[day])) == seen.changed
    assert found.runs.status(first).state.value == "published"


def test_a_run_that_readers_get_again_is_not_called_undone() -> None:
    _, found = world()
    first = published_run(found)
    roll_back(found, 0)
    second = published_run(found, declared("2020-01-04", "2020-01-05"))
    shown = RollbackPreviewResult.of(PRODUCT, preview(found, 1))
    assert (shown.runs_undone, shown.runs_reinstated) == ((second,), (first,))
    assert shown.partitions == ("2020-01-02", "2020-01-03", "2020-01-04")


def test_a_dry_run_is_refused_to_whom_the_rollback_would_be() -> None:
    _, found = world()
    published_run(found)
    prod = dataclasses.replace(
        found, profile=found.profile.model_copy(update={"environment": "prod"})
    )
    guarded = contract(roles={"rollback": ["ana"]})
    with pytest.raises(NotAllowed, match="eve"):
        preview(prod, 0, guarded, "eve")
