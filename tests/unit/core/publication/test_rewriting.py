"""Rollbacks that rewrite partitions: what is shown before, the one commit, and every way to die."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback
from lakehouse_backfill.core.publication.rollback_content import plan_rewrites, rollback_shadow_name
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.catch_up import RestoreChunk
from lakehouse_backfill.domain.tables.table import Column, Snapshot, TableRef
from lakehouse_backfill.errors import NotFound, TargetChanged, Unsupported
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, contract
from tests.support.fakes.kills import Killed, killed_at, other_process
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import content_of, pending_of, published_run, roll_back, world

pytestmark = pytest.mark.req("U12")

DAY = "2020-01-02"


def _world() -> tuple[FakeLake, Context]:
    where, found = world()
    published_run(found)
    where.write(PRODUCT, "2020-01-05", "live")
    where.must_rewrite = {DAY}
    return where, found


def _held(where: FakeLake) -> dict[str, frozenset[str]]:
    return {day: content_of(where)[day] for day in (DAY, "2020-01-03", "2020-01-05")}


BACK = {
    DAY: frozenset({"old-2 rewritten"}),
    "2020-01-03": frozenset({"old-3"}),
    "2020-01-05": frozenset({"live"}),
}


def _points(verb: Callable[[Context], None]) -> list[str]:
    _, found = _world()
    with killed_at("nowhere") as points:
        verb(other_process(found))
    return points


def test_a_preview_names_what_is_rewritten_and_why_and_changes_nothing() -> None:
    where, found = _world()
    calls = list(where.calls)

    way = plan_rewrites(found, contract(), plan_rollback(found, PRODUCT, None, ()))

    assert [(item.partitions, item.because) for item in way.rewrites] == [
        ((DAY,), "a test says so")
    ]
    assert where.calls == calls
    assert not [name for name in where.tables if "rollback" in name]


def test_what_must_be_is_rewritten_and_the_rest_comes_back_by_itself_in_one_commit() -> None:
    where, found = _world()
    commits = len(where.tables[PRODUCT].contents)

    roll_back(found)

    assert _held(where) == BACK
    assert len(where.tables[PRODUCT].contents) == commits + 1
    assert not [name for name in where.tables if "rollback" in name]


@pytest.mark.req("T4")
@pytest.mark.parametrize("dies_at", range(1, len(_points(roll_back)) + 1))
@pytest.mark.parametrize("then", ["rollback", "recover"])
def test_one_that_died_anywhere_is_made_exactly_once(dies_at: int, then: str) -> None:
    where, found = _world()
    commits = len(where.tables[PRODUCT].contents)
    with pytest.raises(Killed), killed_at(dies_at) as points:
        roll_back(other_process(found))

    is_over = pending_of(found) is None and len(points) > 1
    if then == "rollback" and not is_over:
        roll_back(found)
    else:
        recover(found, None, "ops")
        if len(points) == 1:
            roll_back(found)  # it had not begun

    assert _held(where) == BACK
    assert len(where.tables[PRODUCT].contents) == commits + 1
    assert recover(found, None, "ops") == ()


@pytest.mark.req("X12")
def test_one_that_was_cut_off_goes_on_in_the_shadow_that_it_opened() -> None:
    where, found = _world()
    with pytest.raises(Killed), killed_at("Publisher.revert:before"):
        roll_back(other_process(found))
    (opened,) = [name for name in where.tables if "rollback" in name]
    # Meanwhile somebody chose the other kind, or `doctor` found that the catalog needs it.
    for isolation in ("branch", "clone"):
        profile = found.profile.model_copy(update={"isolation": isolation})
        row = pending_of(found)
        assert row is not None
        chosen = dataclasses.replace(found, profile=profile)
        assert rollback_shadow_name(chosen, row) == opened
    roll_back(
        dataclasses.replace(found, profile=profile.model_copy(update={"isolation": "branch"}))
    )
    assert _held(where) == BACK
    assert not [name for name in where.tables if "rollback" in name]


@pytest.mark.req("T4")
def test_one_that_was_cut_off_writes_what_has_to_be_rewritten_only_since_then() -> None:
    """As by a tombstone that came between: a chunk that was written holds other partitions."""
    where, found = _world()
    where.must_rewrite = {"2020-01-03"}
    with pytest.raises(Killed), killed_at("Publisher.revert:before"):
        roll_back(other_process(found))
    where.must_rewrite = {DAY, "2020-01-03"}
    roll_back(found)
    assert _held(where) == BACK | {"2020-01-03": frozenset({"old-3 rewritten"})}


def test_a_live_write_to_the_partition_gives_the_rollback_back_and_drops_its_shadow() -> None:
    where, found = _world()
    where.write(PRODUCT, DAY, "live too")

    with pytest.raises(TargetChanged):
        roll_back(found)

    assert pending_of(found) is None
    assert not [name for name in where.tables if "rollback" in name]


def test_content_that_is_gone_gives_the_rollback_back() -> None:
    where, found = _world()

    class Gone(FakeCompute):
        def restore(self, chunk: RestoreChunk) -> int:
            raise NotFound("a file is gone from storage")

    broken = dataclasses.replace(found, compute=lambda: Gone(where))
    with pytest.raises(NotFound, match="gone from storage"):
        roll_back(broken)

    assert pending_of(found) is None
    roll_back(found)
    assert _held(where) == BACK


def _older(where: FakeLake, columns: tuple[Column, ...]) -> FakeLake:
    """The lake, whose earlier snapshots had other columns."""

    class Older(FakeLake):
        def resolve(self, ref: TableRef) -> Snapshot:
            return super().resolve(ref).model_copy(update={"columns": columns})

    return Older(tables=where.tables, must_rewrite=where.must_rewrite)


@pytest.mark.parametrize(
    ("then", "pairs"),
    [
        ((Column(field_id=3, name="sum", type="int"),), (("amount", "sum"),)),
        ((), (("day", "day"), ("id", "id"), ("amount", "amount"))),
    ],
    ids=["renamed, widened, two added since", "a port that does not say"],
)
def test_columns_are_paired_by_field_id(then, pairs) -> None:
    where, found = _world()
    seen: list[RestoreChunk] = []

    class Noting(FakeCompute):
        def restore(self, chunk: RestoreChunk) -> int:
            seen.append(chunk)
            return super().restore(chunk)

    roll_back(dataclasses.replace(found, tables=_older(where, then), compute=lambda: Noting(where)))

    assert seen[0].columns == pairs


def test_a_column_of_another_type_is_refused() -> None:
    where, found = _world()
    tables = _older(where, (Column(field_id=3, name="amount", type="string"),))
    with pytest.raises(Unsupported, match="column amount was string and is long now"):
        roll_back(dataclasses.replace(found, tables=tables))
    assert pending_of(found) is None
