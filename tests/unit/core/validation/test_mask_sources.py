"""Masks are computed again where the rows are those of the run, and else it is said why not."""

from __future__ import annotations

import dataclasses

import pytest

from lakehouse_backfill.core.runs.gate_registry import find_verdict
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.validate import mask_sources
from lakehouse_backfill.domain.catch_up import CarriedChunk, CatchUp
from lakehouse_backfill.domain.guards.privacy import MaskedColumn
from lakehouse_backfill.domain.plan import Plan
from tests.support.fakes.context import FakeSecrets, context, declared, lake
from tests.unit.core.guards.privacy.test_rules import planned, private

pytestmark = pytest.mark.req("E3")
COPIES = {"mail": "raw.mail"}


def masked_plan() -> Plan:
    return planned(declared(contract=private({"mail": {"mask": "hash"}})))


def with_resolved(plan: Plan, **changes: object) -> Plan:
    return plan.model_copy(update={"resolved": plan.resolved.model_copy(update=changes)})


def test_all_partitions_that_the_run_computed_are_compared() -> None:
    plan, found = masked_plan(), context(lake())
    sources = mask_sources(found, plan, COPIES)
    assert (sources.partitions, sources.unseen) == (plan.resolved.scope.partitions, "")
    chunk = plan.resolved.chunks[0]
    carried = CarriedChunk(
        chunk_id=chunk.chunk_id, run_id="bf-0", shadow_table="s.bf_0", shadow_snapshot_id=1,
        rows=1, checksum="c", inputs={},
    )  # fmt: skip
    followed = CatchUp(
        of="bf-0", attempt=1, drifts=(), drifted=(), accepted_digest="d", carried=(carried,)
    )
    revised = mask_sources(found, with_resolved(plan, catch_up=followed), COPIES)
    assert set(chunk.partitions).isdisjoint(revised.partitions)
    assert revised.unseen == f"{len(chunk.partitions)} partitions are of an earlier run"


def test_what_cannot_be_computed_again_is_named() -> None:
    plan, found = masked_plan(), context(lake())
    assert mask_sources(found, plan, None).unseen.startswith("the analysed plan of the rows")
    other = dataclasses.replace(found, secrets=FakeSecrets(b"another secret, as long"))
    assert mask_sources(other, plan, COPIES).unseen == "the secret of the plan is not at hand"
    manifest = plan.resolved.manifest
    target = manifest.target.model_copy(update={"row_predicate": {"column": "id", "in": (1,)}})
    repair = with_resolved(plan, manifest=manifest.model_copy(update={"target": target}))
    assert mask_sources(found, repair, COPIES).unseen == "rows of the base are among them"


def test_the_gate_names_what_was_computed_again_and_what_was_not() -> None:
    again = MaskedColumn(
        column="mail", values=9, misshapen=0, foreign=1, made_of="raw.mail", by=("day", "id")
    )
    not_again = MaskedColumn(column="phone", values=9, misshapen=0, raw=0, unseen="it is no copy")
    result = gates.check_masks([again, not_again])
    assert (result.passed, result.detail) == (
        False,
        "mail: 0 of 9 values have another shape, 1 are not the mask of raw.mail of the rows with "
        "the same day, id; phone: 0 of 9 values have another shape, 0 are raw values of an input; "
        "not computed again: it is no copy",
    )
    assert find_verdict(gates.check_masks([not_again])) == "not judged"


def test_the_gate_is_not_passed_where_a_value_may_belong_to_another_row() -> None:
    known = MaskedColumn(
        column="mail", values=9, misshapen=0, foreign=0, made_of="raw.mail", by=("day",)
    )
    assert find_verdict(gates.check_masks([known])) == "passed"
    result = gates.check_masks([known, known.model_copy(update={"ambiguous": 4})])
    assert find_verdict(result) == "not judged"
    assert "; of 4 it is not known which of several values is theirs" in result.detail
