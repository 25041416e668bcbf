"""Files by credentials that a catalog hands out for one table and a short time.

PyIceberg gets them with the table and keeps them as long as it is loaded. Here they are renewed
before they end, so that a commit may take longer than they last.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO, InputFile, OutputFile

if TYPE_CHECKING:
    from pyiceberg.typedef import Properties

#: When the credentials of each kind of store end, in milliseconds since 1970.
_ENDS = re.compile(
    r"s3\.session-token-expires-at-ms|gcs\.oauth2\.token-expires-at"
    r"|adls\.sas-token-expires-at-ms(\..*)?"
)
#: What only a catalog that hands out credentials says of a table.
_HANDED_OUT = re.compile(
    r"s3\.(access-key-id|session-token)|gcs\.oauth2\.token|adls\.sas-token(\..*)?"
)
#: They are renewed so long before they end, or when half of their time is over.
_MARGIN_S = 300.0
#: Of those that do not say when they end. The shortest that Amazon gives last 15 minutes.
_UNSAID_S = 600.0
#: Between two attempts to renew them.
_PAUSE_S = 1.0


def handed_out(properties: Properties, own: Properties) -> Properties:
    """Return the credentials of a table's files that are not those of the profile."""
    return {
        key: text
        for key, text in properties.items()
        if own.get(key) != text and (_ENDS.fullmatch(key) or _HANDED_OUT.fullmatch(key))
    }


class RenewedFiles(FileIO):
    """Files of one table, by credentials that are loaded again before they end."""

    def __init__(
        self, first: FileIO, load: Callable[[], FileIO], clock: Callable[[], float] = time.time
    ) -> None:
        """Begin with the table's own files; `load` gives them by new credentials."""
        self._load, self._clock, self._lock = load, clock, Lock()
        #: When they end and are renewed, on the clock.
        self._ends: float | None = None
        self._renew_at = 0.0
        self._take(first)

    def current(self) -> FileIO:
        """Return the files by credentials that are good for a while.

        As long as the old ones are good, a catalog that does not answer is no error; else its
        error is raised.
        """
        with self._lock:
            now = self._clock()
            if now >= self._renew_at:
                self._renew_at = now + _PAUSE_S
                try:
                    self._take(self._load())
                except Exception:
                    if self._ends is not None and now >= self._ends:
                        raise
            return self._files

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return self.current().new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return self.current().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self.current().delete(location)

    def _take(self, files: FileIO) -> None:
        super().__init__(files.properties)
        now, self._files = self._clock(), files
        ends = [
            int(text) / 1000
            for key, text in files.properties.items()
            if _ENDS.fullmatch(key) and text.isdecimal()
        ]
        self._ends = min(ends, default=None)
        good_s = _UNSAID_S if self._ends is None else self._ends - now
        # A server whose clock is behind is not asked for each file.
        self._renew_at = now + (good_s - min(_MARGIN_S, good_s / 2) if good_s > 0 else _PAUSE_S)


def plain_files(files: FileIO) -> FileIO:
    """Return the library's own files, for what only they can do."""
    return files.current() if isinstance(files, RenewedFiles) else files
