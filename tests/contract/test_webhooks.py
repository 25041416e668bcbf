"""A webhook: what was acknowledged is landed once, whatever dies; what it missed is reconciled."""

from __future__ import annotations

import hashlib
import hmac
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.sources.api import receiver
from lakehouse_backfill.adapters.sources.api.spool import RequestSpool
from lakehouse_backfill.errors import ConfigError, Conflict
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.sources import ReceiveResult
from tests.support.forks import FORKS
from tests.support.sources.api import ApiCase, Vendor, serving
from tests.support.sources.case import land, landed_rows

SECRET, VARIABLE = "hook-s3cret", "TRIPS_HOOK_SECRET"
WEBHOOK = f"""\
  webhook: {{secret: {VARIABLE}, delivery_header: X-Delivery, path: /hook, max_body_kib: 4,
            commit_every_s: 0.05, requests_per_commit: 2, max_waiting: 6, records: items}}
"""


@pytest.fixture
def case(tmp_path: Path) -> Iterator[ApiCase]:
    os.environ[VARIABLE] = SECRET
    vendor = Vendor("export")
    with serving(vendor):
        yield ApiCase(tmp_path / "project", vendor, WEBHOOK)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def record(number: int, version: int = 1, city: str = "Rome") -> dict[str, Any]:
    return {
        "id": number, "city": city, "fare": "1.50", "day": "2026-01-01T00:00:00Z",
        "version": version,
    }  # fmt: skip


def body(*records: Any) -> bytes:
    return json.dumps({"items": records}).encode()


def signed(content: bytes, delivery: str | None, secret: str = SECRET) -> dict[str, str]:
    digits = hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
    own = {"X-Delivery": delivery} if delivery else {}
    return {"X-Signature": f"sha256={digits}", **own}


def send(port: int, content: bytes, headers: dict[str, str], path: str = "/hook") -> int:
    """Send a request; return the status of the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, content, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def send_until_answered(port: int, content: bytes, headers: dict[str, str]) -> int:
    for _ in range(600):
        try:
            return send(port, content, headers)
        except OSError:
            time.sleep(0.05)
    raise AssertionError("no receiver answers")


@contextmanager
def receiving(case: ApiCase, port: int, seconds: float = 60) -> Iterator[list[ReceiveResult]]:
    """Run a receiver in a thread; it ends with the block, and gives its result then."""
    found: list[Any] = []
    ended = threading.Event()

    def run() -> None:
        try:
            found.append(Project.open(case.project).receive("trips", port, seconds=seconds))
        except BaseException as error:  # noqa: BLE001 (the test raises it)
            found.append(error)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        thread.join(60)


def changes(case: ApiCase) -> list[tuple[Any, ...]]:
    return sorted(landed_rows(case, "sequence, id, change, city"))


@pytest.mark.req("S5")
def test_what_is_acknowledged_is_landed_and_what_the_webhook_missed_is_reconciled(
    case: ApiCase,
) -> None:
    port = free_port()
    with receiving(case, port, 3) as done:
        first = body(record(1), record(2))
        assert send_until_answered(port, first, signed(first, "a")) == 200
        newer = body(record(1, 3, "Oslo"))
        assert send(port, newer, signed(newer, "b")) == 200
        # A delivery that is sent again, an older version that comes late, the same content again.
        assert send(port, first, signed(first, "a")) == 200
        late = body(record(1, 2, "late"))
        assert send(port, late, signed(late, "c")) == 200
        assert send(port, newer, signed(newer, "d")) == 200
        case.vendor.records = [record(1, 3, "Oslo"), record(3), record(2, 1, "silently other")]
    (result,) = done
    assert isinstance(result, ReceiveResult), result
    assert (result.requests, result.repeated, result.rows, result.waiting) == (4, 1, 3, 0)
    assert changes(case) == [
        (1, 1, "insert", "Rome"), (2, 2, "insert", "Rome"), (3, 1, "update", "Oslo"),
    ]  # fmt: skip
    table = Project.open(case.project).wiring.catalog.load_table(case.table)
    pinned = table.scan(snapshot_id=table.metadata.refs[str(result.tag)].snapshot_id)
    assert pinned.to_arrow().num_rows == 3
    stored = Project.open(case.project).wiring.catalog.load_table(f"{case.table}_responses")
    assert Counter(stored.scan().to_arrow()["body"].to_pylist())[first.decode()] == 1
    assert Project.open(case.project).land("trips", reconcile=True).rows == 2
    assert changes(case)[3:] == [
        (4, 3, "insert", "Rome"), (5, 2, "correction", "silently other"),
    ]  # fmt: skip
    case.vendor.records = case.vendor.records[:1]
    assert Project.open(case.project).land("trips", reconcile=True).rows == 2
    # A late request does not bring a deleted record back, a newer version does.
    with receiving(case, port, 1.5):
        for name, content in (("e", body(record(2))), ("f", body(record(3, 2, "back")))):
            assert send_until_answered(port, content, signed(content, name)) == 200
        assert send(port, first, signed(first, "a")) == 200
    assert changes(case)[5:] == [
        (6, 2, "deletion", "silently other"), (7, 3, "deletion", "Rome"), (8, 3, "insert", "back"),
    ]  # fmt: skip
    case.require_settled()


@pytest.mark.req("S5")
def test_a_request_that_cannot_be_landed_or_is_not_signed_is_not_acknowledged(
    case: ApiCase,
) -> None:
    port, good = free_port(), body(record(1))
    with receiving(case, port, 2) as done:
        assert send_until_answered(port, good, signed(good, "a", "another secret")) == 401
        assert send(port, good, {"X-Delivery": "a"}) == 401
        assert send(port, good, {**signed(good, "a"), "X-Signature": "sha256=é"}) == 401
        assert send(port, good, signed(good, None)) == 400
        assert send(port, good, signed(good, "a" * 201)) == 400
        assert send(port, good, signed(good, "a"), "/other") == 404
        assert send(port, b" " * 5000, signed(b" " * 5000, "a")) == 413
        for bad in (
            b"{", b"\xff", b"[" * 3000, body(7), body({"city": "no id"}), b'{"items": null}',
            body({**record(1), "fare": "secret"}), body({**record(1), "city": {"a": 1}}),
        ):  # fmt: skip
            assert send(port, bad, signed(bad, "a")) == 422, bad
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"POST /hook HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert b" 411 " in raw.recv(100)
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"POST /hook HTTP/1.1\r\nContent-Length: 50\r\n\r\ncut off")
    (result,) = done
    assert (result.requests, result.rows, result.tag) == (0, 0, None)
    assert result.refused == 16


@pytest.fixture
def quick(case: ApiCase, monkeypatch: pytest.MonkeyPatch) -> ApiCase:
    """The case, with room for two connections, and tenths of a second where seconds are waited."""
    monkeypatch.setattr(receiver, "_MAX_CONNECTIONS", 2)
    monkeypatch.setattr(receiver, "_SLOW_S", 0.2)
    monkeypatch.setattr(receiver, "_REQUEST_S", 0.8)
    monkeypatch.setattr(receiver, "_DISCARD_S", 0.3)
    return case


def _trickled(port: int, stopping: threading.Event) -> bytes:
    """Send a head a byte at a time; return what came back before the server left."""
    head = b"POST /hook HTTP/1.1\r\nX-Never: " + b"x" * 10_000
    with socket.create_connection(("127.0.0.1", port)) as raw:
        try:
            for byte in head:
                raw.sendall(bytes([byte]))
                if stopping.wait(0.02):
                    return b"the server did not leave"
        except OSError:
            pass
        return b"left"


def _send_for_ever(raw: socket.socket, chunk: bytes) -> None:
    for _ in range(10_000):
        raw.sendall(chunk)
        time.sleep(0.001)


@pytest.mark.req("S5")
def test_clients_that_trickle_do_not_keep_out_others_and_are_left_after_a_while(
    quick: ApiCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "_REQUEST_S", 3.0)
    port, stopping, good = free_port(), threading.Event(), body(record(1))
    with receiving(quick, port, 3) as done, ThreadPoolExecutor(2) as pool:
        assert send_until_answered(port, good, signed(good, "a")) == 200
        slow = [pool.submit(_trickled, port, stopping) for _ in range(2)]
        time.sleep(0.4)  # both places are taken, by clients that are slow by now
        begun = time.monotonic()
        assert send(port, good, signed(good, "b")) == 200
        assert time.monotonic() - begun < 2  # before a slow one has had its time
        assert [one.result(20) for one in slow] == [b"left"] * 2
        stopping.set()
    assert done[0].requests == 2


@pytest.mark.req("S5")
def test_a_client_that_sends_too_much_sees_why_and_one_that_never_ends_is_left(
    quick: ApiCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The threads of clients that have left may still hold a place.
    monkeypatch.setattr(receiver, "_MAX_CONNECTIONS", 64)
    port, good = free_port(), body(record(1))
    large = b" " * 3_000_000
    twice = b"Content-Length: 2\r\nContent-Length: 5000\r\n"
    with receiving(quick, port, 6) as done:
        assert send_until_answered(port, good, signed(good, "a")) == 200
        assert send(port, large, signed(large, "b")) == 413
        for head, wanted in (
            (b"".join(b"X-%d: 1\r\n" % number for number in range(101)), b" 431 "),
            (b"X-Long: " + b"x" * 70_000 + b"\r\n", b" 431 "),
            (twice, b" 411 "),
            (b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", b" 411 "),
            (b"Content-Length: -1\r\n", b" 411 "),
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
                raw.sendall(b"POST /hook HTTP/1.1\r\n" + head + b"\r\n")
                assert wanted in raw.recv(100), head[:40]
        with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
            raw.sendall(b"POST /hook HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            with pytest.raises(OSError, match=r"reset|pipe"):
                _send_for_ever(raw, b"4\r\nbody\r\n" * 1000)
    assert (done[0].requests, done[0].rows) == (1, 1)


@pytest.mark.req("S5")
def test_requests_wait_durably_while_another_landing_is_open_and_their_number_is_bounded(
    case: ApiCase,
) -> None:
    case.vendor.records = [record(100)]
    case.vendor.faults = [(404, {}, "")]
    with pytest.raises(Exception, match="answers 404"):
        land(case)
    port = free_port()
    contents = [body(record(number)) for number in range(1, 9)]
    with receiving(case, port, 2) as done:
        answers = [
            send_until_answered(port, content, signed(content, f"n{number}"))
            for number, content in enumerate(contents)
        ]
        with pytest.raises(Conflict, match="another process has the received requests"):
            Project.open(case.project).receive("trips", free_port(), seconds=0)
    assert answers == [200] * 6 + [503] * 2
    (result,) = done
    assert (result.rows, result.waiting) == (0, 6)
    assert "is not complete" in result.warnings[-1]
    # The open landing is continued first, then what waits is landed with the next command.
    assert land(case).rows == 1
    case.vendor.records += [record(number) for number in range(1, 7)]
    again = land(case)
    assert again.warnings == ("6 rows of received requests were landed first",)
    assert Counter(row[1] for row in changes(case)) == Counter([100, *range(1, 7)])
    assert not list((case.project / ".lakehouse/received/trips").glob("*.json"))


@pytest.mark.req("S5")
def test_requests_that_were_landed_and_not_dropped_are_not_landed_again(case: ApiCase) -> None:
    declared = case.project / "catalog/sources/trips.yaml"
    declared.write_text(declared.read_text().replace("  version: version\n", ""))
    folder = case.project / ".lakehouse/received/trips"
    spool = RequestSpool(folder)
    for city in ("first", "second"):
        spool.keep(body(record(1, 1, city)).decode(), None, datetime.now(timezone.utc))
    kept = {path: path.read_bytes() for path in folder.glob("*.json")}
    spool.close()
    case.vendor.records = [record(1, 1, "second")]
    for _ in range(2):
        land(case)
        assert [row[2:] for row in changes(case)] == [("insert", "first"), ("update", "second")]
        assert not list(folder.glob("*.json"))
        for path, content in kept.items():  # as a process leaves them that dies before that
            path.write_bytes(content)


@pytest.mark.req("S5")
def test_a_receiver_says_what_it_needs(case: ApiCase, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.open(case.project)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot be listened on"):
            project.receive("trips", taken.getsockname()[1], seconds=0)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigError, match="TRIPS_HOOK_SECRET of api"):
        project.receive("trips", free_port(), seconds=0)
    declared = case.project / "catalog/sources/trips.yaml"
    declared.write_text(declared.read_text().replace(WEBHOOK, ""))
    with pytest.raises(ConfigError, match="declares no webhook"):
        project.receive("trips", free_port(), seconds=0)


def _receive_until(folder: str, port: int, moment: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def kill(point: str) -> None:
        with lock:
            seen[point] += 1
            if f"{point} {seen[point]}" == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    fault_points.install_hook(kill)
    Project.open(Path(folder)).receive("trips", port, seconds=30)


MOMENTS = (
    "RequestSpool.keep:committing 1", "RequestSpool.keep:committed 1",
    "RequestSpool.keep:committed 3",
    "RawTables.ensure:after 1", "RawTables.stage:before 1", "RawTables.stage:after 1",
    "RawTables.commit:committing 1", "RawTables.commit:committed 1",
    "RawTables.commit:committing 2", "RawTables.commit:committed 2",
    "SourceReader.finish:before 1", "RequestSpool.drop:committing 1",
    "RequestSpool.drop:committed 1",
)  # fmt: skip


@pytest.mark.req("S5")
def test_a_receiver_that_is_killed_anywhere_loses_and_doubles_no_acknowledged_request(
    case: ApiCase,
) -> None:
    sent: list[int] = []
    # Two versions of each record; what is not acknowledged is sent again, as a vendor does.
    versions = ((number, version) for number in range(1, 1000) for version in (1, 2))
    waiting = next(versions)
    for moment in MOMENTS:
        port = free_port()
        arguments = (str(case.project), port, moment, dict(os.environ))
        child: Any = FORKS.Process(target=_receive_until, args=arguments)
        child.start()
        if sent:
            # An acknowledged one is sent again after its newer version.
            send_version(child, port, (sent[0] // 10, 1))
        while child.is_alive():
            if send_version(child, port, waiting) == 200:
                sent.append(waiting[0] * 10 + waiting[1])
                waiting = next(versions)
        assert child.exitcode == -signal.SIGKILL, moment
    Project.open(case.project).receive("trips", free_port(), seconds=0)
    landed = Counter((row[1] * 10 + int(row[3][-1])) for row in changes(case))
    assert set(landed.values()) == {1}
    assert set(landed) - {waiting[0] * 10 + waiting[1]} == set(sent)
    assert len(sent) >= 5


def send_version(child: multiprocessing.Process, port: int, one: tuple[int, int]) -> int:
    """Send a version of a record; return the answer, 0 when the receiver died before it."""
    content = body(record(*one, f"city {one[1]}"))
    return answer_of(child, port, content, signed(content, f"{one[0]}-{one[1]}"))


def answer_of(
    child: multiprocessing.Process, port: int, content: bytes, headers: dict[str, str]
) -> int:
    """Return the answer to a request; 0 when the receiver died before it answered."""
    while child.is_alive():
        try:
            return send(port, content, headers)
        except OSError:
            time.sleep(0.02)
    return 0
