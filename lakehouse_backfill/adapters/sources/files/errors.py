"""Errors of files: which of them a retry may mend is in their type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse_backfill.errors import Blocked, RejectedInput, SourceDown

_FIX = "check the folder and the rights to read it, then give the command again"
#: The part of a parser's text from its first quote of the file on: a value can hold quotes itself.
_VALUES = re.compile(r"['\"].*|(?<=got \d:).*|(?<=got \d\d:).*|(?<=: )-?\d.*", re.DOTALL)
_MAX_REASON = 300


def source_down(problem: str) -> SourceDown:
    """Build the error for a folder that does not answer; a retry may help."""
    return SourceDown(problem, state="what was landed before it stays", fix=_FIX)


def unreadable_name(folder: str) -> Blocked:
    """Build the error for a folder with a name that is no text."""
    return Blocked(
        f"a name in {folder} is no UTF-8",
        state="nothing was landed",
        fix="rename the file, then give the command again",
    )


def bad_file(path: str, problem: str) -> RejectedInput:
    """Build the error for a file that is rejected; a retry meets the same file."""
    return RejectedInput(
        f"{path}: {problem}",
        state="no row of the file was landed",
        fix="have the producer deliver it again",
    )


def unparsable_file(path: str, error: Exception) -> RejectedInput:
    """Build the error for a file that its parser refuses; values of the file are not quoted."""
    text = " ".join(str(error).split())
    return bad_file(path, _VALUES.sub("…", text)[:_MAX_REASON] or type(error).__name__)


@contextmanager
def translate_store_errors(path: str) -> Iterator[None]:
    """Translate errors of the store into SourceDown."""
    try:
        yield
    except OSError as error:
        raise source_down(f"{path} cannot be read: {error}") from error
