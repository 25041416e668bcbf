"""Computing an accepted run again (D5), and testing what is promised of it (O7), over fakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from lakehouse_backfill.core.evidence.attribution import (
    AttributionOptions,
    attribute_changes,
)
from lakehouse_backfill.core.evidence.reproduce import (
    ProductGuarantees,
    audit_guarantees,
    open_scratch_table,
    reproduce,
)
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.catch_up import CarriedChunk, CatchUp
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.errors import ApprovalMissing, ChecksFailed, NotFound, Unsupported
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.steps import note_calls, planned_run, published_run, world

D5, O7 = pytest.mark.req("D5"), pytest.mark.req("O7")


def verdicts(found: ProductGuarantees) -> dict[str, bool | None]:
    return {check.name: check.ok for check in found.checks}


@D5
def test_a_partition_that_comes_out_differently_is_named() -> None:
    where, found = world()
    run_id = published_run(found)
    found.compute().keys["2020-01-03"] = {"something else"}
    done = reproduce(found, run_id, "bob")
    wrong = [one.partition for one in done.partitions if not one.equal]
    assert (done.is_equal, wrong) == (False, ["2020-01-03"])
    assert done.scratch_table not in where.tables


@D5
def test_what_was_never_validated_cannot_come_out_again() -> None:
    _, found = world()
    with pytest.raises(ApprovalMissing):
        reproduce(found, planned_run(found), "bob")


@D5
def test_a_scratch_table_is_gone_also_when_the_code_fails() -> None:
    where, found = world()
    plan = found.runs.plan(published_run(found))
    tables = set(where.tables)
    found.compute().dies_at = plan.resolved.chunks[0].chunk_id
    with (
        pytest.raises(Exception, match="does not answer"),
        open_scratch_table(found, plan, "x", "bob") as again,
    ):
        again.compute(plan.resolved.chunks[0])
    assert set(where.tables) == tables


@D5
def test_a_chunk_that_was_carried_over_is_computed_from_what_its_first_run_read() -> None:
    where, found = world()
    plan = found.runs.plan(published_run(found))
    chunk, read = plan.resolved.chunks[0], plan.resolved.sources[0].snapshot_id - 1
    first = CarriedChunk(
        chunk_id=chunk.chunk_id, run_id="bf-0", shadow_table="shadow.first",
        shadow_snapshot_id=1, rows=1, checksum="", inputs={"raw": read},
    )  # fmt: skip
    follow = CatchUp(
        of="bf-0", attempt=1, drifts=(), drifted=(), accepted_digest="", carried=(first,)
    )
    resolved = plan.resolved.model_copy(update={"catch_up": follow})
    calls = note_calls(found.compute().staging, "stage")
    with open_scratch_table(
        found, plan.model_copy(update={"resolved": resolved}), "x", "bob"
    ) as again:
        again.compute(chunk)
    ((staged, *_),) = calls
    assert [pin.snapshot_id for pin in staged.resolved.sources] == [read]
    assert PRODUCT in where.tables


class Drifting(FakeCompute):
    """An engine that gives other rows each time."""

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        self.keys = {label: {f"{label} {len(self.staged)}"} for label in chunk.partitions}
        return super().stage(plan, chunk, epoch)


@O7
def test_code_that_is_not_deterministic_is_found() -> None:
    where, found = world()
    published_run(found)
    drifting = Drifting(where)
    (one,) = audit_guarantees(dataclasses.replace(found, compute=lambda: drifting), PRODUCT, "bob")
    assert verdicts(one) == {
        "determinism": False, "idempotence": False, "fences": True, "pins": True
    }  # fmt: skip


class OtherState(FakeCompute):
    """An engine whose code leaves another state each time."""

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        raise ChecksFailed("chunk c leaves another state than the one that is kept of it", fix="-")


@O7
@pytest.mark.req("X4")
def test_a_chunk_that_leaves_another_state_is_not_deterministic() -> None:
    where, found = world()
    published_run(found)
    compute = OtherState(where)
    (one,) = audit_guarantees(dataclasses.replace(found, compute=lambda: compute), PRODUCT, "bob")
    assert verdicts(one) == {"determinism": False, "pins": True}


class Unfenced(FakeCompute):
    """An engine that looks at no fence."""

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        return super().stage(plan, chunk, epoch + 1)


@O7
def test_a_fence_that_does_not_hold_is_found() -> None:
    where, found = world()
    published_run(found)
    unfenced = Unfenced(where)
    (one,) = audit_guarantees(dataclasses.replace(found, compute=lambda: unfenced), PRODUCT, "bob")
    assert verdicts(one)["fences"] is False


@O7
def test_a_product_without_a_published_run_says_so() -> None:
    _, found = world()
    found.runs.plan(planned_run(found))
    (one,) = audit_guarantees(found, None, "bob")
    assert (one.run_id, one.checks, one.because) == (None, (), "no run of it was ever published")
    with pytest.raises(NotFound, match="no run of it"):
        audit_guarantees(found, PRODUCT, "bob")
    assert declared().manifest.product == PRODUCT


@pytest.mark.req("E3")
@pytest.mark.parametrize(
    "replay",
    [
        lambda found, run_id: reproduce(found, run_id, "bob"),
        lambda found, _: audit_guarantees(found, PRODUCT, "bob"),
        lambda found, run_id: attribute_changes(found, run_id, AttributionOptions(), "bob"),
    ],
    ids=["reproduce", "audit guarantees", "diff --attribute"],
)
def test_input_that_may_no_longer_be_replayed_is_not_computed_again(
    replay: Callable[[Context, str], object],
) -> None:
    where, found = world()
    run_id = published_run(found)
    expired = dataclasses.replace(found, contract=lambda _: contract(retention_days=30))
    tables, calls = set(where.tables), note_calls(found.compute().staging, "stage")
    with pytest.raises(Unsupported, match="older than its retention of 30 days") as refused:
        replay(expired, run_id)
    assert refused.value.state == "nothing was computed; readers see what they saw before"
    assert (set(where.tables), calls) == (tables, [])
    (told,) = audit_guarantees(expired, None, "bob")
    assert "nothing was computed: " in told.because
    assert [check.name for check in told.checks] == ["pins"]
