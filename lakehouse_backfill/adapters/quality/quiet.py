"""Threads of this process that write nothing to its terminal, while all others do."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, TextIO, cast

_LOCK = threading.Lock()
#: The threads that are quiet, each with how often it asked to be.
_QUIET: Counter[int] = Counter()
#: Puts back what the first of them changed, once the last one is done.
_CHANGES = ExitStack()


class _Filtered:
    """A stream that drops the text of quiet threads."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or StringIO()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() in _QUIET else self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def quiet_thread(logger: str) -> Iterator[None]:
    """Drop what the caller's thread writes to stdout and stderr; other threads are heard.

    Warnings of Python and what `logger` logs are of the whole process: none is shown meanwhile.
    Threads may overlap in any order.
    """
    thread = threading.get_ident()
    with _LOCK:
        if not _QUIET:
            _change(logging.getLogger(logger))
        _QUIET[thread] += 1
    try:
        yield
    finally:
        with _LOCK:
            _QUIET[thread] -= 1
            if not _QUIET[thread]:
                del _QUIET[thread]
            if not _QUIET:
                _CHANGES.close()


def _change(logger: logging.Logger) -> None:
    _CHANGES.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.CRITICAL)
    _CHANGES.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    _CHANGES.enter_context(redirect_stdout(cast("TextIO", _Filtered(sys.stdout))))
    _CHANGES.enter_context(redirect_stderr(cast("TextIO", _Filtered(sys.stderr))))
