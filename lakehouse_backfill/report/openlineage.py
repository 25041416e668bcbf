"""Lineage as OpenLineage events: a START and a COMPLETE of each published run, as JSON lines.

Spec: https://openlineage.io/spec/2-0-2/OpenLineage.json. Events hold names, types, counts and the
verdicts of checks. No value of a row, no text of a person and no code is among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from lakehouse_backfill.core.evidence.lineage import LineageEdge, LineageRun
from lakehouse_backfill.domain.tables.table import Column
from lakehouse_backfill.errors import ConfigError, EnvironmentDown

Facet = dict[str, Any]
_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
_FACETS = "https://openlineage.io/spec/facets"
#: Version and name of the schema of each facet, by the facet's name in an event.
_FACET_SCHEMAS = {
    "jobType": ("2-0-4", "JobTypeJobFacet"),
    "schema": ("1-2-0", "SchemaDatasetFacet"),
    "version": ("1-0-1", "DatasetVersionDatasetFacet"),
    "columnLineage": ("1-2-0", "ColumnLineageDatasetFacet"),
    "dataQualityMetrics": ("1-0-0", "DataQualityMetricsDatasetFacet"),
    "dataQualityAssertions": ("1-1-0", "DataQualityAssertionsDatasetFacet"),
    "outputStatistics": ("1-0-2", "OutputStatisticsOutputDatasetFacet"),
}


def write_events(runs: Sequence[LineageRun], catalog: str, version: str, file: Path) -> int:
    """Write the events of runs as JSON lines, in place of the file; return how many.

    Raises ConfigError for a folder, EnvironmentDown when the file cannot be written.
    """
    if file.is_dir():
        raise ConfigError(
            f"{file} is a folder",
            state="nothing was written",
            fix="name a file: --openlineage lineage.ndjson",
        )
    events = [event for run in runs for event in run_events(run, catalog, version)]
    lines = (json.dumps(event, sort_keys=True, ensure_ascii=False) for event in events)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    except OSError as error:
        raise EnvironmentDown(
            f"the events cannot be written: {error}",
            state="nothing in the lake was changed",
            fix="name a file in a folder that you may write to: --openlineage FILE",
        ) from error
    return len(events)


def run_events(run: LineageRun, catalog: str, version: str) -> tuple[Facet, Facet]:
    """Return the start and the completion of a published run.

    `catalog` names the lake: tables are datasets of the namespace `iceberg:CATALOG`.
    """
    made = _Events(run, f"iceberg:{catalog}", f"urn:lakehouse-backfill:{version}")
    return made.event("START", run.plan.created_at), made.completion()


class _Events:
    """Makes the events of one run."""

    def __init__(self, run: LineageRun, namespace: str, producer: str) -> None:
        self._run, self._namespace, self._producer = run, namespace, producer

    def event(self, kind: str, at: datetime) -> Facet:
        """Return an event without datasets."""
        plan = self._run.plan
        manifest = plan.resolved.manifest
        job_type = {
            "processingType": "BATCH",
            "integration": "LAKEHOUSE_BACKFILL",
            "jobType": manifest.run.kind.upper(),
        }
        return {
            "eventType": kind,
            "eventTime": at.isoformat(),
            "producer": self._producer,
            "schemaURL": f"{_SPEC}#/$defs/RunEvent",
            "run": {
                "runId": str(uuid5(NAMESPACE_URL, f"urn:lakehouse-backfill:run:{plan.run_id}")),
                "facets": {"lakehouseBackfill_run": self._run_facet()},
            },
            "job": {
                "namespace": "lakehouse-backfill",
                "name": f"{plan.product}.{manifest.transform.name}",
                "facets": {"jobType": self._facet("jobType", job_type)},
            },
            "inputs": [],
            "outputs": [],
        }

    def completion(self) -> Facet:
        """Return the event of the publication, with the inputs and the output."""
        run = self._run
        inputs = [self._input(edge) for edge in run.edges]
        outputs = [self._output()]
        event = self.event("COMPLETE", run.publication.at)
        return {**event, "inputs": inputs, "outputs": outputs}

    def _run_facet(self) -> Facet:
        """Return what OpenLineage has no field for; `windows` are the instants that were read."""
        run, resolved = self._run, self._run.plan.resolved
        return {
            "_producer": self._producer,
            "_schemaURL": f"{_SPEC}#/$defs/RunFacet",
            "runId": run.plan.run_id,
            "version": run.publication.version,
            "processingMode": resolved.manifest.run.mode,
            "reasonCode": resolved.manifest.run.reason_code,
            "transformVersion": resolved.manifest.transform.version,
            "manifestHash": run.plan.manifest_hash,
            "codeHash": resolved.code_hash,
            "partitions": list(resolved.scope.partitions),
            "windows": {
                edge.input: [[first.isoformat(), stop.isoformat()] for first, stop in edge.windows]
                for edge in run.edges
            },
        }

    def _input(self, edge: LineageEdge) -> Facet:
        pin = next(one for one in self._run.plan.resolved.sources if one.name == edge.input)
        facets = self._dataset_facets(pin.columns, edge.snapshot_id)
        return {**self._dataset(edge.table), "facets": facets}

    def _output(self) -> Facet:
        run = self._run
        columns = run.plan.resolved.contract.columns
        facets = self._dataset_facets(columns, run.publication.snapshot_id)
        facets |= self._column_lineage()
        assertions = [
            {
                "assertion": check.name,
                "success": check.passed,
                "severity": "error" if check.blocking else "warn",
            }
            for check in run.checks
            if check.is_judged
        ]
        if assertions:
            body = {"assertions": assertions}
            facets["dataQualityAssertions"] = self._facet("dataQualityAssertions", body)
        found = {**self._dataset(run.publication.table), "facets": facets}
        if run.rows is None:
            return found
        metrics = {"rowCount": run.rows, "columnMetrics": {}}
        facets["dataQualityMetrics"] = self._facet("dataQualityMetrics", metrics)
        statistics = self._facet("outputStatistics", {"rowCount": run.rows})
        return {**found, "outputFacets": {"outputStatistics": statistics}}

    def _dataset_facets(self, columns: Iterable[Column | Any], snapshot_id: int | None) -> Facet:
        fields = [{"name": column.name, "type": column.type} for column in columns]
        found = {"schema": self._facet("schema", {"fields": fields})}
        if snapshot_id is not None:
            body = {"datasetVersion": str(snapshot_id)}
            found["version"] = self._facet("version", body)
        return found

    def _column_lineage(self) -> Facet:
        """Return the columns of inputs that each column is made of; empty where not known."""
        tables = {edge.input: edge.table for edge in self._run.edges}
        fields = {
            name: {"inputFields": list(self._input_fields(made, tables))}
            for name, made in self._run.columns.items()
        }
        return {"columnLineage": self._facet("columnLineage", {"fields": fields})} if fields else {}

    def _input_fields(self, made: Sequence[str], tables: dict[str, str]) -> Iterator[Facet]:
        for text in made:
            source, _, column = text.partition(".")
            if source in tables:
                yield {**self._dataset(tables[source]), "field": column}

    def _dataset(self, table: str) -> Facet:
        return {"namespace": self._namespace, "name": table}

    def _facet(self, name: str, body: Facet) -> Facet:
        version, schema = _FACET_SCHEMAS[name]
        url = f"{_FACETS}/{version}/{schema}.json#/$defs/{schema}"
        return {"_producer": self._producer, "_schemaURL": url, **body}
