"""Requests of a webhook that are acknowledged and not landed yet: one durable file for each."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from lakehouse_backfill.errors import Conflict, SourceDown
from lakehouse_backfill.fault_points import commit_window

_NAME = re.compile(r"([0-9]{20})\.json")


class ReceivedRequest(NamedTuple):
    """A request as it came; numbers rise in the order in which requests were kept."""

    number: int
    delivery: str | None
    body: str
    received_at: datetime


class RequestSpool:
    """The folder of one receiver on this machine; its id tells it from folders of other ones."""

    def __init__(self, folder: Path) -> None:
        """Open the folder for this process alone, until `close`.

        Raises Conflict when another process has it, SourceDown when it cannot be written.
        """
        self._folder = folder
        self._lock: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("a")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self.close()
                raise Conflict(
                    f"another process has the received requests in {folder}",
                    state="nothing was landed by this one",
                    fix="stop the other receiver, or let it go on",
                ) from error
            for left_over in folder.glob("*.tmp"):
                left_over.unlink()
            self.spool_id = self._read_id()
            waiting = self.waiting()
            self._newest = max(waiting, default=0)
            #: Of the newest number and the count: two threads change them.
            self._count, self._counting = len(waiting), threading.Lock()
        except OSError as error:
            self.close()
            raise SourceDown(
                f"requests cannot be kept in {folder}: {error}",
                state="nothing was received",
                fix="check the folder and its disk, then give the command again",
            ) from error

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            self._lock.close()

    def waiting(self) -> list[int]:
        """Return the numbers of the requests that are kept, in order."""
        names = (_NAME.fullmatch(name) for name in os.listdir(self._folder))  # noqa: PTH208 (names are enough)
        return sorted(int(name.group(1)) for name in names if name)

    def count(self) -> int:
        """Return how many requests wait, without a look at the folder."""
        return self._count

    def read(self, numbers: list[int]) -> Iterator[ReceivedRequest]:
        """Yield requests that are kept."""
        for number in numbers:
            found = json.loads(self._path(number).read_text("utf-8"))
            at = datetime.fromisoformat(found["received_at"])
            yield ReceivedRequest(number, found["delivery"], found["body"], at)

    def number_after(self, landed: int) -> None:
        """Give the next request a number above `landed`, the highest one that was landed."""
        with self._counting:
            self._newest = max(self._newest, landed)

    def keep(self, body: str, delivery: str | None, at: datetime) -> int:
        """Keep a request durably, and return its number; one thread at a time.

        Raises OSError: then nothing is kept.
        """
        # Not given again after an error either: the file may be there, and be landed.
        with self._counting:
            self._newest = number = self._newest + 1
        text = json.dumps({"delivery": delivery, "received_at": at.isoformat(), "body": body})
        with commit_window("RequestSpool.keep"):
            self._write(self._path(number), text)
            self._add(1)
        return number

    def drop(self, through: int) -> None:
        """Delete the requests with numbers up to `through`, which are landed."""
        with commit_window("RequestSpool.drop"):
            for number in self.waiting():
                if number <= through:
                    self._path(number).unlink()
                    self._add(-1)

    def _add(self, number: int) -> None:
        with self._counting:
            self._count += number

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020d}.json"

    def _read_id(self) -> str:
        path = self._folder / "id"
        if not path.exists():
            self._write(path, uuid4().hex)
        return path.read_text("utf-8")

    def _write(self, path: Path, text: str) -> None:
        """Write a file that is there whole or not at all, also after a power failure."""
        unfinished = path.with_suffix(".tmp")
        try:
            with unfinished.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
