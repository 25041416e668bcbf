"""Inputs that no tag keeps: when they may expire, and that each read of them looks for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, get_type_hints

import pytest

from lakehouse_backfill.core.planning.inputs.pins import INPUT_READS, look_before_reads
from lakehouse_backfill.core.planning.job_code import prove_determinism, prove_warm_up
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.scratch import open_scratch_table
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Rejects, RunState
from lakehouse_backfill.errors import NotFound
from lakehouse_backfill.ports.compute import ComputePorts
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import approved_run, planned_run, published_run, staged_run, world

LEASED = declared(
    sources={"raw": {"pin": "lease_only"}},
    safety={"max_rejected_share": 1.0},
    contract=contract(
        suites=[{"file": "expectations/raw.json", "on": "raw"}],
        measures=[{"name": "amounts", "sum": "amount"}],
        source_totals=[{"measure": "amounts", "source": "raw", "sum": "amount"}],
    ),
)


class _Reads:
    """The engine; it keeps the names of the reads of inputs, and one of them is the last."""

    def __init__(self, where: FakeLake, last: int | None) -> None:
        self.names: list[str] = []
        self._where, self._last = where, last
        self._engine = FakeCompute(where, rejected=Rejects(rows=0), open_edges={"2020-01-01"})

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return self._noted(name, found) if name in INPUT_READS else found

    def _noted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any, **named: Any) -> Any:
            self.names.append(name)
            result = method(*arguments, **named)
            if len(self.names) == self._last:
                self._where.tables.pop("bronze.raw")
            return result

        return read


def leased_world(last: int | None = None) -> tuple[_Reads, Context]:
    """A world whose leased input expires right after its `last` read."""
    where = lake()
    engine: Any = _Reads(where, last)
    found = context(where)
    looking = look_before_reads(lambda: found, _ports(engine))
    return engine, replace(found, compute=lambda: looking)


def _ports(engine: Any) -> ComputePorts:
    ports = {one.name: engine for one in fields(ComputePorts)}
    return ComputePorts(**ports | {"judge": engine.judge})


def _stage(found: Context) -> None:
    stage(found, approved_run(found, LEASED), "bob")


def _stage_and_validate(found: Context) -> None:
    validate(found, staged_run(found, LEASED), "bob")


def _prove(found: Context) -> None:
    plan = make_plan(found, LEASED, "bob", None)
    prove_warm_up(found, plan)
    prove_determinism(found, plan)


def _compute_again(found: Context) -> None:
    plan = make_plan(found, LEASED, "bob", None)
    with open_scratch_table(found, plan, "reproduce", "bob") as scratch:
        for chunk in plan.resolved.chunks:
            scratch.compute(chunk)


VERBS: dict[str, tuple[Callable[[Context], None], set[str]]] = {
    "stage": (_stage, {"analysed_plan", "stage", "rejects", "periods", "input"}),
    "validate": (_stage_and_validate, {"edge_checksums", "edges", "source_totals"}),
    "plan --prove": (_prove, {"prove_warm_up", "prove_determinism"}),
    "reproduce": (_compute_again, {"stage"}),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_leased_input_is_looked_for_before_each_read(name: str) -> None:
    verb, expected = VERBS[name]
    whole, found = leased_world()
    verb(found)
    assert expected <= set(whole.names)
    for last in range(1, len(whole.names)):
        engine, found = leased_world(last)
        with pytest.raises(
            NotFound, match=r"has expired since it was planned: raw \(bronze.raw@1\)"
        ):
            verb(found)
        assert engine.names == whole.names[:last]


def test_whoever_loses_a_leased_input_is_led_on() -> None:
    where, found = world()
    ports = look_before_reads(lambda: found, _ports(FakeCompute(where)))
    closed = published_run(found, declared(sources={"raw": {"pin": "lease_only"}}))
    open_run, proof = planned_run(found, LEASED), make_plan(found, LEASED, "bob", None)
    where.tables.pop("bronze.raw")

    def way_out(plan: Plan) -> str:
        with pytest.raises(NotFound) as refused:
            ports.staging.rejects(plan, plan.resolved.chunks[0])
        return refused.value.fix

    assert f"plan m.yaml --revise {open_run}" in way_out(found.runs.plan(open_run))
    assert f"verify {closed} --deep" in way_out(found.runs.plan(closed))
    unregistered = proof.model_copy(update={"run_id": "bf-none"})
    assert "--revise" not in way_out(unregistered)
    assert found.runs.status(open_run).state is RunState.PLANNED


def test_inputs_that_tags_keep_are_not_looked_for() -> None:
    where, found = world()
    plan = make_plan(found, declared(), "bob", None)
    where.tables.pop("bronze.raw")
    ports = look_before_reads(lambda: found, _ports(FakeCompute(where)))
    ports.staging.rejects(plan, plan.resolved.chunks[0])


def test_each_computing_method_that_is_given_a_plan_reads_inputs_or_is_known_not_to() -> None:
    given = {
        name
        for port in get_type_hints(ComputePorts).values()
        for name, method in inspect.getmembers(port, inspect.isfunction)
        if not name.startswith("_")
        and {"plan", "request"} & set(inspect.signature(method).parameters)
    }
    # They import the code, name what it declares, read the shadow, set up or end a thread's work.
    assert given == INPUT_READS | {"load", "intermediates", "chunk", "beside", "interrupt"}


def test_the_plan_says_from_when_on_a_leased_input_may_expire() -> None:
    where, found = world()
    where.tables["bronze.raw"].properties["history.expire.max-snapshot-age-ms"] = "86400000"
    notes = make_plan(found, LEASED, "bob", None).notes
    # The fake's snapshots are of 1970-01-01.
    assert any(
        "raw is lease_only" in note and "from 1970-01-02 00:00 UTC on" in note for note in notes
    )
    assert not any("lease_only" in note for note in make_plan(found, declared(), "bob", None).notes)
