"""OpenLineage events: valid by the published schemas, and without values."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from lakehouse_backfill.core.evidence.lineage import LineageEdge, LineageRun
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.report.openlineage import run_events, write_events
from tests.support.examples.plans import a_plan

SCHEMAS = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in (Path(__file__).parent / "openlineage").glob("*.json")
}
REGISTRY: Any = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()
)
FIRST = datetime(2013, 2, 15, tzinfo=timezone.utc)
STOP = datetime(2013, 2, 16, tzinfo=timezone.utc)


def require_valid(event: dict[str, Any]) -> None:
    """Hold an event against the schema of events, and each facet against its own."""
    check(event, {"$ref": event["schemaURL"]})
    for holder in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for group in ("facets", "outputFacets", "inputFacets"):
            for facet in holder.get(group, {}).values():
                check(facet, {"$ref": facet["_schemaURL"]})


def check(value: Any, schema: dict[str, Any]) -> None:
    """Raise ValidationError unless a value is valid; an unknown schema is an error too."""
    Draft202012Validator(schema, registry=REGISTRY, format_checker=FormatChecker()).validate(value)


def a_run(**changes: Any) -> LineageRun:
    """A published run that read a source."""
    plan = a_plan()
    scope = plan.resolved.scope
    pins = plan.resolved.sources
    publication = Publication(
        product=plan.product, version=3, token="t", action="publish", run_id=plan.run_id,
        table=plan.product, snapshot_id=9, before_snapshot_id=8, scope=scope, supersedes=2,
        at=STOP, by="ana",
    )  # fmt: skip
    edges = tuple(
        LineageEdge(
            plan.product, scope.partitions, plan.run_id, pin.name, pin.role, pin.table,
            pin.snapshot_id, None, ((FIRST, STOP),) if pin.range else (),
        )
        for pin in pins
    )  # fmt: skip
    secret = CheckResult(name="keys are unique", group="technical", passed=False, detail="4711")
    fields: dict[str, Any] = {
        "columns": {"arr_delay": (f"{pins[0].name}.arr_delay",), "one": ()},
        "checks": (secret,), "rows": 30,
    }  # fmt: skip
    return LineageRun(plan, publication, edges, **(fields | changes))


@pytest.mark.req("O3")
@pytest.mark.parametrize("changes", [{}, {"columns": {}, "checks": (), "rows": None}])
def test_events_are_valid_by_the_published_schemas(changes: dict[str, Any]) -> None:
    for event in run_events(a_run(**changes), "lake", "0.1.0"):
        require_valid(event)


def test_a_run_is_a_start_and_a_completion_with_what_it_read_and_made() -> None:
    run = a_run()
    start, end = run_events(run, "lake", "0.1.0")
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert [one["name"] for one in end["inputs"]] == [edge.table for edge in run.edges]
    (made,) = end["outputs"]
    assert (made["namespace"], made["name"]) == ("iceberg:lake", run.plan.product)
    assert made["facets"]["version"]["datasetVersion"] == "9"
    assert made["facets"]["columnLineage"]["fields"]["arr_delay"]["inputFields"] == [
        {"namespace": "iceberg:lake", "name": run.edges[0].table, "field": "arr_delay"}
    ]
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 30
    windows = end["run"]["facets"]["lakehouseBackfill_run"]["windows"]
    assert windows[run.edges[0].input] == [[FIRST.isoformat(), STOP.isoformat()]]


@pytest.mark.req("E7")
def test_no_detail_of_a_check_no_person_and_no_reason_is_in_an_event() -> None:
    run = a_run()
    text = json.dumps(run_events(run, "lake", "0.1.0"))
    assert "keys are unique" in text
    intent = run.plan.resolved.manifest.run
    for word in ("4711", "ana", intent.reason, intent.requested_by, run.plan.created_by):
        assert f'"{word}' not in text


def test_a_folder_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        write_events((a_run(),), "lake", "0.1.0", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert write_events((a_run(),), "lake", "0.1.0", tmp_path / "new" / "events.ndjson") == 2
