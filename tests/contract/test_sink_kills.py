"""SIGKILL between "about to send" and "sent": no receiver acts twice on a message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: Sends one message of one run in a process of its own; prints how that ended.
SENDER = """
import dataclasses, json, os, signal, sys
from pathlib import Path
from lakehouse_backfill.adapters.system.hooks import LocalHooks
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.guards.outside.effect_log import recorded_messages
from lakehouse_backfill.core.staging.sinks import RunSinks
from lakehouse_backfill.errors import BackfillError
from lakehouse_backfill.fault_points import install_hook, watch_ports
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import control_ports

folder, address, is_idempotent, moment, reason = json.loads(sys.argv[1])
sink = {"name": "crm", "type": "ticket", "webhook": address, "idempotent": is_idempotent}
found = context(
    lake(), hooks=LocalHooks(Path(folder)),
    evidence=control_ports(catalog_of(Path(folder))).evidence,
)
plans = []
for name in ("first", "second"):  # the runs are the same ones in each process
    wanted = declared(
        contract=contract(sinks=[sink], roles={"approve": ["ana"]}),
        safety={"sinks": {"crm": "dedupe"}}, run={"reason": name},
    )
    plans.append(register_plan(found, make_plan(found, wanted, "bob", None), "bob")[0])
plan = plans[0] if reason == "first" else plans[1]
seen = []
def kill(point):
    seen.append(point)
    if f"{point} {seen.count(point)}" == moment:
        os.kill(os.getpid(), signal.SIGKILL)
install_hook(kill)
try:
    RunSinks(watch_ports(found), plan, 0).send("crm", "order-1", {"text": "late"})
    ended = "done"
except BackfillError as error:
    ended = error.code
print(json.dumps([ended, [one["outcome"] for one in recorded_messages(found, plan.run_id)]]))
"""


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
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.address = f"http://127.0.0.1:{server.server_port}/"
    yield
    server.shutdown()
    server.server_close()


def send(
    folder: Path, receiver: Receiver, *, idempotent: bool, moment: str = "", run: str = "first"
) -> Any:
    """Send from a process of its own; return how it ended, None when it was killed."""
    said = json.dumps([str(folder), receiver.address, idempotent, moment, run])
    process = subprocess.Popen(
        [sys.executable, "-c", SENDER, said], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    receiver.sender = process.pid
    out, _ = process.communicate(timeout=120)
    if process.returncode == -signal.SIGKILL:
        return None
    assert process.returncode == 0
    return json.loads(out)


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
