"""Metrics as a real Prometheus reads them: scraped from a run, pushed to a Pushgateway, by file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from lakehouse_backfill.adapters.prometheus.output import PrometheusOutput
from lakehouse_backfill.domain.monitoring.metrics import DEFINITIONS, MetricSample, MetricsExport
from tests.stack.servers import HOST, MAKE, PATIENCE_S, TOOLS, Server, free_port, missing

RUN = {"product": "silver.a", "run": 'bf-"1"', "mode": "backfill"}
DONE, SECONDS = "backfill_chunks_completed_total", "backfill_chunk_duration_seconds"
SAMPLES = (
    MetricSample(DONE, tuple(RUN.values()), 12),
    MetricSample(SECONDS, tuple(RUN.values()), 0, (0.5, 2.0, 9999.0)),
)
OUTPUT = PrometheusOutput()


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(TOOLS / "prometheus" / "usr" / "bin"))
    if found is None:
        missing(name, f"run `{MAKE}` on Debian or Ubuntu, or install it")
    return str(found)


@dataclass(frozen=True)
class Monitored:
    """A Prometheus that scrapes a Pushgateway and a port of this process."""

    gateway: str
    port: int
    prometheus: str

    def ask(self, query: str) -> dict[tuple[str, ...], float]:
        """Values by the labels product, run and mode, as soon as there is one."""
        end = time.monotonic() + PATIENCE_S
        address = f"{self.prometheus}/api/v1/query?{urlencode({'query': query})}"
        while True:
            rows = []
            # Until it has read what it stored, it answers 503.
            with suppress(HTTPError), urlopen(address, timeout=10) as answer:
                rows = json.load(answer)["data"]["result"]
            if rows or time.monotonic() > end:
                break
            time.sleep(0.1)
        return {tuple(row["metric"].get(n) for n in RUN): float(row["value"][1]) for row in rows}


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[Monitored]:
    names = ("gateway", "backfill", "prometheus")
    ports = {name: free_port() for name in names}
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
        "scrape_configs": [
            {
                "job_name": name, "honor_labels": True,
                "static_configs": [{"targets": [f"{HOST}:{ports[name]}"]}],
            }
            for name in names[:2]
        ],
    }  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    listen = "--web.listen-address={}:{}".format
    pushed = [program("prometheus-pushgateway"), listen(HOST, ports["gateway"])]
    stored = [program("prometheus"), listen(HOST, ports["prometheus"])]
    stored += ["--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    servers = [
        Server(pushed, (ports["gateway"],), tmp_path / "gateway.log"),
        Server(stored, (ports["prometheus"],), tmp_path / "prometheus.log"),
    ]
    for server in servers:
        server.start()
    uris = [f"http://{HOST}:{ports[name]}" for name in ("gateway", "prometheus")]
    yield Monitored(uris[0], ports["backfill"], uris[1])
    for server in servers:
        server.stop()


@pytest.mark.req("O1")
@pytest.mark.skipif(sys.platform != "linux", reason="the programs are packages of Debian, Ubuntu")
def test_prometheus_stores_what_is_scraped_pushed_and_written(
    monitored: Monitored, tmp_path: Path
) -> None:
    export = MetricsExport(port=monitored.port, push=monitored.gateway, job="nightly")
    problem, stop = OUTPUT.serve(lambda: SAMPLES, export)
    assert problem == ""
    assert OUTPUT.push(SAMPLES, export) == ""
    run = tuple(RUN.values())
    for job in ("backfill", "nightly"):
        assert monitored.ask(f'{DONE}{{job="{job}"}}') == {run: 12}
        assert monitored.ask(f'{SECONDS}_bucket{{job="{job}", le="2.5"}}') == {run: 2}
        assert monitored.ask(f'{SECONDS}_sum{{job="{job}"}}') == {run: 10001.5}
    stop()
    # A push replaces what the job had pushed before.
    assert OUTPUT.push(SAMPLES[1:], export) == ""
    with urlopen(f"{monitored.gateway}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    assert [line for line in lines if line.startswith(f"{DONE}{{")] == []
    file = tmp_path / "backfill.prom"
    assert OUTPUT.write(SAMPLES, str(file)) == ""
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"],
        stdin=file.open("rb"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    # It exits with 3 for advice on names and help texts, with 1 for what it cannot read.
    assert checked.returncode in (0, 3), checked.stderr
    assert {
        name for name in DEFINITIONS if f"# TYPE {name}" not in file.read_text("utf-8")
    } == set()
