"""Calling hooks: real programs and a real HTTP server."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.system.hooks import LocalHooks
from lakehouse_backfill.domain.guards.outside import Hook

pytestmark = pytest.mark.req("U15")
MESSAGE = {"product": "silver.daily", "idempotency_key": "t-1"}


def _program(code: str, **more: Any) -> Hook:
    return Hook(name="h", on="after_publish", command=(sys.executable, "-c", code), **more)


def test_a_program_gets_the_message_on_stdin_in_the_projects_folder(tmp_path: Path) -> None:
    call = LocalHooks(tmp_path).call(
        _program("import sys; open('got.json', 'w').write(sys.stdin.read()); print('told')"),
        MESSAGE,
    )
    assert (call.is_ok, call.detail) == (True, "exit code 0: told")
    assert json.loads((tmp_path / "got.json").read_text()) == MESSAGE


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    call = LocalHooks(tmp_path).call(_program("import sys; sys.exit('no queue')"), MESSAGE)
    assert (call.is_ok, call.detail) == (False, "exit code 1: no queue")


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    call = LocalHooks(tmp_path).call(
        _program("import time; time.sleep(60)", timeout_seconds=0.5), MESSAGE
    )
    assert (call.is_ok, call.detail) == (False, "no end after 0.5 s; it was killed")


def test_a_program_that_is_not_there_is_an_outcome_and_no_crash(tmp_path: Path) -> None:
    hook = Hook(name="h", on="on_halt", command=("no-such-program-here",))
    call = LocalHooks(tmp_path).call(hook, MESSAGE)
    assert (call.is_ok, call.detail.split(":")[0]) == (False, "no-such-program-here cannot be run")


class _Server(BaseHTTPRequestHandler):
    got: list[tuple[str | None, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.got.append((self.headers.get("Authorization"), body))
        self.send_response({"/ok": 204, "/moved": 302, "/gate": 504}.get(self.path, 500))
        self.send_header("Location", "/ok")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str | None, str]]]]:
    _Server.got = []
    found = HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}", _Server.got
    found.shutdown()
    found.server_close()


def test_a_webhook_is_one_post_with_its_token(server, tmp_path, monkeypatch) -> None:
    url, got = server
    monkeypatch.setenv("HOOK_TOKEN", "s3cret")
    hook = Hook(name="h", on="after_publish", webhook=f"{url}/ok", token_env="HOOK_TOKEN")
    call = LocalHooks(tmp_path).call(hook, MESSAGE)
    assert (call.is_ok, call.detail) == (True, "HTTP 204")
    assert [(who, json.loads(body)) for who, body in got] == [("Bearer s3cret", MESSAGE)]


@pytest.mark.parametrize(
    ("path", "said"),
    [("/broken", "HTTP 500"), ("/moved", "HTTP 302"), ("/gate", "HTTP 504")],
    ids=["500", "redirect", "gateway"],
)
def test_a_webhook_that_does_not_say_yes_has_failed(path, said, server, tmp_path) -> None:
    hook = Hook(name="h", on="after_publish", webhook=server[0] + path)
    call = LocalHooks(tmp_path).call(hook, MESSAGE)
    assert (call.is_ok, call.detail) == (False, said)
    assert call.may_have_arrived is (path == "/gate")
    assert len(server[1]) == 1


def test_a_webhook_that_nobody_answers_has_failed(tmp_path: Path) -> None:
    hook = Hook(name="h", on="after_publish", webhook="http://127.0.0.1:9/", timeout_seconds=2)
    call = LocalHooks(tmp_path).call(hook, MESSAGE)
    assert (call.is_ok, call.may_have_arrived) == (False, False)
    assert call.detail.startswith("no answer")


def test_a_token_that_is_not_set_is_said_before_anything_is_sent(server, tmp_path) -> None:
    hook = Hook(name="h", on="on_halt", webhook=f"{server[0]}/ok", token_env="NOT_SET_ANYWHERE")
    call = LocalHooks(tmp_path).call(hook, MESSAGE)
    assert (call.is_ok, server[1]) == (False, [])
    assert "NOT_SET_ANYWHERE" in call.detail


class _Garbage(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.wfile.write(b"no http\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        pass


def test_a_webhook_that_answers_no_http_is_an_outcome_and_no_crash(tmp_path: Path) -> None:
    found = HTTPServer(("127.0.0.1", 0), _Garbage)
    threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
    hook = Hook(name="h", on="on_halt", webhook=f"http://127.0.0.1:{found.server_port}/")
    call = LocalHooks(tmp_path).call(hook, MESSAGE)
    found.shutdown()
    found.server_close()
    assert (call.is_ok, call.detail) == (False, "no HTTP answer: BadStatusLine")
    assert call.may_have_arrived  # it was sent, and nobody said what became of it


@pytest.mark.parametrize(
    "what",
    [{"webhook": "http://[::1"}, {"webhook": "http://a b/"}, {"command": ("a\0b",)}],
    ids=["no address", "spaces", "null byte"],
)
def test_what_can_never_be_called_is_an_outcome_and_no_crash(what, tmp_path) -> None:
    assert not LocalHooks(tmp_path).call(Hook(name="h", on="on_halt", **what), MESSAGE).is_ok


def test_a_token_that_cannot_be_sent_is_never_told(tmp_path, monkeypatch) -> None:
    """What a hook says becomes evidence, and a header's error quotes its value."""
    monkeypatch.setenv("HOOK_TOKEN", "s3cret\nwith a line break")
    hook = Hook(name="h", on="on_halt", webhook="http://127.0.0.1:9/", token_env="HOOK_TOKEN")
    call = LocalHooks(tmp_path).call(hook, MESSAGE)
    assert not call.is_ok
    assert "s3cret" not in call.detail
    assert "HOOK_TOKEN" in call.detail
