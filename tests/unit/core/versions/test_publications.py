"""Where a rollback leads."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.versions.pointer import (
    resolve_rollback,
    restored_windows,
    rolled_back_since,
    run_visibility,
    runs_by_partition,
)
from lakehouse_backfill.core.versions.reserve import reserve_version
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.tables.commits import PartitionRestore
from lakehouse_backfill.errors import Blocked, NotFound, PointerMoved, Unsupported
from tests.support.examples.plans import a_publication
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.steps import accepted_run

DAY = ScopeField(column="d", transform="identity", type="date")


def _row(version: int, action: str, before: int, after: int, supersedes: int | None, *days: str):
    return a_publication(
        version, action, token=f"t{after}", run_id=f"bf-{version}", snapshot_id=after,
        before_snapshot_id=before, scope=Scope(field=DAY, partitions=days), supersedes=supersedes,
    )  # fmt: skip


BASE = _row(0, "baseline", 10, 10, None, "2020-01-01")
FIRST = _row(1, "publish", 11, 12, 0, "2020-01-01", "2020-01-02")
SECOND = _row(2, "publish", 13, 14, 1, "2020-01-02", "2020-01-03")


@pytest.mark.req("U12")
def test_the_way_back_from_the_newest_version_restores_its_partitions() -> None:
    way = resolve_rollback((SECOND, FIRST, BASE), "a.b", None, ())
    assert (way.version, way.scope.partitions) == (1, ("2020-01-02", "2020-01-03"))
    assert way.restores == (
        PartitionRestore(
            partitions=("2020-01-02", "2020-01-03"), restore_snapshot_id=13, since_snapshot_id=14
        ),
    )


@pytest.mark.req("U12")
def test_over_two_versions_each_partition_goes_back_to_before_its_first_change() -> None:
    way = resolve_rollback((SECOND, FIRST, BASE), "a.b", 0, ())
    assert way.restores == (
        PartitionRestore(partitions=("2020-01-01",), restore_snapshot_id=11, since_snapshot_id=12),
        PartitionRestore(partitions=("2020-01-02",), restore_snapshot_id=11, since_snapshot_id=14),
        PartitionRestore(partitions=("2020-01-03",), restore_snapshot_id=13, since_snapshot_id=14),
    )


@pytest.mark.req("U12")
def test_some_partitions_can_go_back_alone() -> None:
    way = resolve_rollback((SECOND, FIRST, BASE), "a.b", None, ("2020-01-03",))
    assert (way.is_partial, way.scope.partitions) == (True, ("2020-01-03",))


@pytest.mark.req("U12")
def test_after_a_rollback_and_another_publication_the_way_back_is_the_same_version() -> None:
    undo = _row(0, "rollback", 12, 15, 1, "2020-01-01", "2020-01-02")
    again = _row(2, "publish", 15, 16, 0, "2020-01-01", "2020-01-02")
    way = resolve_rollback((again, undo, FIRST, BASE), "a.b", None, ())
    assert (way.version, way.publication) == (0, undo)
    assert way.restores[0].restore_snapshot_id == 15


@pytest.mark.req("U12")
def test_a_version_that_was_rolled_back_can_be_taken_up_again() -> None:
    undo = _row(0, "rollback", 12, 15, 1, "2020-01-01", "2020-01-02")
    way = resolve_rollback((undo, FIRST, BASE), "a.b", 1, ())
    assert (way.publication, way.restores[0].restore_snapshot_id) == (FIRST, 12)


#: Rows after the two versions of 2020-01-02 -> windows whose live rows readers see again.
RESTORED = {
    "nothing was undone": ((), ()),
    "the second was undone": (
        (_row(1, "rollback", 15, 16, 1, "2020-01-02", "2020-01-03"),), ((12, 13),),
    ),
    "both were undone": ((_row(0, "rollback", 15, 16, 1, "2020-01-02"),), ()),
    "another came": (
        (
            _row(1, "rollback", 15, 16, 1, "2020-01-02"),
            _row(3, "publish", 17, 18, 1, "2020-01-02"),
        ),
        (),
    ),
    "another day was undone": ((_row(1, "rollback", 15, 16, 1, "2020-01-03"),), ()),
}  # fmt: skip


@pytest.mark.req("U12")
@pytest.mark.parametrize("case", RESTORED)
def test_a_rollback_restores_live_rows_of_before_what_it_undid(case: str) -> None:
    later, windows = RESTORED[case]
    assert restored_windows((FIRST, SECOND, *later), "2020-01-02") == windows


def _of(version: int, action: str, country: str, before: int, after: int, supersedes: int | None):
    """A row of two days of one country; a rollback is of the first day."""
    by = ScopeField(column="country", transform="identity", type="string")
    field = DAY.model_copy(update={"only": (Scope(field=by, partitions=(country,)),)})
    days = ("2020-01-01", "2020-01-02")[: 1 if action == "rollback" else 2]
    row = _row(version, action, before, after, supersedes, *days)
    return row.model_copy(update={"scope": Scope(field=field, partitions=days)})


@pytest.mark.req("U12", "U15")
def test_versions_of_other_tuples_neither_replace_a_run_nor_take_it_back() -> None:
    german, french = _of(1, "publish", "DE", 11, 12, 0), _of(2, "publish", "FR", 13, 14, 1)
    undo = _of(3, "rollback", "FR", 15, 16, 2).model_copy(update={"run_id": None, "returns_to": 1})
    for history in ((french, german, BASE), (undo, french, german, BASE)):
        seen = run_visibility(history, "bf-1")
        assert (seen.visible, seen.replaced) == ({"2020-01-01", "2020-01-02"}, frozenset())
        assert rolled_back_since(history, "bf-1") == (1, ())
    assert rolled_back_since((undo, french, german, BASE), "bf-2") == (2, ("2020-01-01",))
    made_by = runs_by_partition((french, german, BASE), lambda _: True, german.scope.field)
    assert made_by == dict.fromkeys(german.scope.partitions, ("bf-1",))


@pytest.mark.req("U12")
def test_versions_restated_by_two_partition_fields_are_not_undone_by_one_rollback() -> None:
    region = Scope(
        field=ScopeField(column="region", transform="identity", type="string"), partitions=("EU",)
    )
    second = SECOND.model_copy(update={"scope": region})
    with pytest.raises(Unsupported, match=r"identity\(region\) and of identity\(d\)"):
        resolve_rollback((second, FIRST, BASE), "a.b", 0, ())
    assert resolve_rollback((second, FIRST, BASE), "a.b", 1, ()).scope == region


@pytest.mark.parametrize(
    ("history", "to", "only", "error"),
    [
        pytest.param((FIRST, BASE), 9, (), NotFound, id="no such version"),
        pytest.param((FIRST, BASE), 1, (), Blocked, id="there already"),
        pytest.param((BASE,), None, (), Blocked, id="nothing before the baseline"),
        pytest.param((), None, (), NotFound, id="no history"),
        pytest.param(
            (_row(1, "reserve", 10, 10, 0, "2020-01-01"),), None, (), NotFound,
            id="nothing accepted yet",
        ),
        pytest.param((FIRST, BASE), None, ("2021-01-01",), NotFound, id="a foreign partition"),
        pytest.param(
            (_row(0, "rollback", 12, 15, 1, "2020-01-01"), FIRST, BASE),
            None, (), Blocked, id="back at the baseline",
        ),
    ],
)  # fmt: skip
def test_a_way_back_that_does_not_exist_is_refused(history, to, only, error) -> None:
    with pytest.raises(error):
        resolve_rollback(history, "a.b", to, only)


@pytest.mark.req("U1")
def test_a_second_publication_of_the_product_has_to_wait_and_is_told_for_whom() -> None:
    found = context(lake())
    first = accepted_run(found, declared())
    wanted = FIRST.model_copy(update={"action": "reserve", "run_id": first})
    reserved = reserve_version(found, wanted, None)
    with pytest.raises(PointerMoved, match=first):
        reserve_version(found, wanted.model_copy(update={"run_id": "bf-2", "token": "t2"}), None)
    assert reserve_version(found, wanted, None) == reserved
