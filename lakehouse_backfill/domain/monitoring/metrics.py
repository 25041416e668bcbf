"""Metrics: their names, kinds and labels; where they go; and when a run raises an alert."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from lakehouse_backfill.domain.serialization import Text, Value

#: The mode of what no run made: of its metrics and log lines.
NO_RUN = "none"
#: The mode of a run whose plan cannot be read.
UNKNOWN_RUN = "unknown"
MetricKind = Literal["counter", "gauge", "histogram"]


class MetricDefinition(NamedTuple):
    """One metric: name, kind, what it counts, its labels, and the upper bounds of a histogram."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = ()


_RUN = ("product", "run", "mode")
_SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_MILLISECONDS = tuple(1000 * bound for bound in _SECONDS)
#: Every metric, in the order of the exposition. Label values: the products and newest runs of the
#: lake, and fixed words.
METRICS = (
    MetricDefinition("backfill_input_records_total", "counter", "Rows that chunks read.", _RUN),
    MetricDefinition("backfill_output_records_total", "counter", "Rows that chunks wrote.", _RUN),
    MetricDefinition(
        "backfill_rejected_records_total", "counter", "Rows that the transform rejected.", _RUN
    ),
    MetricDefinition(
        "backfill_duplicates_total", "counter", "Repeated keys that the validation found.", _RUN
    ),
    MetricDefinition(
        "backfill_divergent_rows_total", "counter",
        "Rows that the validated result adds, removes or changes.", _RUN,
    ),
    MetricDefinition(
        "backfill_chunks_completed_total", "counter", "Chunks that are done.", _RUN
    ),
    MetricDefinition(
        "backfill_redone_chunks_total", "counter",
        "Chunks that were computed after staging was begun once more.", _RUN,
    ),
    MetricDefinition(
        "backfill_chunk_duration_seconds", "histogram",
        "Seconds of a chunk, from its first read to its commit.", _RUN, _SECONDS,
    ),
    MetricDefinition(
        "backfill_rows_per_second", "gauge", "Rows written by the second of its chunks.", _RUN
    ),
    MetricDefinition(
        "backfill_sink_write_latency_ms", "histogram",
        "Milliseconds of a write into the shadow table; the engine computes while it writes.",
        _RUN, _MILLISECONDS,
    ),
    MetricDefinition(
        "backfill_validation_failures_total", "counter",
        "Blocking checks that failed, of chunks and of the result.", _RUN,
    ),
    MetricDefinition(
        "backfill_cost_estimate", "gauge", "Estimated cost of the plan, at the profile's prices.",
        _RUN,
    ),
    MetricDefinition(
        "backfill_publish_duration_seconds", "gauge",
        "Seconds of the newest publication, from its begin to its end.", _RUN,
    ),
    MetricDefinition(
        "backfill_product_freshness_seconds", "gauge",
        "Seconds since what readers see was last committed or published; mode: of that run.",
        ("product", "mode"),
    ),
    MetricDefinition(
        "backfill_open_runs", "gauge", "Runs that are not over.", ("product", "state", "mode")
    ),
    MetricDefinition(
        "backfill_pinned_bytes", "gauge",
        "Bytes of the snapshots that pins keep from expiring, each counted once.",
        ("product", "mode"),
    ),
    MetricDefinition(
        "backfill_alerts", "gauge", "Alerts that are raised: 1 for each run and cause.",
        ("product", "run", "cause", "mode"),
    ),
)  # fmt: skip
DEFINITIONS = {one.name: one for one in METRICS}


class MetricSample(NamedTuple):
    """A value of a metric, or all observations of a histogram, with the values of its labels."""

    name: str
    labels: tuple[str, ...]
    value: float = 0.0
    observations: tuple[float, ...] = ()


class MetricsExport(Value):
    """Where metrics go; each way that is named is used."""

    file: Text | None = Field(
        None, description="Text file, for a collector of text files; written again by each command."
    )
    push: Text | None = Field(None, description="http(s) address of a Pushgateway.")
    job: Text = Field("lakehouse_backfill", description="Job name at the Pushgateway.")
    port: int | None = Field(
        None, ge=1, le=65535, description="Port to scrape while `run` or `stage` works."
    )
    address: Text = Field("127.0.0.1", description="Address that the port listens on.")
    timeout_seconds: float = Field(5, gt=0, le=60, description="Then a push has failed.")

    @property
    def is_on(self) -> bool:
        """Whether metrics go anywhere."""
        return any(way is not None for way in (self.file, self.push, self.port))


class AlertLimits(Value):
    """When a run raises an alert; None: never for this cause."""

    waiting_hours: float | None = Field(
        24, gt=0, description="A run waits for a person for so long."
    )
    unattended_minutes: float | None = Field(
        10, gt=0, description="The lease of a working run ended so long ago."
    )
    rejected_share: float | None = Field(
        None, ge=0, le=1, description="Share of the rows read that were rejected."
    )
    freshness_hours: float | None = Field(
        None, gt=0, description="A product was not committed to for so long."
    )


class Monitoring(Value):
    """Metrics and alerts of a lake."""

    metrics: MetricsExport = Field(default_factory=MetricsExport)
    alerts: AlertLimits = Field(default_factory=AlertLimits)
