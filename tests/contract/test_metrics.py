"""Metrics of a real lake by the command line: text, file, push, scrape; and a watched run."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.faults import Pause
from tests.chaos.lab import BY, Lab

LABELS = ("product", "run", "state", "cause", "mode", "le")


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name, and by the values of their labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = tuple(one.labels[name] for name in LABELS if name in one.labels)
            found.setdefault(one.name, {})[key] = one.value
    return found


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lake on which no run was made."""
    found = Lab(tmp_path / "lab")
    found.make()
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def scraped(port: int) -> str:
    """What the port answers, as soon as it does."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.req("O1", "O6")
def test_metrics_follow_a_run_and_what_cannot_be_sent_is_said(lab: Lab, tmp_path: Path) -> None:
    manifest = lab.manifest("next.yaml", "2024-01-05", "2024-01-07")
    run = lab.must("plan", manifest, *BY).data["run_id"]
    lab.must("approve", run, *BY)
    file, port, dead = tmp_path / "backfill.prom", free_port(), free_port()
    working = lab.start(
        "run", run, *BY, "--metrics-file", str(file), "--metrics-port", str(port),
        "--metrics-push", f"http://127.0.0.1:{dead}",
        hook=Pause("Staging.stage:before", 2, seconds=4),
    )  # fmt: skip
    meanwhile = parsed(scraped(port))
    watched = lab.start("status", run, "--watch", "--every", "0.5")
    ended = working.end()
    assert ended.code == 0, ended.said
    said = json.loads(ended.said.splitlines()[-1])
    assert [text for text in said["warnings"] if "not pushed" in text] != []
    assert watched.end().data["runs"][0]["state"] == "validated"
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
    label = ("silver.t", run, "backfill")
    assert any(run_id == run for _, run_id, _ in meanwhile["backfill_chunks_completed_total"])
    found = parsed(file.read_text())
    ledger = lab.must("chunks", run).data["chunks"]
    assert found["backfill_chunks_completed_total"][label] == len(ledger) == 2
    assert found["backfill_output_records_total"][label] == 6
    assert found["backfill_input_records_total"][label] == sum(c["input_rows"] for c in ledger)
    assert found["backfill_divergent_rows_total"][label] == 6
    assert found["backfill_validation_failures_total"][label] == 0
    assert found["backfill_redone_chunks_total"][label] == 0
    assert found["backfill_open_runs"] == {("silver.t", "validated", "backfill"): 1}
    assert found["backfill_pinned_bytes"]["silver.t", "backfill"] > 0
    assert "backfill_publish_duration_seconds" not in found
    # The same facts without a run at work, and nothing of the lake is touched by looking.
    again = parsed(lab.must("status", "--metrics").data["text"])
    moving = {"backfill_product_freshness_seconds"}
    assert {name: one for name, one in again.items() if name not in moving} == {
        name: one for name, one in found.items() if name not in moving
    }
