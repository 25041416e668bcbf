"""A cascade from plan to publication, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.cascade import steps
from lakehouse_backfill.core.cascade.plan import (
    Cascade,
    CascadeFiles,
    load_cascade,
    make_cascade,
    register_cascade,
    require_no_member,
)
from lakehouse_backfill.core.evidence.inputs.changes import InputReader
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, contract, declared
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import accepted_run, note_calls, planned_run, state_of

pytestmark = pytest.mark.req("P4")
S = RunState
OLD = {f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)}
#: Each product and its upstreams; s.d has no template, and nothing reads s.other.
GRAPH: dict[str, tuple[str, ...]] = {
    "s.r": (), "s.a": ("s.r",), "s.b": ("s.a", "s.other"), "s.d": ("s.a",), "s.other": (),
}  # fmt: skip
Ups = dict[str, Any]


class World:
    """The lake, its contracts, and what their files say."""

    def __init__(self, publication: str = "pinned", **upstreams: Ups) -> None:
        self.lake = FakeLake()
        self.lake.add("bronze.raw", **{"2020-01-01": "raw-1"})
        self.compute = FakeCompute(self.lake)
        self.context: Context = context(self.lake, self.compute)
        self.mode = "pointer_swap" if publication == "pinned" else "replace_partitions"
        self.contracts: dict[str, Contract] = {}
        for product, reads in GRAPH.items():
            self.lake.add(product, **OLD)
            terms: dict[str, Any] = {
                "upstreams": [
                    {"product": one} | upstreams.get(product.partition(".")[2], {}) for one in reads
                ],
            }
            if reads and product != "s.d":
                terms["cascade"] = {"manifest": f"{product}.yaml"}
            self.contracts[product] = contract(
                product=product, table=product, publication=publication, **terms
            )

    def declare(self, file: str) -> Any:
        product = file.removesuffix(".yaml")
        return self.run_of(product, *GRAPH[product])

    def run_of(self, product: str, *reads: str, **changes: Any) -> Any:
        ranged = {"range": {"column": "day", "from": "2019-12-01", "to": "2020-02-01"}}
        sources = {one.partition(".")[2]: {"table": one} | ranged for one in reads}
        named = {"manifest_file": f"{product}.yaml"}
        found = declared(
            contract=self.contracts[product],
            product=product,
            target={"publish_mode": self.mode},
            sources=sources or {"raw": {"warm_up_days": 0}},
            **changes,
        )
        return dataclasses.replace(found, **named)

    def make(self, **changes: Any) -> Cascade:
        files = CascadeFiles(
            self.contracts, lambda _: nullcontext(), self.declare, lambda _: lambda label: [label]
        )
        return make_cascade(self.context, self.run_of("s.r", **changes), files, "bob")

    def planned(self) -> Cascade:
        return register_cascade(self.context, self.make(), "bob")

    def approved(self) -> Cascade:
        found = self.planned()
        steps.approve_cascade(self.context, found, "ana", "")
        return found

    def accepted(self) -> Cascade:
        found = self.approved()
        steps.run_cascade(self.context, found, "bob")
        steps.accept_cascade(self.context, found, "ana", "")
        return found

    def accepted_version_of(self, product: str) -> tuple[str, int | None]:
        """Publish a run of its own of a product; give table and snapshot that readers see."""
        publish(self.context, accepted_run(self.context, self.run_of(product)), "bob")
        accepted = self.context.versions.pointer(product).accepted
        assert accepted is not None
        return accepted.table, accepted.snapshot_id

    def states(self, found: Cascade) -> list[RunState]:
        return [state_of(self.context, run) for run in found.run_ids]


def test_each_product_is_selected_pulled_in_or_skipped_with_a_reason() -> None:
    found = World().make()
    told = {node.product: (node.decision, node.partitions, node.reused) for node in found.nodes}
    days = ("2020-01-02", "2020-01-03")
    assert told == {
        "s.r": ("selected", days, 3), "s.a": ("pulled in", days, 3),
        "s.b": ("pulled in", days, 3), "s.d": ("skipped", (), 0),
    }  # fmt: skip
    skipped = found.nodes[-1] if found.nodes[-1].product == "s.d" else found.nodes[2]
    assert "no cascade.manifest: its rows stay, and are stale" in skipped.because[0]


def test_an_input_is_the_candidate_of_the_run_before_by_its_hash() -> None:
    world = World()
    root, a, b = world.make().plans
    (pin,) = a.resolved.sources
    assert pin.candidate is not None
    assert (pin.candidate.run_id, pin.candidate.manifest_hash) == (root.run_id, root.manifest_hash)
    assert not pin.is_bound
    by_name = {one.name: one for one in b.resolved.sources}
    assert by_name["a"].candidate is not None
    assert by_name["other"].candidate is None
    assert world.context.runs.list(open_only=False) == ()


def test_planning_again_gives_the_cascade_that_is_open() -> None:
    world = World()
    found = world.planned()
    world.lake.write("s.a", "2020-01-05", "live")
    assert world.planned() == found
    assert load_cascade(world.context, found.cascade_id) == found


def test_another_open_cascade_of_the_same_partitions_is_refused() -> None:
    world = World()
    found = world.planned()
    with pytest.raises(errors.Conflict, match=f"{found.cascade_id} is open and restates"):
        world.make(validation={"edge_partitions": 0})


def test_an_open_run_of_a_product_blocks_it_by_name() -> None:
    world = World()
    other = planned_run(world.context, world.run_of("s.a", "s.r"))
    told = {node.product: node.because for node in world.make().nodes}
    assert f"blocked by open run {other} (planned) in 2020-01-02, 2020-01-03" in told["s.a"]
    found = world.planned()
    with pytest.raises(errors.Conflict):
        steps.approve_cascade(world.context, found, "ana", "")
    assert world.states(found) == [S.PLANNED] * 3, "all are looked at before the first is approved"


def test_nothing_downstream_is_an_error() -> None:
    world = World()
    world.contracts = {"s.r": world.contracts["s.r"]}
    with pytest.raises(errors.ConfigError, match="nothing is downstream"):
        world.make()


def test_a_run_binds_the_validated_snapshot_and_keeps_its_hash() -> None:
    world = World()
    found = world.approved()
    steps.run_cascade(world.context, found, "bob")
    root, a = (world.context.runs.plan(run) for run in found.run_ids[:2])
    (pin,) = a.resolved.sources
    assert (pin.table, pin.snapshot_id) == (
        root.shadow_table, world.lake.tables[root.shadow_table].head,
    )  # fmt: skip
    assert a.resolved.manifest_hash == a.manifest_hash
    verbs = [event.verb for event in world.context.runs.events(a.run_id)]
    assert verbs.count("bind inputs") == 1
    assert verbs.index("bind inputs") < verbs.index("begin staging")


def test_a_run_is_not_staged_before_what_it_reads_is_validated() -> None:
    world = World()
    found = world.approved()
    root, a, _ = found.run_ids
    with pytest.raises(errors.Blocked, match="its result is not validated"):
        stage(world.context, a, "bob")
    stage(world.context, root, "bob")
    with pytest.raises(errors.Blocked, match="is staged: its result is not validated"):
        stage(world.context, a, "bob")
    assert state_of(world.context, a) is S.APPROVED
    validate(world.context, root, "bob")
    stage(world.context, a, "bob")


def test_nothing_is_computed_before_all_are_approved() -> None:
    world = World()
    found = world.planned()
    decisions.approve(world.context, found.run_ids[0], "ana", "")
    with pytest.raises(errors.ApprovalMissing):
        steps.run_cascade(world.context, found, "bob")
    assert world.compute.staged == []


def test_what_is_computed_is_not_computed_again() -> None:
    world = World()
    found = world.approved()
    steps.run_cascade(world.context, found, "bob")
    staged = list(world.compute.staged)
    steps.run_cascade(world.context, found, "bob")
    assert world.compute.staged == staged
    assert world.states(found) == [S.VALIDATED] * 3


def test_a_failure_stops_there_and_the_same_call_goes_on() -> None:
    world = World()
    found = world.approved()
    world.compute.dies_at = found.plans[1].resolved.chunks[1].chunk_id
    with pytest.raises(errors.EnvironmentDown):
        steps.run_cascade(world.context, found, "bob")
    count = len([one for one in world.compute.staged if one != "load"])
    steps.run_cascade(world.context, found, "bob")
    assert world.states(found) == [S.VALIDATED] * 3
    assert len([one for one in world.compute.staged if one != "load"]) == 6
    assert count < 6


def test_a_candidate_that_is_staged_again_makes_what_read_it_stale() -> None:
    world = World()
    found = world.accepted()
    root = found.plans[0]
    world.lake.retire(root.shadow_table)
    world.lake.write("bronze.raw", "2020-01-01", "x")
    stage(world.context, root.run_id, "bob")
    # The new clone has another number of commits, so another snapshot.
    shadow = world.lake.tables[root.shadow_table]
    shadow.commit(dict(shadow.content(shadow.head)))
    validate(world.context, root.run_id, "bob")
    members = {one.node.product: one.stale for one in steps.cascade_members(world.context, found)}
    assert "was staged again since" in members["s.a"][0]
    decisions.accept(world.context, root.run_id, "ana", "")
    with pytest.raises(errors.Blocked, match="was staged again since"):
        steps.publish_cascade(world.context, found, "bob")
    steps.run_cascade(world.context, found, "bob")
    # The fake numbers the snapshots of the new clone of s.a as before, so s.b reads the same.
    assert world.states(found) == [S.ACCEPTED, S.VALIDATED, S.ACCEPTED]
    assert not any(one.stale for one in steps.cascade_members(world.context, found))
    steps.accept_cascade(world.context, found, "ana", "")
    steps.publish_cascade(world.context, found, "bob")
    assert world.states(found) == [S.PUBLISHED] * 3


@pytest.mark.req("U2")
def test_pinned_products_become_visible_by_one_commit_and_never_alone() -> None:
    world = World()
    found = world.accepted()
    for run in found.run_ids:
        with pytest.raises(errors.Blocked, match="become visible by one commit"):
            publish(world.context, run, "bob")
    moves = note_calls(world.context.versions, "move_all")
    steps.publish_cascade(world.context, found, "bob")
    steps.publish_cascade(world.context, found, "bob")
    assert len([one for one in moves if one[0] == ("s.r", "s.a", "s.b")]) == 1
    assert world.states(found) == [S.PUBLISHED] * 3


def test_followed_products_become_visible_by_one_commit_where_that_is_asked_for() -> None:
    world = World("follow")
    found = world.accepted()
    adopted = note_calls(world.context.publisher, "adopt_together")
    steps.publish_cascade(world.context, found, "bob", together=True)
    (((requests,),),) = [adopted]
    assert [request.target for request in requests] == ["s.r", "s.a", "s.b"]
    assert world.states(found) == [S.PUBLISHED] * 3
    steps.publish_cascade(world.context, found, "bob", together=True)
    assert len(adopted) == 1
    assert steps.products_to_roll_back(world.context, found) == (("s.b",), ("s.a",), ("s.r",))


def test_followed_products_become_visible_in_order() -> None:
    world = World("follow")
    found = world.accepted()
    with pytest.raises(errors.Blocked, match=r"would see s\.a without what it was made of"):
        publish(world.context, found.run_ids[1], "bob")
    adopted = note_calls(world.context.publisher, "adopt")
    steps.publish_cascade(world.context, found, "bob")
    assert [request.target for (request,) in adopted] == ["s.r", "s.a", "s.b"]
    assert steps.products_to_roll_back(world.context, found) == (("s.b",), ("s.a",), ("s.r",))


def test_followed_products_that_cannot_move_at_once_are_named_in_the_plan() -> None:
    every = {name: True for name in Capabilities.model_fields if name != "seen"}
    for publication, can, is_said in (
        ("follow", False, True), ("follow", True, False), ("pinned", False, False),
    ):  # fmt: skip
        world = World(publication)
        world.lake.found = Capabilities(**(every | {"multi_table_commit": can}))
        notes = [text for text in world.make().notes if "multi_table_commit: no" in text]
        assert bool(notes) is is_said


def test_publication_waits_until_all_are_accepted() -> None:
    world = World()
    found = world.approved()
    steps.run_cascade(world.context, found, "bob")
    decisions.accept(world.context, found.run_ids[0], "ana", "")
    with pytest.raises(errors.Blocked, match="it is validated"):
        steps.publish_cascade(world.context, found, "bob")
    assert world.context.versions.pointer("s.r").accepted is None


def test_rejecting_and_cancelling_close_all_runs() -> None:
    world = World()
    found = world.approved()
    steps.reject_cascade(world.context, found, "ana", "no")
    assert world.states(found) == [S.REJECTED] * 3
    steps.cancel_cascade(world.context, found, "ana", "no")
    assert world.states(found) == [S.CANCELLED] * 3
    with pytest.raises(errors.Conflict, match="is cancelled"):
        steps.run_cascade(world.context, found, "bob")


def test_a_later_version_is_rolled_back_before_the_cascade() -> None:
    world = World("follow")
    found = world.accepted()
    steps.publish_cascade(world.context, found, "bob")
    later = planned_run(world.context, world.run_of("s.a", "s.r"))
    decisions.approve(world.context, later, "ana", "")
    stage(world.context, later, "bob")
    validate(world.context, later, "bob")
    decisions.accept(world.context, later, "ana", "")
    publish(world.context, later, "bob")
    with pytest.raises(errors.Conflict, match=r"readers of s\.a see a later version"):
        steps.products_to_roll_back(world.context, found)


def changes_of_root(world: World, found: Cascade) -> list[tuple[str, str]]:
    plan = world.context.runs.plan(found.run_ids[1])
    (pin,) = plan.resolved.sources
    changes = InputReader(world.context).changes_since_pin(plan, pin)
    return [(one.kind, one.label) for one in changes]


def test_what_was_read_of_a_followed_candidate_is_compared_with_the_table_since() -> None:
    world = World("follow")
    found = world.accepted()
    steps.publish_cascade(world.context, found, "bob")
    assert changes_of_root(world, found) == []
    world.lake.write("s.r", "2020-01-03", "late")
    assert [label for _, label in changes_of_root(world, found)] == ["2020-01-03"]


def test_a_later_version_of_a_pinned_candidate_is_a_restatement_upstream() -> None:
    world = World()
    found = world.accepted()
    steps.publish_cascade(world.context, found, "bob")
    assert changes_of_root(world, found) == []
    later = accepted_run(world.context, world.run_of("s.r", transform={"version": "1.0.1"}))
    publish(world.context, later, "bob")
    assert changes_of_root(world, found) == [
        ("upstream restatement", "2020-01-02"), ("upstream restatement", "2020-01-03"),
    ]  # fmt: skip


def test_a_member_is_not_revised_alone() -> None:
    world = World()
    with pytest.raises(errors.ConfigError, match="is planned as a whole"):
        require_no_member(world.planned().plans[1])


def test_an_unknown_cascade_is_named() -> None:
    world = World()
    with pytest.raises(errors.NotFound, match="there is no cascade cx-0"):
        load_cascade(world.context, "cx-0")


def test_an_upstream_that_is_not_restated_is_read_as_its_readers_see_it() -> None:
    world = World()
    accepted = world.accepted_version_of("s.other")
    pins = {pin.name: pin for pin in world.make().plans[2].resolved.sources}
    assert (pins["other"].table, pins["other"].snapshot_id) == accepted
