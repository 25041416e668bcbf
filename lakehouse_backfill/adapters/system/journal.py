"""Structured logs and spans: JSON lines under `.lakehouse-backfill/logs/`, one file a day.

Every line has the same labels (requirement O2), null where they do not apply, so that a query over
the files needs no case distinction. The mode is never null: it is `none` where no run was at work.
Spans nest, and their ids follow W3C trace context. The trace id is derived from the run id: the
processes that plan, stage and publish one run write one trace.

Values are written as plain JSON without secrets.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime
from pathlib import Path
from typing import Any

from lakehouse_backfill.adapters.system.process import SystemClock
from lakehouse_backfill.domain.monitoring.metrics import NO_RUN, UNKNOWN_RUN
from lakehouse_backfill.ports.system import Clock

HIDDEN_TEXT = "[hidden]"
_SECRET_NAMES = re.compile(
    r"credential|passw(or)?d|passphrase|secret|token|api[-_.]?key|access[-_.]?key|private[-_.]?key|"
    r"authorization|signature",
    re.IGNORECASE,
)
#: `user:password@` of a URI, and the secret query fields of one.
_URI_SECRETS = (
    re.compile(r"(?<=://)[^/\s@]*:[^/\s]*@"),
    re.compile(r"(?<=[?&;])((?:password|token|secret|sig|signature)=)[^&;\s]*", re.IGNORECASE),
)
MAX_TEXT_LENGTH = 4_000


def redact_value(value: Any) -> Any:
    """Return a value as JSON can hold it: secrets hidden, NaN and other types as text."""
    if isinstance(value, Mapping):
        return {str(key): _redact_field(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(inner) for inner in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return _redact_text(str(value))


def _redact_field(name: str, value: Any) -> Any:
    return HIDDEN_TEXT if _SECRET_NAMES.search(name) and value is not None else redact_value(value)


def _redact_text(text: str) -> str:
    for pattern in _URI_SECRETS:
        text = pattern.sub(_hide_match, text)
    if len(text) > MAX_TEXT_LENGTH:
        return f"{text[:MAX_TEXT_LENGTH]}… ({len(text)} characters)"
    return text


def _hide_match(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN_TEXT}" if found.re.groups else f"{HIDDEN_TEXT}@"


LOG_FOLDER = Path(".lakehouse-backfill") / "logs"
LOG_LABELS = (
    "run_id",
    "chunk_id",
    "source_range",
    "transform_version",
    "target",
    "processing_mode",
)
_RESERVED_FIELDS = ("at", "event", "trace_id", "span_id", "parent_id", "seconds", "outcome")
_SPANS: ContextVar[tuple[str, ...]] = ContextVar("lakehouse_backfill_spans", default=())


class JsonJournal:
    """Implements `ports.system.Journal`.

    A line is one append of at most a few kilobytes, so lines of several processes do not mix. If
    the log cannot be written, the work continues and stderr reports it once: a full disk under the
    logs must not stop a publication between its commit and its pointer.
    """

    def __init__(self, project: Path, clock: Clock | None = None) -> None:
        """Log under the folder of a project; the folder is created with the first line."""
        self._folder = project / LOG_FOLDER
        self._clock = clock or SystemClock()
        self._fields: dict[str, Any] = {}
        self._process_trace_id = secrets.token_hex(16)
        self._complaints: list[str] = []

    def bind(self, **fields: Any) -> JsonJournal:
        """Return a journal whose lines all carry `fields`; this one does not change."""
        bound = JsonJournal.__new__(JsonJournal)
        bound.__dict__.update(self.__dict__)
        bound._fields = {**self._fields, **fields}
        return bound

    def log(self, event: str, **fields: Any) -> None:
        """Write one line, inside the current span."""
        spans = _SPANS.get()
        self._write(event, fields, spans[-1] if spans else None, spans[-2] if spans[1:] else None)

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[None]:
        """Write one line when the block ends, with its seconds and outcome; errors pass through."""
        outer, own = _SPANS.get(), secrets.token_hex(8)
        _SPANS.set((*outer, own))
        started, outcome = time.perf_counter(), "ok"
        try:
            yield
        except BaseException as error:
            outcome = getattr(error, "code", None) or type(error).__name__
            fields = {**fields, "problem": getattr(error, "problem", None) or str(error)}
            raise
        finally:
            _SPANS.set(outer)
            took = {"seconds": round(time.perf_counter() - started, 6), "outcome": str(outcome)}
            self._write(name, fields, own, outer[-1] if outer else None, took)

    def _write(
        self,
        event: str,
        fields: dict[str, Any],
        span: str | None,
        parent: str | None,
        took: dict[str, Any] | None = None,
    ) -> None:
        labelled = {**dict.fromkeys(LOG_LABELS), **self._fields, **fields}
        run = labelled["run_id"]
        labelled["processing_mode"] = labelled["processing_mode"] or _mode_without_plan(run)
        envelope = {
            "at": self._clock.now().isoformat(),
            "event": event,
            "trace_id": _trace_id(str(run)) if run else self._process_trace_id,
            "span_id": span,
            "parent_id": parent,
            "seconds": None,
            "outcome": None,
            **(took or {}),
        }
        payload = {
            f"field_{key}" if key in _RESERVED_FIELDS else key: value
            for key, value in labelled.items()
        }
        self._append(
            json.dumps({**envelope, **redact_value(payload)}, ensure_ascii=False, allow_nan=False)
        )

    def _append(self, line: str) -> None:
        path = self._folder / f"{self._clock.now():%Y-%m-%d}.jsonl"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            try:
                os.write(file, f"{line}\n".encode("utf-8", "backslashreplace"))
            finally:
                os.close(file)
        except OSError as error:
            self._complain(f"the log {path} cannot be written: {error.strerror}; work goes on\n")

    def _complain(self, text: str) -> None:
        if not self._complaints:
            self._complaints.append(text)  # shared by all bound journals: written once
            sys.stderr.write(text)


def _mode_without_plan(run_id: str | None) -> str:
    return NO_RUN if run_id is None else UNKNOWN_RUN


def _trace_id(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]
