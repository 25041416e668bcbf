"""What the numbers of one staged chunk mean."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.staging import checks
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord
from tests.support.examples.plans import a_plan

DAY = "2013-02-15"


def record(**fields: Any) -> ChunkRecord:
    """A chunk of one day with ten rows."""
    said: dict[str, Any] = {
        "run_id": "bf-1", "chunk_id": "c1", "partitions": (DAY,), "status": "done",
        "input_rows": 20, "output_rows": 10, "outside_rows": 0, "checksum": "x", "seconds": 1.0,
        "snapshot_id": 8, "finished_at": datetime(2026, 1, 1, tzinfo=timezone.utc),
    }  # fmt: skip
    return ChunkRecord(**(said | fields))


def facts(**fields: Any) -> ChunkFacts:
    """What the shadow holds of it."""
    return ChunkFacts(**({"rows": {DAY: 10}, "null_keys": {}, "duplicate_keys": 0} | fields))


def judged(
    chunk: ChunkRecord | None = None,
    seen: ChunkFacts | None = None,
    rows_before: int = 0,
    emptied: tuple[str, ...] = (),
    **changes: Any,
) -> dict[str, str]:
    """Give what the failed gates saw, by name."""
    plan = a_plan()
    resolved = plan.resolved
    if "max_rows" in changes:
        safety = resolved.manifest.safety.model_copy(update={"max_rows": changes["max_rows"]})
        manifest = resolved.manifest.model_copy(update={"safety": safety})
        resolved = resolved.model_copy(update={"manifest": manifest})
    if "warm_up_days" in changes:
        pin = resolved.sources[0].model_copy(update={"warm_up_days": changes["warm_up_days"]})
        resolved = resolved.model_copy(update={"sources": (pin,)})
    plan = plan.model_copy(update={"resolved": resolved})
    found = checks.judge_chunk(plan, chunk or record(), seen or facts(), rows_before, emptied)
    return {check.name: check.detail for check in found if not check.passed}


@pytest.mark.req("Q9")
def test_a_good_chunk_passes_every_gate() -> None:
    assert judged() == {}


BAD = [
    pytest.param({"seen": facts(duplicate_keys=2)},
                 {"keys are unique": "2 duplicate keys in the chunk"}, id="duplicate keys"),
    pytest.param({"seen": facts(null_keys={"arrival_date": 3})},
                 {"keys have no nulls": "3 rows without arrival_date"}, id="null keys"),
    pytest.param({"rows_before": 95, "max_rows": 100},
                 {"row count is in range": "105 rows up to this chunk, at most 100"},
                 id="more rows than allowed, together with earlier chunks"),
    pytest.param({"emptied": (DAY,)},
                 {"no partition becomes empty": f"1 become empty, first {DAY}"}, id="emptied"),
    pytest.param({"seen": facts(rows={DAY: 9})},
                 {"chunk rows are all stored": "10 computed, 9 stored"}, id="rows are missing"),
    pytest.param({"chunk": record(outside_rows=4), "warm_up_days": 0},
                 {"rows lie inside the chunk": "10 inside, 4 outside and left out"},
                 id="rows outside without a warm-up"),
]  # fmt: skip


@pytest.mark.req("Q9")
@pytest.mark.parametrize(("given", "failed"), BAD)
def test_a_bad_chunk_fails_the_gate_and_shows_its_number(
    given: dict[str, Any], failed: dict[str, str]
) -> None:
    assert judged(**given) == failed


@pytest.mark.req("Q9")
def test_rows_of_a_warm_up_fall_outside_by_design() -> None:
    assert judged(record(outside_rows=4), warm_up_days=1) == {}


@pytest.mark.req("Q9")
@pytest.mark.parametrize(("rows", "blocks"), [(10, False), (0, True)])
def test_rows_outside_block_only_when_none_lies_inside(rows: int, blocks: bool) -> None:
    plan = a_plan()
    pin = plan.resolved.sources[0].model_copy(update={"warm_up_days": 0})
    resolved = plan.resolved.model_copy(update={"sources": (pin,)})
    plan = plan.model_copy(update={"resolved": resolved})
    chunk, seen = record(output_rows=rows, outside_rows=4), facts(rows={DAY: rows} if rows else {})
    found = {each.name: each for each in checks.judge_chunk(plan, chunk, seen, 0, ())}
    assert found["rows lie inside the chunk"].blocking is blocks


@pytest.mark.req("Q9")
def test_partitions_without_rows_are_the_empty_ones() -> None:
    two = record(partitions=(DAY, "2013-02-16"))
    assert checks.empty_chunk_partitions(two, facts()) == ("2013-02-16",)


@pytest.mark.req("Q9")
def test_the_problem_names_chunk_partitions_gate_and_number() -> None:
    failed = checks.judge_chunk(a_plan(), record(), facts(duplicate_keys=2), 0, ())
    text = checks.describe_failed_checks(
        record(), tuple(check for check in failed if not check.passed)
    )
    assert text == (
        f"chunk c1 ({DAY}) failed 1 of its checks: keys are unique: 2 duplicate keys in the chunk"
    )
