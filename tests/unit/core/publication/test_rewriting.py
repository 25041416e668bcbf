"""Rollbacks that rewrite partitions: what is shown before, the one commit, and every way to die."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.publication.rollback_content import plan_rewrites
from lakehouse_backfill.core.runs.context import ComputePorts, Context
from lakehouse_backfill.domain.catch_up import RestoreChunk
from lakehouse_backfill.domain.table import Column
from lakehouse_backfill.errors import NotFound, TargetChanged, Unsupported
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import FakeLake

pytestmark = pytest.mark.req("U12")

DAY = "2020-01-02"


class Killed(BaseException):
    """Nothing catches it: the process is gone."""


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    fault_points.install_hook(None)


def _world() -> tuple[FakeLake, Context, FakeCompute]:
    where = lake()
    compute = FakeCompute(where)
    found = context(where, compute)
    run_id = register_plan(found, make_plan(found, declared(), "bob", None), "bob")[0].run_id
    decisions.approve(found, run_id, "ana", "")
    run_until_decision(found, run_id, "bob")
    decisions.accept(found, run_id, "ana", "")
    publish(found, run_id, "bob")
    where.write(PRODUCT, "2020-01-05", "live")
    where.must_rewrite = {DAY}
    return where, found, compute


def _watched(found: Context, compute: FakeCompute, driver: str) -> Context:
    names = [one.name for one in dataclasses.fields(ComputePorts)]
    ports = ComputePorts(**dict.fromkeys(names, compute) | {"judge": compute.judge})
    own = dataclasses.replace(found, compute=lambda: fault_points.watch_ports(ports), driver=driver)
    return fault_points.watch_ports(own)


def _back(found: Context) -> None:
    rollback(found, contract(), plan_rollback(found, PRODUCT, None, ()), "wrong", "ana")


def _held(where: FakeLake) -> dict[str, frozenset[str]]:
    table = where.tables[PRODUCT]
    return {day: table.content(table.head)[day] for day in (DAY, "2020-01-03", "2020-01-05")}


BACK = {
    DAY: frozenset({"old-2 rewritten"}),
    "2020-01-03": frozenset({"old-3"}),
    "2020-01-05": frozenset({"live"}),
}


def _points(verb: Callable[[Context], None]) -> list[str]:
    _, found, compute = _world()
    seen: list[str] = []
    fault_points.install_hook(seen.append)
    verb(_watched(found, compute, "here:1"))
    fault_points.install_hook(None)
    return seen


def test_a_preview_names_what_is_rewritten_and_why_and_changes_nothing() -> None:
    where, found, _ = _world()
    calls = list(where.calls)

    way = plan_rewrites(found, contract(), plan_rollback(found, PRODUCT, None, ()))

    assert [(item.partitions, item.because) for item in way.rewrites] == [
        ((DAY,), "a test says so")
    ]
    assert where.calls == calls
    assert not [name for name in where.tables if "rollback" in name]


def test_what_must_be_is_rewritten_and_the_rest_comes_back_by_itself_in_one_commit() -> None:
    where, found, _ = _world()
    commits = len(where.tables[PRODUCT].contents)

    _back(found)

    assert _held(where) == BACK
    assert len(where.tables[PRODUCT].contents) == commits + 1
    assert not [name for name in where.tables if "rollback" in name]


@pytest.mark.req("T4")
@pytest.mark.parametrize("dies_at", range(1, len(_points(_back)) + 1))
@pytest.mark.parametrize("then", ["rollback", "recover"])
def test_one_that_died_anywhere_is_made_exactly_once(dies_at: int, then: str) -> None:
    where, found, compute = _world()
    commits = len(where.tables[PRODUCT].contents)
    seen: list[str] = []

    def kill(point: str) -> None:
        seen.append(point)
        if len(seen) == dies_at:
            raise Killed(point)

    fault_points.install_hook(kill)
    with pytest.raises(Killed):
        _back(_watched(found, compute, "here:dead"))
    fault_points.install_hook(None)

    is_over = found.versions.pointer(PRODUCT).pending is None and len(seen) > 1
    if then == "rollback" and not is_over:
        _back(found)
    else:
        recover(found, None, "ops")
        if len(seen) == 1:
            _back(found)  # it had not begun

    assert _held(where) == BACK
    assert len(where.tables[PRODUCT].contents) == commits + 1
    assert recover(found, None, "ops") == ()


def test_a_live_write_to_the_partition_gives_the_rollback_back_and_drops_its_shadow() -> None:
    where, found, _ = _world()
    where.write(PRODUCT, DAY, "live too")

    with pytest.raises(TargetChanged):
        _back(found)

    assert found.versions.pointer(PRODUCT).pending is None
    assert not [name for name in where.tables if "rollback" in name]


def test_content_that_is_gone_gives_the_rollback_back() -> None:
    where, found, compute = _world()

    class Gone(FakeCompute):
        def restore(self, chunk: RestoreChunk) -> int:
            raise NotFound("a file is gone from storage")

    broken = dataclasses.replace(found, compute=lambda: Gone(where))
    with pytest.raises(NotFound, match="gone from storage"):
        _back(broken)

    assert found.versions.pointer(PRODUCT).pending is None
    _back(_watched(found, compute, "here:1"))
    assert _held(where) == BACK


@pytest.mark.parametrize(
    ("then", "pairs"),
    [
        ((Column(field_id=3, name="sum", type="int"),), (("amount", "sum"),)),
        ((), (("day", "day"), ("id", "id"), ("amount", "amount"))),
    ],
    ids=["renamed, widened, two added since", "a port that does not say"],
)
def test_columns_are_paired_by_field_id(
    then: tuple[Column, ...], pairs: tuple[tuple[str, str], ...]
) -> None:
    where, found, compute = _world()
    seen: list[RestoreChunk] = []

    class Tables(FakeLake):
        def resolve(self, ref):  # type: ignore[no-untyped-def]
            return super().resolve(ref).model_copy(update={"columns": then})

    class Noting(FakeCompute):
        def restore(self, chunk: RestoreChunk) -> int:
            seen.append(chunk)
            return super().restore(chunk)

    tables = Tables(tables=where.tables, must_rewrite=where.must_rewrite)
    _back(dataclasses.replace(found, tables=tables, compute=lambda: Noting(where)))

    assert seen[0].columns == pairs
    del compute


def test_a_column_of_another_type_is_refused() -> None:
    where, found, _ = _world()

    class Tables(FakeLake):
        def resolve(self, ref):  # type: ignore[no-untyped-def]
            then = (Column(field_id=3, name="amount", type="string"),)
            return super().resolve(ref).model_copy(update={"columns": then})

    tables = Tables(tables=where.tables, must_rewrite=where.must_rewrite)
    with pytest.raises(Unsupported, match="column amount was string and is long now"):
        _back(dataclasses.replace(found, tables=tables))
    assert found.versions.pointer(PRODUCT).pending is None
