"""docs/monitoring.md and the dashboard say what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lakehouse_backfill.core.monitoring import alerts, metrics
from lakehouse_backfill.domain.monitoring.metrics import METRICS, AlertLimits, MetricsExport
from tools import write_dashboard

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "monitoring.md").read_text(encoding="utf-8")


@pytest.mark.req("O1")
def test_the_page_lists_every_metric_as_it_is_defined() -> None:
    rows = [
        f"| `{one.name}` | {one.kind} | {one.meaning.rstrip('.')} | {', '.join(one.labels)} |"
        for one in METRICS
    ]
    assert [line for line in PAGE.splitlines() if line.startswith("| `backfill_")] == rows
    assert f"the {metrics.CLOSED_RUNS} that ended" in PAGE
    assert all(f"{name}:" in PAGE for name in MetricsExport.model_fields)


@pytest.mark.req("O5")
def test_the_page_lists_every_cause_of_an_alert_and_its_limit() -> None:
    source = Path(alerts.__file__).read_text(encoding="utf-8")
    causes = set(re.findall(r'(?:alert\(|Alert\(\n?\s*|alert\(\n\s*)"([a-z_]+)"', source))
    named = set(re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)) - {m.name for m in METRICS}
    assert named == causes | {"not_fresh", "forgotten_run", "ending_pins"}
    for name, field in AlertLimits.model_fields.items():
        text = name if field.default is None else f"{name}: {field.default}"
        assert f"`{text}`" in PAGE, name


@pytest.mark.req("O5")
def test_the_dashboard_has_a_panel_for_each_metric() -> None:
    stored = json.loads(write_dashboard.FILE.read_text(encoding="utf-8"))
    assert stored == write_dashboard.dashboard()
    queries = [panel["targets"][0]["expr"] for panel in stored["panels"]]
    assert len(queries) == len(METRICS)
    for metric, query in zip(METRICS, queries, strict=True):
        assert metric.name in query
