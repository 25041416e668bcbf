"""A run's whole life on a branch of its target, computed by Spark, or by another engine (X12)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lake.test_external_writer import Theirs
from tests.support.spark.lake import Lake
from tests.support.spark.modes import BY_PARTITION, Make, Modes, expected, seeded

pytestmark = [pytest.mark.lake, pytest.mark.req("X12")]
#: Deleted before the run by a live job, merge-on-read: one in the run's days, one outside.
GONE = ((2, 1), (5, 3))


@pytest.fixture
def isolation() -> str:
    return "branch"


@pytest.fixture
def modes(make: Make, lake: Lake) -> Modes:
    """The product of the other tests, on a profile that asks for branches."""
    made = seeded(make)
    name = f"{lake.name}.{made.product}"
    lake.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    for day, key in GONE:
        lake.sql(f"DELETE FROM {name} WHERE d = date'2024-01-0{day}' AND k = {key}")
    assert made.rows() == without(made, GONE, lambda _: False)
    return made


def without(modes: Modes, gone: Any, changed: Any) -> list[Any]:
    return [row for row in expected(modes, changed) if row[:2] not in gone]


def is_restated(row: Any) -> bool:
    return row[0] in (2, 3)


def branches(modes: Modes) -> set[str]:
    refs = modes.lake.catalog.load_table(modes.product).metadata.refs.items()
    return {name for name, ref in refs if ref.snapshot_ref_type == "branch" and name != "main"}


def published(modes: Modes, run_id: str) -> None:
    """Publish what was validated, look at what readers see, and roll it back."""
    before = modes.rows()
    modes.publish(run_id)
    # What was deleted of the run's days is the source's again; the rest stays deleted.
    assert modes.rows() == without(modes, GONE[1:], is_restated)
    assert modes.project.verify(run_id, deep=True).intact
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    assert modes.rows() == before == without(modes, GONE, lambda _: False)


@pytest.mark.req("U7", "U12")
def test_a_job_in_spark_is_staged_read_in_the_dark_published_and_rolled_back(modes: Modes) -> None:
    # Two chunks at a time.
    run_id, found = modes.validated(limits={"partitions_per_chunk": 1, "parallel": 2})
    assert found["state"] == "validated", [one for one in found["checks"] if not one["passed"]]
    (branch,) = branches(modes)
    assert branch.startswith(f"lhb-{run_id}-e")
    wanted = {(row[0], row[1], row[3]) for row in without(modes, GONE[1:], is_restated)}
    for engine in ("spark", "arrow"):
        dark = modes.project.candidate(run_id, engine)  # type: ignore[arg-type]
        rows = [row.asDict() for row in dark.collect()] if engine == "spark" else dark.to_pylist()
        assert {(row["d"].day, row["k"], row["v"]) for row in rows} == wanted
    assert modes.rows() == without(modes, GONE, lambda _: False)
    published(modes, run_id)


@pytest.mark.req("X11")
def test_another_engine_writes_the_branch_that_shadow_open_names(modes: Modes) -> None:
    run_id = modes.plan(transform={"writer": "external"}, **BY_PARTITION)
    opened = modes.project.shadow_open(run_id, "ann")
    (branch,) = branches(modes)
    assert opened.table == f"{modes.product}.`branch_{branch}`"
    theirs = Theirs(modes, opened)
    theirs.write(theirs.rows(2, 3))
    assert modes.project.shadow_close(run_id, "ann").chunks_done == 2
    # Closed for them: what they write goes to a branch of an epoch that is over.
    theirs.write(theirs.rows(2).limit(0).union(theirs.rows(2).limit(1)))
    found = modes.project.validate(run_id, "ann")
    assert found.state == "validated", [one for one in found.checks if not one.passed]
    published(modes, run_id)
