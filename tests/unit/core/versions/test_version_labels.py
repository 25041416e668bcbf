"""Which version made a row, and what became of it: decided by the history of the pointer alone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.retention.maintain import maintain
from lakehouse_backfill.core.versions.version_labels import decide_labels
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.errors import Unsupported
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake

pytestmark = pytest.mark.req("U5")
TABLE, VIEW = "silver.daily_versions", "gold.daily_accepted"
LABELLED = contract(publication="pinned", versions_table=TABLE, view=VIEW)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def _row(number: int, action: str, version: int, supersedes: int | None) -> Publication:
    return Publication(
        product=PRODUCT, version=version, token=f"t{number}", action=action, run_id=None,
        table=f"silver.daily_v{version}", snapshot_id=version + 1, before_snapshot_id=None,
        scope=None, supersedes=supersedes, at=START + timedelta(days=number), by="ana",
    )  # fmt: skip


def _history(*acts: tuple[str, int, int | None]) -> tuple[Publication, ...]:
    return tuple(reversed([_row(number, *act) for number, act in enumerate(acts)]))


BASE = ("baseline", 0, None)


@pytest.mark.parametrize(
    ("acts", "found"),
    [
        ([BASE, ("publish", 1, 0)], ["0 superseded", "1 accepted"]),
        (
            [BASE, ("publish", 1, 0), ("publish", 2, 1), ("rollback", 1, 2)],
            ["0 superseded", "1 accepted", "2 rolled_back"],
        ),
        (
            [BASE, ("publish", 1, 0), ("publish", 2, 1), ("rollback", 1, 2), ("publish", 3, 1)],
            ["0 superseded", "1 superseded", "3 accepted", "2 rolled_back"],
        ),
        ([BASE, ("publish", 1, 0), ("rollback", 0, 1)], ["0 accepted", "1 rolled_back"]),
        (
            [BASE, ("publish", 1, 0), ("publish", 2, 1), ("expire", 0, None)],
            ["1 superseded", "2 accepted"],
        ),
    ],
)
def test_versions_below_the_accepted_one_are_superseded_and_others_rolled_back(
    acts: list[tuple[str, int, int | None]], found: list[str]
) -> None:
    labels = decide_labels(LABELLED, _history(*acts))
    assert labels is not None
    assert [f"{one.version} {one.status}" for one in labels.versions] == found
    assert labels.acts == len(acts)
    assert labels.let_go == ((0,) if acts[-1][0] == "expire" else ())


@given(st.lists(st.integers(0, 5), max_size=12))
def test_exactly_one_version_is_accepted_whatever_was_published_and_rolled_back(
    moves: list[int],
) -> None:
    """0 publishes, any other number rolls back to that version, if there is one below."""
    acts: list[tuple[str, int, int | None]] = [BASE]
    line, last = [0], 0
    for move in moves:
        if move == 0 or move - 1 not in line[:-1]:
            last += 1
            acts.append(("publish", last, line[-1]))
            line.append(last)
        else:
            line = line[: line.index(move - 1) + 1]
            acts.append(("rollback", move - 1, None))
    labels = decide_labels(LABELLED, _history(*acts))
    assert labels is not None
    said = {one.version: one.status for one in labels.versions}
    assert said == {
        version: "accepted" if version == line[-1]
        else "superseded" if version in line else "rolled_back"
        for version in range(last + 1)
    }  # fmt: skip
    # The first version of the line that holds a row made it.
    assert [one.version for one in labels.versions][: len(line)] == line


def test_nothing_is_said_of_a_product_without_an_accepted_version_or_without_such_a_table() -> None:
    assert decide_labels(LABELLED, ()) is None
    assert decide_labels(contract(publication="pinned"), _history(BASE)) is None


def test_publish_rollback_and_maintain_bring_the_table_to_what_the_pointer_says() -> None:
    where = lake()
    found = context(where)
    tables = found.version_tables.tables  # type: ignore[attr-defined]

    def said() -> list[str]:
        return [f"{one.version} {one.status}" for one in tables[TABLE].versions]

    target = {"publish_mode": "versioned"}
    for _ in range(2):
        run_id = steps.accepted_run(found, declared(contract=LABELLED, target=target))
        publish(found, run_id, "bob")
    assert said() == ["0 superseded", "1 superseded", "2 accepted"]
    assert found.views.views[VIEW] == (TABLE, "accepted")  # type: ignore[attr-defined]
    steps.roll_back(found, 1, of=LABELLED)
    assert said() == ["0 superseded", "1 accepted", "2 rolled_back"]
    erased = {"product": PRODUCT, "erasure": "a request", "dry_run": True}
    maintain(found, {PRODUCT: LABELLED}, "ana", **erased)
    assert len(said()) == 3
    maintain(found, {PRODUCT: LABELLED}, "ana", **{**erased, "dry_run": False})
    assert said() == ["1 accepted"]


def test_a_table_that_comes_later_is_refused_where_a_kept_version_does_not_fit() -> None:
    where = lake()
    found = context(where)
    unfit = found.version_tables.unfit  # type: ignore[attr-defined]
    before, target = contract(publication="pinned", view=VIEW), {"publish_mode": "versioned"}
    for _ in range(2):
        run_id = steps.accepted_run(found, declared(contract=before, target=target))
        publish(found, run_id, "bob")
    later = declared(contract=LABELLED, target=target)
    unfit.add("silver.daily_v1")
    with pytest.raises(Unsupported, match=r"silver\.daily_v1 has delete files"):
        steps.accepted_run(found, later)
    unfit.clear()
    run_id = steps.accepted_run(found, later)
    unfit.add("silver.daily_v1")
    with pytest.raises(Unsupported, match=r"silver\.daily_v1 has delete files"):
        publish(found, run_id, "bob")
    accepted = found.versions.pointer(PRODUCT).accepted
    assert accepted is not None
    assert accepted.version == 2
    assert found.version_tables.tables == {}  # type: ignore[attr-defined]
    unfit.clear()
    publish(found, run_id, "bob")
    assert len(found.version_tables.tables[TABLE].versions) == 4  # type: ignore[attr-defined]
