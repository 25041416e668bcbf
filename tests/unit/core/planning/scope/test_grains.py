"""No run restates, publishes or takes back a part of a grain."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
import yaml

from lakehouse_backfill.config.drafts import draft_repair
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.staleness import PartitionStatus, ProductStatus, StaleCause
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.planning.scope.corruption_window import examine_window, parse_window
from lakehouse_backfill.core.planning.scope.dry_run import restrict_to_dry_run
from lakehouse_backfill.core.planning.scope.whole_grain import widening_note
from lakehouse_backfill.core.publication.publish import publish_with_catch_up
from lakehouse_backfill.core.versions.pointer import require_whole_grains_back, resolve_rollback
from lakehouse_backfill.core.versions.steps import publish_steps
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.errors import ConfigError, Unsupported
from tests.support.examples.plans import a_publication
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.steps import validated_run
from tests.unit.core.cascade.test_cascades import GRAPH, World

pytestmark = pytest.mark.req("P3")

DAY = ScopeField(column="day", transform="identity", type="date")
MONTHLY = {"partitioning": [{"column": "day", "grain": "month"}]}
RANGE = {"range": {"column": "day", "from": "2019-01-01", "to": "2021-01-01"}}


def wanted(first: str = "2020-01-01", stop: str = "2020-03-01", **changes: Any) -> DeclaredRun:
    changes.setdefault("contract", contract(**MONTHLY))
    plain = {"sources": {"raw": RANGE}, "validation": {"edge_partitions": 0}}
    return declared(first, stop, **(plain | changes))


def test_a_scope_that_cuts_a_grain_is_refused_with_what_is_missing_and_what_to_write() -> None:
    with pytest.raises(Unsupported) as refused:
        make_plan(context(lake()), wanted("2020-01-03", "2020-02-01"), "bob", None)
    error = refused.value
    assert "a part of 2020-01" in error.problem
    assert "2020-01-01, 2020-01-02 would stay" in error.problem
    assert error.fix.startswith("write target.partitions from: 2020-01-01, to: 2020-02-01")
    assert error.field == "target.partitions"


def test_a_partition_that_is_left_out_cuts_its_grain() -> None:
    days = {"column": "day", "from": "2020-01-01", "to": "2020-02-01", "except": ["2020-01-07"]}
    with pytest.raises(Unsupported, match="2020-01-07 would stay"):
        make_plan(context(lake()), wanted(target={"partitions": days}), "bob", None)


def test_chunks_may_be_finer_than_the_grain_and_the_plan_says_what_waits() -> None:
    plan = make_plan(context(lake()), wanted(), "bob", None)
    assert (len(plan.resolved.chunks), len(plan.resolved.scope.partitions)) == (60, 60)
    assert any("grain: 2 whole months of day" in note for note in plan.notes)


def test_a_grain_that_does_not_fit_the_table_is_refused() -> None:
    product = contract(partitioning=[{"column": "day", "grain": 10}])
    with pytest.raises(ConfigError, match="does not fit the table: a width needs"):
        make_plan(context(lake()), wanted(contract=product), "bob", None)


def test_a_dry_run_may_look_at_a_part_as_it_is_never_published() -> None:
    plan = make_plan(context(lake()), wanted(), "bob", None)
    part = restrict_to_dry_run(plan.resolved, ("2020-01-05",))
    assert (part.scope.partitions, part.manifest.run.mode) == (("2020-01-05",), "dry_run")


@pytest.mark.parametrize(("size", "steps"), [(31, [31, 29]), (60, [60]), (45, [31, 29])])
def test_a_step_publishes_whole_grains(size: int, steps: list[int]) -> None:
    run = wanted(target={"progressive": {"partitions_per_step": size}})
    plan = make_plan(context(lake()), run, "bob", None)
    assert [len(one.scope.partitions) for one in publish_steps(plan)] == steps


def test_a_step_smaller_than_a_grain_is_refused() -> None:
    run = wanted(target={"progressive": {"partitions_per_step": 10}})
    with pytest.raises(ConfigError) as refused:
        make_plan(context(lake()), run, "bob", None)
    assert "partitions_per_step: 31 or more" in refused.value.fix


def test_a_window_reaches_whole_grains_and_the_plan_says_why() -> None:
    found = context(lake())
    plan = make_plan(found, wanted(stop="2020-02-01"), "bob", None)
    seen = examine_window(found, plan, parse_window("2020-01-10..2020-01-10"))
    assert seen.window is not None
    assert seen.window.partitions == plan.resolved.scope.partitions
    assert any("window: widened by 29 partitions to whole months" in one for one in seen.notes)
    with pytest.raises(ConfigError, match="from: 2020-01-01, to: 2020-03-01") as refused:
        examine_window(found, plan, parse_window("2020-01-31..2020-02-01"))
    assert "29 partitions, 2020-02-01 to 2020-02-29" in refused.value.problem


class _World(World):
    def declare(self, file: str) -> Any:
        product = file.removesuffix(".yaml")
        return self.run_of(product, *GRAPH[product], validation={"edge_partitions": 0})


def test_a_cascade_restates_whole_grains_downstream() -> None:
    world = _World()
    world.contracts["s.a"] = world.contracts["s.a"].model_copy(
        update={"partitioning": contract(**MONTHLY).partitioning}
    )
    node = next(one for one in world.make().nodes if one.product == "s.a")
    assert (node.decision, len(node.partitions)) == ("widened", 31)
    assert "widened by 29 partitions to whole months of day" in " ".join(node.because)


def test_a_rollback_of_chosen_partitions_takes_whole_grains_back() -> None:
    days = ("2020-01-30", "2020-01-31", "2020-02-01")
    base = a_publication(0, "baseline", scope=Scope(field=DAY, partitions=days[:1]))
    row = a_publication(
        1, run_id="bf-1", snapshot_id=12, before_snapshot_id=11, supersedes=0,
        scope=Scope(field=DAY, partitions=days),
    )  # fmt: skip
    product = contract(**MONTHLY)

    def way(*only: str) -> Any:
        return resolve_rollback((row, base), product.product, 0, only)

    with pytest.raises(Unsupported) as refused:
        require_whole_grains_back(product, way("2020-01-31", "2020-02-01"))
    assert "2020-01-30 belong to the same grain" in refused.value.problem
    assert "--partitions 2020-01-30,2020-01-31,2020-02-01" in refused.value.fix
    for whole in ((), days[:2], days[2:]):
        require_whole_grains_back(product, way(*whole))
    require_whole_grains_back(contract(), way("2020-01-31"))


def test_a_revision_that_follows_live_commits_makes_the_whole_grain_again() -> None:
    where = lake()
    compute = FakeCompute(where)
    found = context(where, compute)
    run = validated_run(found, wanted(safety={"on_conflict": "catch_up"}))
    decisions.accept(found, run, "eve", "")
    compute.staged.clear()
    where.write("bronze.raw", "2020-01-01", "raw-2")
    where.write(PRODUCT, "2020-01-03", "old-3@live")
    done = publish_with_catch_up(found, run, "bob")
    assert [one[6:13] for one in compute.staged if one != "load"] == ["2020-01"] * 31
    ledger = found.runs.chunks(str(done.publication.run_id))
    carried = {one.partitions[0][:7]: one.carried_from for one in ledger}
    assert carried == {"2020-01": "", "2020-02": run}


def test_a_repair_of_stale_partitions_is_drafted_for_whole_grains_and_says_so() -> None:
    made = make_plan(context(lake()), wanted(), "bob", None)
    late = StaleCause("late rows", "late rows of raw")
    stale = ProductStatus(PRODUCT, (PartitionStatus("2020-01-09", "stale", (late,)),), code="1")
    text = draft_repair(stale, made, "bob")
    assert yaml.safe_load(text)["target"]["partitions"] == {
        "column": "day", "from": date(2020, 1, 1), "to": date(2020, 2, 1),
    }  # fmt: skip
    assert "# The partitions are widened by 30 partitions to whole months of day" in text
    exact = draft_repair(stale, made, "bob", contract())
    assert yaml.safe_load(exact)["target"]["partitions"]["values"] == [date(2020, 1, 9)]


def test_what_is_whole_needs_no_note() -> None:
    assert widening_note(contract(**MONTHLY), DAY, ("2020-01-01",), ("2020-01-01",)) == ""
    assert widening_note(contract(), DAY, ("2020-01-01",), ("2020-01-01", "2020-01-02")) == ""
