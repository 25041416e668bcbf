"""Partitions of a cascade that are not computed, as their inputs turn out equal to live."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill import errors
from lakehouse_backfill.core.cascade import steps
from lakehouse_backfill.core.cascade.plan import Cascade, register_cascade
from lakehouse_backfill.core.cascade.reuse import (
    REUSE_NOTE,
    differing_labels,
    untouched_labels,
)
from lakehouse_backfill.core.evidence.inputs.changes import InputReader
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import PartitionBalance
from lakehouse_backfill.domain.manifest import InputRange
from lakehouse_backfill.domain.partitions import RowRange, Scope, partition_row_range
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.rollout import Progressive
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes.lake import DAY
from tests.unit.core.cascade.test_cascades import World

pytestmark = pytest.mark.req("P4")
SAME, CHANGED = "2020-01-02", "2020-01-03"


class Restated(World):
    """A lake whose products were restated once; the second time one of two days comes out equal."""

    per_chunk = 1

    def __init__(self, publication: str = "pinned", **upstreams: Any) -> None:
        super().__init__(publication, **upstreams)
        self.compute.keys = {SAME: {"same"}, CHANGED: {"first"}}
        self.first = self.accepted()
        steps.publish_cascade(self.context, self.first, "bob")
        self.compute.keys = {SAME: {"same"}, CHANGED: {"second"}}
        self.compute.staged.clear()

    def declare(self, file: str) -> Any:
        product = file.removesuffix(".yaml")
        reads = ("s.r",) if product == "s.a" else ("s.a",)
        return self.run_of(product, *reads, limits={"partitions_per_chunk": self.per_chunk})

    def approved_again(self) -> Cascade:
        found = register_cascade(self.context, self.make(validation={"edge_partitions": 0}), "bob")
        steps.approve_cascade(self.context, found, "ana", "")
        return found

    def run_again(self) -> Cascade:
        found = self.approved_again()
        steps.run_cascade(self.context, found, "bob")
        return found

    def kept(self, found: Cascade) -> dict[str, tuple[str, ...]]:
        plans = (self.context.runs.plan(run) for run in found.run_ids)
        return {plan.product: tuple(one.partition for one in plan.reused) for plan in plans}

    def shadow(self, plan: Plan) -> Any:
        table = self.lake.tables[plan.shadow_table]
        return table.content(table.head)


@pytest.mark.parametrize("publication", ["pinned", "follow"])
@pytest.mark.parametrize("per_chunk", [1, 2])
def test_a_partition_that_reads_only_what_is_equal_to_live_is_not_computed(
    publication: str, per_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Restated, "per_chunk", per_chunk)
    world = Restated(publication)
    found = world.run_again()
    assert world.kept(found) == {"s.r": (), "s.a": (SAME,), "s.b": (SAME,)}
    assert world.states(found) == [RunState.VALIDATED] * 3
    for plan in found.plans:
        assert {one: world.shadow(plan)[one] for one in (SAME, CHANGED)} == {
            SAME: frozenset({"same"}), CHANGED: frozenset({"second"}),
        }  # fmt: skip
        rows = [one.output_rows for one in world.context.runs.chunks(plan.run_id)]
        assert sum(rows) == 20
    computed = [one for one in world.compute.staged if one != "load"]
    assert len(computed) == 4, "both days of the root, and one of each other product"
    steps.accept_cascade(world.context, found, "ana", "")
    steps.publish_cascade(world.context, found, "bob")
    assert world.states(found) == [RunState.PUBLISHED] * 3


def test_the_plan_says_beforehand_that_it_may_and_the_log_which_were_kept() -> None:
    world = Restated()
    found = world.approved_again()
    a = found.plans[1]
    assert [plan.resolved.may_reuse for plan in found.plans] == [False, True, True]
    assert [REUSE_NOTE in plan.notes for plan in found.plans] == [False, True, True]
    assert [REUSE_NOTE in node.because for node in found.nodes if node.run_id] == [
        False, True, True,
    ]  # fmt: skip
    steps.run_cascade(world.context, found, "bob")
    bound = [one for one in world.context.runs.events(a.run_id) if one.verb == "bind inputs"]
    (kept,) = bound[0].detail["reused"]
    assert (kept["partition"], kept["run_id"], kept["rows"]) == (SAME, world.first.run_ids[1], 10)
    loaded = world.context.runs.plan(a.run_id)
    assert loaded.notes[-1] == (
        f"{SAME} not computed: input partitions equal to live; skipped, the rows of "
        f"{world.first.run_ids[1]} stay"
    )
    assert loaded.manifest_hash == a.manifest_hash == loaded.resolved.manifest_hash
    first = world.context.runs.chunks(a.run_id)[0]
    assert (first.partitions, first.carried_from) == ((SAME,), world.first.run_ids[1])


def newer_code(world: Restated) -> None:
    declare = world.declare

    def declared_anew(file: str) -> Any:
        found = declare(file)
        transform = found.manifest.transform.model_copy(update={"version": "9.0.0"})
        manifest = found.manifest.model_copy(update={"transform": transform})
        return dataclasses.replace(found, manifest=manifest)

    world.declare = declared_anew  # type: ignore[method-assign]


def late_rows_in_the_input(world: Restated) -> None:
    world.lake.write("s.r", SAME, "same", "late")
    # What the cascade computes is equal to what is live by now, and not to what was read.
    world.compute.keys[SAME] = {"same", "late"}


def own_rows_written_since(world: Restated) -> None:
    world.lake.write("s.a", SAME, "other")


def nothing_is_equal(world: Restated) -> None:
    world.compute.keys[SAME] = {"third"}


def a_partition_is_rejected_in_part(world: Restated) -> None:
    made = world.context.runs.chunks(world.first.run_ids[1])
    for one in made:
        world.context.runs.record_chunk(one.model_copy(update={"rejected_rows": 1}))


@pytest.mark.parametrize(
    ("publication", "change"),
    [
        ("follow", late_rows_in_the_input),
        ("follow", own_rows_written_since),
        ("pinned", nothing_is_equal),
        ("pinned", newer_code),
        ("pinned", a_partition_is_rejected_in_part),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_what_is_not_proven_is_computed(
    publication: str, change: Callable[[Restated], None]
) -> None:
    world = Restated(publication)
    change(world)
    assert world.kept(world.run_again())["s.a"] == ()


def test_what_landed_upstream_while_the_cascade_was_open_is_a_difference() -> None:
    """Its rows are older than the publication, and no row of the downstream run has seen them."""

    class Late(Restated):
        def declare(self, file: str) -> Any:
            found = super().declare(file)
            (name, source), *_ = found.manifest.sources.items()
            days = 1 if file == "s.a.yaml" else 0
            sources = {name: source.model_copy(update={"warm_up_days": days})}
            manifest = found.manifest.model_copy(update={"sources": sources})
            return dataclasses.replace(found, manifest=manifest)

        def accepted(self) -> Cascade:
            found = super().accepted()
            # Before both days, so that only the warm-up of the first one reads it.
            self.lake.write("s.r", "2020-01-01", "late")
            return found

    world = Late("follow", a={"mapping": "window", "partitions_before": 1})
    made = world.context.runs.plan(world.first.run_ids[1])
    changes = InputReader(world.context).changes_since_pin(made, made.resolved.sources[0])
    assert [(one.kind, one.label) for one in changes] == [("changed rows", "2020-01-01")]
    assert world.kept(world.run_again())["s.a"] == ()


def test_live_rows_between_two_steps_of_a_publication_are_computed_again() -> None:
    class Stepwise(Restated):
        progressive: Progressive | None = Progressive(pause_seconds=1)

        def declare(self, file: str) -> Any:
            found = super().declare(file)
            target = found.manifest.target.model_copy(update={"progressive": self.progressive})
            manifest = found.manifest.model_copy(update={"target": target})
            return dataclasses.replace(found, manifest=manifest)

        def accepted(self) -> Cascade:
            found = super().accepted()
            between = lambda _: self.lake.write("s.a", SAME, "same", "live")  # noqa: E731
            vars(self.context.clock)["sleep"] = between
            return found

    world = Stepwise("follow")
    assert len(world.lake.tables["s.a"].content(world.lake.tables["s.a"].head)[SAME]) == 2
    world.progressive = None
    assert world.kept(world.run_again())["s.a"] == ()


def test_rows_that_no_run_made_are_computed() -> None:
    world = World()
    found = world.approved()
    steps.run_cascade(world.context, found, "bob")
    assert all(not world.context.runs.plan(run).reused for run in found.run_ids)


def test_a_run_that_is_staged_alone_computes_all() -> None:
    world = Restated()
    found = world.approved_again()
    root, a, _ = found.run_ids
    stage(world.context, root, "bob")
    validate(world.context, root, "bob")
    stage(world.context, a, "bob")
    assert world.context.runs.plan(a).reused == ()


def test_what_was_kept_is_kept_when_the_same_command_goes_on() -> None:
    world = Restated()
    found = world.approved_again()
    world.compute.dies_at = found.plans[1].resolved.chunks[1].chunk_id
    # The root has the same chunks: it dies there first, and goes on.
    with pytest.raises(errors.EnvironmentDown):
        steps.run_cascade(world.context, found, "bob")
    world.compute.dies_at = None
    steps.run_cascade(world.context, found, "bob")
    a = found.run_ids[1]
    before = world.context.runs.chunks(a)
    steps.run_cascade(world.context, found, "bob")
    assert world.context.runs.chunks(a) == before
    assert world.kept(found)["s.a"] == (SAME,)


def test_an_edited_flag_of_the_intent_lets_nothing_be_kept() -> None:
    world = Restated()
    found = world.run_again()
    plan = world.context.runs.plan(found.run_ids[1])
    unasked = plan.resolved.model_copy(update={"may_reuse": False})
    assert unasked.manifest_hash != plan.manifest_hash


FIRST = date(2020, 1, 1)
_DAYS = st.integers(0, 30).map(lambda number: (FIRST + timedelta(number)).isoformat())


def pin(before: int, after: int, *, is_whole: bool = False) -> SourcePin:
    ranged = InputRange(column="day", **{"from": date(2019, 1, 1), "to": date(2021, 1, 1)})
    return SourcePin(
        name="a", role="source", table="s.a", requested="s.a", snapshot_id=1, mode="tag",
        range=None if is_whole else ranged, warm_up_days=before, cool_down_days=after,
    )  # fmt: skip


@given(
    st.sets(_DAYS, min_size=1, max_size=8), st.sets(_DAYS, max_size=4),
    st.integers(0, 3), st.integers(0, 3), st.sampled_from(["ranged", "whole", "unknown"]),
)  # fmt: skip
def test_a_partition_is_untouched_exactly_if_no_day_that_it_reads_differs(
    labels: set[str], differing: set[str], before: int, after: int, kind: str
) -> None:
    rows: tuple[RowRange | None, ...] = tuple(
        partition_row_range(DAY, one) for one in sorted(differing)
    )
    if kind == "unknown" and rows:
        rows = (*rows, None)
    ordered = tuple(sorted(labels))
    scope = Scope(field=DAY, partitions=ordered)
    found = untouched_labels(scope, ordered, [(pin(before, after, is_whole=kind == "whole"), rows)])

    def reads(label: str) -> set[str]:
        day = date.fromisoformat(label)
        return {(day + timedelta(step)).isoformat() for step in range(-before, after + 1)}

    if kind == "ranged" or not rows:
        assert found == {one for one in labels if not reads(one) & differing}
    else:
        assert found == frozenset()


@given(
    st.lists(st.tuples(_DAYS, st.booleans(), st.integers(0, 2), st.integers(0, 2), st.booleans())),
    st.sets(_DAYS),
)
def test_a_partition_is_equal_only_with_equal_count_and_checksum_of_both_sides(
    rows: list[tuple[str, bool, int, int, bool]], labels: set[str]
) -> None:
    balances = {
        label: PartitionBalance(
            partition=label, equal=equal, old_count=old, new_count=new,
            old_checksum="x", new_checksum="x" if same else "y",
        )
        for label, equal, old, new, same in rows
    }  # fmt: skip
    proven = {
        label
        for label, one in balances.items()
        if one.equal and one.old_count == one.new_count and one.new_checksum == "x"
    }
    assert differing_labels(labels, balances) == labels - proven


def test_the_partition_of_null_and_rows_without_a_time_are_never_kept() -> None:
    scope = Scope(field=DAY, partitions=("2020-01-02", "null"))
    assert untouched_labels(scope, scope.partitions, []) == {"2020-01-02"}
    without = (RowRange("day", is_null=True),)
    assert untouched_labels(scope, scope.partitions, [(pin(0, 0), without)]) == frozenset()
