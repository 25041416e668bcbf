"""SIGKILL between "about to send" and "sent": no receiver acts twice on a message."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sink_sender import send_message
from tests.support.forks import FORKS


class Receiver:
    """Acts on each message; can kill the sender before it answers."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.kills = False
        self.sender = 0
        self.address = ""


@contextmanager
def serving(receiver: Receiver) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.got.append(body["idempotency_key"])
            if receiver.kills:
                os.kill(receiver.sender, signal.SIGKILL)
                return
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    receiver.address = f"http://127.0.0.1:{server.server_port}/"
    yield
    server.shutdown()
    server.server_close()


def send(
    folder: Path, receiver: Receiver, *, idempotent: bool, moment: str = "", run: str = "first"
) -> Any:
    """Send from a process of its own; return how it ended, None when it was killed."""
    said = folder / "said.json"
    work = (folder, receiver.address, idempotent, moment, run, said)
    process = FORKS.Process(target=send_message, args=work)
    process.start()
    receiver.sender = process.pid or 0
    process.join(120)
    if process.exitcode == -signal.SIGKILL:
        return None
    assert process.exitcode == 0
    return json.loads(said.read_text(encoding="utf-8"))


@pytest.mark.in_turn
@pytest.mark.req("E1")
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize(
    ("moment", "arrived"),
    [("Hooks.call:before 1", 0), ("the receiver has it", 1), ("Hooks.call:after 1", 1)],
)
def test_a_message_whose_sender_was_killed_is_sent_again_only_to_an_idempotent_receiver(
    tmp_path: Path, moment: str, arrived: int, idempotent: bool
) -> None:
    receiver = Receiver()
    receiver.kills = not moment.startswith("Hooks")
    with serving(receiver):
        assert send(tmp_path, receiver, idempotent=idempotent, moment=moment) is None
        assert receiver.got == ["order-1"] * arrived
        receiver.kills = False
        again = send(tmp_path, receiver, idempotent=idempotent)
        other = send(tmp_path, receiver, idempotent=idempotent, run="second")
    if idempotent:
        assert (again, other) == (["done", ["sent"]], ["done", ["sent before"]])
        assert receiver.got == ["order-1"] * (arrived + 1)  # with one key
    else:
        assert again == ["outcome-unknown", ["unknown"]]
        assert other == ["outcome-unknown", ["not sent"]]
        assert receiver.got == ["order-1"] * arrived
