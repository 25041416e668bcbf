"""Metrics of a lake while a command works, and once more when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.prometheus.output import PrometheusOutput
from lakehouse_backfill.core.monitoring.metrics import collect_metrics
from lakehouse_backfill.domain.monitoring.metrics import MetricSample, MetricsExport
from lakehouse_backfill.errors import BackfillError, text_of

if TYPE_CHECKING:
    from lakehouse_backfill.core.runs.context import Context

#: While a command works, file and Pushgateway get new numbers so often.
SECONDS_BETWEEN_EXPORTS = 15.0


class ExportedMetrics:
    """Exports metrics until the block ends, and then once more; failures are only collected."""

    def __init__(self, context: Context, export: MetricsExport) -> None:
        self._context = context
        self._export = export
        self._output = PrometheusOutput()
        self._is_over = Event()
        self._thread = Thread(target=self._repeat, name="metrics", daemon=True)
        self._stop_serving: Callable[[], None] = lambda: None
        #: What went wrong, each sentence once.
        self.problems: dict[str, None] = {}

    def __enter__(self) -> ExportedMetrics:
        if self._export.port is not None:
            problem, self._stop_serving = self._output.serve(self._collected, self._export)
            self._note(problem)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._stop_serving()
        self.export_once()

    def export_once(self) -> str:
        """Write and push the metrics as of now; return them as text.

        While they cannot be read, file and Pushgateway keep the last ones.
        """
        samples = self._collected()
        if samples is None:
            return self._output.text(())
        if self._export.file is not None:
            self._note(self._output.write(samples, self._export.file))
        if self._export.push is not None:
            self._note(self._output.push(samples, self._export))
        return self._output.text(samples)

    def _repeat(self) -> None:
        if self._export.file is None and self._export.push is None:
            return
        while not self._is_over.wait(SECONDS_BETWEEN_EXPORTS):
            self.export_once()

    def _collected(self) -> tuple[MetricSample, ...] | None:
        """Return the metrics; None, and a problem, while they cannot be read."""
        try:
            return collect_metrics(self._context)
        except BackfillError as error:
            self._note(f"the metrics could not be read: {error.problem}")
        except Exception as error:  # noqa: BLE001 (metrics fail no command)
            self._note(f"the metrics could not be read: {text_of(error)}")
        return None

    def _note(self, problem: str) -> None:
        if problem and problem not in self.problems:
            self.problems[problem] = None
            self._context.journal.log("metrics not exported", problem=problem)
