"""Exported metrics while the control tables cannot be read."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.request import urlopen

import pytest

from lakehouse_backfill.adapters.prometheus import output
from lakehouse_backfill.domain.monitoring.metrics import MetricsExport
from lakehouse_backfill.errors import CatalogDown
from lakehouse_backfill.wiring.metrics import ExportedMetrics
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.steps import approved_run


@pytest.mark.req("O1")
def test_the_last_numbers_stay_while_the_control_tables_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_SECONDS_BETWEEN_READS", 0.0)
    found = context(lake())
    run = approved_run(found, declared())
    file = tmp_path / "backfill.prom"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def away(**_: object) -> None:
        raise CatalogDown("the catalog is away", fix="try again")

    with ExportedMetrics(found, MetricsExport(file=str(file), port=port)) as metrics:
        metrics.export_once()
        before = file.read_text()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert run in answer.read().decode()
        monkeypatch.setattr(found.runs, "list", away)
        metrics.export_once()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert run in answer.read().decode()
    assert run in before
    assert file.read_text() == before
    assert list(metrics.problems) == ["the metrics could not be read: the catalog is away"]
