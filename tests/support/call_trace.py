"""Which files of the package a call enters, and how many stand on one stack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lakehouse_backfill

PACKAGE = str(Path(lakehouse_backfill.__file__).parent)


class CallTrace:
    """The package's files that calls entered; modules that are only imported do not count."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, int]] = set()
        #: The stack that goes through the most files in a row, outermost first.
        self.longest: tuple[str, ...] = ()

    def enter(self, frame: FrameType) -> None:
        code = frame.f_code
        if not _is_module(code.co_filename):
            return
        chain: list[str] = []
        current: FrameType | None = frame
        while current is not None:
            name = current.f_code.co_filename
            if _is_module(name):
                if current.f_code.co_name == "<module>":
                    return  # bodies of classes, and decorators, that run while a module is imported
                if not chain or chain[-1] != name:
                    chain.append(name)
            current = current.f_back
        self.files.add(code.co_filename)
        self.functions.add((code.co_filename, code.co_firstlineno))
        if len(chain) > len(self.longest):
            self.longest = tuple(reversed(chain))

    def chain(self) -> str:
        return " > ".join(str(Path(name).relative_to(PACKAGE)) for name in self.longest)


def _is_module(name: str) -> bool:
    """Templates of a page run as code too, and are left out."""
    return name.startswith(PACKAGE) and name.endswith(".py")


@contextmanager
def traced() -> Iterator[CallTrace]:
    trace = CallTrace()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            trace.enter(frame)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
