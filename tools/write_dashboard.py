"""Writes docs/grafana-dashboard.json from the definitions of the metrics.

Run it after a change of them: `.venv/bin/python -m tools.write_dashboard`. A test compares the
file with what it would write. In Grafana: Dashboards, New, Import.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lakehouse_backfill.domain.monitoring.metrics import METRICS, MetricDefinition

FILE = Path(__file__).parent.parent / "docs" / "grafana-dashboard.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WHERE = {"product": 'product=~"$product"', "mode": 'mode=~"$mode"', "run": 'run=~"$run"'}
#: Two panels in a row of Grafana's 24 columns.
_WIDTH, _HEIGHT = 12, 8


def dashboard() -> dict[str, Any]:
    """Return a dashboard with one panel for each metric, and a choice of product, run and mode."""
    return {
        "title": "lakehouse-backfill",
        "uid": "lakehouse-backfill",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [_data_source(), *map(_variable, _WHERE)]},
        "panels": [_panel(number, one) for number, one in enumerate(METRICS)],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "source"}


def _variable(label: str) -> dict[str, Any]:
    metric = "backfill_chunks_completed_total" if label == "run" else "backfill_open_runs"
    return {
        "name": label, "label": label, "type": "query", "datasource": _SOURCE, "refresh": 2,
        "query": f"label_values({metric}, {label})", "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(number: int, metric: MetricDefinition) -> dict[str, Any]:
    is_instant = metric.kind == "gauge" and "run" not in metric.labels
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": metric.meaning.rstrip("."),
        "description": metric.name,
        "datasource": _SOURCE,
        "gridPos": {
            "h": _HEIGHT, "w": _WIDTH, "x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": _unit(metric.name)}, "overrides": []},
        "targets": [
            {
                "refId": "A", "datasource": _SOURCE, "expr": expression(metric),
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in metric.labels),
                "instant": False, "range": True,
            }
        ],
        "options": {"legend": {"displayMode": "table" if is_instant else "list"}},
    }  # fmt: skip


def expression(metric: MetricDefinition) -> str:
    """Return the query of a panel: the values, or of a histogram the 95th percentile."""
    where = ", ".join(text for label, text in _WHERE.items() if label in metric.labels)
    if metric.kind == "histogram":
        by = ", ".join(("le", *metric.labels))
        return f"histogram_quantile(0.95, sum by ({by}) ({metric.name}_bucket{{{where}}}))"
    return f"{metric.name}{{{where}}}"


def _unit(name: str) -> str:
    for ending, unit in (("_seconds", "s"), ("_ms", "ms"), ("_bytes", "bytes")):
        if name.endswith(ending):
            return unit
    return "currencyUSD" if name.endswith("cost_estimate") else "short"


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {FILE}\n")


if __name__ == "__main__":
    main()
