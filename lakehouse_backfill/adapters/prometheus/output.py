"""Metrics by prometheus-client: a text file, a push to a Pushgateway, a port to scrape."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from urllib.parse import unquote, urlsplit

from prometheus_client import CollectorRegistry, generate_latest, push_to_gateway, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import basic_auth_handler, default_handler
from prometheus_client.registry import Collector

from lakehouse_backfill.domain.monitoring.metrics import (
    DEFINITIONS,
    MetricDefinition,
    MetricSample,
    MetricsExport,
)
from lakehouse_backfill.errors import text_of
from lakehouse_backfill.ports.system import MetricsOutput

#: The control tables are read at most so often, however often somebody scrapes.
_SECONDS_BETWEEN_READS = 2.0


class PrometheusOutput(MetricsOutput):
    """Writes, pushes and serves metrics; nothing of it fails a command."""

    def text(self, samples: tuple[MetricSample, ...]) -> str:
        """Return the samples in the text format of Prometheus."""
        return generate_latest(_registry(lambda: samples)).decode()

    def write(self, samples: tuple[MetricSample, ...], file: str) -> str:
        """Replace a text file at once, so that a collector never reads a part of it."""
        path = Path(file)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(self.text(samples), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            return f"the metrics were not written to {file}: {error.strerror or text_of(error)}"
        return ""

    def push(self, samples: tuple[MetricSample, ...], export: MetricsExport) -> str:
        """Replace the job's metrics at a Pushgateway; user and password of its address log in."""
        address, timeout = export.push or "", export.timeout_seconds
        where = _without_secrets(address)
        if not where:
            return "the metrics were not pushed: the address is no http(s) address"
        try:
            registry, (plain, handler) = _registry(lambda: samples), _login(address)
            push_to_gateway(plain, export.job, registry, timeout=timeout, handler=handler)
        except Exception as error:  # noqa: BLE001 (whatever a gateway does fails no command)
            # The error's text may hold the address, with its password.
            reason = getattr(error, "reason", None) or type(error).__name__
            return f"the metrics were not pushed to {where}: {reason}"
        return ""

    def serve(
        self, collect: Callable[[], tuple[MetricSample, ...] | None], export: MetricsExport
    ) -> tuple[str, Callable[[], None]]:
        """Answer scrapes from now on, in a thread of this process."""
        port = export.port or 0
        registry = _registry(_Cached(collect).samples)
        try:
            server, thread = start_http_server(port, export.address, registry)
        except OSError as error:
            text = error.strerror or text_of(error)
            return f"no metrics at {export.address}:{port}: {text}", lambda: None

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return "", stop


class _Cached:
    """Metrics that are read again after a pause; the last ones while they cannot be read."""

    def __init__(self, collect: Callable[[], tuple[MetricSample, ...] | None]) -> None:
        self._collect = collect
        self._lock = Lock()
        self._read_at = -_SECONDS_BETWEEN_READS
        self._samples: tuple[MetricSample, ...] = ()

    def samples(self) -> tuple[MetricSample, ...]:
        with self._lock:
            if time.monotonic() - self._read_at >= _SECONDS_BETWEEN_READS:
                found = self._collect()
                self._samples = self._samples if found is None else found
                self._read_at = time.monotonic()
            return self._samples


class _Samples(Collector):
    """Hands samples to prometheus-client, grouped by metric."""

    def __init__(self, collect: Callable[[], tuple[MetricSample, ...]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry would collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, also those without a sample."""
        found = self._collect()
        for definition in DEFINITIONS.values():
            yield _family(definition, [one for one in found if one.name == definition.name])


def _registry(collect: Callable[[], tuple[MetricSample, ...]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Samples(collect))
    return registry


def _family(definition: MetricDefinition, samples: list[MetricSample]) -> Metric:
    named = (definition.name, definition.meaning)
    if definition.kind == "histogram":
        histogram = HistogramMetricFamily(*named, labels=definition.labels)
        for one in samples:
            buckets = _buckets(definition.bounds, one.observations)
            histogram.add_metric(one.labels, buckets, sum(one.observations))
        return histogram
    make = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
    family = make(*named, labels=definition.labels)
    for one in samples:
        family.add_metric(one.labels, one.value)
    return family


def _buckets(bounds: tuple[float, ...], observed: tuple[float, ...]) -> list[tuple[str, float]]:
    counted = [(str(bound), float(sum(each <= bound for each in observed))) for bound in bounds]
    return [*counted, ("+Inf", float(len(observed)))]


def _login(address: str) -> tuple[str, Callable[..., Callable[[], None]]]:
    """Return an address without user and password, and what sends them as a header."""
    parts = urlsplit(address)
    user, _, host = parts.netloc.rpartition("@")
    if not user:
        return address, default_handler
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    handler = partial(basic_auth_handler, username=name, password=password)
    return parts._replace(netloc=host).geturl(), handler


def _without_secrets(address: str) -> str:
    """Return an address without user and password; empty when it is no http(s) address."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
