"""A process that appends a row to one day at a fixed pace until it is told to stop."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from pyiceberg.exceptions import CommitFailedException

from tests.support.lakes.tables import Kit, row


def main() -> None:
    root, day, per_second = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    kit, done, stop = Kit(root), 0, threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    while not stop.is_set():
        started = time.monotonic()
        try:
            kit.append(row(1000 + done, day, "live"))
            done += 1
        except CommitFailedException:
            pass  # The publication was faster: the next turn appends.
        if done == 1:
            print("ready", flush=True)  # noqa: T201 (the protocol)
        stop.wait(max(0.0, 1 / per_second - (time.monotonic() - started)))
    print(done, flush=True)  # noqa: T201 (the protocol)


if __name__ == "__main__":
    main()
