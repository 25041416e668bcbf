"""The text format, read back by the parser of prometheus-client; files, pushes and scrapes."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakehouse_backfill.adapters.prometheus.output import PrometheusOutput
from lakehouse_backfill.domain.monitoring.metrics import DEFINITIONS, MetricSample, MetricsExport

pytestmark = pytest.mark.req("O1")
RUN = ("silver.a", 'bf-"1"', "backfill")
SAMPLES = (
    MetricSample("backfill_output_records_total", RUN, 12),
    MetricSample("backfill_chunk_duration_seconds", RUN, 0, (0.5, 2.0, 9999.0)),
    MetricSample("backfill_open_runs", ("silver.a", "staging", "replay"), 3),
)
OUTPUT = PrometheusOutput()


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found


def test_the_text_holds_every_value_with_its_labels() -> None:
    found = parsed(OUTPUT.text(SAMPLES))
    labels = {"product": "silver.a", "run": 'bf-"1"', "mode": "backfill"}
    assert found["backfill_output_records_total"] == [(labels, 12)]
    assert found["backfill_open_runs"] == [
        ({"product": "silver.a", "state": "staging", "mode": "replay"}, 3)
    ]
    assert found["backfill_chunk_duration_seconds_sum"] == [(labels, 10001.5)]
    buckets = {one["le"]: n for one, n in found["backfill_chunk_duration_seconds_bucket"]}
    assert (buckets["0.5"], buckets["2.5"], buckets["3600.0"], buckets["+Inf"]) == (1, 2, 2, 3)


def test_every_metric_is_declared_with_its_kind_also_without_a_value() -> None:
    families = {each.name: each.type for each in text_string_to_metric_families(OUTPUT.text(()))}
    kinds = {name.removesuffix("_total"): one.kind for name, one in DEFINITIONS.items()}
    assert families == kinds


def test_a_file_is_replaced_as_a_whole_and_a_failure_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "new" / "backfill.prom"
    assert OUTPUT.write(SAMPLES, str(file)) == ""
    assert parsed(file.read_text()) == parsed(OUTPUT.text(SAMPLES))
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert OUTPUT.write(SAMPLES, str(file.parent)).startswith("the metrics were not written")
    assert list(tmp_path.iterdir()) == [file.parent]
    problem = OUTPUT.write(SAMPLES, str(file / "below"))
    assert problem.startswith(f"the metrics were not written to {file}/below")


@contextmanager
def gateway(
    status: int, logins: list[str] | None = None
) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A server that notes what it is sent, and answers with a status."""
    got: list[tuple[str, str, str]] = []
    logins = [] if logins is None else logins

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            login = self.headers.get("Authorization", "")
            got.append((self.command, self.path, body))
            logins.append(login)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_push_replaces_the_metrics_of_the_job() -> None:
    with gateway(200) as (address, got):
        assert OUTPUT.push(SAMPLES, MetricsExport(push=address, job="night")) == ""
    ((verb, path, body),) = got
    assert (verb, path) == ("PUT", "/metrics/job/night")
    assert parsed(body) == parsed(OUTPUT.text(SAMPLES))


def test_user_and_password_of_the_address_log_in() -> None:
    logins: list[str] = []
    with gateway(200, logins) as (address, got):
        assert OUTPUT.push(SAMPLES, MetricsExport(push=address)) == ""
        secret = address.replace("//", "//me:h%40nter2@")
        assert OUTPUT.push(SAMPLES, MetricsExport(push=secret)) == ""
    assert len(got) == 2
    assert logins == ["", f"Basic {base64.b64encode(b'me:h@nter2').decode()}"]


def test_a_gateway_that_fails_is_named_without_its_password() -> None:
    with gateway(500) as (address, _):
        secret = address.replace("//", "//me:hunter2@")
        problem = OUTPUT.push(SAMPLES, MetricsExport(push=secret))
    assert problem.startswith(f"the metrics were not pushed to {address}: ")
    assert "hunter2" not in problem
    assert "no http(s) address" in OUTPUT.push(SAMPLES, MetricsExport(push="ftp://x"))


def test_a_gateway_that_never_answers_is_left_after_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        export = MetricsExport(push=address, timeout_seconds=0.05)
        assert "not pushed" in OUTPUT.push(SAMPLES, export)


def test_scrapes_are_answered_until_that_is_ended() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    problem, stop = OUTPUT.serve(lambda: SAMPLES, MetricsExport(port=port))
    assert problem == ""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert parsed(answer.read().decode()) == parsed(OUTPUT.text(SAMPLES))
    busy, nothing = OUTPUT.serve(lambda: SAMPLES, MetricsExport(port=port))
    nothing()
    stop()
    assert busy.startswith(f"no metrics at 127.0.0.1:{port}")
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
