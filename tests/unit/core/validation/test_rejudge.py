"""`validate PRODUCT@accepted`: what is published, held against other suites."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.validation.suites import validate_accepted
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, lake
from tests.support.fakes.steps import published_run, world

pytestmark = pytest.mark.req("Q7")


def test_what_readers_see_is_judged_and_nothing_is_changed() -> None:
    where = lake()
    compute = FakeCompute(where, bad_suites={"bad.json"})
    found = validate_accepted(context(where, compute), contract(), ("good.json", "bad.json"))
    seen = f"{PRODUCT}@{where.tables[PRODUCT].head}"
    assert compute.judged == [f"good.json on {seen}", f"bad.json on {seen}"]
    assert (found.passed, [check.passed for check in found.checks]) == (False, [True, False])
    assert where.calls == []


def test_without_a_name_the_suites_of_the_contract_are_run() -> None:
    where = lake()
    compute = FakeCompute(where)
    held = contract(suites=[{"file": "a.json"}, {"file": "b.json", "on": "raw"}])
    assert validate_accepted(context(where, compute), held, ()).passed
    assert compute.judged == [f"a.json on {PRODUCT}@{where.tables[PRODUCT].head}"]


def test_a_suite_that_needs_a_runs_input_is_refused() -> None:
    held = contract(suites=[{"file": "a.json", "parameters": {"ids": "raw.id"}}])
    with pytest.raises(Unsupported, match="here is no run"):
        validate_accepted(context(lake()), held, ())


def test_partitions_need_a_publication_that_names_them() -> None:
    with pytest.raises(Unsupported, match="no accepted publication"):
        validate_accepted(context(lake()), contract(), (), ("2020-01-02",))


def test_a_label_that_is_no_partition_is_answered_with_one_before_anything_is_computed() -> None:
    _, found = world()
    published_run(found)
    with pytest.raises(ConfigError, match="'2020', which is no partition of day") as refused:
        validate_accepted(found, contract(), (), ("2020",))
    assert refused.value.fix == "write it as this one: 2020-01-02"


def test_a_product_that_nobody_published_or_wrote_is_not_found() -> None:
    where = lake()
    del where.tables[PRODUCT]
    with pytest.raises(NotFound):
        validate_accepted(context(where), contract(), ())
