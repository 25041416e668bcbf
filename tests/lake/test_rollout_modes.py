"""Steps, dark candidates, dual reads and correction events, on tables of each format."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.errors import BackfillError
from tests.support.spark.modes import FORMATS, FORMATS_AND_SHADOWS, Make, expected, seeded

pytestmark = [pytest.mark.lake, pytest.mark.long]


def nothing_changed(row: Any) -> bool:
    return row is None


@pytest.mark.req("U6", "U12", "X12")
@pytest.mark.parametrize(("version", "isolation"), FORMATS_AND_SHADOWS)
def test_a_result_is_published_step_by_step(make: Make, version: int) -> None:
    modes = seeded(make, version)
    run_id = modes.published(target={"progressive": {"partitions_per_step": 1}})
    assert modes.rows() == expected(modes, lambda row: row[0] in (2, 3))
    newest_first = modes.project.wiring.context.versions.history(modes.product)
    history = reversed(newest_first)
    steps = [row.scope for row in history if row.action == "publish" and row.run_id == run_id]
    assert [scope.partitions for scope in steps if scope] == [("2024-01-02",), ("2024-01-03",)]
    modes.roll_back(run_id)
    assert modes.rows() == expected(modes, nothing_changed)


@pytest.mark.req("U7", "U8")
@pytest.mark.parametrize("version", FORMATS)
def test_a_candidate_is_dark_until_readers_compared_and_switch(make: Make, version: int) -> None:
    modes = seeded(make, version)
    run_id, _ = modes.validated(target={"dual_read": {"readers": ["app"]}})
    assert modes.rows() == expected(modes, nothing_changed)
    candidate = modes.project.candidate(run_id).to_pylist()
    restated = expected(modes, lambda row: row[0] in (2, 3))
    assert sorted((row["d"].day, row["k"], row["v"]) for row in candidate) == sorted(
        (d, k, v) for d, k, _, v, _ in restated
    )
    with pytest.raises(BackfillError, match="app"):
        modes.publish(run_id)
    compared = modes.project.dual_read(run_id, "app", columns=("k", "tenant"), by="lead")
    assert compared.equal, compared
    modes.project.publish(run_id, by="lead")
    assert modes.rows() == restated


@pytest.mark.req("U9", "X12")
@pytest.mark.parametrize(("version", "isolation"), FORMATS_AND_SHADOWS)
def test_what_differs_is_told_by_events_and_the_table_stays(make: Make, version: int) -> None:
    modes = seeded(make, version)
    head = modes.head().snapshot_id
    sink = modes.lake.table("corrections")
    run_id = modes.published(
        target={"publish_mode": "correction_events", "corrections": {"table": sink}}
    )
    assert modes.head().snapshot_id == head
    events = modes.lake.catalog.load_table(sink).scan().to_arrow().to_pylist()
    assert len(events) == 6
    assert {event["event_type"] for event in events} == {"correction"}
    modes.roll_back(run_id)
    assert modes.rows() == expected(modes, nothing_changed)
